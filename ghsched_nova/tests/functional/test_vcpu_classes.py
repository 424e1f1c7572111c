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

"""vCPU classes on the emulated resctrl, with real threads.

The judge reads ``schemata`` and ``tasks`` itself and knows which thread is
which vCPU; it uses nothing of the engine.
"""

import dataclasses
import random
import re

from ghsched_nova.features.guest_channel import class_moves
from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.tests.functional import test_host_engine as engine_tests
from ghsched_placement.flavor import policy

UUID = engine_tests.UUID
VCPUS = 4
CLASSES = {'ghsched:vcpu_classes': 'latency:0-1,batch:3',
           'ghsched:mem_bw_min.latency': '30',
           'ghsched:mem_bw_priority.latency': '7',
           'ghsched:mem_bw_max.batch': '40',
           'ghsched:mem_bw_min': '10'}


class ClassesTest(engine_tests.EngineTestCase):

    VCPUS = frozenset(range(VCPUS))

    def running(self, specs=None, number=engine_tests.DOMAIN, xml=''):
        guest = policy.parse_policy(specs or CLASSES, 1, VCPUS)
        return desired.Running(
            model.Domain(UUID, number, engine_tests.NAME),
            metadata.write_policy(
                f'<domain><name>{engine_tests.NAME}</name><uuid>{UUID}</uuid>'
                f'<vcpu>{VCPUS}</vcpu>{xml}</domain>',
                metadata.DomainPolicy(guest, (0,))))

    def read_groups(self):
        """Return vCPUs, and values of node 0 by line, of each group."""
        vcpu_of = {tid: vcpu for vcpu, tid in self.threads.tids.items()}
        found = {}
        for path in self.root.glob('*/schemata'):
            tids = map(int, (path.parent / 'tasks').read_text().split())
            found[path.parent.name] = (
                {vcpu_of[tid] for tid in tids if tid in vcpu_of},
                {line: int(value) for line, value in re.findall(
                    r'^ *(\w+):0=(\d+)', path.read_text(), re.MULTILINE)})
        return found

    def assert_enforced(self, limits):
        """Check vCPUs, guarantee, cap and priority of the groups by class."""
        found = self.read_groups()
        self.assertEqual({f'ghsched-{UUID}.{name}' for name in limits},
                         {name for name in found if UUID in name})
        for name, (vcpus, minimum, maximum, priority) in limits.items():
            inside, values = found[f'ghsched-{UUID}.{name}']
            self.assertEqual(vcpus, inside, name)
            self.assertEqual((minimum, maximum), (
                values['MBMIN'], values['MB']), name)
            if priority is not None:
                self.assertEqual(priority, values['MBPRI'], name)

    LIMITS = {'latency': ({0, 1}, 30, 100, 7), 'batch': ({3}, 0, 40, None),
              'default': ({2}, 10, 100, None)}

    def test_each_class_is_a_group_of_its_vcpus(self):
        self.assertTrue(self.engine.reconcile_guest(self.running()))
        self.assert_enforced(self.LIMITS)
        self.assertFalse(self.engine.reconcile_guest(self.running()))
        self.assertEqual((), self.reconcile(self.running()))
        self.assert_enforced(self.LIMITS)

    def test_drift_of_threads_and_values_is_repaired(self):
        chance = random.Random(46)  # noqa: S311
        self.reconcile(self.running())
        names = [f'ghsched-{UUID}.{name}' for name in self.LIMITS]
        for _step in range(12):
            for vcpu in chance.sample(range(VCPUS), 2):
                place = self.root / chance.choice([*names, ''])
                fs.Files().write(place / 'tasks',
                                 str(self.threads.tids[vcpu]))
            victim = chance.choice(names)
            fs.Files().write(self.root / victim / 'schemata', 'MB:0=70\n')
            if chance.random() < .3:
                (self.root / chance.choice(names)).rmdir()
            self.assertEqual((), self.reconcile(self.running()))
            self.assert_enforced(self.LIMITS)
            self.log.reset_output()
            self.reconcile(self.running())
            self.assertEqual('', self.log.output)

    def test_vcpus_of_a_class_without_limits_leave_the_groups(self):
        self.reconcile(self.running())
        specs = {**CLASSES, 'ghsched:mem_bw_min.latency': '20'}
        del specs['ghsched:mem_bw_max.batch']
        self.assertEqual((), self.reconcile(self.running(specs)))
        limits = {**self.LIMITS, 'latency': ({0, 1}, 20, 100, 7)}
        del limits['batch']
        self.assert_enforced(limits)
        fs.Files().write(self.root / f'ghsched-{UUID}.latency' / 'tasks',
                         str(self.threads.tids[3]))
        self.assertEqual((), self.reconcile(self.running(specs)))
        self.assert_enforced(limits)
        self.assertIn(f'vCPUs 3 of guest {UUID} are in ghsched-{UUID}.latency,'
                      ' and their class has no limits', self.log.output)

    def test_vcpus_that_the_guest_moves_change_their_group(self):
        self.reconcile(self.running())
        running = self.running()
        found = running.policy
        classes = class_moves.move_vcpus(
            found.policy.classes, {'latency': frozenset({0, 2})},
            [frozenset(range(VCPUS))])
        moved = desired.Running(running.domain, metadata.write_policy(
            running.xml, dataclasses.replace(found, policy=dataclasses.replace(
                found.policy, classes=classes))))
        self.assertTrue(self.engine.reconcile_guest(moved))
        self.assert_enforced({**self.LIMITS, 'latency': ({0, 2}, 30, 100, 7),
                              'default': ({1}, 10, 100, None)})
        self.assertEqual((), self.reconcile(self.running()))
        self.assert_enforced(self.LIMITS)

    def test_stopped_guest_leaves_no_group(self):
        self.reconcile(self.running())
        self.threads.end()
        self.engine.running = tuple
        self.engine.release_group(UUID)
        self.assertEqual(frozenset(), self.engine.list_resctrl_groups())

    def test_guest_without_classes_gets_one_group_again(self):
        self.reconcile(self.running())
        plain = self.running({'ghsched:mem_bw_min': '20'})
        self.assertEqual((), self.reconcile(plain))
        self.assertEqual({f'ghsched-{UUID}'},
                         {name for name in self.read_groups()
                          if UUID in name})
        self.assertEqual((), self.reconcile(self.running()))
        self.assert_enforced(self.LIMITS)

    def test_one_refused_group_is_reported_and_made_later(self):
        with self.resctrl.faults({'mkdir': 'ENOSPC'}):
            problems = self.reconcile(self.running())
            self.assertEqual({UUID}, {one.guest for one in problems})
            self.assertIn('no control group left', str(problems[0]))
        self.assertEqual((), self.reconcile(self.running()))
        self.assert_enforced(self.LIMITS)
