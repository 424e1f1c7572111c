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


import itertools


from ghsched_placement import candidates
from ghsched_placement import lack
from ghsched_placement.tests import base

SUFFIXES = {0: 'ghsched_bw0', 1: 'ghsched_bw1'}
NODES = {'rp0': 0, 'rp1': 1, 'rp2': 2}
WANTED = candidates.Wanted(SUFFIXES)
HOST = candidates.Host(NODES)


def candidate(first, second, **others):
    mappings = {'': ['root'], 'ghsched_bw0': [first],
                'ghsched_bw1': [second]}
    mappings.update({suffix: [provider]
                     for suffix, provider in others.items()})
    return {'allocations': {}, 'mappings': mappings}


class PlaceTest(base.TestCase):

    def place(self, *offered):
        return candidates.place(offered, WANTED, HOST)

    def test_providers_become_host_nodes(self):
        (placed,), refusal = self.place(candidate('rp1', 'rp2'))
        self.assertEqual({0: 1, 1: 2}, placed.nodes)
        self.assertIsNone(refusal)

    def test_the_order_does_not_depend_on_placements(self):
        one, two = candidate('rp0', 'rp1'), candidate('rp1', 'rp0')
        self.assertEqual(self.place(one, two), self.place(two, one))

    def test_two_guest_nodes_never_share_a_host_node(self):
        placed, refusal = self.place(candidate('rp1', 'rp1'))
        self.assertEqual([], placed)
        self.assertEqual(candidates.ONE_NODE_FOR_TWO, refusal)

    def test_providers_of_another_host_are_no_candidates(self):
        placed, refusal = self.place(candidate('rp1', 'elsewhere'))
        self.assertEqual([], placed)
        self.assertEqual(candidates.UNKNOWN_NODES, refusal)

    def test_candidates_differ_by_the_devices_they_bring(self):
        offered = [candidate('rp0', 'rp1', pci='pf0'),
                   candidate('rp0', 'rp1', pci='pf1')]
        placed, _ = self.place(*offered)
        keys = {candidates.other_groups(item, WANTED.ours())
                for item in placed}
        self.assertEqual(2, len(keys))


class CostTest(base.TestCase):

    def test_what_costs_others_least_comes_first(self):
        offered = [candidate(first, second)
                   for first, second in itertools.permutations(NODES, 2)]
        asked = []

        def cost(order):
            asked.append(order)
            return (-order[1], order[0])
        placed, _ = candidates.place(offered, WANTED, HOST, cost=cost)
        self.assertEqual([(0, 2), (1, 2), (0, 1), (2, 1), (1, 0), (2, 0)],
                         [item.order() for item in placed])
        self.assertEqual(6, len(asked))

    def test_too_many_ways_are_not_compared(self):
        offered = [candidate(first, second)
                   for first, second in itertools.permutations(NODES, 2)]
        self.addCleanup(setattr, candidates, 'MAX_COSTED',
                        candidates.MAX_COSTED)
        candidates.MAX_COSTED = 5
        placed, _ = candidates.place(offered, WANTED, HOST,
                                     cost=lambda order: (-order[1],))
        self.assertEqual((0, 1), placed[0].order())


class ByNodesTest(base.TestCase):

    def test_every_way_is_tried_once_and_low_nodes_first(self):
        offered = [candidate(first, second)
                   for first, second in itertools.permutations(NODES, 2)]
        placed, _ = candidates.place(offered, WANTED, HOST)
        ways = list(candidates.by_nodes(placed, WANTED))
        self.assertEqual(list(itertools.permutations(range(3), 2)),
                         [items[0].order() for items in ways])
        self.assertEqual([1] * 6, [len(items) for items in ways])

    def test_candidates_with_other_devices_are_apart(self):
        offered = [candidate('rp0', 'rp1', pci='pf0'),
                   candidate('rp0', 'rp1', pci='pf1')]
        placed, _ = candidates.place(offered, WANTED, HOST)
        self.assertEqual(2, len(list(candidates.by_nodes(placed, WANTED))))


class OtherNodesTest(base.TestCase):
    """Guest node 1 asks for nothing of ours."""

    def place(self, node_of_pf=None):
        host = candidates.Host({f'rp{node}': node for node in range(4)},
                               node_of_pf or {}, {0: 0, 1: 1, 2: 0, 3: 1})
        wanted = candidates.Wanted({0: 'ghsched_bw0'}, guest_nodes=2)
        placed, _refusal = candidates.place(
            [{'allocations': {}, 'mappings': {'ghsched_bw0': ['rp0']}}],
            wanted, host)
        return [item.order() for item in placed]

    def test_it_goes_to_the_socket_of_the_others_first(self):
        self.assertEqual([(0, 2), (0, 1), (0, 3)], self.place())

    def test_it_leaves_nodes_with_vfs_alone(self):
        self.assertEqual([(0, 1), (0, 3), (0, 2)], self.place({'pf': 2}))


class VfsTest(base.TestCase):
    """Four nodes on two sockets, a PF on node 0 and one on node 2."""

    HOST = candidates.Host(
        {f'rp{node}': node for node in range(4)},
        {'pf0': 0, 'pf2': 2, 'pf?': None}, {0: 0, 1: 0, 2: 1, 3: 1})

    def place(self, *offered, locality='any'):
        wanted = candidates.Wanted(
            SUFFIXES, [candidates.VfRequest(0, 'a', 2),
                       candidates.VfRequest(1, 'b', 1)], locality)
        candidates.fan_out(offered, wanted.vfs)
        return candidates.place(offered, wanted, self.HOST)

    def test_every_vf_has_the_pf_of_its_group(self):
        offered = candidate('rp0', 'rp2', **{'a-0': 'pf0', 'b-0': 'pf2'})
        ((placed,), _refusal) = self.place(offered)
        self.assertEqual(['pf0'], offered['mappings']['a-1'])
        self.assertEqual(('pf0', 'pf0', 'pf2'), placed.pfs)
        self.assertEqual((0, 0), placed.far)

    def test_groups_of_several_pfs_stay_apart(self):
        offered = candidate('rp0', 'rp2', **{'a-0': 'pf0', 'a-1': 'pf2',
                                             'b-0': 'pf2'})
        ((placed,), _refusal) = self.place(offered)
        self.assertEqual(('pf0', 'pf2', 'pf2'), placed.pfs)
        self.assertEqual((1, 1), placed.far)

    def test_the_nearest_is_first(self):
        far = candidate('rp1', 'rp3', **{'a-0': 'pf2', 'b-0': 'pf0'})
        socket = candidate('rp1', 'rp3', **{'a-0': 'pf0', 'b-0': 'pf2'})
        near = candidate('rp0', 'rp2', **{'a-0': 'pf0', 'b-0': 'pf2'})
        placed, _refusal = self.place(far, near, socket)
        self.assertEqual([near, socket, far],
                         [item.candidate for item in placed])

    def test_what_is_too_far_is_refused(self):
        far = candidate('rp1', 'rp3', **{'a-0': 'pf2', 'b-0': 'pf0'})
        socket = candidate('rp1', 'rp3', **{'a-0': 'pf0', 'b-0': 'pf2'})
        placed, _refusal = self.place(far, socket, locality='socket')
        self.assertEqual([socket], [item.candidate for item in placed])
        placed, refusal = self.place(far, socket, locality='node')
        self.assertEqual([], placed)
        self.assertEqual(candidates.TOO_FAR, refusal)

    def test_a_device_of_no_node_is_near_nothing(self):
        nowhere = candidate('rp0', 'rp1', **{'a-0': 'pf?', 'b-0': 'pf0'})
        self.assertEqual(candidates.TOO_FAR,
                         self.place(nowhere, locality='socket')[1])
        self.assertEqual((3, 2), self.place(nowhere)[0][0].far)

    def test_pfs_that_the_host_has_not_are_refused(self):
        offered = candidate('rp0', 'rp1', **{'a-0': 'new', 'b-0': 'pf0'})
        self.assertEqual(candidates.UNKNOWN_DEVICES, self.place(offered)[1])

    def unnamed(self, *offered, locality='any', suffixes=None):
        """Guest nodes that no group names, with two VFs and one."""
        wanted = candidates.Wanted(
            suffixes or {0: 'ghsched_node0', 1: 'ghsched_node1'},
            [candidates.VfRequest(0, 'a', 2), candidates.VfRequest(1, 'b', 1)],
            locality)
        mappings = [{'allocations': {}, 'mappings': {
            suffix: [provider] for suffix, provider in item.items()}}
            for item in offered]
        candidates.fan_out(mappings, wanted.vfs)
        placed, refusal = candidates.place(mappings, wanted, self.HOST)
        return [item.nodes for item in placed], refusal

    def test_vfs_tell_the_node_that_no_group_names(self):
        nodes, _refusal = self.unnamed({'a-0': 'pf0', 'b-0': 'pf2'},
                                       locality='node')
        self.assertEqual([{0: 0, 1: 2}], nodes)

    def test_vfs_of_one_node_do_not_serve_two_guest_nodes(self):
        self.assertEqual(
            ([], candidates.ONE_NODE_FOR_TWO),
            self.unnamed({'a-0': 'pf0', 'b-0': 'pf0'}, locality='node'))

    def test_every_place_that_is_near_enough_the_nearest_first(self):
        nodes, _refusal = self.unnamed({'a-0': 'pf0', 'b-0': 'pf0'},
                                       locality='socket')
        self.assertEqual([{0: 0, 1: 1}, {0: 1, 1: 0}], nodes)
        nodes, _refusal = self.unnamed({'a-0': 'pf0', 'b-0': 'pf2'})
        self.assertEqual(12, len(nodes))
        self.assertEqual([{0: 0, 1: 2}, {0: 0, 1: 3}], nodes[:2])

    def test_a_guest_node_with_bandwidth_stays_where_that_is(self):
        nodes, _refusal = self.unnamed(
            {'ghsched_bw0': 'rp1', 'a-0': 'pf0', 'b-0': 'pf0'},
            locality='socket',
            suffixes={0: 'ghsched_bw0', 1: 'ghsched_node1'})
        self.assertEqual([{0: 1, 1: 0}], nodes)

    def test_bandwidth_that_no_group_names_is_refused(self):
        self.assertEqual(
            ([], candidates.UNKNOWN_NODES),
            self.unnamed({'a-0': 'pf0', 'b-0': 'pf0'},
                         suffixes={0: 'ghsched_bw0', 1: 'ghsched_node1'}))

    def test_very_many_places_are_cut_short(self):
        self.patch(candidates, 'MAX_PLACED', 4)
        nodes, _refusal = self.unnamed({'a-0': 'pf0', 'b-0': 'pf2'},
                                       {'a-0': 'pf2', 'b-0': 'pf0'})
        self.assertEqual([{0: 0, 1: 2}, {0: 2, 1: 0}], nodes[:2])
        self.assertEqual(4, len(nodes))

    def test_which_pf_of_a_node_makes_no_further_set_of_nodes(self):
        wanted = candidates.Wanted({0: 'ghsched_node0'},
                                   [candidates.VfRequest(0, 'a', 1)])
        offered = [{'allocations': {}, 'mappings': {
            'ghsched_node0': ['rp0'], 'a-0': [pf]}} for pf in ('p', 'q')]
        host = candidates.Host({'rp0': 0}, {'p': 0, 'q': 0})
        placed, _refusal = candidates.place(offered, wanted, host)
        (items,) = candidates.by_nodes(placed, wanted)
        self.assertEqual(2, len(items))


class GatheredTest(base.TestCase):

    def test_hosts_refused_for_one_reason_are_one_line(self):
        gathered = lack.Gathered()
        for host in ('a', 'b', 'c'):
            gathered.add(host, lack.Lack(None, 'x', reason='too full'))
        gathered.add('d', lack.Lack(None, 'x', reason='no topology'))
        self.assertEqual(
            ['ghsched: flavor f refused on 3 hosts (a, b, c): too full',
             'ghsched: flavor f refused on 1 host (d): no topology'],
            gathered.lines('f'))

    def test_a_thousand_hosts_make_a_short_line(self):
        gathered = lack.Gathered()
        for number in range(1000):
            gathered.add(f'host{number}',
                         lack.Lack(None, 'x', reason='too full'))
        (line,) = gathered.lines('f')
        self.assertIn('1000 hosts', line)
        self.assertIn('and 995 more', line)
        self.assertLess(len(line), 160)
