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

"""Source of the tempest plugin: keys that it tests, and tempest's rules.

The plugin is read and not imported, as tempest reads its configuration when
a module is imported.
"""

import ast
import pathlib
import re
import uuid

from ghsched_placement.flavor import key_names
from ghsched_placement.tests import base

PLUGIN = pathlib.Path(__file__).parents[4] / 'tempest_plugin'

#: What plugins may import of tempest, as its manual lists it.
STABLE = re.compile(
    r'tempest\.(lib(\..*)?|config|test|clients|test_discover\.plugins'
    r'|scenario\.manager|common\.(credentials_factory|compute|identity|image'
    r'|object_storage))')


def list_modules():
    """Return the syntax tree of each module of the plugin, by path."""
    return {path: ast.parse(path.read_text())
            for path in sorted(PLUGIN.rglob('*.py'))}


def list_tests():
    """Return (module's tree, function) of each test."""
    return [(tree, function) for tree in list_modules().values()
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            and function.name.startswith('test_')]


def list_decorators(function):
    """Return the decorators of a function by name, with their arguments."""
    return {node.func.attr: node for node in function.decorator_list
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)}


def list_keys(node):
    """Return the ghsched keys that are arguments or keys of dictionaries."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, ast.keyword):
            found.add(one.arg)
        elif isinstance(one, ast.Dict):
            found |= {key.value for key in one.keys
                      if isinstance(key, ast.Constant)}
    found = {name.partition('.')[0].removeprefix('ghsched:')
             for name in found if isinstance(name, str)}
    return found & key_names.BY_NAME.keys()


def boots_guest(function):
    """Whether a test boots a server and is not about a refused request."""
    names = {node.attr for node in ast.walk(function)
             if isinstance(node, ast.Attribute)}
    return ('BadRequest' not in names
            and bool(names & {'_boot_server', '_boot_with_vfs'}))


def list_constants(tree, function):
    """Return the values of a module's constants that a function uses."""
    used = {node.id for node in ast.walk(function)
            if isinstance(node, ast.Name)}
    return [statement.value for statement in tree.body
            if isinstance(statement, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id in used
                    for target in statement.targets)]


class KeysTest(base.TestCase):
    """Keys of :data:`key_names.KEYS`."""

    def _find_keys(self, wanted):
        found = set()
        for tree, function in list_tests():
            if wanted(function):
                for node in (function, *list_constants(tree, function)):
                    found |= list_keys(node)
        return found

    def test_key_is_named_by_a_test(self):
        self.assertEqual(set(), key_names.BY_NAME.keys() - self._find_keys(
            lambda function: True))

    def test_key_is_that_of_a_guest_that_boots(self):
        self.assertEqual(
            set(), key_names.BY_NAME.keys() - self._find_keys(boots_guest))


class RulesTest(base.TestCase):
    """Rules of tempest for plugins."""

    def test_test_has_an_id_of_its_own(self):
        ids = []
        for _, function in list_tests():
            decorators = list_decorators(function)
            self.assertIn('idempotent_id', decorators, function.name)
            ids.append(decorators['idempotent_id'].args[0].value)
        self.assertEqual(len(ids), len(set(ids)))
        for one in ids:
            self.assertEqual(one, str(uuid.UUID(one)))

    def test_refusal_has_the_attribute_negative(self):
        for _, function in list_tests():
            if 'refused' in function.name.split('_') and \
                    'or' not in function.name.split('_'):
                attr = list_decorators(function).get('attr')
                self.assertIsNotNone(attr, function.name)
                self.assertIn('negative', ast.unparse(attr), function.name)

    def test_import_of_tempest_is_a_stable_interface(self):
        for path, tree in list_modules().items():
            for node in ast.walk(tree):
                names = ()
                if isinstance(node, ast.Import):
                    names = [one.name for one in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [f'{node.module}.{one.name}'
                             for one in node.names]
                for name in names:
                    if name.split('.')[0] == 'tempest':
                        self.assertRegex(name, f'^{STABLE.pattern}$', path)
