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


"""A cap for the guests without a policy, on emulated kernels."""

from pathlib import Path
import shutil
import tempfile


from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resolve
from ghsched_nova.tests.fixtures import captured
from ghsched_nova.tests.fixtures import world
from ghsched_placement.tests import base


class DefaultWorld(world.World):
    """A guest with a policy, and others without.

    :ivar maximum: percent that the others are held to; None: they are not.
    """

    def __init__(self, top: Path, dialect='openeuler66', others=2):
        super().__init__(top, dialect, ('ghsched',))
        self.maximum: int | None = 30
        for number in range(1, 1 + others):
            self.add(number, 'ghsched')

    def wanted(self, without=(), **more):
        promised, *others = self.guests
        held = ([] if self.maximum is None else
                [self.capped(guest) for guest in others])
        self.guests = [promised, *(held or others)]
        wanted = super().wanted(without, **more)
        return model.Wanted(
            wanted.guests if held else wanted.guests[:1], wanted.domains,
            wanted.removable, wanted.others, tolerance=wanted.tolerance,
            writes=wanted.writes, staged=wanted.staged, **more)

    def capped(self, guest):
        policy, nodes = resolve.make_common_cap_policy(self.host, self.maximum)
        return model.ResctrlGuest(
            guest.domain,
            guest.vcpus,
            guest.online,
            resolve.make_desired_lines(
                self.host, resolve.resolve_settings(self.host, policy, nodes)
            ),
            'ghsched',
            shared=naming.DEFAULT,
        )


class DefaultClassTest(base.TestCase):

    def new_world(self, dialect='openeuler66'):
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        return DefaultWorld(top, dialect)

    def settled(self, **more):
        report = self.world.reconcile(**more)
        self.assertEqual((), report.problems)
        return report

    def setUp(self):
        super().setUp()
        self.world = self.new_world()

    def test_all_without_a_policy_are_held_on_every_node(self):
        self.settled()
        found = self.world.schemata(naming.DEFAULT)
        self.assertEqual(({0: 30, 1: 30}, {0: 0, 1: 0}),
                         (found.values('MB'), found.values('MBPRI')))
        self.assertEqual({2001, 2002, 3001, 3002},
                         self.world.tasks(naming.DEFAULT))
        self.assertEqual({1001, 1002},
                         self.world.tasks(self.world.guests[0].group))
        self.world.files.operations.clear()
        self.assertEqual((), self.settled().actions)
        self.assertEqual([], self.world.files.operations)

    def test_another_cap_is_written(self):
        self.settled()
        self.world.maximum = 40
        action, = self.settled().actions
        self.assertEqual('MB:0=40;1=40\n', action.line)

    def test_turned_off_the_guests_are_in_the_kernels_group_again(self):
        self.settled()
        self.world.maximum = None
        action, = self.settled().actions
        self.assertEqual(('remove group', naming.DEFAULT),
                         (action.kind, action.group))
        self.assertLessEqual({2001, 2002, 3001, 3002},
                             set(map(int, self.world.model.read(
                                 '/tasks').split())))
        self.assertEqual((), self.settled().actions)

    def test_it_goes_with_the_last_guest(self):
        self.settled()
        self.world.end(1)
        self.assertEqual((), self.settled(without=(1,)).actions)
        self.world.end(2)
        self.settled(without=(1, 2))
        self.assertEqual([self.world.guests[0].group], self.world.groups())

    def test_it_belongs_to_nobody_else(self):
        self.settled()
        self.assertEqual((), self.world.reconcile().foreign)

    def test_every_dialect_holds_it(self):
        for dialect in machines.DIALECTS:
            self.world = self.new_world(dialect)
            self.settled()
            self.assertEqual([], self.world.wrong(), dialect)
            self.assertEqual((), self.settled().actions)
            knob = self.world.host.dialect.find_knob('maximum')
            held = self.world.schemata(naming.DEFAULT).values(knob.line)
            for domains in self.world.host.domains_by_node.values():
                for domain in domains:
                    self.assertLess(held[domain], self.world.host.no_cap)

    def test_how_a_cap_is_held_must_be_known(self):
        host = captured.openeuler(dialect=dialects.MPAM)
        error = self.assertRaises(
            resolve.PolicyRefused, resolve.make_common_cap_policy, host, 30
        )
        self.assertIn('[ghsched]bandwidth_cap', error.reason)
