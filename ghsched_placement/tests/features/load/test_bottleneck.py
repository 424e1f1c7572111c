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

from ghsched_placement.features.load import bottleneck
from ghsched_placement.features.load.load import HostLoad
from ghsched_placement.features.load.load import HostNodeLoad
from ghsched_placement.tests import base

LIMITS = bottleneck.make_bottleneck_limits({})
FIGURES = st.none() | st.floats(0, 10)
NODES = st.builds(HostNodeLoad, st.just(0), cpu_load=FIGURES, cpu_wait=FIGURES,
                  memory_load=FIGURES, memory_wait=FIGURES, io_load=FIGURES,
                  io_wait=FIGURES)


def _load(node):
    return HostLoad(0.0, 60.0, (node,))


def _cpu(value, before=None):
    return bottleneck.mark_bottlenecks(_load(HostNodeLoad(0, cpu_load=value)),
                                       before, LIMITS)


class NodeTest(base.TestCase):

    def test_it_is_a_bottleneck_from_the_threshold_on(self):
        self.assertEqual(('cpu_load',), _cpu(0.9).nodes[0].bottlenecks)
        self.assertEqual((), _cpu(0.89).nodes[0].bottlenecks)

    def test_it_stays_one_until_well_below(self):
        before = _cpu(0.95)
        self.assertEqual(('cpu_load',),
                         _cpu(0.75, before).nodes[0].bottlenecks)
        self.assertEqual((), _cpu(0.7, before).nodes[0].bottlenecks)

    def test_it_does_not_become_one_between_the_two(self):
        self.assertEqual((), _cpu(0.75, _cpu(0.1)).nodes[0].bottlenecks)

    def test_unknown_values_begin_and_end_nothing(self):
        self.assertEqual((), _cpu(None).nodes[0].bottlenecks)
        self.assertEqual(('cpu_load',),
                         _cpu(None, _cpu(1.0)).nodes[0].bottlenecks)

    def test_waiting_ends_when_all_guests_have_left(self):
        def after(vcpus):
            waited = bottleneck.mark_bottlenecks(
                _load(HostNodeLoad(0, vcpus=2, cpu_wait=0.5)), None, LIMITS)
            return bottleneck.mark_bottlenecks(
                _load(HostNodeLoad(0, vcpus=vcpus)), waited,
                LIMITS).nodes[0].bottlenecks
        self.assertEqual((), after(0))
        # They are there, or may be, and their waiting is not known.
        self.assertEqual(('cpu_wait',), after(2))
        self.assertEqual(('cpu_wait',), after(None))

    def test_each_of_load_and_waiting_is_enough(self):
        for name in bottleneck.DEFAULTS:
            node = dataclasses.replace(HostNodeLoad(0), **{name: 100.0})
            found = bottleneck.mark_bottlenecks(_load(node), None, LIMITS)
            self.assertEqual((name,), found.nodes[0].bottlenecks)

    def test_a_resource_can_be_left_out(self):
        limits = bottleneck.make_bottleneck_limits({'cpu_load': 0})
        found = bottleneck.mark_bottlenecks(_load(HostNodeLoad(0,
                                                               cpu_load=1.0)),
                                            None, limits)
        self.assertEqual((), found.nodes[0].bottlenecks)

    def test_unknown_resources_are_named(self):
        with self.assertRaisesRegex(ValueError, 'cpu_lod.* is not one of'):
            bottleneck.make_bottleneck_limits({'cpu_lod': 1})

    @given(st.lists(NODES, min_size=1, max_size=5))
    def test_changes_lead_from_each_record_to_the_next(self, nodes):
        before, known = None, frozenset()
        for node in nodes:
            now = bottleneck.mark_bottlenecks(_load(node), before, LIMITS)
            for change in bottleneck.find_bottleneck_changes(before, now):
                self.assertEqual(change.begins, change.resource not in known)
                known ^= {change.resource}
            self.assertEqual(known, set(now.nodes[0].bottlenecks))
            before = now

    @given(st.floats(0, 10),
           st.lists(st.floats(0.81, 0.99), min_size=1, max_size=5))
    def test_figures_near_the_threshold_change_nothing(self, first, parts):
        begin = LIMITS.begin['cpu_load']
        before = _cpu(first)
        for part in parts:
            now = _cpu(part * begin, before)
            self.assertEqual(before.nodes[0].bottlenecks,
                             now.nodes[0].bottlenecks)
            before = now
