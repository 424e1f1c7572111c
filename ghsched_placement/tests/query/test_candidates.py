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
import itertools
import random

from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_placement.query import candidates
from ghsched_placement.query import matching
from ghsched_placement.query import node_assignment
from ghsched_placement.tests import base

SUFFIXES = {0: 'ghsched_bw0', 1: 'ghsched_bw1'}
NODES = {'rp0': 0, 'rp1': 1, 'rp2': 2}
WANTED = candidates.NodeRequestGroups(SUFFIXES)
HOST = candidates.HostProviders(NODES)


def candidate(first, second, **others):
    mappings = {'': ['root'], 'ghsched_bw0': [first],
                'ghsched_bw1': [second]}
    mappings.update({suffix: [provider]
                     for suffix, provider in others.items()})
    return {'allocations': {}, 'mappings': mappings}


def assign_host_nodes(*args, **values):
    """Return all ways, and the reason if there is none."""
    placed, refusal = node_assignment.assign_host_nodes(*args, **values)
    return list(placed), refusal


class LazyCostTest(base.TestCase):

    def test_costs_of_a_host_without_room_are_not_computed(self):
        asked = []
        for has_room in (False, True):
            assign_host_nodes(
                [candidate('rp0', 'rp1')], WANTED, candidates.HostProviders(
                    NODES, compute_busy=lambda: asked.append(1) or {}),
                lambda _guest, _node, has_room=has_room: has_room)
            self.assertEqual(has_room, bool(asked))


class PlaceTest(base.TestCase):

    def assign(self, *offered):
        return assign_host_nodes(offered, WANTED, HOST)

    def test_place_maps_providers_to_host_nodes(self):
        (placed,), refusal = self.assign(candidate('rp1', 'rp2'))
        self.assertEqual({0: 1, 1: 2}, placed.nodes)
        self.assertIsNone(refusal)

    def test_place_ignores_the_order_of_placement(self):
        one, two = candidate('rp0', 'rp1'), candidate('rp1', 'rp0')
        self.assertEqual(self.assign(one, two), self.assign(two, one))

    def test_place_of_two_guest_nodes_on_one_host_node_is_refused(self):
        placed, refusal = self.assign(candidate('rp1', 'rp1'))
        self.assertEqual([], placed)
        self.assertEqual(candidates.ONE_NODE_FOR_TWO, refusal)

    def test_place_with_providers_of_another_host_is_refused(self):
        placed, refusal = self.assign(candidate('rp1', 'elsewhere'))
        self.assertEqual([], placed)
        self.assertEqual(candidates.UNKNOWN_NODES, refusal)

    def test_place_keeps_candidates_with_other_devices_apart(self):
        offered = [candidate('rp0', 'rp1', pci='pf0'),
                   candidate('rp0', 'rp1', pci='pf1')]
        placed, _ = self.assign(*offered)
        self.assertEqual([(('pci', ('pf0',)),), (('pci', ('pf1',)),)],
                         [item.others for item in placed])


class CostTest(base.TestCase):

    def test_place_ranks_equal_ways_by_cost_to_others(self):
        offered = [candidate(first, second)
                   for first, second in itertools.permutations(NODES, 2)]
        asked = []

        def cost(order):
            asked.append(order)
            return (-order[1], order[0])
        placed, _ = assign_host_nodes(offered, WANTED, HOST, cost=cost)
        self.assertEqual([(0, 2), (1, 2), (0, 1), (2, 1), (1, 0), (2, 0)],
                         [item.get_host_node_order() for item in placed])
        self.assertEqual(6, len(asked))

    def test_place_of_too_many_ways_ranks_by_node_number(self):
        offered = [candidate(first, second)
                   for first, second in itertools.permutations(NODES, 2)]
        self.patch(node_assignment, 'MAX_COSTED', 5)
        placed, _ = assign_host_nodes(offered, WANTED, HOST,
                                      cost=lambda order: (-order[1],))
        self.assertEqual((0, 1), placed[0].get_host_node_order())


class OtherNodesTest(base.TestCase):
    """Guest node 1 asks for nothing of ours."""

    def assign_with_pfs(self, node_of_pf=None):
        host = candidates.HostProviders(
            {f'rp{node}': node for node in range(4)}, node_of_pf or {},
            {0: 0, 1: 1, 2: 0, 3: 1})
        wanted = candidates.NodeRequestGroups({0: 'ghsched_bw0'},
                                              guest_nodes=2)
        placed, _refusal = assign_host_nodes(
            [{'allocations': {}, 'mappings': {'ghsched_bw0': ['rp0']}}],
            wanted, host)
        return [item.get_host_node_order() for item in placed]

    def test_place_prefers_the_socket_of_the_other_guest_nodes(self):
        self.assertEqual([(0, 2), (0, 1), (0, 3)], self.assign_with_pfs())

    def test_place_prefers_nodes_without_pfs(self):
        self.assertEqual([(0, 1), (0, 3), (0, 2)],
                         self.assign_with_pfs({'pf': 2}))


class VfsTest(base.TestCase):
    """Four nodes on two sockets, a PF on node 0 and one on node 2."""

    HOST = candidates.HostProviders(
        {f'rp{node}': node for node in range(4)},
        {'pf0': 0, 'pf2': 2, 'pf?': None}, {0: 0, 1: 0, 2: 1, 3: 1})

    def assign_with_vfs(self, *offered, locality='any'):
        wanted = candidates.NodeRequestGroups(
            SUFFIXES, [candidates.VfRequest(0, 'a', 2),
                       candidates.VfRequest(1, 'b', 1)], locality)
        candidates.map_vfs_to_pfs(offered, wanted.vfs)
        return assign_host_nodes(offered, wanted, self.HOST)

    def test_fan_out_gives_each_vf_the_pf_of_its_group(self):
        offered = candidate('rp0', 'rp2', **{'a-0': 'pf0', 'b-0': 'pf2'})
        ((placed,), _refusal) = self.assign_with_vfs(offered)
        self.assertEqual(['pf0'], offered['mappings']['a-1'])
        self.assertEqual(('pf0', 'pf0', 'pf2'), placed.pfs)
        self.assertEqual((0, 0), placed.far)

    def test_place_counts_vfs_of_several_pfs(self):
        offered = candidate('rp0', 'rp2', **{'a-0': 'pf0', 'a-1': 'pf2',
                                             'b-0': 'pf2'})
        ((placed,), _refusal) = self.assign_with_vfs(offered)
        self.assertEqual(('pf0', 'pf2', 'pf2'), placed.pfs)
        self.assertEqual((1, 1), placed.far)

    def test_place_ranks_the_nearest_vfs_first(self):
        far = candidate('rp1', 'rp3', **{'a-0': 'pf2', 'b-0': 'pf0'})
        socket = candidate('rp1', 'rp3', **{'a-0': 'pf0', 'b-0': 'pf2'})
        near = candidate('rp0', 'rp2', **{'a-0': 'pf0', 'b-0': 'pf2'})
        placed, _refusal = self.assign_with_vfs(far, near, socket)
        self.assertEqual([near, socket, far],
                         [item.candidate for item in placed])

    def test_place_refuses_vfs_beyond_the_locality(self):
        far = candidate('rp1', 'rp3', **{'a-0': 'pf2', 'b-0': 'pf0'})
        socket = candidate('rp1', 'rp3', **{'a-0': 'pf0', 'b-0': 'pf2'})
        placed, _refusal = self.assign_with_vfs(far, socket, locality='socket')
        self.assertEqual([socket], [item.candidate for item in placed])
        placed, refusal = self.assign_with_vfs(far, socket, locality='node')
        self.assertEqual([], placed)
        self.assertEqual(candidates.TOO_FAR, refusal)

    def test_place_takes_a_pf_without_a_node_for_far(self):
        nowhere = candidate('rp0', 'rp1', **{'a-0': 'pf?', 'b-0': 'pf0'})
        self.assertEqual(candidates.UNKNOWN_DEVICE_NODE,
                         self.assign_with_vfs(nowhere, locality='socket')[1])
        self.assertEqual((3, 2), self.assign_with_vfs(nowhere)[0][0].far)

    def test_place_with_unknown_pfs_is_refused(self):
        offered = candidate('rp0', 'rp1', **{'a-0': 'new', 'b-0': 'pf0'})
        self.assertEqual(candidates.UNKNOWN_DEVICES,
                         self.assign_with_vfs(offered)[1])

    def unnamed(self, *offered, locality='any', suffixes=None):
        """Guest nodes that no group names, with two VFs and one."""
        wanted = candidates.NodeRequestGroups(
            suffixes or {0: 'ghsched_node0', 1: 'ghsched_node1'},
            [candidates.VfRequest(0, 'a', 2), candidates.VfRequest(1, 'b', 1)],
            locality)
        mappings = [{'allocations': {}, 'mappings': {
            suffix: [provider] for suffix, provider in item.items()}}
            for item in offered]
        candidates.map_vfs_to_pfs(mappings, wanted.vfs)
        placed, refusal = assign_host_nodes(mappings, wanted, self.HOST)
        return [item.nodes for item in placed], refusal

    def test_place_finds_the_node_of_vfs_without_a_group(self):
        nodes, _refusal = self.unnamed({'a-0': 'pf0', 'b-0': 'pf2'},
                                       locality='node')
        self.assertEqual([{0: 0, 1: 2}], nodes)

    def test_place_of_two_guest_nodes_with_vfs_of_one_node_is_refused(self):
        self.assertEqual(
            ([], candidates.ONE_NODE_FOR_TWO),
            self.unnamed({'a-0': 'pf0', 'b-0': 'pf0'}, locality='node'))

    def test_place_ranks_all_nodes_that_are_near_enough(self):
        nodes, _refusal = self.unnamed({'a-0': 'pf0', 'b-0': 'pf0'},
                                       locality='socket')
        self.assertEqual([{0: 0, 1: 1}, {0: 1, 1: 0}], nodes)
        nodes, _refusal = self.unnamed({'a-0': 'pf0', 'b-0': 'pf2'})
        self.assertEqual(12, len(nodes))
        self.assertEqual([{0: 0, 1: 2}, {0: 0, 1: 3}], nodes[:2])

    def test_place_keeps_the_node_that_a_group_names(self):
        nodes, _refusal = self.unnamed(
            {'ghsched_bw0': 'rp1', 'a-0': 'pf0', 'b-0': 'pf0'},
            locality='socket',
            suffixes={0: 'ghsched_bw0', 1: 'ghsched_node1'})
        self.assertEqual([{0: 1, 1: 0}], nodes)

    def test_place_without_a_group_for_bandwidth_is_refused(self):
        self.assertEqual(
            ([], candidates.UNKNOWN_NODES),
            self.unnamed({'a-0': 'pf0', 'b-0': 'pf0'},
                         suffixes={0: 'ghsched_bw0', 1: 'ghsched_node1'}))

    def test_place_without_steps_left_finds_one_way(self):
        self.patch(node_assignment, 'MAX_STEPS', 0)
        self.patch(node_assignment, 'MIN_SEARCH_STEPS', 0)
        nodes, _refusal = self.unnamed({'a-0': 'pf0', 'b-0': 'pf2'},
                                       {'a-0': 'pf2', 'b-0': 'pf0'})
        self.assertEqual([{0: 0, 1: 2}], nodes)

    def test_place_joins_candidates_that_differ_in_pfs_alone(self):
        wanted = candidates.NodeRequestGroups(
            {0: 'ghsched_node0'}, [candidates.VfRequest(0, 'a', 1)])
        offered = [{'allocations': {}, 'mappings': {
            'ghsched_node0': ['rp0'], 'a-0': [pf]}} for pf in 'qp']
        host = candidates.HostProviders({'rp0': 0}, {'p': 0, 'q': 0})
        (placed,), _refusal = assign_host_nodes(offered, wanted, host)
        self.assertEqual(('p',), placed.pfs)
        self.assertEqual(offered[::-1], placed.candidates)


class Question:
    """A random request, its candidates on one host, and all ways.

    The ways are those of an exhaustive search that shares nothing with the
    code but the order of preferences.
    """

    def __init__(self, chance):
        self.nodes = chance.randint(1, 5)
        self.guests = chance.randint(1, min(4, self.nodes))
        self.socket = {node: chance.choice([0, 1, None])
                       for node in range(self.nodes)}
        self.pfs = {f'pf{number}': chance.choice([*range(self.nodes), None])
                    for number in range(chance.randint(0, 4))}
        self.vfs = {guest: chance.randint(1, 2)
                    for guest in range(self.guests)
                    if self.pfs and chance.random() < .5}
        self.counted = {guest for guest in range(self.guests)
                        if chance.random() < .4}
        self.locality = chance.choice(['node', 'socket', 'any'])
        self.full = {(guest, node) for guest in range(self.guests)
                     for node in range(self.nodes) if chance.random() < .15}
        self.busy = {node: (float(chance.randint(0, 1)),
                            float(chance.randint(0, 2)),
                            chance.choice([.1, .2, .7]))
                     for node in range(self.nodes)
                     if chance.random() < .95} if chance.random() < .5 else {}
        self.costs = {order: (chance.choice([0., .5, 1.]),) for order in
                      itertools.permutations(range(self.nodes), self.guests)}
        self.offered = [self.candidate(chance)
                        for _number in range(chance.randint(1, 6))]
        self.needed = frozenset(
            node for node in range(self.nodes)
            if chance.random() < chance.choice((0, .5)))

    def candidate(self, chance):
        """Return a candidate as Placement answers."""
        mappings = {'': ['root']}
        for guest in self.counted:
            mappings[f'ghsched_bw{guest}'] = [
                f'rp{chance.randrange(self.nodes)}']
        for guest, count in self.vfs.items():
            for number in range(count):
                mappings[f'v{guest}-{number}'] = [
                    chance.choice(list(self.pfs))]
        if chance.random() < .5:
            mappings['alias'] = [chance.choice(['x', 'y'])]
        return {'allocations': {}, 'mappings': mappings}

    def pfs_of(self, candidate):
        """Return the PFs of the VFs of a candidate."""
        return tuple(candidate['mappings'][f'v{guest}-{number}'][0]
                     for guest, count in sorted(self.vfs.items())
                     for number in range(count))

    def wanted(self):
        suffixes = {guest: f'ghsched_bw{guest}' if guest in self.counted
                    else f'ghsched_node{guest}'
                    for guest in {*self.counted, *self.vfs}}
        return candidates.NodeRequestGroups(suffixes, [
            candidates.VfRequest(guest, f'v{guest}', count)
            for guest, count in self.vfs.items()], self.locality,
            guest_nodes=self.guests)

    def host(self):
        return candidates.HostProviders(
            {f'rp{node}': node for node in range(self.nodes)}, self.pfs,
            self.socket, lambda: self.busy, needed=self.needed)

    def steps_apart(self, node, device):
        """Return 0 on the same node, 1 on the same socket, 2 elsewhere."""
        if node == device:
            return 0
        if device is None or self.socket[node] is None:
            return 2
        return 1 if self.socket[node] == self.socket[device] else 2

    def ways(self, with_cost):
        """Return rank, order, other providers and PFs of each way."""
        found = []
        for one in self.offered:
            found += filter(None, (
                self.way(one['mappings'], order, with_cost)
                for order in self.costs))
        return sorted(found)

    def way(self, mappings, order, with_cost):
        """Return a way; None if a candidate does not allow it."""
        off, pfs = Counter(), []
        for guest, node in enumerate(order):
            if (guest, node) in self.full or guest in self.counted and (
                    mappings[f'ghsched_bw{guest}'] != [f'rp{node}']):
                return None
            for number in range(self.vfs.get(guest, 0)):
                pfs += mappings[f'v{guest}-{number}']
                apart = self.steps_apart(node, self.pfs[pfs[-1]])
                if apart > ('node', 'socket', 'any').index(self.locality):
                    return None
                off[apart] += 1
        wasted = sum(1 for guest, node in enumerate(order)
                     if guest not in self.vfs
                     and node in self.pfs.values())
        loads = candidates.combine_node_costs(order, self.busy)
        unneeded = sum(1 for node in order
                       if self.needed and node not in self.needed)
        return ((unneeded, off[2], off[1] + off[2], wasted,
                 len({self.socket[node] for node in order}), loads[:-2],
                 self.costs[order] if with_cost else (), loads[-2:], order,
                 len(set(pfs)), tuple(pfs)), order,
                tuple(mappings.get('alias', ())))


class ExactTest(base.TestCase):

    @settings(max_examples=300)
    @given(st.integers(0, 10 ** 9), st.booleans())
    def test_place_finds_the_ways_of_an_exhaustive_search_in_their_order(
            self, seed, with_cost):
        question = Question(random.Random(seed))  # noqa: S311
        assume(question.counted or question.vfs)
        expected = question.ways(with_cost)
        steps = matching.Steps()
        found, refusal = assign_host_nodes(
            question.offered, question.wanted(), question.host(),
            lambda *pair: pair not in question.full,
            (lambda order: question.costs[tuple(order)])
            if with_cost else None, steps)
        self.assertEqual(not expected, refusal is not None)
        ranks = [way.rank for way in found]
        self.assertEqual(sorted(ranks), ranks)
        # The candidates of a way differ in their PFs alone.
        self.assertEqual(
            [rank for rank, _order, _alias in expected],
            sorted((*way.rank[:-2], len(set(pfs)), pfs)
                   for way in found for pfs in map(question.pfs_of,
                                                   way.candidates)))

    @given(st.integers(0, 10 ** 9), st.integers(0, 200))
    def test_place_within_few_steps_finds_a_way_if_there_is_one(
            self, seed, limit):
        question = Question(random.Random(seed))  # noqa: S311
        assume(question.counted or question.vfs)
        every = [(order, alias) for _rank, order, alias
                 in question.ways(False)]
        found, refusal = assign_host_nodes(
            question.offered, question.wanted(), question.host(),
            lambda *pair: pair not in question.full, None,
            matching.Steps(limit))
        self.assertEqual((not every, not every),
                         (refusal is not None, not found))
        self.assertLessEqual({way.get_host_node_order() for way in found},
                             {order for order, _alias in every})
