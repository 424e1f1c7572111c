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


"""The host engine on the emulated resctrl, with real threads.

The test stands in for libvirt: it makes the group, writes the MB line and
moves threads that are named as QEMU names those of vCPUs.
"""

import contextlib
import fcntl
import os
from pathlib import Path
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

from fixtures import FakeLogger
from oslo_config import cfg

from ghsched_nova.base import privsep
from ghsched_nova import conf
from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_nova.host import readings
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import topology
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import privileged
from ghsched_nova.resctrl import reconcile
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_nova.resctrl import schemata
from ghsched_nova.tests.fixtures import modules
from ghsched_nova.tests.fixtures import mount
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

NODES = '0=0-1;1=2-3'
DOMAIN = 7
VCPUS = {0, 1}
GROUP = 'qemu-7-instance-00000001-vcpus_0-1'
UUID = '3f0c6a51-16d5-4d5e-8a0c-1f5b2b0d7c11'
NAME = 'instance-00000001'
ALL_FOUR = NodePolicy(minimum=20, maximum=60, hardlimit=False, priority=5)


#: A process with one thread per argument, until its standard input ends.
_GUEST = """
import sys, threading
end = threading.Event()
def run(vcpu, ready):
    tid = threading.get_native_id()
    with open(f'/proc/self/task/{tid}/comm', 'w') as stream:
        stream.write(f'CPU {vcpu}/KVM')
    print(vcpu, tid, flush=True)
    ready.set()
    end.wait()
for vcpu in sys.argv[1:]:
    ready = threading.Event()
    threading.Thread(target=run, args=(vcpu, ready)).start()
    ready.wait()
sys.stdin.read()
end.set()
"""


class VcpuThreads:
    """Threads of another process, named like those of vCPUs."""

    def __init__(self, vcpus):
        self._process = subprocess.Popen(
            [sys.executable, '-c', _GUEST, *(str(vcpu) for vcpu in vcpus)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self.tids: dict[int, int] = {}
        for _ in vcpus:
            vcpu, tid = self._process.stdout.readline().split()
            self.tids[int(vcpu)] = int(tid)

    def end(self):
        if self._process.poll() is None:
            self._process.communicate()


class EmulatedTestCase(base.TestCase):
    """Tests of a class share an emulated kernel; each removes its groups."""

    DIALECT = 'openeuler66'
    VCPUS = frozenset(VCPUS)
    resctrl = None

    @classmethod
    def mount(cls):
        reason = mount.missing()
        if reason:
            raise unittest.SkipTest(reason)
        cls.resctrl = mount.ResctrlFixture(
            machines.build(cls.DIALECT, NODES))
        # The temporary directory of a test ends with it.
        with mock.patch.object(tempfile, 'tempdir', None):
            cls.resctrl.setUp()
        cls.addClassCleanup(cls.resctrl.cleanUp)

    def setUp(self):
        super().setUp()
        if not self.resctrl or not os.path.ismount(self.resctrl.path):
            self.mount()
        self.root = Path(self.resctrl.path)
        self.earlier = len(self.resctrl.operations())
        self.sysfs = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.sysfs)
        topology.write_sysfs(self.resctrl.machine, self.sysfs)
        self.host = resctrl_host.read_host(self.root, self.sysfs)
        self.addCleanup(self.remove_groups)
        self.threads = VcpuThreads(self.VCPUS)
        self.addCleanup(self.threads.end)

    def remove_groups(self):
        for name in (GROUP, 'ghsched-*'):
            for group in self.root.glob(name):
                group.rmdir()

    def start_guest(self, mb='0=60', name=GROUP):
        """Write the group that libvirt makes when it starts a guest with
        <memorytune>.
        """
        group = self.root / name
        group.mkdir(exist_ok=True)
        fs.Files().write(group / 'schemata', f'MB:{mb}\n')
        for tid in self.threads.tids.values():
            fs.Files().write(group / 'tasks', str(tid))
        return group

    def desired(self, *nodes, host_nodes=None):
        return resolve.make_desired_lines(self.host, resolve.resolve_settings(
            self.host, GuestPolicy(nodes=nodes),
            host_nodes or range(len(nodes))))

    def wanted(self, desired):
        """Return the wanted state of a guest whose group libvirt makes."""
        (self.sysfs / f'{NAME}.pid').write_text(str(self.threads.pid))
        domain = model.Domain(UUID, DOMAIN, NAME)
        return model.Wanted(
            (model.ResctrlGuest(domain, frozenset(VCPUS), len(VCPUS), desired,
                                'libvirt'),), (domain,),
            others=self.host.unused_domain_values)

    def reconcile_one(self, desired, files=None,
                      lock_timeout=fs.LOCK_TIMEOUT):
        return reconcile.reconcile_groups(
            reconcile.HostPaths(self.root, self.sysfs,
                                lock_timeout=lock_timeout),
            self.wanted(desired), files)

    def enforce(self, desired, **kwargs):
        """Enforce the policy of the guest; return the lines written, or the
        kinds of other actions.
        """
        report = self.reconcile_one(desired, **kwargs)
        self.assertEqual((), report.problems)
        return [action.line or action.kind for action in report.actions]

    def refused(self, desired, **kwargs):
        """Return the reason why the policy cannot be enforced."""
        problem, = self.reconcile_one(desired, **kwargs).problems
        self.assertEqual(UUID, problem.guest)
        return problem.reason

    def read_schemata(self, group=GROUP):
        return schemata.parse_schemata(
            (self.root / group / 'schemata').read_text()
        )

    def assert_inside(self, threads, group=GROUP):
        inside = (self.root / group / 'tasks').read_text().split()
        self.assertEqual(set(threads.tids.values()), set(map(int, inside)))

    def writes(self):
        """Lines that reached the schemata of the guest's group."""
        return [entry['data'] for entry
                in self.resctrl.operations()[self.earlier:]
                if entry['op'] == 'write'
                and entry['path'] == f'/{GROUP}/schemata']


class OpenEulerTest(EmulatedTestCase):

    def test_all_four_keys_hold_for_the_group_of_the_vcpu_threads(self):
        self.start_guest('1=60')
        self.enforce(self.desired(ALL_FOUR, host_nodes=[1]))
        for name, values in (('MB', {0: 100, 1: 60}),
                             ('MBHDL', {0: 1, 1: 0}),
                             ('MBPRI', {0: 3, 1: 5}),
                             ('MBMIN', {0: 0, 1: 20})):
            self.assertEqual(values, self.read_schemata().values(name))
        self.assert_inside(self.threads)

    def test_a_refusal_names_the_line_and_what_the_kernel_said(self):
        self.start_guest('0=100')
        desired = {'MB': {0: 60}, 'MBPRI': {0: 9}, 'MBMIN': {0: 20}}
        reason = self.refused(desired)
        for part in ('schemata: ', 'MBPRI:0=9', 'EINVAL', 'out of range'):
            self.assertIn(part, reason)
        self.assertEqual(['MB:0=100\n', 'MB:0=60\n', 'MBPRI:0=9\n'],
                         self.writes())

    def test_a_group_that_vanishes_meanwhile(self):
        group = self.start_guest()

        class Vanishing(fs.Files):
            def write(self, path, text):
                group.rmdir()
                super().write(path, text)

        self.assertRegex(
            self.refused(self.desired(ALL_FOUR), files=Vanishing()),
            'ENOENT|ENODEV')
        self.assertFalse(group.exists())
        self.enforce(self.desired(ALL_FOUR))

    def test_resctrl_is_unmounted(self):
        self.start_guest()
        subprocess.run(['umount', '--lazy', str(self.root)], check=True)
        exc = self.assertRaises(fs.GroupError, self.enforce,
                                self.desired(ALL_FOUR))
        self.assertIn('still mounted', exc.reason)
        exc = self.assertRaises(resctrl_host.ResctrlUnavailable,
                                resctrl_host.read_host, self.root, self.sysfs)
        self.assertIn('is resctrl mounted?', exc.reason)
        self.assertEqual([], list(self.root.iterdir()))


class ReconcileTest(EmulatedTestCase):
    """A guest of libvirt's, and one with a group made here."""

    def setUp(self):
        super().setUp()
        self.group = self.start_guest()
        self.ours = VcpuThreads(VCPUS)
        self.addCleanup(self.ours.end)
        self.guests = (
            self.guest(UUID[:-1] + '0', DOMAIN, NAME, 'libvirt',
                       self.threads),
            self.guest(UUID, DOMAIN + 1, 'instance-00000002', 'ghsched',
                       self.ours))
        self.own = self.root / naming.render_own_group_name(UUID)

    def guest(self, uuid, number, name, maker, threads):
        (self.sysfs / f'{name}.pid').write_text(str(threads.pid))
        return model.ResctrlGuest(model.Domain(uuid, number, name),
                                  frozenset(VCPUS), 2, self.desired(ALL_FOUR),
                                  maker)

    def wanted(self, guests=None):
        guests = self.guests if guests is None else guests
        return model.Wanted(
            guests,
            tuple(guest.domain for guest in guests),
            frozenset(os.listdir(self.root)),
            self.host.unused_domain_values,
        )

    def reconcile(self, guests=None):
        return reconcile.reconcile_groups(
            reconcile.HostPaths(self.root, self.sysfs), self.wanted(guests))

    def assert_in_order(self):
        before = len(self.resctrl.operations())
        self.assertEqual(reconcile.ReconcileReport(), self.reconcile())
        self.assertEqual([], [
            entry for entry in self.resctrl.operations()[before:]
            if entry['op'] in ('write', 'mkdir', 'rmdir')])

    def repaired(self):
        self.assertEqual((), self.reconcile().problems)
        self.assert_in_order()

    def test_both_get_what_they_ask_for(self):
        self.repaired()
        for group, threads in ((self.group, self.threads),
                               (self.own, self.ours)):
            held = self.read_schemata(group)
            self.assertEqual([60, 20, 0, 5], [
                held.values(name)[0]
                for name in ('MB', 'MBMIN', 'MBHDL', 'MBPRI')])
            self.assert_inside(threads, group)

    def test_a_group_is_removed_when_its_guest_has_ended_and_not_before(self):
        self.repaired()
        self.assertFalse(fs.remove_group(self.root, UUID))
        self.ours.end()
        self.assertTrue(fs.remove_group(self.root, UUID))
        self.assertFalse(self.own.exists())

    def test_sigkill_between_two_writes_leaves_neither_lock_nor_half_a_group(
            self):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            class Slow(fs.Files):
                def write(this, path, text):
                    if 'MBPRI' in text:
                        os.write(write, b'here')
                        threading.Event().wait()
                    super().write(path, text)

            try:
                reconcile.reconcile_groups(
                    reconcile.HostPaths(self.root, self.sysfs), self.wanted(),
                    Slow())
            finally:
                os._exit(1)
        self.addCleanup(os.close, read)
        os.close(write)
        self.assertEqual(b'here', os.read(read, 4))
        exc = self.assertRaises(
            fs.GroupError, reconcile.reconcile_groups,
            reconcile.HostPaths(self.root, self.sysfs, lock_timeout=0.1),
            self.wanted())
        self.assertIn('another process has held the lock', exc.reason)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        self.repaired()
        for group in (self.group, self.own):
            self.assertEqual(5, self.read_schemata(group).values('MBPRI')[0])


class LockTest(EmulatedTestCase):

    def _hold(self):
        holder = os.open(self.root, os.O_RDONLY)
        self.addCleanup(os.close, holder)
        fcntl.flock(holder, fcntl.LOCK_EX)
        return holder

    def test_a_lock_that_is_given_back_is_taken(self):
        self.start_guest()
        holder = self._hold()
        timer = threading.Timer(
            0.3, fcntl.flock, (holder, fcntl.LOCK_UN))
        timer.start()
        self.addCleanup(timer.join)
        self.assertEqual(3, len(self.enforce(self.desired(ALL_FOUR))))

    def test_the_lock_is_held_while_writing_and_not_after(self):
        self.start_guest()
        seen = []
        probe = os.open(self.root, os.O_RDONLY)
        self.addCleanup(os.close, probe)

        class Probing(fs.Files):
            def write(self, path, text):
                try:
                    fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    seen.append(text)
                super().write(path, text)

        done = self.enforce(self.desired(ALL_FOUR), files=Probing())
        self.assertEqual(done, seen)
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)


#: f_type of statfs(2) of the emulator.
FUSE = 0x65735546


class EngineTestCase(EmulatedTestCase):
    """Tests of nova-compute's engine, with its helper in this process."""

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(FakeLogger(level=20, format='%(message)s'))
        privsep.context.set_client_mode(False)
        self.addCleanup(privsep.context.set_client_mode, True)
        # The helper is in this process and reads the configuration of it.
        options = cfg.CONF
        conf.register_opts(options)
        for name, value in (('resctrl_path', str(self.root)),
                            ('sysfs_path', str(self.sysfs)),
                            ('libvirt_run_path', str(self.sysfs)),
                            ('resctrl_magic', str(FUSE))):
            options.set_override(name, value, 'ghsched')
            self.addCleanup(options.clear_override, name, 'ghsched')
        self.engine = engine.HostEngine(
            options.ghsched, readings.RoundingCache(
                self.root, measure=privileged.measure_percentages))
        (self.sysfs / f'{NAME}.pid').write_text(str(self.threads.pid))
        self.group = naming.render_own_group_name(UUID)

    def reconcile(self, *running):
        self.engine.running = lambda: running
        return self.engine.reconcile_groups()


class EngineTest(EngineTestCase):
    """Actions and logs of nova-compute after a fault."""

    def running(self):
        xml = (f'<domain><name>{NAME}</name><uuid>{UUID}</uuid>'
               f'<vcpu>{len(VCPUS)}</vcpu></domain>')
        return desired.Running(
            model.Domain(UUID, DOMAIN, NAME),
            metadata.write_policy(xml, metadata.DomainPolicy(
                GuestPolicy(nodes=(ALL_FOUR,)), (0,))))

    def test_guest_comes_back_to_a_module_as_seldom_as_documented(self):
        self.engine.read_resctrl_host()
        running = self.running()
        with modules.Modules() as walk:
            self.engine.reconcile_guest(running)
        self.assertLessEqual(
            walk.returns, modules.allowed_returns('host engine'), walk.stays)

    def test_each_fault_is_reported_leaves_nothing_and_is_repaired(self):
        guest = self.running()
        for fault, words in (({'mkdir': 'ENOSPC'}, 'no control group left'),
                             ({'schemata:MBPRI': 'EINVAL'}, 'MBPRI:0=5'),
                             ({'tasks': 'ESRCH'}, 'ended meanwhile')):
            with self.resctrl.faults(fault):
                problem, = self.reconcile(guest)
                self.assertIn(words, str(problem))
                self.assertEqual(UUID, problem.guest)
                error = self.assertRaises(
                    fs.GroupError, self.engine.reconcile_guest,
                    desired.parse_running_domain(guest.xml, DOMAIN))
                self.assertIn(words, str(error))
            self.assertEqual(frozenset(), self.engine.list_resctrl_groups())
            self.log.reset_output()
            self.assertEqual((), self.reconcile(guest))
            for words in ('make group) because the guest has no control',
                          'write line MBPRI:0=5) because', 'move threads'):
                self.assertIn(f'{self.group}: {words}', self.log.output)
            self.log.reset_output()
            self.assertEqual((), self.reconcile(guest))
            self.assertEqual('', self.log.output)
            (self.root / self.group).rmdir()

    def test_a_group_left_by_a_guest_that_died_is_removed(self):
        self.reconcile(self.running())
        self.threads.end()
        self.assertEqual((), self.reconcile())
        self.assertEqual(frozenset(), self.engine.list_resctrl_groups())
        self.assertIn(f'{self.group}: remove group) because no guest {UUID} '
                      'runs', self.log.output)

    def test_unmounted(self):
        subprocess.run(['umount', '--lazy', str(self.root)], check=True)
        problem, = self.reconcile(self.running())
        self.assertIn('is resctrl mounted?', problem.reason)
        self.assertEqual(UUID, problem.guest)


class PrivsepTest(EmulatedTestCase):
    """Through a real daemon, which has one capability."""

    def setUp(self):
        super().setUp()
        helper = Path(sys.executable).parent / 'privsep-helper'
        if not helper.exists():
            self.skipTest(f'there is no {helper}')
        section = privsep.context.cfg_section
        self.config = config = self.root.parent / 'nova.conf'
        config.write_text('[ghsched]\n'
                          f'resctrl_path = {self.root}\n'
                          f'libvirt_run_path = {self.sysfs}\n'
                          f'resctrl_magic = {FUSE}\n')
        self.addCleanup(config.unlink)
        cfg.CONF.set_override('helper_command',
                              f'{helper} --config-file {config}',
                              group=section)
        self.addCleanup(cfg.CONF.clear_override, 'helper_command',
                        group=section)
        self.addCleanup(privsep.context.stop)
        privsep.context.set_client_mode(True)

    def reconcile_one(self, desired):
        return privileged.reconcile_groups(self.root, self.sysfs,
                                           self.wanted(desired))

    def test_a_policy_is_held_and_a_refusal_comes_back_whole(self):
        self.start_guest()
        desired = self.desired(ALL_FOUR)
        self.assertEqual(['MBHDL:0=0\n', 'MBPRI:0=5\n', 'MBMIN:0=20\n'],
                         self.enforce(desired))
        self.assertEqual(reconcile.ReconcileReport(),
                         self.reconcile_one(desired))
        reason = self.refused({'MBPRI': {0: 9}})
        for part in ('MBPRI:0=9', 'EINVAL', 'out of range'):
            self.assertIn(part, reason)

    def test_an_error_comes_back_whole(self):
        subprocess.run(['umount', '--lazy', str(self.root)], check=True)
        exc = self.assertRaises(fs.GroupError, self.reconcile_one,
                                self.desired(ALL_FOUR))
        self.assertEqual(str(self.root), exc.path)
        self.assertIn('still mounted', exc.reason)

    def _daemons(self):
        found = set()
        for path in Path('/proc').glob('[0-9]*/cmdline'):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b'\0')
                if (b'ghsched_nova.base.privsep.context' in words
                        and str(self.config).encode() in words):
                    found.add(int(path.parent.name))
        return found

    def test_a_daemon_that_is_killed_between_two_writes(self):
        before = self._daemons()
        self.start_guest()
        desired = self.desired(ALL_FOUR)
        self.reconcile_one({'MB': desired['MB']})   # which starts it
        daemon, = self._daemons() - before
        errors = []

        def call():
            try:
                self.reconcile_one(desired)
            except Exception as error:
                errors.append(error)

        with self.resctrl.faults(
                {'schemata:MBPRI': {'delay': 2, 'times': 1}}):
            thread = threading.Thread(target=call)
            thread.start()
            while 'MBHDL:0=0\n' not in self.writes():
                time.sleep(0.02)
            os.kill(daemon, signal.SIGKILL)
            thread.join()
        self.assertEqual(1, len(errors))
        # The next call has a daemon of its own.
        self.assertEqual((), self.reconcile_one(desired).problems)
        self.assertEqual([5, 20], [self.read_schemata().values(name)[0]
                                   for name in ('MBPRI', 'MBMIN')])
        self.assertEqual(reconcile.ReconcileReport(),
                         self.reconcile_one(desired))
