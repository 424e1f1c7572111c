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


"""Scheduling classes of real threads, of a process that looks like a QEMU."""

import contextlib
import io
import itertools
import json
import os
from pathlib import Path
import signal
import tempfile
import threading
import time
from unittest import mock

from oslo_config import cfg

from ghsched_nova.base import privsep
from ghsched_nova.base import qemu
from ghsched_nova.cmd import host
from ghsched_nova import conf
from ghsched_nova.features.real_time import engine
from ghsched_nova.features.real_time import model
from ghsched_nova.features.real_time import privileged
from ghsched_nova.features.real_time import survey
from ghsched_nova.host import desired
from ghsched_nova.resctrl import model as resctrl_model
from ghsched_nova.tests.fixtures import fake_qemu
from ghsched_placement.features.real_time.scheduling import Scheduling
from ghsched_placement.tests import base

VCPU0, VCPU1 = model.Role('vcpu', 0), model.Role('vcpu', 1)
MAIN, IO1 = model.Role('emulator'), model.Role('iothread', 1)
UUID = 'c5a49498-ffaf-47ae-9208-77ea133d3fcf'
OTHER, BATCH = Scheduling('other'), Scheduling('batch')


class ThreadsTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.run_path = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.qemu = self.useFixture(fake_qemu.Qemu(
            self.run_path, 'web', 'CPU 0/KVM', 'CPU 1/TCG', 'IO iothread1',
            'worker'))
        self.process = self.qemu.process

    def threads(self):
        return survey.read_qemu_threads(self.process.pid)

    def guest(self, **wanted):
        roles = {'vcpu0': VCPU0, 'vcpu1': VCPU1, 'main': MAIN, 'io1': IO1}
        return model.GuestScheduling('uuid', 'web', {
            roles[name]: one for name, one in wanted.items()})

    def reconcile(self, *guests):
        return engine.reconcile_threads(guests, self.run_path,
                                        privileged.apply_thread_change_as_root)


class SurveyTest(ThreadsTestCase):

    def test_threads_with_a_role_are_found(self):
        found = self.threads()
        self.assertEqual({MAIN, VCPU0, VCPU1, IO1}, found.keys())
        self.assertEqual(self.process.pid, found[MAIN].tid)
        self.assertEqual({OTHER}, {one.scheduling for one in found.values()})

    def test_a_class_set_by_hand_is_seen(self):
        tid = self.threads()[VCPU1].tid
        os.sched_setscheduler(tid, os.SCHED_BATCH | survey.RESET_ON_FORK,
                              os.sched_param(0))
        self.assertEqual(BATCH, self.threads()[VCPU1].scheduling)

    def test_without_a_process_there_is_no_thread(self):
        self.assertIsNone(qemu.find_qemu_process(self.run_path, 'gone'))
        (self.run_path / 'odd.pid').write_text('x')
        self.assertIsNone(qemu.find_qemu_process(self.run_path, 'odd'))
        self.assertEqual({}, survey.read_qemu_threads(2**22 + 1))

    def test_threads_of_two_with_one_name_are_the_older_one(self):
        before = self.threads()
        self.qemu.add_thread('CPU 0/KVM')
        self.qemu.add_thread('IO iothread1')
        self.assertEqual({role: one.tid for role, one in before.items()},
                         {role: one.tid
                          for role, one in self.threads().items()})


class EngineTest(ThreadsTestCase):

    def test_a_class_is_set_once(self):
        guest = self.guest(vcpu0=BATCH, main=OTHER, io1=Scheduling('idle'))
        report = self.reconcile(guest)
        self.assertEqual([VCPU0, IO1],
                         [action.role for action in report.actions])
        self.assertEqual((), report.problems)
        self.assertEqual(
            {VCPU0: BATCH, VCPU1: OTHER, MAIN: OTHER,
             IO1: Scheduling('idle')},
            {role: one.scheduling for role, one in self.threads().items()})
        self.assertEqual(engine.Report(), self.reconcile(guest))

    def test_look_changes_nothing(self):
        guest = self.guest(vcpu0=BATCH)
        before = self.threads()
        self.assertEqual(
            1, len(engine.plan_thread_changes([guest], self.run_path).actions))
        self.assertEqual(before, self.threads())

    def test_a_thread_that_is_not_there_is_a_problem(self):
        guest = model.GuestScheduling('uuid', 'web',
                                      {model.Role('vcpu', 7): BATCH})
        problem, = self.reconcile(guest).problems
        self.assertIn('vCPU 7', problem.reason)
        problem, = self.reconcile(model.GuestScheduling(
            'uuid', 'gone', {VCPU0: BATCH})).problems
        self.assertIn('no thread is found for vCPU 0', str(problem))

    def test_another_thread_of_the_same_number_is_left_alone(self):
        thread = self.threads()[VCPU0]
        self.assertIn('has ended', privileged.apply_scheduling_class(
            thread.tid, thread.start + 1, BATCH))
        self.assertEqual(OTHER, self.threads()[VCPU0].scheduling)

    def test_refusals_of_the_kernel_are_problems(self):
        problem, = self.reconcile(
            self.guest(vcpu0=Scheduling('rr', 100))).problems
        self.assertIn('Invalid argument', problem.reason)

    def test_realtime_classes_are_set(self):
        if privileged._try_here():
            self.skipTest('the kernel refuses real-time classes here')
        self.assertEqual((), self.reconcile(
            self.guest(vcpu0=Scheduling('rr', 10),
                       vcpu1=Scheduling('fifo', 1))).problems)
        self.assertEqual(Scheduling('rr', 10),
                         self.threads()[VCPU0].scheduling)
        # A guest that was made another class by hand gets its own again.
        os.sched_setscheduler(self.threads()[VCPU0].tid, os.SCHED_OTHER,
                              os.sched_param(0))
        action, = self.reconcile(
            self.guest(vcpu0=Scheduling('rr', 10))).actions
        self.assertEqual('it has other', action.reason)

    def test_realtime_class_that_threads_would_inherit_is_set_again(self):
        if privileged._try_here():
            self.skipTest('the kernel refuses real-time classes here')
        os.sched_setscheduler(self.threads()[VCPU0].tid, os.SCHED_RR,
                              os.sched_param(10))
        guest = self.guest(vcpu0=Scheduling('rr', 10))
        action, = self.reconcile(guest).actions
        self.assertEqual('the threads that it makes inherit rr 10',
                         action.reason)
        self.assertTrue(self.threads()[VCPU0].resets_on_fork)
        self.assertEqual(engine.Report(), self.reconcile(guest))


class PrivilegedTest(ThreadsTestCase):
    """Settings that the privileged helper makes, by its own configuration."""

    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.object(privsep.threads, 'client_mode',
                                            new=False))
        conf.register_opts(cfg.CONF)
        self.option('libvirt_run_path', str(self.run_path))

    def option(self, name, value):
        cfg.CONF.set_override(name, value, 'ghsched')
        self.addCleanup(cfg.CONF.clear_override, name, 'ghsched')

    def refused(self, role, wanted, thread=None):
        thread = thread or self.threads()[role]
        return privileged.apply_thread_change(model.ThreadChange(
            'uuid', 'web', role, thread, wanted, ''))

    def status(self, *tids):
        """Libvirt's file of a domain, with a domain that looks like it."""
        vcpus = ''.join(f"<vcpu id='{number}' pid='{tid}'/>"
                        for number, tid in enumerate(tids))
        (self.run_path / 'web.xml').write_text(
            f"<domstatus pid='1'><vcpus>{vcpus}</vcpus><domain type='kvm'>"
            "<metadata><vcpus><vcpu id='7' pid='1'/></vcpus></metadata>"
            '</domain></domstatus>')

    def test_set_class_of_a_vcpu_of_libvirt_sets_it(self):
        threads = self.threads()
        self.status(threads[VCPU0].tid, threads[VCPU1].tid)
        self.assertEqual('', self.refused(VCPU0, BATCH))
        self.assertEqual(BATCH, self.threads()[VCPU0].scheduling)

    def test_set_class_of_a_thread_that_only_has_the_name_is_refused(self):
        self.qemu.add_thread('CPU 7/KVM')
        threads = self.threads()
        role = model.Role('vcpu', 7)
        self.status(threads[VCPU0].tid, threads[VCPU1].tid)
        self.assertIn('is not its vCPU 7', self.refused(role, BATCH))
        self.assertIn('is not its vCPU 0', self.refused(
            VCPU0, BATCH, threads[role]))
        self.assertEqual(OTHER, self.threads()[role].scheduling)

    def test_set_class_without_ids_of_libvirt_goes_by_the_name(self):
        self.assertEqual('', self.refused(VCPU0, BATCH))
        self.status()
        self.assertEqual('', self.refused(VCPU0, OTHER))
        self.assertIn('is not its vCPU 1', self.refused(
            VCPU1, BATCH, self.threads()[VCPU0]))

    def test_set_class_beyond_the_configuration_is_refused(self):
        self.option('realtime_priority_max', 10)
        thread = self.threads()[MAIN]
        for wanted, words in (
                (Scheduling('fifo', 11), 'above [ghsched]realtime_priority_m'),
                (Scheduling('fifo'), 'have priority 0'),
                (Scheduling('other', 5), 'have priority 5'),
                (Scheduling('other', None, 1, 2, 3), 'have the times'),
                (Scheduling('deadline', None, 1, 0, 3), 'have the times'),
                (Scheduling('deadline', None, 1, 2, 3), 'deadline_guests is'),
                (Scheduling('ext'), 'is not a scheduling class')):
            self.assertIn(words, self.refused(MAIN, wanted, thread))
        self.assertEqual(OTHER, self.threads()[MAIN].scheduling)

    def test_set_class_without_an_answer_returns_the_reason(self):
        with mock.patch.object(privileged, '_set',
                               side_effect=privsep.HelperTimeout('late')):
            self.assertEqual('late', self.refused(MAIN, BATCH))


class HostCommandTest(ThreadsTestCase):
    """``ghsched-host`` shows classes and sets them."""

    XML = ('<domain><vcpu>2</vcpu><cputune>'
           '<vcpusched vcpus="0-1" scheduler="batch"/></cputune></domain>')

    def call(self, command, form='json'):
        config = self.run_path / 'nova.conf'
        config.write_text(f'[ghsched]\nlibvirt_run_path = {self.run_path}\n'
                          f'resctrl_path = {self.run_path}/none\n')
        running = [desired.Running(
            resctrl_model.Domain(UUID, 1, 'web'), self.XML)]
        out = io.StringIO()
        with mock.patch.object(host.domains, 'list_running_domains',
                               return_value=running), \
                contextlib.redirect_stdout(out):
            status = host.main([command, '--format', form,
                                '--config-file', str(config)])
        return status, out.getvalue()

    def test_plan_shows_what_reconcile_sets(self):
        status, text = self.call('plan')
        first, second = json.loads(text)['actions']
        self.assertEqual(1, status)
        self.assertEqual(
            ('set class', UUID, 'batch', [self.threads()[VCPU0].tid],
             'vCPU 0: it has other'),
            (first['kind'], first['guest'], first['line'], first['threads'],
             first['reason']))
        self.assertEqual('vCPU 1: it has other', second['reason'])
        self.assertEqual(OTHER, self.threads()[VCPU0].scheduling)
        self.assertEqual(0, self.call('reconcile')[0])
        self.assertEqual(BATCH, self.threads()[VCPU0].scheduling)
        status, text = self.call('plan', 'table')
        self.assertEqual(0, status)
        self.assertIn('actions: 0, problems: 0', text)

    def test_a_class_taken_away_by_hand_is_shown_and_set_again(self):
        if privileged._try_here():
            self.skipTest('the kernel refuses real-time classes here')
        self.XML = self.XML.replace('"batch"', '"rr" priority="10"')
        self.assertEqual(0, self.call('reconcile')[0])
        thread = self.threads()[VCPU0]
        os.sched_setscheduler(thread.tid, os.SCHED_OTHER, os.sched_param(0))
        status, text = self.call('plan')
        action, = json.loads(text)['actions']
        self.assertEqual(
            (1, 'set class', 'rr 10', [thread.tid], 'vCPU 0: it has other'),
            (status, action['kind'], action['line'], action['threads'],
             action['reason']))
        self.assertEqual(0, self.call('reconcile')[0])
        self.assertEqual(Scheduling('rr', 10),
                         self.threads()[VCPU0].scheduling)

    def test_a_thread_that_is_missing_is_a_problem(self):
        (self.run_path / 'web.pid').unlink()
        status, text = self.call('plan')
        self.assertEqual(1, status)
        problem, = json.loads(text)['problems']
        self.assertIn('no thread is found', problem['reason'])


class PinTest(ThreadsTestCase):
    """Threads run where libvirt has pinned them."""

    def test_a_thread_moved_by_hand_is_moved_back_once(self):
        tid = self.threads()[VCPU0].tid
        everywhere = os.sched_getaffinity(tid)
        guest = model.GuestScheduling('uuid', 'web', {},
                                      {VCPU0: frozenset(everywhere)})
        self.assertEqual(engine.Report(), self.reconcile(guest))
        os.sched_setaffinity(tid, {min(everywhere)})
        if len(everywhere) == 1:
            self.skipTest('there is one CPU')
        action, = self.reconcile(guest).actions
        self.assertEqual(('set CPUs', VCPU0), (action.kind, action.role))
        self.assertIn(f'CPUs {min(everywhere)}', action.reason)
        self.assertEqual(everywhere, os.sched_getaffinity(tid))
        self.assertEqual(engine.Report(), self.reconcile(guest))

    def test_a_thread_that_appears_later_gets_its_class(self):
        late = model.Role('iothread', 2)
        guest = model.GuestScheduling('uuid', 'web',
                                      {VCPU0: BATCH, late: BATCH})
        self.assertEqual(1, len(self.reconcile(guest).problems))
        self.qemu.add_thread('IO iothread2')
        self.assertEqual((), self.reconcile(guest).problems)
        self.assertEqual(BATCH, self.threads()[late].scheduling)


class TrialTest(base.TestCase):
    """Trials in a child process that never ends by itself."""

    def setUp(self):
        super().setUp()
        now = itertools.count(step=7)
        self.os = self.enterContext(mock.patch.multiple(
            os, fork=mock.DEFAULT, waitpid=mock.DEFAULT, kill=mock.DEFAULT))
        self.os['fork'].return_value = 7
        self.os['waitpid'].return_value = (0, 0)
        self.enterContext(mock.patch.multiple(
            time, monotonic=lambda: next(now), sleep=mock.DEFAULT))

    def test_killed_child_is_waited_for(self):
        reaped = threading.Event()
        self.os['waitpid'].side_effect = lambda child, options: (
            (0, 0) if options else reaped.set() or (child, 9))
        self.assertIn('no CPU time', privileged._try_here())
        self.assertTrue(reaped.wait(base.GIVE_UP_S))
        self.os['kill'].assert_called_once_with(7, signal.SIGKILL)
        self.assertEqual(mock.call(7, 0), self.os['waitpid'].call_args)

    def test_trials_end_when_the_caller_has_given_up(self):
        self.os['waitpid'].return_value = (7, 0)
        self.enterContext(mock.patch.object(privsep.threads, 'client_mode',
                                            new=False))
        self.assertEqual('', privileged._try_deadline(2 * [[0]]))
        self.assertIn('not all CPUs', privileged._try_deadline(9 * [[0]]))
        self.assertLess(self.os['fork'].call_count, 9)


class DeadlineTest(ThreadsTestCase):

    WANTED = Scheduling('deadline', None, 1000, 5000, 100000)

    def test_a_thread_gets_its_times_once(self):
        report = self.reconcile(self.guest(vcpu0=self.WANTED))
        until = time.monotonic() + 120
        while ('Device or resource busy' in str(report.problems)
               and time.monotonic() < until):
            # Another test has all that the machine gives to deadline.
            time.sleep(.2)
            report = self.reconcile(self.guest(vcpu0=self.WANTED))
        if 'Device or resource busy' in str(report.problems):
            self.skipTest('others hold the budget of this machine')
        if report.problems:
            self.assertIn('Operation not permitted', str(report.problems))
            self.skipTest('the kernel refuses deadline here')
        self.assertEqual(self.WANTED, self.threads()[VCPU0].scheduling)
        self.assertEqual(engine.Report(),
                         self.reconcile(self.guest(vcpu0=self.WANTED)))
        self.reconcile(self.guest(vcpu0=OTHER))
        self.assertEqual(OTHER, self.threads()[VCPU0].scheduling)

    def test_refusals_of_the_kernel_are_explained(self):
        tid = self.threads()[VCPU0].tid
        cpus = os.sched_getaffinity(tid)
        runtime = Path('/proc/sys/kernel/sched_rt_runtime_us').read_text()
        if len(cpus) == 1 or runtime.strip() == '-1':
            self.skipTest('there is one CPU, or the kernel admits anything')
        os.sched_setaffinity(tid, {min(cpus)})
        problem, = self.reconcile(self.guest(vcpu0=self.WANTED)).problems
        self.assertIn('exclusive cpuset', problem.reason)
