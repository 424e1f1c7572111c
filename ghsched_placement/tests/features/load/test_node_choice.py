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


from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.load import bottleneck
from ghsched_placement.features.load.load import HostLoad
from ghsched_placement.features.load.load import HostNodeLoad
from ghsched_placement.features.load import node_choice
from ghsched_placement.features.load.node_choice import ClaimedResources
from ghsched_placement.query.candidates import combine_node_costs
from ghsched_placement.tests import base

LIMITS = bottleneck.make_bottleneck_limits({})
SHARES = st.none() | st.floats(0, 1)


def _costs(*nodes, taken=(0, 0), pack=False):
    return node_choice.compute_load_costs(
        HostLoad(0.0, 60.0, nodes),
        {node.node: ClaimedResources(vcpus, 8)
         for node, vcpus in zip(nodes, taken, strict=True)}, LIMITS, pack)


class ChoiceTest(base.TestCase):

    def _best(self, *nodes, **more):
        costs = _costs(*nodes, **more)
        return min(costs, key=lambda node: (costs[node], node))

    def test_an_idle_node_is_better_than_a_busy_one(self):
        self.assertEqual(1, self._best(
            HostNodeLoad(0, vcpus=0, cpu_load=0.8),
            HostNodeLoad(1, vcpus=0, cpu_load=0.1)))

    def test_a_bottleneck_is_worse_whatever_its_load_is_now(self):
        self.assertEqual(1, self._best(
            HostNodeLoad(0, cpu_load=0.1, bottlenecks=('cpu_load',)),
            HostNodeLoad(1, cpu_load=0.8, bottlenecks=())))

    def test_the_nearest_figure_counts(self):
        self.assertEqual(0, self._best(
            HostNodeLoad(0, cpu_load=0.5, memory_load=0.1),
            HostNodeLoad(1, cpu_load=0.1, memory_load=0.7)))

    def test_nodes_that_are_alike_take_turns(self):
        nodes = (HostNodeLoad(0, vcpus=2, cpu_load=0.021),
                 HostNodeLoad(1, vcpus=0, cpu_load=0.004))
        self.assertEqual(1, self._best(*nodes, taken=(2, 0)))
        self.assertEqual(0, self._best(*nodes, taken=(2, 0), pack=True))

    def test_values_known_of_one_only_are_not_compared(self):
        self.assertEqual({}, _costs(HostNodeLoad(0, cpu_load=0.9),
                                    HostNodeLoad(1)))

    def test_guests_that_start_at_once_do_not_all_go_to_one_node(self):
        nodes = (HostNodeLoad(0, vcpus=4, cpu_load=0.5),
                 HostNodeLoad(1, vcpus=0, cpu_load=0.0))
        taken, chosen = [4, 0], []
        for _guest in range(4):
            node = self._best(*nodes, taken=taken)
            taken[node] += 2
            chosen.append(node)
        self.assertEqual({0, 1}, set(chosen))
        self.assertEqual(1, chosen[0])

    def test_a_guest_of_two_nodes_is_judged_by_the_worse(self):
        costs = {0: (0.0, 1.0, 0.0), 1: (0.0, 5.0, 0.0), 2: (1.0, 9.0, 0.0)}
        self.assertLess(combine_node_costs((0, 1), costs),
                        combine_node_costs((0, 2), costs))
        self.assertEqual((), combine_node_costs((0, 3), costs))

    @given(SHARES, SHARES, SHARES, SHARES)
    def test_costs_compare_with_each_other(self, one, two, three, four):
        found = _costs(HostNodeLoad(0, cpu_load=one, io_load=two),
                       HostNodeLoad(1, cpu_load=three, io_load=four))
        if found:
            self.assertEqual(len(found[0]), len(found[1]))
            known = one is not None and three is not None
            self.assertTrue(known or (two is not None and four is not None))
        elif one is not None and three is not None:
            self.fail('CPU load is known of both')

    @given(st.floats(0, 0.85), st.floats(0, 0.85))
    def test_less_load_never_costs_more(self, one, two):
        found = _costs(HostNodeLoad(0, vcpus=0, cpu_load=min(one, two)),
                       HostNodeLoad(1, vcpus=0, cpu_load=max(one, two)))
        self.assertLessEqual(found[0], found[1])
