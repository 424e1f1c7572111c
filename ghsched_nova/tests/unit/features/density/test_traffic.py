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

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.tests.fixtures import figures
from ghsched_placement.features.density import queueing
from ghsched_placement.features.density import shipped
from ghsched_placement.features.density import traffic
from ghsched_placement.features.density.traffic import BandwidthControl
from ghsched_placement.features.density.traffic import MemoryFlow
from ghsched_placement.tests import base

MACHINE = figures.machine()
NEAR = 1e-3

one_flow = st.builds(
    MemoryFlow, group=st.sampled_from('abc'), origin=st.integers(0, 3),
    memory=st.integers(0, 3), demand=st.integers(0, 90000))
flows = st.lists(one_flow, max_size=8)
one_control = st.builds(
    BandwidthControl, minimum=st.integers(0, 33), maximum=st.integers(34, 100),
    hardlimit=st.booleans(), priority=st.integers(0, 7))
controls = st.dictionaries(
    st.tuples(st.sampled_from('abc'), st.integers(0, 3)), one_control,
    max_size=6)


class PropertyTest(base.TestCase):

    @given(flows, controls)
    def test_nodes_and_links_carry_no_more_than_they_can(self, asked, held):
        load = traffic.compute_flow_outcomes(MACHINE, asked, held)
        nodes, links = Counter(), Counter()
        for outcome in load.outcomes:
            flow = outcome.flow
            self.assertLessEqual(outcome.achieved, flow.demand + NEAR)
            for node in {flow.origin, flow.memory}:
                nodes[node] += outcome.achieved
            links[MACHINE.get_link(flow.origin,
                                   flow.memory)] += outcome.achieved
        self.assertLessEqual(max(nodes.values(), default=0),
                             MACHINE['capacity_mb'] + NEAR)
        for link, amount in links.items():
            if link:
                self.assertLessEqual(amount,
                                     MACHINE[f'{link[0]}_mb'] + NEAR)

    @given(flows, controls)
    def test_hard_caps_hold_at_the_memory(self, asked, held):
        got = Counter()
        for outcome in traffic.compute_flow_outcomes(MACHINE, asked,
                                                     held).outcomes:
            got[outcome.flow.group, outcome.flow.memory] += outcome.achieved
        for where, control in held.items():
            if control.maximum < 100 and control.hardlimit:
                self.assertLessEqual(
                    got[where],
                    MACHINE['capacity_mb'] * control.maximum / 100 + NEAR)

    @given(flows, controls)
    def test_local_guarantees_are_kept(self, asked, held):
        local = [MemoryFlow(flow.group, flow.memory, flow.memory, flow.demand)
                 for flow in asked]
        wanted, got = Counter(), Counter()
        for outcome in traffic.compute_flow_outcomes(MACHINE, local,
                                                     held).outcomes:
            where = outcome.flow.group, outcome.flow.memory
            wanted[where] += outcome.flow.demand
            got[where] += outcome.achieved
        for where, control in held.items():
            share = MACHINE['capacity_mb'] * control.minimum / 100
            self.assertGreaterEqual(got[where] + NEAR,
                                    min(wanted[where], share))

    @given(flows, controls, st.integers(0, 90000))
    def test_more_local_traffic_of_others_never_helps(self, asked, held,
                                                      more):
        local = [MemoryFlow(flow.group, flow.memory, flow.memory, flow.demand)
                 for flow in asked]
        mine = MemoryFlow('mine', 0, 0, 50000)
        before = traffic.compute_flow_outcomes(
            MACHINE, [mine, *local], held).outcomes[0]
        after = traffic.compute_flow_outcomes(
            MACHINE, [mine, *local, MemoryFlow('other', 0, 0, more)],
            held).outcomes[0]
        self.assertLessEqual(after.achieved, before.achieved + NEAR)
        self.assertGreaterEqual(after.latency, before.latency - NEAR)

    @given(st.lists(one_flow, min_size=1, max_size=8), controls,
           st.integers(0, 7))
    def test_a_higher_priority_never_harms(self, asked, held, priority):
        where = asked[0].group, asked[0].memory
        control = held.get(where, BandwidthControl())
        raised = {**held, where: replace(
            control, priority=max(control.priority, priority))}
        for before, after in zip(
                traffic.compute_flow_outcomes(MACHINE, asked, held).outcomes,
                traffic.compute_flow_outcomes(MACHINE, asked, raised).outcomes,
                strict=True):
            if (before.flow.group, before.flow.memory) == where:
                self.assertGreaterEqual(after.achieved + NEAR,
                                        before.achieved)
                self.assertLessEqual(after.latency,
                                     before.latency * (1 + 1e-6))

    @given(flows, controls)
    def test_no_access_is_faster_than_on_an_idle_machine(self, asked, held):
        for outcome in traffic.compute_flow_outcomes(MACHINE, asked,
                                                     held).outcomes:
            self.assertGreaterEqual(
                outcome.latency + 1e-9,
                traffic.get_idle_latency(MACHINE, outcome.flow.origin,
                                         outcome.flow.memory))


class SolveTest(base.TestCase):

    def solve(self, *asked, **held):
        return traffic.compute_flow_outcomes(MACHINE, asked, {
            (group, 0): control for group, control in held.items()})

    def test_an_idle_machine_costs_the_distance_alone(self):
        load = self.solve(MemoryFlow('a', 0, 0, 0), MemoryFlow('a', 0, 1, 0),
                          MemoryFlow('a', 0, 2, 0))
        self.assertEqual([1.0, 1.3, 1.45],
                         [one.latency for one in load.outcomes])

    def test_remote_traffic_takes_both_nodes_and_the_link(self):
        load = self.solve(MemoryFlow('a', 0, 2, 18000))
        self.assertEqual({0: 0.18, 1: 0.0, 2: 0.18, 3: 0.0}, load.nodes)
        self.assertEqual({('far', 0, 1): 0.5}, load.links)
        self.assertAlmostEqual(1.45 + 1.0 + 2 * 0.18 / 0.82,
                               load.outcomes[0].latency)

    def test_the_nodes_of_a_socket_share_its_links(self):
        load = self.solve(MemoryFlow('a', 0, 2, 36000),
                          MemoryFlow('b', 1, 3, 36000))
        self.assertEqual([18000.0, 18000.0],
                         [one.achieved for one in load.outcomes])

    def test_traffic_held_back_by_a_link_is_free_at_the_memory(self):
        load = self.solve(MemoryFlow('a', 2, 0, 360000),
                          MemoryFlow('b', 0, 0, 60000))
        self.assertAlmostEqual(60000.0, load.outcomes[1].achieved)

    def test_a_group_held_back_waits_for_its_turn(self):
        load = self.solve(MemoryFlow('a', 0, 0, 40000),
                          a=BandwidthControl(maximum=10))
        self.assertAlmostEqual(10000.0, load.outcomes[0].achieved)
        self.assertGreater(load.outcomes[0].latency, 4)

    def test_one_that_gets_nothing_waits_longest(self):
        starved, noise = MemoryFlow('a', 0, 0, 20000), MemoryFlow('n', 0, 0,
                                                                  400000)
        first = BandwidthControl(priority=7)
        nothing, little = (
            self.solve(starved, noise, n=first,
                       a=BandwidthControl(share)).outcomes[0]
            for share in (0, 0.01))
        self.assertEqual(0, nothing.achieved)
        self.assertGreater(nothing.latency, little.latency)

    def test_a_guarantee_helps_the_victim_of_a_noisy_group(self):
        victim, noise = MemoryFlow('v', 0, 0, 20000), MemoryFlow('n', 0, 0,
                                                                 400000)
        before = self.solve(victim, noise).outcomes[0]
        after = self.solve(victim, noise,
                           v=BandwidthControl(minimum=30)).outcomes[0]
        self.assertLess(before.achieved, 5000)
        self.assertAlmostEqual(20000, after.achieved)
        self.assertLess(after.latency, before.latency / 10)

    def test_memory_gives_no_more_than_its_curve_reaches(self):
        machine = replace(MACHINE,
                          curve=shipped.load_shipped_curve('mess-graviton3'))
        load = traffic.compute_flow_outcomes(machine,
                                             [MemoryFlow('a', 0, 0, 400000)])
        self.assertAlmostEqual(0.828 * machine['capacity_mb'],
                               load.outcomes[0].achieved)
        self.assertAlmostEqual(0.828, load.nodes[0])

    def test_enforcement_of_the_machine_counts(self):
        asked = MemoryFlow('a', 0, 0, 20000), MemoryFlow('n', 0, 0, 400000)
        cap = {('n', 0): BandwidthControl(maximum=50)}

        def latency(held, **values):
            machine = replace(MACHINE,
                              enforcement=queueing.Enforcement(**values))
            return traffic.compute_flow_outcomes(
                machine, asked, held).outcomes[0].latency
        self.assertLess(latency(cap), latency(cap, cap_window_us=10))
        first = {**cap, ('a', 0): BandwidthControl(minimum=30)}
        self.assertLess(latency(first), latency(first, scope='entrance'))
