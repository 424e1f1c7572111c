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

from hypothesis import assume
from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.live_change import node_move
from ghsched_placement.fit.cells import GuestCell
from ghsched_placement.fit.cells import HostCell
from ghsched_placement.tests import base


def _host(node, free, threads=2, **more):
    """A host node of eight dedicated CPUs in cores."""
    first = 8 * node
    return HostCell(frozenset(first + cpu for cpu in free), tuple(
        frozenset(range(core, core + threads))
        for core in range(first, first + 8, threads)),
        **{'memory_free': 4096, **more})


FREE = st.frozensets(st.integers(0, 7))


@st.composite
def _clouds(draw):
    """A host of three nodes, and a guest of up to two of them."""
    free = [draw(FREE) for _node in range(3)]
    guest = []
    for node in range(draw(st.integers(1, 2))):
        cpus = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4,
                             unique=True))
        free[node] -= set(cpus)
        guest.append(GuestCell(
            node, pins={vcpu: 8 * node + cpu
                        for vcpu, cpu in enumerate(cpus)},
            memory=1024, threads=draw(st.sampled_from(
                ['prefer', 'require', 'isolate']))))
    host = {node: _host(node, cpus) for node, cpus in enumerate(free)}
    wish = {number: draw(st.integers(0, 2)) for number in range(len(guest))}
    return guest, host, wish


class MoveTest(base.TestCase):

    GUEST = (GuestCell(0, pins={0: 2, 1: 3}, memory=1024),)

    def _plan(self, *free, guest=GUEST, wish=None, devices=(), **more):
        host = {node: _host(node, cpus, **more)
                for node, cpus in enumerate(free)}
        return node_move.plan_node_move(guest, host, wish or {0: 1}, devices)

    def _refused(self, text, *free, **more):
        with self.assertRaisesRegex(node_move.NotMovable, text):
            self._plan(*free, **more)

    def test_each_vcpu_gets_a_free_cpu_of_the_other_node(self):
        move = self._plan((), (0, 1, 2))
        self.assertEqual({0: 8, 1: 9}, move.after[0].pins)
        self.assertEqual({0: (0, 1)}, move.nodes_moved)

    def test_threads_of_a_core_stay_threads_of_a_core(self):
        self.assertEqual({0: 12, 1: 13},
                         self._plan((), (0, 2, 4, 5)).after[0].pins)

    def test_under_prefer_they_may_be_apart(self):
        self.assertEqual({0: 8, 1: 10}, self._plan((), (0, 2)).after[0].pins)

    def test_under_require_they_may_not(self):
        guest = (dataclasses.replace(self.GUEST[0], threads='require'),)
        self._refused('2 dedicated CPUs free, 2 are needed there, in cores '
                      'as hw:cpu_thread_policy=require', (), (0, 2),
                      guest=guest)

    def test_under_isolate_a_core_is_for_one(self):
        guest = (GuestCell(0, pins={0: 0, 1: 2}, threads='isolate'),)
        self.assertEqual({0: 8, 1: 10}, self._plan(
            (), (0, 1, 2, 3), guest=guest).after[0].pins)
        self._refused('isolate', (), (0, 1, 2), guest=guest)

    def test_cores_in_use_are_taken_before_whole_ones(self):
        guest = (GuestCell(0, pins={0: 0}),)
        self.assertEqual({0: 10}, self._plan(
            (), (0, 1, 2), guest=guest).after[0].pins)

    def test_two_nodes_can_change_places(self):
        guest = (GuestCell(0, pins={0: 0}), GuestCell(1, pins={1: 8}))
        move = self._plan((), (), guest=guest, wish={0: 1, 1: 0})
        self.assertEqual([{0: 8}, {1: 0}],
                         [cell.pins for cell in move.after])

    def test_memory_has_to_fit_next_to_what_is_there(self):
        self._refused('512 MiB of memory free, 1024 MiB are to be moved',
                      (), (0, 1), memory_free=512)

    def test_huge_pages_have_to_be_free_there(self):
        guest = (dataclasses.replace(self.GUEST[0], page_size=2048),)
        self._refused('500 pages of 2048 KiB free, 512 are to be moved',
                      (), (0, 1), guest=guest, pages_free={2048: 500})
        self.assertTrue(self._plan((), (0, 1), guest=guest,
                                   pages_free={2048: 512}).is_needed)

    def test_memory_that_devices_use_cannot_move(self):
        self._refused('pinned for the passthrough devices 0000:81:00.1',
                      (), (0, 1), devices=['0000:81:00.1'])

    def test_who_stays_needs_nothing(self):
        move = self._plan((), (), wish={0: 0}, devices=['0000:81:00.1'])
        self.assertFalse(move.is_needed)

    def test_shared_vcpus_need_shared_cpus(self):
        guest = (GuestCell(0, vcpus=frozenset({0})),)
        self._refused('has no CPUs for guests without', (), (), guest=guest)

    def test_nodes_that_are_not_there(self):
        self._refused('the host has no NUMA node 9', (), (), wish={0: 9})
        self._refused('the guest has no NUMA node 4', (), (), wish={4: 1})
        self._refused('two NUMA nodes of the guest would be on host NUMA '
                      'node 1', (), (), guest=(*self.GUEST, GuestCell(1)))

    @given(_clouds())
    def test_no_dedicated_cpu_is_given_twice(self, cloud):
        guest, host, wish = cloud
        try:
            move = node_move.plan_node_move(guest, host, wish)
        except node_move.NotMovable:
            assume(False)
        own = frozenset().union(*(cell.dedicated_cpus for cell in guest))
        free = frozenset().union(*(cell.free for cell in host.values()))
        given_now = [cpu for cell in move.after for cpu in cell.dedicated_cpus]
        self.assertEqual(len(given_now), len(set(given_now)))
        self.assertLessEqual(set(given_now), free | own)
        for old, new in zip(move.before, move.after, strict=True):
            self.assertEqual(old.pins.keys(), new.pins.keys())
            self.assertEqual(len(old.dedicated_cpus), len(new.dedicated_cpus))
            for cpu in new.dedicated_cpus:
                self.assertIn(cpu, frozenset().union(
                    *host[new.host_node].cores))
        for number, node in wish.items():
            self.assertEqual(node, move.after[number].host_node)

    @given(_clouds())
    def test_the_way_back_leads_to_where_it_was(self, cloud):
        guest, host, wish = cloud
        try:
            move = node_move.plan_node_move(guest, host, wish)
        except node_move.NotMovable:
            assume(False)
        self.assertEqual(tuple(guest), move.make_reverse_plan().after)
        self.assertEqual(move, move.make_reverse_plan().make_reverse_plan())
        self.assertEqual({number: (new, old) for number, (old, new)
                          in move.nodes_moved.items()},
                         move.make_reverse_plan().nodes_moved)

    @given(_clouds())
    def test_threads_of_a_core_stay_together_where_that_is_required(
            self, cloud):
        guest, host, wish = cloud
        guest = [dataclasses.replace(cell, threads='require')
                 for cell in guest]
        try:
            move = node_move.plan_node_move(guest, host, wish)
        except node_move.NotMovable:
            assume(False)
        for old, new in zip(move.before, move.after, strict=True):
            core_of = {cpu: core for cell in host.values()
                       for core in cell.cores for cpu in core}
            for one in old.pins:
                for other in old.pins:
                    if core_of[old.pins[one]] == core_of[old.pins[other]]:
                        self.assertEqual(core_of[new.pins[one]],
                                         core_of[new.pins[other]])
