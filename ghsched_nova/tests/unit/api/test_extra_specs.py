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


from typing import Any
from unittest import mock

import fixtures
from hypothesis import given
from hypothesis import strategies as st
from nova.api.openstack import api_version_request
from nova.api.openstack.compute import flavors_extraspecs
from nova.api.openstack import wsgi
from nova.api.validation.extra_specs import validators
from nova import exception
from stevedore import extension

from ghsched_nova.api import extra_specs
from ghsched_placement.flavor import key_names
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base

NAMES = [name for key in key_names.KEYS
         for name in ([key.extra_spec, key.get_node_extra_spec(0),
                       key.get_node_extra_spec(17)]
                      if key.per_node else [key.extra_spec])]
TEXT = (st.text(max_size=6) | st.integers(-5, 130).map(str)
        | st.sampled_from(['true', 'No', 'on', ' 60 ', '+5', '1_0', '6e1',
                           '٣', '60.5', '', 'tru e', '0x10']))


class LoadedTestCase(base.TestCase):
    """Nova's registry as it is when our entry point is installed."""

    def setUp(self) -> None:
        super().setUp()
        plugin: Any = extra_specs
        ours: Any = extension.ExtensionManager.make_test_instance([
            extension.Extension('ghsched', mock.Mock(), plugin, None)])
        for patch in (
                mock.patch.dict(validators.VALIDATORS),
                mock.patch.object(validators, 'NAMESPACES',
                                  set(validators.NAMESPACES)),
                mock.patch.object(validators.extension, 'ExtensionManager',
                                  return_value=ours)):
            patch.start()
            self.addCleanup(patch.stop)
        validators.load_validators()


class ValidateTest(LoadedTestCase):

    def refused(self, name, value, reason):
        with self.assertRaisesRegex(exception.ValidationError, reason):
            validators.validate(name, value)

    def test_every_key_takes_the_ends_of_its_range(self):
        for key in key_names.KEYS:
            values = {
                'bool': ('true', 'false'), 'enum': key.choices,
                'int': (str(key.minimum), str(key.maximum)),
                'devices': ('nic:1', 'nic:9999,x:1'),
                'name': ('a', 'a' * 63),
                'vcpus': ('0', '^0-1'),
                'classes': ('a:0', 'a:0-3,8,b_1:4')}[key.kind]
            names = [key.extra_spec]
            if key.per_node:
                names += [key.get_node_extra_spec(0),
                          key.get_node_extra_spec(11)]
            if key.per_class:
                names += [f'{key.extra_spec}.latency']
            for name in names:
                for value in values:
                    validators.validate(name, value)

    def test_values_out_of_range(self):
        self.refused('ghsched:mem_bw_min', '101', 'mem_bw_min: 101 is greater')
        self.refused('ghsched:mem_bw_min.1', '-1', 'mem_bw_min.1: -1 is less')
        self.refused('ghsched:mem_bw_max', '0', 'mem_bw_max: 0 is less')
        self.refused('ghsched:mem_bw_min.latency', '101',
                     'mem_bw_min.latency: 101 is greater')
        self.refused('ghsched:mem_bw_priority.3', '8',
                     'priority.3: 8 is greater')

    def test_values_of_the_wrong_kind(self):
        self.refused('ghsched:mem_bw_max', 'most', 'not a whole number')
        self.refused('ghsched:mem_bw_hardlimit', 'hard', 'neither true')
        self.refused('ghsched:monitor', '2', 'neither true')

    def test_values_that_only_nova_takes_for_numbers(self):
        for value in ('1_0', '٣', 60.5):
            self.refused('ghsched:mem_bw_min', value, 'mem_bw_min: .*whole')

    def test_a_number_in_the_request_is_as_good_as_its_text(self):
        validators.validate('ghsched:mem_bw_min', 60)

    def test_unknown_keys(self):
        for name in ('ghsched:mem_bw', 'ghsched:mem_bw_mi', 'ghsched:',
                     'ghsched:mem_bw_min:0', 'ghsched:mem_bw_min.',
                     'ghsched:mem_bw_min.A', 'ghsched:mem_bw_min.01',
                     'ghsched:l3_ways.a',
                     'ghsched:mem_bw_min.-1', 'ghsched:mem_bw_min.0.0',
                     'ghsched:MEM_BW_MIN'):
            self.refused(name, '1', 'Validation failed')

    def test_the_nearest_key_is_named(self):
        for name in ('ghsched:mem_bw_mim', 'ghsched:MEM_BW_MIN'):
            self.refused(name, '1', 'do you mean ghsched:mem_bw_min')
        self.refused('ghsched:x', '1', 'known are ghsched:mem_bw_min, ')

    def test_refusal_of_each_key_names_the_key(self):
        """Also where the parser takes a value that Nova refuses."""
        for key in key_names.KEYS:
            for value in ('', ' ', 'x y', '-1', *(
                    f'{one} ' for one in key.choices)):
                try:
                    validators.validate(key.extra_spec, value)
                except exception.ValidationError as error:
                    self.assertIn(f'Validation failed; {key.extra_spec}',
                                  error.format_message())

    def test_monitor_is_for_the_whole_guest(self):
        self.refused('ghsched:monitor.0', 'true', 'for the whole guest')

    def test_other_namespaces_are_not_ours(self):
        validators.validate('other:mem_bw', 'x')
        validators.validate('hw:numa_nodes', '2')

    @given(st.sampled_from(NAMES), TEXT)
    def test_the_api_takes_what_the_scheduler_takes(self, name, text):
        try:
            validators.validate(name, text)
        except exception.ValidationError:
            with self.assertRaises(policy.PolicyError):
                policy.check_extra_spec(name, text)
        else:
            policy.check_extra_spec(name, text)


class RegisterTest(base.TestCase):

    def test_every_key_has_a_validator_with_a_description(self):
        by_name = {v.name: v for v in extra_specs.register()}
        for key in key_names.KEYS:
            self.assertIn(key.summary, by_name[key.extra_spec].description)
            self.assertEqual(key.per_node,
                             f'{key.extra_spec}.{{node}}' in by_name)


class ControllerTest(LoadedTestCase):
    """Responses of the flavor API to callers."""

    def check(self, specs, version):
        request = wsgi.Request.blank('/')
        request.api_version_request = (
            api_version_request.APIVersionRequest(version))
        controller = flavors_extraspecs.FlavorExtraSpecsController()
        controller._check_extra_specs_value(request, specs)

    def test_a_bad_value_is_a_400(self):
        with self.assertRaises(exception.ValidationError) as raised:
            self.check({'ghsched:mem_bw_min': '101'}, '2.86')
        self.assertEqual(400, raised.exception.code)

    def test_a_flavor_that_is_too_large_for_placement_is_a_400(self):
        specs = {'hw:numa_nodes': '8', 'ghsched:mem_bw_min': '5'}
        extra_specs.check_flavor(specs, specs, 16, 1024)
        specs['hw:numa_nodes'] = '9'
        with self.assertRaisesRegex(exception.ValidationError,
                                    'hw:numa_nodes: 9 guest NUMA nodes have '
                                    'bandwidth .* combinations') as raised:
            extra_specs.check_flavor(specs, specs, 16, 1024)
        self.assertEqual(400, raised.exception.code)

    def test_realtime_flavor_that_some_hosts_refuse_is_logged(self):
        log = self.useFixture(fixtures.FakeLogger(level=30))
        specs = {'hw:cpu_policy': 'dedicated', 'ghsched:vcpu_scheduler': 'rr',
                 'hw:emulator_threads_policy': 'isolate'}
        extra_specs.check_flavor(specs, specs, 4, 1024)
        self.assertEqual('', log.output)
        specs['hw:emulator_threads_policy'] = 'share'
        extra_specs.check_flavor(specs, specs, 4, 1024)
        self.assertIn('[compute]cpu_shared_set', log.output)

    def test_too_many_nodes_to_choose_from_are_a_400_that_names_the_key(self):
        specs = {'ghsched:numa': 'auto', 'ghsched:numa_max': '16',
                 'ghsched:mem_bw_min': '5'}
        for vcpus, memory, usable in ((16, 1024, 8), (12, 1024, None),
                                      (12, 1152, 6), (3, 384, None)):
            if usable is None:
                extra_specs.check_flavor(specs, specs, vcpus, memory)
                continue
            with self.assertRaisesRegex(
                    exception.ValidationError,
                    f'ghsched:numa_max: {2 * usable} guest NUMA nodes .* '
                    f'the largest usable value is {usable}$'):
                extra_specs.check_flavor(specs, specs, vcpus, memory)
            extra_specs.check_flavor(
                {**specs, 'ghsched:numa_max': str(usable)}, specs, vcpus,
                memory)

    def test_an_old_microversion_is_not_checked(self):
        self.check({'ghsched:mem_bw_min': '101'}, '2.85')
