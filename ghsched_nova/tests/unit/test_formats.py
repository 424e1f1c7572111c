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

import json

from ghsched_nova.features.live_change import move_messages
from ghsched_nova.features.live_change import move_xml
from ghsched_nova.guest import metadata
from ghsched_nova import pci_requests
from ghsched_nova.resctrl import naming
from ghsched_placement.features.bursts import burst
from ghsched_placement.features.bursts import burst_projects
from ghsched_placement.features.bursts import burst_record
from ghsched_placement.features.live_change import node_move
from ghsched_placement.fit import cells
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

BURSTS = (
    '{"version": 1, "nodes": {"1": {"hours": [{"number": 490000, '
    '"periods": 60, "promised": 600, "mean": 6.0, "square": 0.7, '
    '"own": 0.4, "guests": 90.0, "over": 2, "short": 1}], "pool": 40.0, '
    '"promised": 10, "offered": 55, "chance": 0.001, '
    '"lowest": [[490000, 55]]}}}')
MOVE = '''<domain><metadata>
<m:move xmlns:m="https://opendev.org/x/ghsched/move/1.0">[{"before":
{"host_node": 0, "vcpus": [0], "pins": [[0, 2]], "reserved": [3],
 "memory": 64, "page_size": 4, "shared": [1]}, "after":
{"host_node": 1, "vcpus": [0], "pins": [[0, 6]], "reserved": [7],
 "memory": 64, "page_size": 4, "shared": [5]}}]</m:move>
</metadata></domain>'''
#: The same with uses by project, which the release after it has.
BURSTS_BY_PROJECT = (
    '{"version": 1, "nodes": {"1": {"hours": [], "pool": 40.0, '
    '"promised": 10, "offered": 55, "chance": null, "lowest": []}}, '
    '"projects": {"1": {"since": 489990, "hour": 490000, '
    '"periods": 1200.5, "projects": [{"project": "f1e2d3c4", '
    '"promised": 10, "promised_sum": 12005.0, "used_sum": 600.25, '
    '"square_sum": 40.5}]}}}')


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

    def test_a_domain_with_a_burst_is_read(self):
        self.assertEqual(
            metadata.DomainPolicy(policy.parse_policy(
                {**KEYS, 'ghsched:mem_bw_burst.1': '30'}, 2), (1, 0)),
            metadata.read_policy(DOMAIN.replace('max="40"',
                                                'max="40" burst="30"')))

    def test_bursts_that_were_measured_are_read(self):
        hour = burst.BurstHour(490000, 60, 600, 6.0, 0.7, 0.4, 90.0, 2, 1)
        records = {1: burst_record.Record(
            (hour,), 40.0, 10, 55, 0.001, ((490000, 55),))}
        self.assertEqual(records, burst_record.from_json(BURSTS))
        self.assertEqual(json.loads(BURSTS)['nodes'], json.loads(
            burst_record.to_json(records))['nodes'])

    def test_bursts_by_project_are_read(self):
        records = {1: burst_record.Record(
            pool=40.0, promised=10, offered=55,
            uses=burst_projects.BurstUseByProject(
                489990, 490000, 1200.5, (burst_projects.ProjectBurstUse(
                    'f1e2d3c4', 10, 12005.0, 600.25, 40.5),)))}
        self.assertEqual(records, burst_record.from_json(BURSTS_BY_PROJECT))
        self.assertEqual(BURSTS_BY_PROJECT, burst_record.to_json(records))

    def test_a_move_that_was_begun_is_read(self):
        def cell(node, cpu):
            return cells.GuestCell(
                node, frozenset({0}), {0: cpu}, frozenset({cpu + 1}), 64, 4)
        self.assertEqual(
            move_messages.MoveRequest(
                node_move.NodeMove((cell(0, 2),), (cell(1, 6),)),
                {0: frozenset({1}), 1: frozenset({5})}),
            move_messages.unpack_move(move_xml.read_move_record(MOVE)))
