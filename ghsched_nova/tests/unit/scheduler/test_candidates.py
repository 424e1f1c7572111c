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

import testtools

from ghsched_nova.scheduler import candidates
from ghsched_nova.scheduler import refusals

SUFFIXES = {0: '_ghsched_bw0', 1: '_ghsched_bw1'}
NODES = {'rp0': 0, 'rp1': 1, 'rp2': 2}


def candidate(first, second, **others):
    mappings = {'': ['root'], '_ghsched_bw0': [first],
                '_ghsched_bw1': [second]}
    mappings.update({suffix: [provider]
                     for suffix, provider in others.items()})
    return {'allocations': {}, 'mappings': mappings}


class PlaceTest(testtools.TestCase):

    def place(self, *offered):
        return candidates.place(offered, SUFFIXES, NODES)

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
        keys = {candidates.other_groups(item, SUFFIXES) for item in placed}
        self.assertEqual(2, len(keys))


class ByNodesTest(testtools.TestCase):

    def test_permutations_of_one_set_are_tried_together(self):
        offered = [candidate(first, second)
                   for first, second in itertools.permutations(NODES, 2)]
        placed, _ = candidates.place(offered, SUFFIXES, NODES)
        sets = list(candidates.by_nodes(placed, SUFFIXES))
        self.assertEqual([{0, 1}, {0, 2}, {1, 2}],
                         [set(items[0].nodes.values()) for items in sets])
        self.assertEqual([2, 2, 2], [len(items) for items in sets])

    def test_candidates_with_other_devices_are_apart(self):
        offered = [candidate('rp0', 'rp1', pci='pf0'),
                   candidate('rp0', 'rp1', pci='pf1')]
        placed, _ = candidates.place(offered, SUFFIXES, NODES)
        self.assertEqual(2, len(list(candidates.by_nodes(placed, SUFFIXES))))


class GatheredTest(testtools.TestCase):

    def test_hosts_refused_for_one_reason_are_one_line(self):
        gathered = refusals.Gathered()
        for host in ('a', 'b', 'c'):
            gathered.add(host, refusals.Refusal('too full'))
        gathered.add('d', refusals.Refusal('no topology'))
        self.assertEqual(
            ['ghsched: flavor f refused on 3 hosts (a, b, c): too full',
             'ghsched: flavor f refused on 1 host (d): no topology'],
            gathered.lines('f'))

    def test_a_thousand_hosts_make_a_short_line(self):
        gathered = refusals.Gathered()
        for number in range(1000):
            gathered.add(f'host{number}', refusals.Refusal('too full'))
        (line,) = gathered.lines('f')
        self.assertIn('1000 hosts', line)
        self.assertIn('and 995 more', line)
        self.assertLess(len(line), 160)
