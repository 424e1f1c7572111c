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


import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.packing import fragmentation
from ghsched_placement.fit.numa_nodes import DeviceNeed
from ghsched_placement.fit.numa_nodes import NodeAmount
from ghsched_placement.fit.numa_nodes import PlacedGuestNode
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import machines

node = machines.node
SMALL = GuestNode(pinned=2, memory=256)
BIG = GuestNode(pinned=8, memory=1024)
VF = DeviceNeed(1, frozenset({'pf0'}))


def value(nodes, *taken, guest=SMALL, needs=()):
    """Score of a guest of equal nodes on the numbered host nodes."""
    parts = [PlacedGuestNode(nodes[number], guest) for number in taken]
    return fragmentation.score_placement(nodes, parts, needs, len(taken)).value


class WholeNodeTest(base.TestCase):

    def test_a_used_node_is_better_than_a_fresh_one(self):
        nodes = [node(0, free=4), node(1)]
        self.assertGreater(value(nodes, 0), value(nodes, 1))

    def test_a_whole_host_is_the_last_to_be_broken(self):
        used, fresh = [node(0, free=4), node(1)], [node(0), node(1)]
        self.assertGreater(value(used, 1), value(fresh, 1))

    def test_of_two_used_nodes_the_fuller_is_better(self):
        nodes = [node(0, free=3), node(1, free=5)]
        self.assertGreater(value(nodes, 0), value(nodes, 1))

    def test_a_big_guest_takes_the_nodes_that_it_fills(self):
        exact, wide = [node(0), node(1)], [node(0, cpus=16, free=16), node(1)]
        self.assertGreater(value(exact, 0, 1, guest=BIG),
                           value(wide, 0, 1, guest=BIG))

    def test_each_whole_node_that_is_lost_counts(self):
        nodes = [node(0, free=4), node(1, free=4), node(2), node(3)]
        values = [value(nodes, *taken) for taken in ((0, 1), (1, 2), (2, 3))]
        self.assertEqual(sorted(values, reverse=True), values)
        self.assertEqual(3, len(set(values)))

    def test_no_node_is_the_worst(self):
        self.assertEqual(fragmentation.WORST,
                         fragmentation.score_placement([node()], [], (), 1))


class DevicesTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.nodes = [node(0, free=6, devices={'pf0': 8}), node(1, free=6)]

    def test_a_guest_without_devices_avoids_their_node(self):
        self.assertGreater(value(self.nodes, 1), value(self.nodes, 0))

    def test_and_their_host(self):
        plain = [node(0, free=6), node(1, free=6)]
        self.assertGreater(value(plain, 1), value(self.nodes, 1))

    def test_devices_are_stranded_as_far_as_cpus_are_gone(self):
        score = fragmentation.score_placement(
            self.nodes, [PlacedGuestNode(self.nodes[0], SMALL)], (), 1)
        self.assertAlmostEqual(8 * 2 / 8, score.stranded)

    def test_a_guest_that_takes_devices_strands_fewer(self):
        part = [PlacedGuestNode(self.nodes[0], SMALL)]
        one, four = (fragmentation.score_placement(
            self.nodes, part, [DeviceNeed(count, frozenset({'pf0'}))], 1)
            for count in (1, 4))
        self.assertGreater(one.stranded, four.stranded)
        self.assertGreater(four.value, one.value)

    def test_the_last_cpus_go_best_with_the_last_devices(self):
        full = [node(0, free=2, devices={'pf0': 1})]
        many = [node(0, free=2, devices={'pf0': 8})]
        self.assertGreater(value(full, 0, needs=[VF]),
                           value(many, 0, needs=[VF]))

    def test_devices_are_taken_from_the_nodes_in_turns(self):
        nodes = [node(0, devices={'pf0': 4}),
                 node(1, devices={'pf0': 1, 'pf1': 4})]
        parts = [PlacedGuestNode(one, SMALL) for one in nodes]
        self.assertEqual([1, 4], fragmentation._count_remaining_devices(
            parts, [DeviceNeed(4, frozenset({'pf0'}))]))

    def test_more_devices_than_there_are_is_no_error(self):
        parts = [PlacedGuestNode(self.nodes[0], SMALL)]
        self.assertEqual([0], fragmentation._count_remaining_devices(
            parts, [DeviceNeed(99, frozenset({'pf0'}))]))


@st.composite
def placed(draw):
    """A host, a guest on some of its nodes, and what devices it asks for."""
    nodes = draw(machines.hosts())
    taken = draw(st.lists(st.sampled_from(nodes), min_size=1, unique_by=id))
    parts = [PlacedGuestNode(one, draw(machines.guest_nodes)) for one in taken]
    return nodes, parts, draw(machines.device_needs)


class PropertyTest(base.TestCase):

    @given(placed())
    def test_a_score_is_between_0_and_1(self, case):
        nodes, parts, needs = case
        score = fragmentation.score_placement(nodes, parts, needs, len(parts))
        for name, number in dataclasses.asdict(score).items():
            self.assertGreaterEqual(number, 0, name)
            if name != 'stranded':
                self.assertLessEqual(number, 1, name)

    @given(placed(), st.randoms())
    def test_the_order_of_the_host_nodes_does_not_matter(self, case, random):
        nodes, parts, needs = case
        before = fragmentation.score_placement(nodes, parts, needs, len(parts))
        random.shuffle(nodes)
        after = fragmentation.score_placement(nodes, parts, needs, len(parts))
        self.assertAlmostEqual(before.value, after.value)

    @given(placed(), st.randoms())
    def test_nor_which_guest_node_is_which(self, case, random):
        nodes, parts, _needs = case
        before = fragmentation.score_placement(nodes, parts, (), len(parts))
        random.shuffle(parts)
        after = fragmentation.score_placement(nodes, parts, (), len(parts))
        self.assertAlmostEqual(before.value, after.value)

    @given(machines.hosts(kinds=[False]), machines.hosts(kinds=[True]),
           machines.guest_nodes, machines.device_needs)
    def test_breaking_a_fresh_node_is_never_better_than_filling_a_used_one(
            self, one, two, guest, needs):
        filled = fragmentation.score_placement(one, [PlacedGuestNode(one[0],
                                                                     guest)],
                                               needs, 1)
        broken = fragmentation.score_placement(two, [PlacedGuestNode(two[0],
                                                                     guest)],
                                               needs, 1)
        self.assertGreaterEqual(filled.value, broken.value)

    @given(machines.hosts(kinds=[False, None]),
           machines.hosts(kinds=[True, True]),
           st.tuples(machines.guest_nodes, machines.guest_nodes),
           machines.device_needs)
    def test_fewer_whole_nodes_lost_is_never_worse(self, one, two, guest,
                                                   needs):
        fewer, more = (fragmentation.score_placement(
            nodes, [PlacedGuestNode(*pair)
                    for pair in zip(nodes, guest, strict=False)],
            needs, 2) for nodes in (one, two))
        self.assertGreaterEqual(fewer.value, more.value)

    @given(machines.host_nodes(whole=False), machines.guest_nodes,
           st.integers(1, 8))
    def test_a_fuller_node_is_never_worse_where_no_devices_are(
            self, used, guest, gone):
        fuller = dataclasses.replace(used, devices={}, pinned=NodeAmount(
            used.pinned.total, used.pinned.free - gone))
        used = dataclasses.replace(used, devices={})
        scores = [fragmentation.score_placement(
            [one], [PlacedGuestNode(one, guest)], (), 1).value
            for one in (fuller, used)]
        self.assertGreaterEqual(scores[0], scores[1])

    @given(placed())
    def test_devices_never_attract_a_guest_that_asks_for_none(self, case):
        nodes, parts, _needs = case
        bare = {id(one): dataclasses.replace(one, devices={})
                for one in nodes}
        without = fragmentation.score_placement(
            list(bare.values()),
            [PlacedGuestNode(bare[id(part.node)], part.guest)
             for part in parts], (),
            len(parts))
        self.assertLessEqual(
            fragmentation.score_placement(nodes, parts, (), len(parts)).value,
            without.value + 1e-9)
