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

"""Reasons why no CPUs of few enough L3 caches are free."""

from ghsched_placement.features import declared_cpus
from ghsched_placement.fit.cells import HostCell
from ghsched_placement.tests import base

CACHES = (frozenset(range(4)), frozenset(range(4, 8)))


def node(*free, caches=CACHES):
    """A host NUMA node of eight CPUs in two L3 caches."""
    return HostCell(frozenset(free),
                    tuple(frozenset({cpu}) for cpu in range(8)),
                    caches=caches)


class ShortageTest(base.TestCase):

    def find(self, needed, *nodes, wish='require'):
        return declared_cpus.find_cpu_shortage(
            {'ghsched:cpu_cache': wish}, nodes, needed, 'prefer')

    def test_figures_are_those_of_the_best_node(self):
        found = self.find(4, node(0, 1, 4), node(0, 1, 2, 4, 5),
                          node(0, 1, 2, 3, caches=()))
        self.assertEqual((3, 4), (found.free, found.needed))
        self.assertEqual('no NUMA node has 4 dedicated CPUs of one L3 cache '
                         'free (ghsched:cpu_cache=require)', found.text)
        self.assertIn('the most free is 3', found.detail)
        self.assertIn('ghsched:cpu_cache=prefer', found.cure)

    def test_guest_that_needs_two_caches_on_an_empty_node(self):
        three = (*CACHES[:1], frozenset({4, 5}), frozenset({6, 7}))
        found = self.find(5, node(0, 1, 4, 5, 6, 7, caches=three))
        self.assertEqual((4, 5), (found.free, found.needed))
        self.assertIn('of 2 L3 caches', found.text)

    def test_nothing_is_said_where_something_else_is_short(self):
        for needed, nodes in ((4, [node(0, 1, 4)]), (9, [node(*range(8))]),
                              (4, [node(0, 1, 2, 3)]), (4, [])):
            self.assertIsNone(self.find(needed, *nodes), (needed, nodes))
        self.assertIsNone(self.find(4, node(0, 1, 2, 4), wish='prefer'))
