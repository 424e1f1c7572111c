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

"""Passthrough devices in the control groups of openEuler."""

from dataclasses import replace
import errno
from pathlib import Path
import shutil
import tempfile

from hypothesis import given
from hypothesis import HealthCheck
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_nova.base import bounds
from ghsched_nova.resctrl import devices
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import tasks
from ghsched_nova.tests.fixtures import world
from ghsched_placement.tests import base


class DevicesTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        self.world = world.World(top)
        self.groups = [guest.group for guest in self.world.guests]

    def has(self, number, *iommu_groups):
        """A guest has these passthrough devices."""
        self.world.guests[number] = replace(
            self.world.guests[number], devices=frozenset(iommu_groups))

    def put(self, group, number):
        self.world.model.write(f'/{group}/tasks', f'iommu_group:{number}\n')

    def inside(self, group):
        return tasks.parse_iommu_groups(
            self.world.model.read(f'/{group}/tasks')
        )

    def settled(self, **more):
        report = self.world.reconcile(devices=True, **more)
        self.assertEqual((), report.problems)
        return [(action.kind, action.group, action.devices)
                for action in report.actions if action.devices]

    def assert_nothing_to_do(self):
        report = self.world.reconcile(devices=True)
        self.assertEqual(((), ()), (report.actions, report.problems))
        self.assertEqual([], self.world.files.operations)


class DevicesTest(DevicesTestCase):

    def test_those_of_a_new_guest_follow_its_threads(self):
        self.has(0, 17, 4)
        report = self.world.reconcile(devices=True)
        mine = [action for action in report.actions
                if action.group == self.groups[0]]
        self.assertEqual(['move threads', 'move devices'],
                         [action.kind for action in mine[-2:]])
        self.assertEqual(
            f'{self.groups[0]}: move devices 4, 17', str(mine[-1]))
        self.assertEqual({4, 17}, self.inside(self.groups[0]))
        self.assert_nothing_to_do()

    def test_one_that_somebody_moved_away_comes_back(self):
        self.has(0, 17)
        self.settled()
        self.put('', 17)
        self.assertEqual([('move devices', self.groups[0], (17,))],
                         self.settled())
        self.put(self.groups[1], 17)
        self.assertEqual([('move devices', self.groups[0], (17,))],
                         self.settled())
        self.assert_nothing_to_do()

    def test_one_that_the_guest_lost_goes_to_the_default_group(self):
        self.has(0, 17, 4)
        self.settled()
        self.has(0, 4)
        self.assertEqual([('release devices', self.groups[0], (17,))],
                         self.settled())
        self.assertEqual({4}, self.inside(self.groups[0]))
        self.assert_nothing_to_do()

    def test_they_go_before_the_group_does(self):
        self.has(0, 17)
        self.settled()
        self.world.end(0)
        report = self.world.reconcile(without=(0,))
        self.assertEqual(['release devices', 'remove group'],
                         [action.kind for action in report.actions])
        self.assertEqual([('tasks', 'iommu_group:17\n'), ('rmdir', '')],
                         [(what, text) for what, _group, text
                          in self.world.files.operations])

    def test_they_go_when_nova_forgets_the_guest(self):
        self.has(0, 17)
        self.settled()
        self.world.end(0)
        self.world.files.operations.clear()
        self.assertTrue(fs.remove_group(
            self.world.root, self.world.guests[0].domain.uuid,
            proc=self.world.proc, files=self.world.files))
        self.assertEqual(['tasks', 'rmdir'], [
            what for what, *_rest in self.world.files.operations])

    def test_entries_of_an_admin_stay_unless_requested(self):
        self.world.reconcile()
        self.put(self.groups[0], 9)
        self.assertEqual((), self.world.reconcile().actions)
        self.assertEqual([('release devices', self.groups[0], (9,))],
                         self.settled())

    def test_one_that_has_just_gone_stops_nobody(self):
        self.has(0, 17, 4)
        self.world.model._tasks._iommu_groups = {4}
        report = self.world.reconcile(devices=True)
        problem, = report.problems
        self.assertIn('still needed', problem.reason)
        self.assertEqual([], self.world.wrong())
        self.assertEqual({4}, self.inside(self.groups[0]))

    def refuse_devices(self):
        def before(_what, _group, text):
            if text.startswith('iommu_group:'):
                raise OSError(errno.EINVAL, 'no')

        self.world.files.before = before

    def test_one_that_does_not_leave_stops_nobody(self):
        self.world.reconcile()
        self.put(self.groups[0], 9)
        self.world.model.write(f'/{self.groups[0]}/schemata', 'MB:0=10\n')
        self.assertNotEqual([], self.world.wrong())
        self.refuse_devices()
        problem, = self.world.reconcile(devices=True).problems
        self.assertIn('iommu_group:9', problem.reason)
        self.assertEqual(self.world.guests[0].domain.uuid, problem.guest)
        self.assertEqual([], self.world.wrong())

    def test_a_group_that_one_does_not_leave_is_not_removed(self):
        self.has(0, 17)
        self.settled()
        self.world.end(0)
        self.refuse_devices()
        report = self.world.reconcile(without=(0,))
        self.assertEqual((), report.actions)
        self.assertIn(self.groups[0], self.world.groups())
        self.world.files.before = lambda *_operation: None
        self.world.reconcile(without=(0,))
        self.assertNotIn(self.groups[0], self.world.groups())

    def test_one_that_can_not_be_controlled_is_reported(self):
        # An SMMU without MPAM.
        self.world.reconcile()
        self.has(1, 17)

        def before(what, group, text):
            if 'iommu_group' in text:
                raise OSError(errno.EOPNOTSUPP, 'injected')

        self.world.files.before = before
        problem, = self.world.reconcile(devices=True).problems
        self.assertIn('Operation not supported', problem.reason)
        self.assertIn('iommu_group:17', problem.reason)
        self.assertEqual(self.world.guests[1].domain.uuid, problem.guest)
        self.assertEqual([], self.world.wrong())

    def test_a_guest_that_can_not_be_helped_gets_no_device(self):
        self.has(0, 17)
        self.world.end(0)
        problem, = self.world.reconcile(devices=True).problems
        self.assertEqual(self.groups[0], problem.group)
        self.assertNotIn(self.groups[0], self.world.groups())

    def test_the_kernels_that_can(self):
        self.assertEqual(
            ['openeuler-6.6'],
            [one.name for one in dialects.ALL if one.devices])

    def test_no_iommu_group_is_below_0(self):
        self.has(0, -1)
        self.assertRaises(
            ValueError, bounds.check, self.world.wanted()
        )

    def test_nothing_to_add_is_the_plan_as_it_was(self):
        plan = model.Plan(foreign=('pqos',))
        self.assertEqual(plan, devices.add_device_moves(
            plan, model.Actual({}), model.Wanted(devices=True)))


class PropertyTest(DevicesTestCase):

    @settings(max_examples=60, deadline=None, database=None,
              suppress_health_check=list(HealthCheck))
    @given(st.data())
    def test_each_device_ends_up_with_its_guest(self, data):
        numbers = st.integers(0, 9)
        for group in self.world.groups():
            self.world.model.rmdir('/' + group)
        owner = data.draw(st.dictionaries(numbers, st.integers(0, 2)))
        for guest in range(3):
            self.has(guest, *(one for one in owner if owner[one] == guest))
        for name in data.draw(st.sets(st.sampled_from(
                [*self.groups, *world.OTHERS]))):
            self.world.model.mkdir('/' + name)
        for number in data.draw(st.sets(numbers)):
            self.put(data.draw(st.sampled_from(
                ['', *self.world.groups()])), number)
        others = {name: self.inside(name) - owner.keys()
                  for name in self.world.groups() if name in world.OTHERS}
        self.settled()
        for guest, name in zip(self.world.guests, self.groups, strict=True):
            self.assertEqual(guest.devices, self.inside(name))
        self.assertEqual(others, {name: self.inside(name) for name in others})
        self.assertEqual([], self.world.wrong())
        self.assert_nothing_to_do()
