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

import contextlib
from dataclasses import replace
import errno
from pathlib import Path
import random
import shutil
import tempfile
from unittest import mock

from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
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
            self.world.guests[number], ways=resolve.resolve_l3_ways(
                self.world.host, policy, (number % 2,)))

    def settle(self, **more):
        report = self.world.reconcile(cache=self.cache, **more)
        self.assertEqual((), report.problems)
        return report

    def masks(self, group='', line=0, node=0):
        """Return the masks that a group has of the caches of a node."""
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
        groups = [group for group, _text in written]
        first = min(map(groups.index, (self.group(0), self.group(2))))
        self.assertEqual({self.group(0), self.group(2)},
                         set(groups[first:]))

    def test_a_guest_without_room_has_a_problem(self):
        self.give(0, 18)
        report = self.world.reconcile(cache=self.cache)
        self.assertIn('there are no', report.problems[0].reason)
        self.assertEqual(self.world.guests[2].domain.uuid
                         if report.problems[0].group == self.group(2)
                         else self.world.guests[0].domain.uuid,
                         report.problems[0].guest)

    def test_a_host_that_has_too_few_ways_refuses(self):
        self.assertRaises(resolve.PolicyRefused, self.give, 0, 19)


class MomentTest(CacheTestCase):
    """After each single operation, whatever is killed in between."""

    def watch(self):
        """Note groups with threads that have ways of a settled guest."""
        self.settled, self.found = {}, []
        files = self.world.files
        for name in ('write', 'make_directory'):
            self.enterContext(mock.patch.object(
                files, name, self.watched(getattr(files, name))))

    def watched(self, method):
        def watched(*arguments):
            method(*arguments)
            self.check_no_overlap(arguments)

        return watched

    def lines(self, group):
        return self.world.schemata(group).values(self.cache.lines[0], 16)

    def settle_all(self):
        self.settled = {
            guest.group: {domain: self.lines(guest.group)[domain]
                          for domain in guest.ways}
            for guest in self.world.guests if guest.ways}

    def check_no_overlap(self, operation):
        for name, masks in self.settled.items():
            for other in ('', *self.world.groups()):
                if other == name or other and not self.world.tasks(other):
                    continue
                found = self.lines(other)
                self.found += [
                    (operation, name, other) for domain, mask in masks.items()
                    if mask == self.lines(name)[domain]
                    and mask & found[domain]]

    def test_newcomers_never_run_in_the_ways_of_a_settled_guest(self):
        draw = random.Random(5)  # noqa: S311
        for dialect in DIALECTS:
            for ways in ((3, 0, 4), (2, 2, 0), (1, 0, 0)):
                for moment in (None, *draw.sample(range(2, 12), 2)):
                    with self.subTest(dialect, ways=ways, moment=moment):
                        self.new_world(dialect, ways)
                        self.settle()
                        self.watch()
                        self.settle_all()
                        for number in (3, 4):
                            self.world.add(number, draw.choice(
                                ('ghsched', 'libvirt', 'libvirt-process')))
                            self.give(number, draw.choice((0, 1, 2)))
                        if moment is not None:
                            self.world.files.kill_at(moment)
                            with contextlib.suppress(KeyboardInterrupt):
                                self.world.reconcile(cache=self.cache)
                            self.world.files.before = lambda *_rest: None
                        self.settle()
                        self.assertEqual([], self.found)


class OthersTest(CacheTestCase):
    """Groups of another program."""

    def reread(self):
        """Take the caches from what the kernel shows now."""
        with tempfile.TemporaryDirectory() as top:
            emulated.write_tree(self.world.model, Path(top), world.SPEED)
            self.cache = resctrl_host.read_host(
                Path(top) / 'resctrl', Path(top) / 'sysfs',
                resctrl_host.HostSettings(cap='hard')).cache

    def test_group_of_somebody_else_in_the_ways_of_a_guest_is_reported(self):
        for dialect in DIALECTS:
            with self.subTest(dialect):
                self.new_world(dialect)
                self.settle()
                self.world.model.mkdir('/low_prio')
                every = ';'.join(f'{domain}={self.cache.mask:x}'
                                 for domain in sorted(self.cache.domains))
                for line in self.cache.lines:
                    self.world.model.write('/low_prio/schemata',
                                           f'{line}:{every}\n')
                for report in (self.settle(), self.world.preview(
                        cache=self.cache)):
                    self.assertEqual((), report.actions)
                    self.assertEqual(
                        [self.group(0), self.group(2)],
                        [problem.group for problem in report.overlaps])
                    self.assertIn('control group low_prio has 3 ways of L3',
                                  report.overlaps[0].reason)
                self.world.model.rmdir('/low_prio')
                self.assertEqual((), self.settle().overlaps)

    def test_guests_find_room_next_to_an_exclusive_group(self):
        for dialect in ('intel', 'amd'):
            with self.subTest(dialect):
                self.new_world(dialect)
                self.world.model.mkdir('/low_prio')
                for name, mask in (('low_prio', 3), (
                        '', self.cache.mask & ~3)):
                    self.world.model.write(f'/{name}/schemata', (
                        'L3:' + ';'.join(f'{domain}={mask:x}' for domain in
                                         sorted(self.cache.domains)) + '\n'))
                self.world.model.write('/low_prio/mode', 'exclusive\n')
                self.reread()
                self.assertEqual((), self.settle().overlaps)
                self.assertEqual((), self.settle().actions)
                self.assertEqual({3}, self.masks('low_prio'))
                for group in ('', *map(self.group, range(3))):
                    for node in (0, 1):
                        self.assertFalse(any(
                            mask & 3 for mask in self.masks(
                                group, node=node)), group)

    def test_refusal_on_one_cache_leaves_the_others_right(self):
        self.new_world('intel', (0, 0, 4))
        self.settle()
        self.give(0, 3)
        self.give(1, 2)
        self.world.files.before = self.refuse
        report = self.world.reconcile(cache=self.cache)
        # The default group could not leave them on node 0.
        refused = [problem for problem in report.problems
                   if not problem.guest]
        self.assertIn('the write was refused (line L3:0=', str(refused[0]))
        self.assertEqual(
            [self.world.guests[0].domain.uuid],
            [problem.guest for problem in report.problems if problem.guest])
        self.assertIn("the kernel's default group has 3 ways of L3 0 that the "
                      'guest has to itself', report.problems[-1].reason)
        rest = self.mask(node=1)
        self.assertEqual(2, self.mask(self.group(1), node=1).bit_count())
        self.assertFalse(rest & self.mask(self.group(1), node=1))
        self.world.files.before = lambda *_operation: None
        self.settle()
        self.assertFalse(self.mask() & self.mask(self.group(0)))

    def refuse(self, what, group, text):
        if what == 'schemata' and text.startswith('L3:0=') and (
                group == self.world.root.name):
            raise OSError(errno.EINVAL, 'refused')
