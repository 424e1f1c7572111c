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

"""Groups and monitoring ids that run short, and groups that are not as new."""

from dataclasses import replace
import errno
from pathlib import Path
import shutil
import tempfile


from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resolve
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_nova.tests.unit.resctrl import test_default_class
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base


class ScarcityTest(base.TestCase):

    def world(self, *makers, dialect='openeuler66', closids=None,
              kind=world.World):
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        made = (kind(top, dialect, makers) if kind is world.World
                else kind(top, dialect))
        if closids:
            made.model = made.files.model = kernel.ResctrlModel(
                machines.build(dialect, emulated.NODES, closids=closids),
                made.threads)
        self.waited = []
        made.files.wait = self.waited.append
        return made

    def refuse(self, made, number, times, group=''):
        """mkdir of a group fails so many times."""
        left = [times]

        def before(what, name, _text):
            if what == 'mkdir' and name.endswith(group) and left[0]:
                left[0] -= 1
                raise OSError(number, 'refused')

        made.files.before = before

    def read_group_values(self, made, guest=0, line='MBMIN'):
        return made.schemata(made.guests[guest].group).values(line)

    def test_a_small_guarantee_is_written_after_a_crash_behind_mkdir(self):
        for share in (1, 2, 3):
            made = self.world('ghsched')
            made.guests[0] = replace(
                made.guests[0], desired=resolve.make_desired_lines(
                    made.host, resolve.resolve_settings(made.host, GuestPolicy(
                        nodes=(NodePolicy(minimum=share),)), (0,))))
            made.model.mkdir('/' + made.guests[0].group)
            self.assertEqual((), made.reconcile().problems)
            self.assertGreaterEqual(self.read_group_values(made)[0], share - 1)
            self.assertNotEqual(0, self.read_group_values(made)[0])
            made.files.operations.clear()
            made.reconcile()
            self.assertEqual([], made.files.operations)

    def test_a_new_group_is_not_given_what_it_holds(self):
        made = self.world('ghsched', dialect='mpam71')
        made.guests[0] = replace(
            made.guests[0], desired={'MB': {5: 100, 71: 100}})
        self.assertEqual((), made.reconcile().problems)
        self.assertEqual(
            {100}, set(self.read_group_values(made, line='MB').values()))
        self.assertNotIn('schemata', [what for what, _group, _text
                                      in made.files.operations])

    def test_a_stranger_in_a_group_brings_no_threads_of_its_guest(self):
        made = self.world('ghsched', 'ghsched')
        made.reconcile()
        one, other = (guest.group for guest in made.guests)
        (made.run / f'{made.guests[0].domain.name}.pid').unlink()
        for tid in made.tasks(one):
            made.model.write('/tasks', f'{tid}\n')
        made.model.write(f'/{one}/tasks', f'{made.process(1) + 1}\n')
        made.reconcile()
        self.assertEqual({made.process(1) + 1, made.process(1) + 2},
                         made.tasks(other))

    def test_nor_where_libvirt_has_noted_neither(self):
        made = self.world('ghsched', 'ghsched')
        made.reconcile()
        one, other = (guest.group for guest in made.guests)
        for path in made.run.iterdir():
            path.unlink()
        for tid in made.tasks(one):
            made.model.write('/tasks', f'{tid}\n')
        made.model.write(f'/{one}/tasks', f'{made.process(1) + 1}\n')
        made.reconcile()
        self.assertIn(made.process(1) + 2, made.tasks(other))
        self.assertNotIn(made.process(1) + 2, made.tasks(one))

    def test_process_of_an_unknown_qemu_is_not_taken_for_a_guest(self):
        for words in ('qemu\0', 'qemu\0-uuid\0', '', None):
            made = self.world('ghsched')
            made.reconcile()
            group = made.guests[0].group
            (made.run / f'{made.guests[0].domain.name}.pid').unlink()
            for tid in made.tasks(group):
                made.model.write('/tasks', f'{tid}\n')
            made.thread(9000, 9001, 'CPU 0/KVM')
            made.thread(9000, 9002, 'CPU 1/KVM')
            if words is not None:
                (made.proc / '9000').mkdir(exist_ok=True)
                (made.proc / '9000/cmdline').write_text(words)
            made.model.write(f'/{group}/tasks', '9001\n')
            made.model.mkdir('/others')
            made.model.write('/others/tasks', '9002\n')
            report = made.reconcile()
            self.assertEqual({9002}, made.tasks('others'), words)
            self.assertEqual([made.guests[0].domain.uuid],
                             [one.guest for one in report.problems], words)

    def test_the_last_group_is_that_of_a_guest_with_a_promise(self):
        made = self.world(closids=2, kind=test_default_class.DefaultWorld)
        made.guests.reverse()
        plain = made.wanted
        made.guests.reverse()

        def wanted(*args, **more):
            found = plain(*args, **more)
            return replace(found, guests=found.guests[::-1])

        made.wanted = wanted
        problems = made.reconcile().problems
        self.assertEqual([made.guests[0].group], made.groups())
        self.assertEqual({naming.DEFAULT}, {one.group for one in problems})

    def test_a_stale_group_with_the_guests_own_thread_makes_room(self):
        made = self.world('ghsched', closids=2)
        made.model.mkdir('/qemu-77-old')
        made.model.write('/qemu-77-old/tasks', f'{made.process(0) + 1}\n')
        self.assertEqual((), made.reconcile().problems)
        self.assertEqual([made.guests[0].group], made.groups())
        self.assertEqual([], made.wrong())
        made.files.operations.clear()
        self.assertEqual((), made.reconcile().actions)
        self.assertEqual([], made.files.operations)

    def test_monitoring_ids_in_limbo_are_waited_for(self):
        made = self.world('ghsched', 'ghsched')
        self.refuse(made, errno.EBUSY, 6)
        self.assertEqual((), made.reconcile().problems)
        self.assertEqual([], made.wrong())
        self.assertEqual(6, len(self.waited))

    def test_limbo_that_lasts_is_reported_and_waited_for_once(self):
        made = self.world('ghsched', 'ghsched')
        self.refuse(made, errno.EBUSY, 10 ** 6)
        for problem in made.reconcile().problems:
            self.assertIn('caches still hold lines', problem.reason)
        self.assertTrue(1 <= sum(self.waited) <= 5, self.waited)

    def test_without_a_control_group_no_monitoring_group_is_tried(self):
        made = self.world('ghsched')
        shared = naming.render_shared_name((NodePolicy(maximum=41),), (0,))
        made.guests[0] = replace(made.guests[0], shared=shared)
        self.refuse(made, errno.ENOSPC, 10 ** 6, shared)
        made.reconcile(monitors=5, monitors_per_group=5)
        self.assertEqual([shared] * len(made.files.operations), [
            group for _what, group, _text in made.files.operations])
