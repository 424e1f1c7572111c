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


"""Host NUMA nodes without CPUs, in Placement and for the scheduler."""

import dataclasses

from ghsched_placement.audit import audit
from ghsched_placement.audit.findings import Server
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import Vfs
from ghsched_placement.providers import cpuless_nodes
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import names
from ghsched_placement.providers import tree
from ghsched_placement.query import candidates
from ghsched_placement.query import node_assignment
from ghsched_placement.query import vfs
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds

ROOT = clouds.root_uuid('a')
#: ACPI SLIT of two nodes with CPUs and two without.
DISTANCES = {0: {0: 10, 1: 20, 2: 40, 3: 30}, 1: {0: 20, 1: 10, 2: 30, 3: 40},
             2: {0: 40, 1: 30, 2: 10, 3: 20}, 3: {0: 30, 1: 40, 2: 20, 3: 10}}


def node_uuid(node):
    return names.make_numa_provider_uuid(ROOT, node)


class NearestTest(base.TestCase):

    def test_nearest_node_has_cpus_itself(self):
        self.assertEqual({2: 1, 3: 0}, cpuless_nodes.find_nearest_nodes(
            DISTANCES, {0, 1}))

    def test_equal_distances_take_the_lowest_node(self):
        equal = {2: {0: 30, 1: 30}}
        self.assertEqual({2: 0}, cpuless_nodes.find_nearest_nodes(
            equal, {0, 1}))

    def test_unknown_distances_leave_the_node_out(self):
        self.assertEqual({}, cpuless_nodes.find_nearest_nodes({}, {0, 1}))
        self.assertEqual({}, cpuless_nodes.find_nearest_nodes(
            {2: {2: 10}}, {0, 1}))


class TreeTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.providers = tree.build_providers(
            ROOT, 'a', HostDescription(
                nodes=(1, 2), numa_nodes=(0, 1, 2, 3), control_groups=8,
                nearest={0: 2, 3: 1}), tree.Config())

    def test_node_without_cpus_is_below_the_nearest(self):
        self.assertEqual(
            {node_uuid(0): node_uuid(2), node_uuid(1): ROOT,
             node_uuid(2): ROOT, node_uuid(3): node_uuid(1)},
            {one.uuid: one.parent_uuid for one in self.providers[1:]})

    def test_each_provider_is_after_its_parent(self):
        seen = set()
        for provider in self.providers:
            self.assertTrue(provider.parent_uuid in {None, *seen})
            seen.add(provider.uuid)

    def test_pf_counts_for_the_nearest_node_in_a_search(self):
        summaries = {
            one.uuid: {'root_provider_uuid': ROOT, 'traits': [],
                       'parent_provider_uuid': one.parent_uuid,
                       'resources': {}} for one in self.providers}
        for node in range(4):
            summaries[f'pf{node}'] = {
                'root_provider_uuid': ROOT, 'traits': [],
                'parent_provider_uuid': node_uuid(node),
                'resources': {'VF': {'capacity': 4, 'used': node}}}
        found = vfs.parse_pfs(summaries, 'VF', frozenset())
        self.assertEqual({node_uuid(2): [4, 2], node_uuid(1): [3, 1]},
                         vfs.group_free_vfs(found, 'node'))


class AssignmentTest(base.TestCase):
    """VFs on node 2 without CPUs, next to node 1, and on node 0."""

    def setUp(self):
        super().setUp()
        self.host = candidates.HostProviders(
            node_of_numa={node_uuid(node): node for node in range(3)},
            node_of_pf={'far': 2, 'near': 0}, nearest={2: 1})
        self.wanted = candidates.NodeRequestGroups(
            {0: names.make_node_suffix(0)},
            [candidates.VfRequest(0, 'r', 1)], 'node', 1)

    def place_guest(self, *pfs, **changed):
        answer = [{'allocations': {}, 'mappings': {
            names.make_vf_suffix('r', 0): [pf]}} for pf in pfs]
        ways, refusal = node_assignment.assign_host_nodes(
            answer, dataclasses.replace(self.wanted, **changed), self.host,
            lambda _guest, node: node != 2)
        return [way.get_host_node_order() for way in ways], refusal

    def test_vf_counts_for_the_nearest_node_if_the_flavor_allows(self):
        self.assertEqual(([(1,)], None),
                         self.place_guest('far', device_numa='preferred'))
        for mode in ('none', 'required'):
            nodes, refusal = self.place_guest('far', device_numa=mode)
            self.assertEqual([], nodes)
            self.assertIsNotNone(refusal)
        # Guests see the node of the VF.
        self.host = dataclasses.replace(self.host, shows_device_cells=True)
        self.assertEqual(([(1,)], None),
                         self.place_guest('far', device_numa='required'))
        self.assertEqual([], self.place_guest('far')[0])

    def test_other_vfs_count_for_their_own_node(self):
        for mode in ('none', 'preferred', 'required'):
            self.assertEqual(([(0,)], None), self.place_guest(
                'near', device_numa=mode))


class AuditTest(base.TestCase):
    """A host whose node 2 has no CPUs and is nearest to node 1."""

    def setUp(self):
        super().setUp()
        far = dataclasses.replace(clouds.node(2, bandwidth=0),
                                  parent=node_uuid(1))
        pf = clouds.pf('0000:02:00.0', 2)
        self.pf = pf.uuid
        self.host = clouds.host(clouds.node(0), clouds.node(1), far, pf)

    def kinds(self, device_numa):
        policy = GuestPolicy(vfs=(Vfs(0, 'nic', 2),), vfs_locality='node',
                             device_numa=device_numa)
        return [finding.kind for finding in audit.audit_host_allocations(
            self.host, [Server('s', 'web', 'a', policy, nodes=(1,))],
            {'s': {self.pf: {clouds.VF: 2}}})]

    def test_vfs_of_the_node_are_right_if_the_flavor_allows(self):
        self.assertEqual([], self.kinds('preferred'))
        # Hosts that cannot show a guest the node refuse it.
        self.assertEqual([], self.kinds('required'))
        self.assertEqual(['nodes-differ'], self.kinds('none'))
