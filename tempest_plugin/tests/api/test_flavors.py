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

"""Keys of a flavor are checked when they are set. Runs on any cloud."""

from tempest.lib import decorators
from tempest.lib import exceptions

from tempest_plugin.tests import base

#: More than a NUMA node has.
TOO_MUCH = 101

#: Keys that exclude each other or lack one, and the key that the refusal
#: names.
CONTRADICTIONS = (
    ({'mem_bw_min': 60, 'mem_bw_max': 50}, 'mem_bw_max'),
    ({'mem_bw_min': 30, 'mem_bw_burst': 30, 'mem_bw_max': 50}, 'mem_bw_burst'),
    ({'mem_bw_priority': 8}, 'mem_bw_priority'),
    ({'numa': 'auto'}, 'numa'),
    ({'numa_max': 2}, 'numa_max'),
    ({'vcpu_scheduler': 'fifo'}, 'vcpu_scheduler'),
    ({'vcpu_priority': 10}, 'vcpu_priority'),
    ({'vcpu_scheduler': 'deadline', 'vcpu_runtime_us': 4000,
      'vcpu_period_us': 10000, 'vcpu_deadline_us': 20000},
     'vcpu_runtime_us'),
    ({'emulator_scheduler': 'fifo'}, 'emulator_scheduler'),
    ({'emulator_priority': 3}, 'emulator_priority'),
    ({'irq_bypass': 'required'}, 'irq_bypass'),
    ({'pv_hints': 'dedicated'}, 'pv_hints'),
    ({'cpu_cache': 'require', 'vcpu_scheduler': 'fifo',
      'vcpu_runtime_us': 4000, 'vcpu_period_us': 10000,
      'specs': {'hw:cpu_policy': 'shared'}}, 'cpu_cache'),
    ({'vfs': 'nic'}, 'vfs'),
    ({'guest_channel': 'both'}, 'guest_channel'),
)


class FlavorTest(base.GhschedTest):
    """Extra specs of flavors in Nova's API."""

    def _assert_refused(self, named, **keys):
        refused = self.assertRaises(
            exceptions.BadRequest, self._create_flavor, **keys)
        self.assertIn(named, str(refused))

    @decorators.attr(type='negative')
    @decorators.idempotent_id('5e0c2d1b-7f52-4a0e-9d0f-3a1c1c2f6b01')
    def test_value_out_of_range_is_refused(self):
        self._assert_refused('ghsched:mem_bw_min', mem_bw_min=TOO_MUCH)

    @decorators.attr(type='negative')
    @decorators.idempotent_id('0c1d7a52-3d5e-4c6b-8a0c-6f7d1f0a5b02')
    def test_unknown_key_is_refused(self):
        self._assert_refused('mem_bw_mim', mem_bw_mim=10)

    @decorators.attr(type='negative')
    @decorators.idempotent_id('b9c1f7ea-36f0-4f3e-8d54-1a6de0a24c11')
    def test_keys_that_contradict_each_other_are_refused(self):
        for keys, named in CONTRADICTIONS:
            self._assert_refused(f'ghsched:{named}', **keys)

    @decorators.attr(type='smoke')
    @decorators.idempotent_id('8a7b6f0e-1b8f-4a0a-9c58-2b9c4f1d7c03')
    def test_keys_are_kept_as_they_were_set(self):
        flavor = self._create_flavor(mem_bw_min=10, mem_bw_max=40)
        specs = self.flavors.list_flavor_extra_specs(flavor)['extra_specs']
        self.assertEqual(
            ('10', '40'),
            (specs['ghsched:mem_bw_min'], specs['ghsched:mem_bw_max']))
