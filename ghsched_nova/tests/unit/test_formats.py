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

"""Data that outlives a process, as an earlier release has written it.

Placement, domains and resctrl keep these names while ghsched is upgraded, and
hosts of two releases read each other's. A change here needs an upgrade path,
and not another value in the test.
"""

from ghsched_nova.guest import metadata
from ghsched_nova import pci_requests
from ghsched_nova.resctrl import naming
from ghsched_placement.flavor import policy
from ghsched_placement.providers import names
from ghsched_placement.tests import base

UUID = '7c0a6f1e-5c2c-4a52-9d0f-0a4f4b2f6f10'
KEYS = {'ghsched:mem_bw_min': '10', 'ghsched:mem_bw_max.1': '40',
        'ghsched:mem_bw_hardlimit.1': 'true', 'ghsched:mem_bw_priority': '3'}
DOMAIN = '''<domain><metadata>
<g:policy xmlns:g="https://opendev.org/x/ghsched/domain/1.0"
          monitor="false" device_numa="none">
<g:node host="1" min="10" max="100" hardlimit="true" priority="3"/>
<g:node host="0" min="10" max="40" hardlimit="true" priority="3"/>
</g:policy></metadata></domain>'''


class PlacementTest(base.TestCase):

    def test_providers(self):
        self.assertEqual('bd31e006-a656-5694-aa04-fec4813f1bb7',
                         names.make_numa_provider_uuid(UUID, 1))
        self.assertEqual('host_NUMA1',
                         names.make_numa_provider_name('host', 1))
        self.assertEqual('ghsched-group-7', names.make_control_group_name(7))

    def test_resource_classes(self):
        self.assertEqual('CUSTOM_MEM_BW_PCT', names.MEM_BW_PCT)
        self.assertEqual('CUSTOM_MEM_BW_BURST_PCT', names.MEM_BW_BURST_PCT)
        self.assertEqual('CUSTOM_RESCTRL_GROUP', names.RESCTRL_GROUP)

    def test_traits(self):
        self.assertEqual('CUSTOM_GHSCHED_NUMA_NODE', names.NUMA_NODE_TRAIT)
        self.assertLessEqual(
            {'CUSTOM_GHSCHED_' + name for name in (
                'DEVICE_NUMA', 'MEM_BW_HARDLIMIT', 'MEM_BW_MAX', 'MEM_BW_MIN',
                'MEM_BW_MONITOR', 'MEM_BW_PRIORITY', 'MEM_BW_SOFTLIMIT')},
            set(names.CAPABILITY_TRAITS.values()))

    def test_traits_of_groups_to_share(self):
        guest = policy.parse_policy(KEYS, 2)
        self.assertEqual('CUSTOM_GHSCHED_SHARES_FCFC9B04F297ED20_1',
                         names.make_share_trait(guest.fingerprint, 1))

    def test_request_groups(self):
        self.assertEqual(
            ('ghsched_bw1', 'ghsched_node1', f'{UUID}-2'),
            (names.make_bandwidth_suffix(1), names.make_node_suffix(1),
             names.make_vf_suffix(UUID, 2)))

    def test_limits_of_a_claim(self):
        self.assertEqual(('ghsched-numa1', 'ghsched-order-2-0'),
                         (names.make_node_physnet(1),
                          names.make_host_nodes_physnet([2, 0])))


class NovaTest(base.TestCase):

    def test_requests_for_vfs_are_known_by_their_requester(self):
        class Request:
            requester_id = 'ghsched-vfs-node1'

        self.assertEqual(1, pci_requests.get_guest_node(Request))
        Request.requester_id = 'ghsched-vfs-3-of-5'
        self.assertEqual(1, pci_requests.get_guest_node(Request, 2))


class HostTest(base.TestCase):

    def test_control_groups(self):
        guest = policy.parse_policy(KEYS, 2)
        self.assertEqual(
            (
                f'ghsched-{UUID}',
                f'mon_groups/ghsched-{UUID}',
                'ghsched-shared-544221f0cfbf437a',
            ),
            (
                naming.render_own_group_name(UUID),
                naming.render_monitor_path(UUID),
                naming.render_shared_name(guest.nodes, (1, 0)),
            ),
        )

    def test_a_domain_is_read(self):
        self.assertEqual(
            metadata.DomainPolicy(policy.parse_policy(KEYS, 2), (1, 0)),
            metadata.read_policy(DOMAIN))

    @base.needs_features('bursts')
    def test_a_domain_with_a_burst_is_read(self):
        self.assertEqual(
            metadata.DomainPolicy(policy.parse_policy(
                {**KEYS, 'ghsched:mem_bw_burst.1': '30'}, 2), (1, 0)),
            metadata.read_policy(DOMAIN.replace('max="40"',
                                                'max="40" burst="30"')))
