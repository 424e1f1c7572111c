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


import ast
import functools
import pathlib
import re
from types import SimpleNamespace
from unittest import mock

import ddt
from nova.virt import hardware

from ghsched_nova.nova_fixes import servers
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import signatures
from ghsched_placement.tests import base

registry.load_all_seams()

TOP = pathlib.Path(__file__).parents[4]
NAME = 'nova.virt.hardware.numa_fit_instance_to_host'


@ddt.ddt
class RequireTest(base.TestCase):

    def setUp(self):
        super().setUp()
        signatures.get_installed_parameters.cache_clear()
        self.addCleanup(signatures.get_installed_parameters.cache_clear)

    @ddt.data(registry.API, registry.SCHEDULER, registry.COMPUTE)
    def test_process_with_this_nova_starts(self, process):
        self.assertNotEqual([], list(signatures.iterate_seam_names(process)))
        signatures.require_seams(process)

    @ddt.data(*sorted(name for name, seam in registry.SEAMS.items()
                      if not seam.may_be_missing))
    def test_function_that_is_gone_is_named(self, name):
        with mock.patch.object(signatures, 'get_installed_parameters',
                               return_value=None):
            found, = signatures.list_mismatches([name])
        self.assertEqual(
            (name, registry.SEAMS[name].parameters or (), None),
            (found.name, found.expected, found.found))
        self.assertIn('it is missing', str(found))

    def test_function_with_another_in_its_place_is_not_missed(self):
        new, old = (f'nova.limit.placement._get_deltas{name}'
                    for name in ('', '_by_flavor'))
        parameters = {old: registry.SEAMS[old].parameters}
        with mock.patch.object(signatures, 'get_installed_parameters',
                               parameters.get):
            self.assertEqual((), signatures.list_mismatches([new, old]))
        parameters[old] = ('flavor', 'count')
        with mock.patch.object(signatures, 'get_installed_parameters',
                               parameters.get):
            self.assertEqual([old], [one.name for one in
                                     signatures.list_mismatches([new, old])])

    def test_process_with_a_changed_function_does_not_start(self):
        self.enterContext(mock.patch.object(
            hardware, 'numa_fit_instance_to_host',
            lambda topology, fast: None))
        error = self.assertRaises(registry.IncompatibleNova,
                                  signatures.require_seams, registry.COMPUTE)
        for part in (NAME, 'provider_mapping', 'found (topology, fast)',
                     'nova-compute does not start'):
            self.assertIn(part, str(error))
        # nova-api does not call it.
        signatures.require_seams(registry.API)

    def test_function_that_is_missing_refuses_the_start(self):
        with mock.patch.object(hardware, 'numa_fit_instance_to_host'):
            del hardware.numa_fit_instance_to_host
            try:
                self.assertRaises(registry.IncompatibleNova,
                                  signatures.require_seams, registry.SCHEDULER)
            finally:
                hardware.numa_fit_instance_to_host = None

    def test_decorated_function_is_not_judged(self):
        self.enterContext(mock.patch.object(
            hardware, 'numa_fit_instance_to_host',
            lambda *args, **kwargs: None))
        self.assertEqual((), signatures.list_mismatches([NAME]))


@ddt.ddt
class AttributeTest(base.TestCase):
    """Attributes and constants are compared as functions are."""

    @ddt.data(('self.lock = 1', True), ('self.lock, self.b = 1, 2', True),
              ('self.lock: int = 1', True), ('lock = self.lock', False),
              ('self.lock.a = 1', False), ('self.lock = a', True),
              ('other.lock = 1', False))
    @ddt.unpack
    def test_attribute_that_objects_get_is_found(self, line, expected):
        found = {}
        exec('def b(self, a=1):\n    other = self\n'  # noqa: S102
             f'    {line}\n', found)
        self.assertEqual(expected, signatures.assigns_attribute(
            found['b'], 'lock'))
        self.assertEqual(expected, signatures.assigns_attribute(
            property(found['b']), 'lock'))
        self.assertEqual(expected, signatures.assigns_attribute(
            staticmethod(found['b']), 'lock'))

    def test_attribute_that_an_inner_or_wrapped_function_sets_is_found(self):
        def outer(self):
            def inner():
                self.lock = 1
            return inner

        @functools.wraps(outer)
        def wrapper(*_args):
            pass
        self.assertTrue(signatures.assigns_attribute(outer, 'lock'))
        self.assertTrue(signatures.assigns_attribute(wrapper, 'lock'))
        self.assertFalse(signatures.assigns_attribute(wrapper, 'inner'))

    @ddt.data(*sorted(name for name, seam in registry.SEAMS.items()
                      if seam.parameters is None))
    def test_attribute_that_nova_renames_is_missed(self, name):
        self.assertEqual((), signatures.list_mismatches([name]))
        renamed = f'{name}_of_tomorrow'
        with mock.patch.dict(registry.SEAMS,
                             {renamed: registry.Seam(renamed)}):
            self.assertIn('it is missing',
                          str(*signatures.list_mismatches([renamed])))


class PrivateNamesTest(base.TestCase):
    """Each private name of Nova that is used is declared."""

    #: Private names of other libraries, and parts of strings.
    OTHERS = frozenset({
        '_Element', '_MON', '_assignments', '_exit', '_mapping', '_replace',
        '_total', '_driver', '_url', '_domain'})

    def test_private_names_that_are_used_are_declared(self):
        own, used = set(), {}
        for path in (TOP / 'ghsched_nova').rglob('*.py'):
            name = str(path.relative_to(TOP))
            if name.startswith(('ghsched_nova/tests', 'ghsched_nova/lab')):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                own.add(getattr(node, 'name', None))
                text = getattr(node, 'attr', getattr(node, 'value', None))
                if isinstance(getattr(node, 'ctx', None), ast.Store):
                    own.add(getattr(node, 'attr', getattr(node, 'id', '')))
                elif isinstance(text, str) and re.fullmatch(
                        '_[A-Za-z][a-zA-Z_]*', text):
                    used[text] = name
        declared = {part for name in registry.SEAMS
                    for part in name.split('.')}
        self.assertEqual({}, {
            text: name for text, name in used.items()
            if text not in own | declared | self.OTHERS
            and not text.startswith('_ghsched')})


class OursTest(base.TestCase):

    def instance(self, old=None, **extra_specs):
        return SimpleNamespace(
            flavor=SimpleNamespace(extra_specs=extra_specs),
            old_flavor=old and SimpleNamespace(extra_specs=old))

    def test_method_is_changed_for_servers_with_a_key_alone(self):
        chosen = functools.partial(
            servers.limit_to_ghsched_servers(
                lambda *_args, **_kwargs: 'ghsched', 1),
            lambda *_args, **_kwargs: 'Nova')
        plain = self.instance(**{'hw:numa_nodes': '1'})
        ours = self.instance(**{'ghsched:mem_bw_min': '1'})
        resized = self.instance(old={'ghsched:mem_bw_min': '1'})
        self.assertEqual(
            ['Nova', 'ghsched', 'ghsched', 'Nova', 'ghsched'],
            [chosen(None, plain), chosen(None, ours), chosen(None, resized),
             chosen(None, instance=plain), chosen(None, instance=ours)])
