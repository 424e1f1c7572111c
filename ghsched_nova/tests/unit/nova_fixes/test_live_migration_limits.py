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

"""NUMA nodes that a live-migrated guest claims by its allocation."""

import itertools

from nova import objects

from ghsched_nova.nova_fixes import live_migration_limits
from ghsched_placement.providers import names
from ghsched_placement.tests import base

objects.register_all()

PFS = {0: 'a' * 36, 1: 'b' * 36}


class NodeOrderTest(base.TestCase):
    """Two guest nodes with a VF each, on a host with a PF on each node."""

    def orders(self, pfs, **keys):
        """Orders of host nodes, for the PF that each guest node's VF is of."""
        root = 'c' * 36
        extra_specs = {'ghsched:vfs': 'nic:1', 'ghsched:vfs_locality': 'node',
                       **keys}
        instance = objects.Instance(
            uuid='d' * 36, flavor=objects.Flavor(
                extra_specs=extra_specs, vcpus=2),
            numa_topology=objects.InstanceNUMATopology(cells=[
                objects.InstanceNUMACell(id=node, cpuset={node}, pcpuset=set(),
                                         memory=512) for node in (0, 1)]),
            pci_requests=objects.InstancePCIRequests(requests=[
                objects.InstancePCIRequest(
                    request_id=str(node), count=1, alias_name='nic',
                    requester_id=f'ghsched-vfs-node{node}',
                    spec=[{'rp_uuids': pf} if pf else {}])
                for node, pf in enumerate(pfs)]))
        allocations = {pf: {'resources': {'CUSTOM_PCI_VF': 1}}
                       for pf in PFS.values()}
        allocations[root] = {'resources': {names.RESCTRL_GROUP: 1}}
        return list(live_migration_limits.yield_claimable_nodes(
            instance, live_migration_limits.Destination(
                root, (0, 1), {pf: node for node, pf in PFS.items()},
                allocations), lambda _policy, _nodes: False))

    def test_each_guest_node_is_where_its_vfs_are(self):
        for order in itertools.permutations((0, 1)):
            self.assertEqual([order], self.orders(
                [PFS[node] for node in order]))

    def test_pfs_of_another_host_decide_nothing(self):
        for pfs in ((None, None), ('e' * 36, 'f' * 36)):
            self.assertCountEqual([(0, 1), (1, 0)], self.orders(pfs))

    def test_node_of_the_vfs_is_first_where_they_may_be_on_any(self):
        for first, second in (((0, 1), (1, 0)), ((1, 0), (0, 1))):
            self.assertEqual([first, second], self.orders(
                [PFS[node] for node in first],
                **{'ghsched:vfs_locality': 'any'}))
