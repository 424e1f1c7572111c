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


from hypothesis import assume
from hypothesis import given
from hypothesis import strategies as st
from nova import objects
from nova.virt import hardware

from ghsched_nova.features.packing import host_states
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import host_nodes
from ghsched_nova.tests.fixtures import states
from ghsched_placement.features.packing import likely_nodes as likely
from ghsched_placement.features.packing.numa_nodes import DeviceNeed
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import machines

node = machines.node
SMALL = GuestNode(pinned=2, memory=256)


def numbers(nodes, *guest, **kwargs):
    return [one.number for one in
            likely.guess_host_nodes(nodes, guest, **kwargs)]


class LikelyNodesTest(base.TestCase):

    def test_nova_spreads(self):
        self.assertEqual([1], numbers([node(0, free=4), node(1)], SMALL))

    def test_nova_packs_when_asked_to(self):
        self.assertEqual([0], numbers([node(0, free=4), node(1)], SMALL,
                                      pack=True))

    def test_a_full_node_is_passed_over(self):
        self.assertEqual([1], numbers([node(0, free=1), node(1)], SMALL,
                                      pack=True))

    def test_devices_keep_others_away_and_draw_those_that_ask(self):
        nodes = [node(0, devices={'pf0': 2}), node(1, free=4)]
        self.assertEqual([1], numbers(nodes, SMALL))
        self.assertEqual([0], numbers(nodes, SMALL, needs=[
            DeviceNeed(1, frozenset({'pf0'}))]))

    def test_devices_have_to_be_near_unless_anywhere_will_do(self):
        nodes = [node(0, devices={'pf0': 1}), node(1, devices={'pf1': 9})]
        near = DeviceNeed(1, frozenset({'pf0'}))
        self.assertEqual([0], numbers(nodes, SMALL, needs=[near]))
        self.assertEqual([1], numbers(nodes, SMALL, needs=[
            DeviceNeed(1, frozenset({'pf0'}), anywhere=True)]))

    def test_the_limits_hold_the_claim(self):
        nodes = [node(number, free=2 + number,
                      physnets=frozenset({f'ghsched-numa{number}'}))
                 for number in range(4)]
        self.assertEqual({0, 2}, set(numbers(
            nodes, SMALL, SMALL,
            physnets=frozenset({'ghsched-numa0', 'ghsched-numa2'}))))

    def test_a_host_with_too_few_nodes_has_none(self):
        self.assertEqual([], numbers([node()], SMALL, SMALL))

    def test_nodes_are_reported_even_when_nothing_seems_to_fit(self):
        self.assertEqual([0], numbers([node(0, free=0)], SMALL))

    def test_a_wide_host_is_not_searched_to_the_end(self):
        need = DeviceNeed(1, frozenset({'none'}))
        nodes = [node(number) for number in range(16)]
        self.assertEqual(8, len(numbers(nodes, *[SMALL] * 8, needs=[need])))

    @given(machines.hosts(), st.lists(machines.guest_nodes, min_size=1,
                                      max_size=3),
           machines.device_needs, st.booleans(), st.randoms())
    def test_the_order_of_the_nodes_does_not_matter(self, nodes, guest,
                                                    needs, pack, random):
        before = numbers(nodes, *guest, needs=needs, pack=pack)
        random.shuffle(nodes)
        self.assertEqual(before,
                         numbers(nodes, *guest, needs=needs, pack=pack))
        self.assertEqual(len(set(before)), len(before))


class LikeNovaTest(base.TestCase):
    """Predicted nodes of guests, compared with those of Nova's claim."""

    @given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)),
                    min_size=2, max_size=4),
           st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)),
                    max_size=3),
           st.integers(1, 2), st.integers(1, 4), st.integers(0, 2),
           st.booleans(), st.booleans())
    def test_the_nodes_are_those_of_novas_fit(self, used, pools, size, cpus,
                                              vfs, pinned, pack):
        assume(size <= len(used))
        conf = shared.config()
        conf.set_override('packing_host_numa_cells_allocation_strategy', pack,
                          group='compute')
        self.addCleanup(
            conf.clear_override,
            'packing_host_numa_cells_allocation_strategy', group='compute')
        state = states.host(
            cells=[states.cell(number, pinned=gone if pinned else 0,
                               floating=0 if pinned else gone,
                               memory_usage=256 * memory)
                   for number, (gone, memory) in enumerate(used)],
            pools=[states.pool(one % len(used), count)
                   for one, count in pools])
        spec = states.spec(size=size, cpus=cpus, pinned=pinned, vfs=vfs)
        fitted = hardware.numa_fit_instance_to_host(
            state.numa_topology, spec.numa_topology.obj_clone(), {},
            limits=objects.NUMATopologyLimits(
                cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0),
            pci_requests=spec.pci_requests.requests,
            pci_stats=state.pci_stats)
        assume(fitted)
        all_pools = host_states.get_pci_pools(state)
        found = likely.guess_host_nodes(
            host_states.list_host_nodes(state, all_pools, None),
            host_nodes.list_guest_node_requirements(spec.numa_topology, 1),
            host_states.list_device_needs(state, spec, all_pools), pack=pack)
        self.assertEqual(list(numa.list_host_nodes(fitted)),
                         [one.number for one in found])
