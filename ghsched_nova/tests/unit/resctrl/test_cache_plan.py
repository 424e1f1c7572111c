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

"""Ways of the L3 on emulated kernels: each guest's own, and what is left."""

from dataclasses import replace
from pathlib import Path
import shutil
import tempfile


from ghsched_nova.resctrl import resolve
from ghsched_nova.tests.fixtures import world
from ghsched_placement.policy import GuestPolicy
from ghsched_placement.policy import NodePolicy
from ghsched_placement.tests import base

#: Kernels whose emulated machine has an L3 for each NUMA node.
DIALECTS = ('intel', 'amd', 'mpam', 'openeuler510', 'openeuler66', 'nvidia')


class CacheTestCase(base.TestCase):

    def new_world(self, dialect, ways=(3, 0, 4)):
        """Guests 0 and 2 are on node 0, guest 1 on node 1."""
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        self.world = world.World(top, dialect)
        self.cache = self.world.host.cache
        for number, count in enumerate(ways):
            self.give(number, count)

    def give(self, number, count):
        policy = GuestPolicy(nodes=(NodePolicy(l3_ways=count),))
        self.world.guests[number] = replace(
            self.world.guests[number], ways=resolve.ways(
                self.world.host, policy, (number % 2,)))

    def settle(self, **more):
        report = self.world.reconcile(cache=self.cache, **more)
        self.assertEqual((), report.problems)
        return report

    def masks(self, group='', line=0, node=0):
        """What a group holds of the caches of a node."""
        values = self.world.schemata(group).values(
            self.cache.lines[line], 16)
        return {values[domain]
                for domain in self.cache.domains_by_node[node]}

    def mask(self, *where, **more):
        mask, = self.masks(*where, **more)
        return mask

    def group(self, number):
        return self.world.guests[number].group


class EveryDialectTest(CacheTestCase):

    def test_guests_have_their_ways_and_all_others_the_rest(self):
        for dialect in DIALECTS:
            with self.subTest(dialect):
                self.new_world(dialect)
                self.settle()
                for line in range(len(self.cache.lines)):
                    first = self.mask(self.group(0), line=line)
                    third = self.mask(self.group(2), line=line)
                    rest = self.cache.mask & ~first & ~third
                    self.assertEqual(
                        (3, 4, 0), (first.bit_count(), third.bit_count(),
                                    first & third))
                    self.assertEqual(
                        {rest}, {self.mask(line=line),
                                 self.mask(self.group(1), line=line)})
                    self.assertEqual(self.cache.mask, self.mask(
                        self.group(0), line=line, node=1))
                again = self.settle()
                self.assertEqual((), again.actions)
                self.assertEqual([], self.world.files.operations)


class ChangesTest(CacheTestCase):

    def setUp(self):
        super().setUp()
        self.new_world('intel')
        self.settle()

    def test_ways_of_a_guest_that_left_go_to_all(self):
        before = self.mask(self.group(0))
        self.settle(without={2})
        self.assertEqual(before, self.mask(self.group(0)))
        self.assertEqual(self.cache.mask & ~before, self.mask())
        self.settle(without={0, 2})
        self.assertEqual(self.cache.mask, self.mask())

    def test_a_mask_that_somebody_changed_is_put_right(self):
        domain, = self.cache.domains_by_node[0]
        group = self.group(0)
        before = self.mask(group)
        self.world.model.write(f'/{group}/schemata', f'L3:{domain}=fffff\n')
        report = self.settle()
        self.assertEqual([('write line', group)],
                         [(one.kind, one.group) for one in report.actions])
        self.assertEqual(before, self.mask(group))

    def test_ways_that_a_host_took_from_itself_stay_taken(self):
        domain, = self.cache.domains_by_node[1]
        self.world.model.write('/schemata', f'L3:{domain}=ff\n')
        self.settle()
        self.assertEqual(0xff, self.mask(node=1))

    def test_others_leave_before_a_guest_comes(self):
        self.new_world('intel')
        self.settle()
        written = [(group, text) for what, group, text
                   in self.world.files.operations
                   if what == 'schemata' and text.startswith('L3:')]
        self.assertEqual('resctrl', written[0][0])   # the root group
        self.assertEqual({self.group(0), self.group(2)},
                         {group for group, _text in written[-2:]})

    def test_a_guest_without_room_has_a_problem(self):
        self.give(0, 18)
        report = self.world.reconcile(cache=self.cache)
        self.assertIn('there are no', report.problems[0].reason)
        self.assertEqual(self.world.guests[2].domain.uuid
                         if report.problems[0].group == self.group(2)
                         else self.world.guests[0].domain.uuid,
                         report.problems[0].guest)

    def test_a_host_that_has_too_few_ways_refuses(self):
        self.assertRaises(resolve.PolicyNotHeld, self.give, 0, 19)
