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


from ghsched_nova.host import allocation_check
from ghsched_placement.flavor.policy import parse_policy
from ghsched_placement.providers import names
from ghsched_placement.tests import base

HOST = '0b1f6f0e-35f5-4c4b-9f38-1c6f2f3f8d55'
NODE = [names.make_numa_provider_uuid(HOST, node) for node in range(2)]
ROOT = {HOST: {'resources': {'VCPU': 2, names.RESCTRL_GROUP: 1}}}


def on(node, share):
    return {NODE[node]: {'resources': {names.MEM_BW_PCT: share}}}


class CheckTest(base.TestCase):
    policy = parse_policy({'ghsched:mem_bw_min': '60'}, 1)

    def check(self, host_nodes, allocations, policy=None):
        allocation_check.check_allocation(
            policy or self.policy, 'min', host_nodes, allocations, HOST
        )

    def test_claim_and_allocation_on_one_node_agree(self):
        self.check([1], {**ROOT, **on(1, 60)})

    def test_bandwidth_on_another_node_is_refused(self):
        error = self.assertRaises(
            allocation_check.ClaimMismatch, self.check, [0], {**ROOT, **on(
                1, 60)})
        self.assertIn('claimed on host NUMA node 0', str(error))

    def test_other_ways_of_the_l3_are_refused(self):
        policy = parse_policy({'ghsched:l3_ways': '3'}, 1)
        held = {NODE[1]: {'resources': {names.L3_WAYS: 3}}}
        self.check([1], {**ROOT, **held}, policy)
        error = self.assertRaises(
            allocation_check.ClaimMismatch, self.check, [0], {**ROOT, **held},
            policy)
        self.assertIn('0 ways of the L3 for it instead of 3', str(error))

    def test_real_time_of_another_node_is_refused(self):
        policy = parse_policy({
            'hw:numa_nodes': '1', 'hw:cpu_policy': 'shared',
            'ghsched:vcpu_scheduler': 'fifo',
            'ghsched:vcpu_runtime_us': '1000',
            'ghsched:vcpu_period_us': '3000'}, 1, 2)
        held = {NODE[1]: {'resources': {names.RT_CPU_PERMILLE: 668}}}
        self.check([1], held, policy)
        error = self.assertRaises(
            allocation_check.ClaimMismatch, self.check, [0], held, policy)
        self.assertIn('0 thousandths of a CPU in real time for it instead of '
                      '668', str(error))

    @base.needs_features('bursts')
    def test_another_burst_is_refused(self):
        policy = parse_policy({'ghsched:mem_bw_burst': '30'}, 1)
        held = {NODE[1]: {'resources': {names.MEM_BW_BURST_PCT: 30}}}
        self.check([1], {**ROOT, **held}, policy)
        error = self.assertRaises(
            allocation_check.ClaimMismatch, self.check, [0], {**ROOT, **held},
            policy)
        self.assertIn('0 % memory bandwidth as a burst for it instead of 30',
                      str(error))

    def test_another_amount_is_refused(self):
        self.assertRaises(allocation_check.ClaimMismatch, self.check, [1],
                          {**ROOT, **on(1, 50)})

    def test_a_guest_forced_past_the_scheduler_is_refused(self):
        error = self.assertRaises(
            allocation_check.ClaimMismatch, self.check, [0],
            {HOST: {'resources': {'VCPU': 2}}},
            parse_policy({'ghsched:mem_bw_max': '50'}, 1))
        self.assertIn('chosen without nova-scheduler', str(error))

    def test_a_vf_of_another_node_is_refused_where_near_is_a_must(self):
        def check(**keys):
            allocation_check.check_allocation(
                parse_policy({'ghsched:vfs': 'nic:2', **keys}, 1), 'min', [1],
                ROOT,
                HOST, [(0, 1), (0, 0)])
        check()
        error = self.assertRaises(allocation_check.ClaimMismatch, check,
                                  **{'ghsched:vfs_locality': 'node'})
        self.assertIn('a VF for it on node 0', str(error))

    def test_a_guest_that_is_only_measured_needs_no_allocation(self):
        self.check([], {}, parse_policy({'ghsched:monitor': 'true'}, 0))


class DevicesTest(base.TestCase):
    held = {'pf0': {'resources': {'CUSTOM_PCI': 2}},
            'pf1': {'resources': {'CUSTOM_PCI': 1}}}

    def check(self, *requests, allocations=None):
        allocation_check.check_devices(
            [allocation_check.Devices(*one) for one in requests],
            allocations or self.held)

    def refused(self, *requests, **kwargs):
        return str(self.assertRaises(
            allocation_check.ClaimMismatch, self.check, *requests, **kwargs))

    def test_devices_that_placement_gave_agree(self):
        self.check()
        self.check(('alias nic', 3, ('pf0', 'pf1', 'pf0'),
                    ('pf0', 'pf0', 'pf1')))
        self.check(('alias nic', 2, ('pf0', 'pf1'), ('pf1', 'pf0')),
                   ('alias fast', 1, ('pf0',), ('pf0',)))

    def test_devices_that_placement_does_not_choose_are_counted_only(self):
        self.check(('port one', 1, (), (None,)),
                   ('alias nic', 2, (), ('pf1', 'pf1')))

    def test_too_few_or_too_many_devices_are_refused(self):
        for claimed in ((), ('pf0',), ('pf0',) * 3):
            for given in ((), ('pf0', 'pf0')):
                self.assertIn(
                    f'{len(claimed)} devices of alias nic were claimed, '
                    '2 were',
                    self.refused(('alias nic', 2, given, claimed)))
        self.assertIn('0 devices of port one were claimed',
                      self.refused(('port one', 1, (), ())))

    def test_missing_devices_are_those_of_short_requests(self):
        self.assertEqual(
            ('1 of 2 devices of alias nic', '0 of 1 devices of port one'),
            allocation_check.describe_missing_devices([
                allocation_check.Devices(*one) for one in (
                    ('alias nic', 2, ('pf0', 'pf1'), ('pf1',)),
                    ('alias fast', 2, (), ('pf1', 'pf1')),
                    ('port one', 1, (), ()))]))

    def test_devices_of_another_provider_are_refused(self):
        self.assertIn('but allocated from pf0, pf1', self.refused(
            ('alias nic', 2, ('pf0', 'pf1'), ('pf0', 'pf0'))))
        self.assertIn('from the providers None', self.refused(
            ('alias nic', 1, ('pf1',), (None,))))

    def test_amount_that_placement_does_not_hold_is_refused(self):
        self.check(('alias nic', 1, ('pf0',), ('pf0',)))
        self.assertIn('3 devices of provider pf0 were claimed, but '
                      'Placement has allocated 2', self.refused(
                          ('alias nic', 3, ('pf0',) * 3, ('pf0',) * 3)))
        self.assertIn('Placement has allocated 0', self.refused(
            ('alias nic', 1, ('pf2',), ('pf2',))))
