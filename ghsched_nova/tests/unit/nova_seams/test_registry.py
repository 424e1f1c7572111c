# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Declared seams into Nova, the only ones, and the functions they replace."""

import ast
import pathlib
from unittest import mock

import ddt
from nova import utils

from ghsched_nova.nova_seams import registry
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import threads

TOP = pathlib.Path(__file__).parents[4]
NAME = 'nova.utils.Plain.method'

#: The only module that may set an attribute of Nova's.
DOOR = 'ghsched_nova/nova_seams/registry.py'


class Plain:
    """Stands for a class of Nova."""

    def method(self, *args):
        return ('Nova', *args)

    @staticmethod
    def static(*args):
        return ('Nova', *args)

    @classmethod
    def of_class(cls, *args):
        return (cls.__name__, *args)


def ours(original, *args):
    return 'ours', original(*args)


def other(original, *args):
    return 'other', original(*args)


class ReplaceTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.plain = type('Plain', (), dict(vars(Plain)))
        self.enterContext(mock.patch.object(
            utils, 'Plain', self.plain, create=True))
        names = [f'nova.utils.Plain.{name}'
                 for name in ('method', 'static', 'of_class', 'gone')]
        self.enterContext(mock.patch.object(registry, 'SEAMS', {
            name: registry.Seam(name) for name in names}))
        self.enterContext(mock.patch.object(registry, 'REPLACED', {}))

    def test_function_that_is_replaced_twice_is_called_once(self):
        for function in (ours, ours, other, ours):
            registry.replace_function(NAME, function)
        self.assertEqual(('other', ('ours', ('Nova', 1))),
                         self.plain().method(1))
        self.assertEqual({NAME: (f'{__name__}.ours', f'{__name__}.other')},
                         registry.REPLACED)

    def test_function_of_a_class_is_called_without_an_instance(self):
        for name in ('static', 'of_class'):
            registry.replace_function(f'nova.utils.Plain.{name}', ours)
        for owner in (self.plain, self.plain()):
            self.assertEqual(('ours', ('Nova', 1)), owner.static(1))
            self.assertEqual(('ours', ('Plain', 1)), owner.of_class(1))

    def test_function_of_one_object_is_that_of_others_as_before(self):
        changed, plain = self.plain(), self.plain()
        registry.replace_function(NAME, ours, changed)
        self.assertEqual(('ours', ('Nova', 1)), changed.method(1))
        self.assertEqual(('Nova', 1), plain.method(1))

    def test_function_that_is_gone_is_named(self):
        error = self.assertRaises(registry.IncompatibleNova,
                                  registry.replace_function,
                                  'nova.utils.Plain.gone', ours)
        self.assertIn('nova.utils.Plain.gone', str(error))

    def test_function_that_is_not_declared_is_not_replaced(self):
        self.assertRaises(KeyError, registry.replace_function,
                          'nova.utils.generate_uid', ours)

    def test_replacements_under_native_threads_are_made_once(self):
        self.assertEqual([], threads.stress(
            [lambda _chance, function=function: registry.replace_function(
                NAME, function) for function in (ours, other) * 2], 9))
        self.assertEqual(1, str(self.plain().method()).count('ours'))
        self.assertEqual(1, str(self.plain().method()).count('other'))
        self.assertEqual({f'{__name__}.ours', f'{__name__}.other'},
                         set(registry.REPLACED[NAME]))

    def test_declarations_that_differ_are_refused(self):
        seam = registry.make_seam_decorator(registry.API)
        seam('nova.x', ('a',))(ours)
        registry.make_seam_decorator(registry.COMPUTE)('nova.x', ('a',))(ours)
        self.assertEqual({registry.API, registry.COMPUTE},
                         registry.SEAMS['nova.x'].processes)
        self.assertRaises(ValueError, seam('nova.x', ('b',)), ours)


def set_attributes(source):
    """Yield lines that set an attribute of something imported from Nova."""
    tree = ast.parse(source)
    of_nova = {(alias.asname or alias.name).partition('.')[0]
               for node in ast.walk(tree)
               if isinstance(node, ast.Import | ast.ImportFrom)
               for alias in node.names
               if (getattr(node, 'module', None) or alias.name
                   ).partition('.')[0] == 'nova'}
    for node in ast.walk(tree):
        if (of_nova and isinstance(node, ast.Call)
                and getattr(node.func, 'id', '') in ('setattr', 'delattr')
                and ast.unparse(node.args[0]) != 'self'):
            yield node.lineno
        for target in getattr(node, 'targets', [getattr(
                node, 'target', None)]):
            while isinstance(target, ast.Attribute) and isinstance(
                    target.value, ast.Attribute):
                target = target.value
            if isinstance(target, ast.Attribute) and isinstance(
                    target.value, ast.Name) and target.value.id in of_nova:
                yield node.lineno


@ddt.ddt
class OneDoorTest(base.TestCase):

    @ddt.data(('from nova import policy\npolicy.init = len', [2]),
              ('import nova.conf\nnova.conf.CONF.x = 1', [2]),
              ('from nova import policy\nsetattr(policy, "b", 1)', [2]),
              ('from nova import objects\na = objects.X()\na.b = 1', []))
    @ddt.unpack
    def test_setting_of_an_attribute_is_found(self, source, lines):
        self.assertEqual(lines, list(set_attributes(source)))

    def test_functions_of_nova_are_replaced_by_one_function(self):
        found = {}
        for path in (TOP / 'ghsched_nova').rglob('*.py'):
            name = str(path.relative_to(TOP))
            if name != DOOR and not name.startswith(
                    ('ghsched_nova/tests', 'ghsched_nova/lab')):
                found[name] = list(set_attributes(path.read_text()))
        self.assertEqual({}, {name: lines for name, lines in found.items()
                              if lines})
