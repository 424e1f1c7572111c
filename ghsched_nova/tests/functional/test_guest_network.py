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


"""The script for tenants, on a made-up machine with real processes."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from ghsched_nova.tests.fixtures import guest_script
from ghsched_placement.tests import base

GUEST = guest_script.GUEST
CPUS = sorted(os.sched_getaffinity(0))

#: A service with two threads.
SERVICE = '''
import sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(flush=True)
sys.stdin.read()
'''


class SysfsTestCase(base.TestCase):
    """A guest with a card on its node 1, which has the CPUs of the test."""

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(
            self.enterContext(tempfile.TemporaryDirectory()))
        self.device = self.root / 'sys/devices/pci0000:00/0000:01:00.0'
        self.write(self.device / 'numa_node', '1')
        for irq in (24, 25, 26):
            self.write(self.device / f'msi_irqs/{irq}', 'msix')
            self.write(self.affinity(irq), '0-3')
        self.write(self.device / 'msi_irqs/27', 'msix')     # no handler
        net = self.root / 'sys/class/net/eth1'
        net.mkdir(parents=True)
        (net / 'device').symlink_to(self.device)
        system = self.root / 'sys/devices/system'
        self.write(system / 'cpu/online', GUEST.cpu_text(CPUS))
        self.write(system / 'node/node0/cpulist', '')
        self.cpus = system / 'node/node1/cpulist'
        self.write(self.cpus, GUEST.cpu_text([*CPUS, 4000]))

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + '\n')

    def affinity(self, irq):
        return self.root / f'proc/irq/{irq}/smp_affinity_list'

    def irqs(self):
        return [self.affinity(irq).read_text().strip()
                for irq in (24, 25, 26)]

    def run_script(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with (contextlib.redirect_stdout(out),
              contextlib.redirect_stderr(err)):
            code = GUEST.main(['--root', str(self.root), *arguments])
        return code, out.getvalue(), err.getvalue()

    def refused(self, *arguments):
        code, out, err = self.run_script(*arguments)
        self.assertEqual((1, ''), (code, out))
        self.assertFalse((self.root / GUEST.NETWORK_STATE).exists())
        return err


@unittest.skipIf(len(CPUS) < 2, 'one CPU cannot be divided')
class TuneTest(SysfsTestCase):

    def setUp(self):
        super().setUp()
        self.service = subprocess.Popen(
            [sys.executable, '-c', SERVICE], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE)
        self.addCleanup(self.service.communicate)
        self.service.stdout.readline()
        self.pid = self.service.pid
        tasks = self.tasks()
        self.assertEqual(2, len(tasks))
        for task in tasks:
            (self.root / 'proc' / task).symlink_to(f'/proc/{task}')
        self.apply = ('network', 'apply', '--nic', 'eth1',
                      '--pid', str(self.pid))

    def tasks(self):
        return sorted(os.listdir(f'/proc/{self.pid}/task'))

    def service_cpus(self):
        return [sorted(os.sched_getaffinity(int(task)))
                for task in self.tasks()]

    def test_interrupts_and_service_are_apart_on_the_node_of_the_card(self):
        code, out, _ = self.run_script(*self.apply)
        self.assertEqual(0, code)
        self.assertEqual([str(CPUS[0])] * 3, self.irqs())
        self.assertEqual([CPUS[1:]] * 2, self.service_cpus())
        self.assertIn('eth1 is on node 1', out)
        self.assertIn(f'interrupt 24: CPUs 0-3 -> {CPUS[0]}', out)
        self.assertIn(f'thread {self.pid}: CPUs', out)

    def test_undo_restores_what_was_there_before_the_first_apply(self):
        self.run_script(*self.apply)
        self.write(self.affinity(25), '2')      # irqbalance
        self.run_script(*self.apply)
        code, out, _ = self.run_script('network', 'undo')
        self.assertEqual(0, code)
        self.assertEqual(['0-3'] * 3, self.irqs())
        self.assertEqual([CPUS] * 2, self.service_cpus())
        self.assertIn(f'interrupt 25: CPUs {CPUS[0]} -> 0-3', out)
        self.assertIn('nothing was changed', self.refused('network', 'undo'))

    def test_a_second_apply_changes_nothing(self):
        self.run_script(*self.apply)
        _, out, _ = self.run_script(*self.apply)
        self.assertEqual(1, len(out.splitlines()))

    def test_interrupts_can_have_more_cpus(self):
        self.assertIn('does not leave any', self.refused(
            *self.apply, '--irq-cpus', str(len(CPUS))))
        self.assertIn('does not leave any', self.refused(
            *self.apply, '--irq-cpus', '0'))

    def test_undo_with_a_state_of_another_program_is_refused(self):
        state = self.root / GUEST.NETWORK_STATE
        state.parent.mkdir(exist_ok=True)
        irq = 'proc/irq/1/smp_affinity_list'
        for text in ('[]', '', '{"files": []}', '{"threads": {}}',
                     '{"files": {"etc/passwd": "0"}}',
                     '{"files": {"proc/irq/x/smp_affinity_list": "0"}}',
                     '{"files": {}, "threads": {"1": 1e999}}',
                     f'{{"files": {{"{irq}": "x"}}}}', '[' * 100000):
            state.write_text(text)
            code, _out, error = self.run_script('network', 'undo')
            self.assertEqual(1, code)
            self.assertIn('is not of this program', error)

    def test_undo_leaves_out_what_is_gone(self):
        self.run_script(*self.apply)
        self.affinity(24).unlink()
        self.service.communicate()
        code, out, _ = self.run_script('network', 'undo')
        self.assertEqual(0, code)
        self.assertIn('interrupt 24 is gone', out)
        self.assertIn(f'thread {self.pid} has ended', out)

    def test_refusals_of_the_kernel_are_reported_and_the_rest_is_done(self):
        # A managed interrupt: the kernel says EIO at the write, as it says
        # ENOSPC for /dev/full.
        self.affinity(25).unlink()
        self.affinity(25).symlink_to('/dev/full')
        machine = GUEST.Machine(self.root)
        machine.cpus = lambda path: {0, 1, 2, 3}
        lines = []
        tuning = GUEST.Network(machine, lines.append)
        tuning.apply(GUEST.plan_network(
            [GUEST.parse_service(
                f'{self.pid}=eth1:{GUEST.cpu_text(CPUS)}'
                f':{CPUS[0]}')], set(CPUS)))
        self.assertEqual(1, tuning.failed)
        self.assertIn('interrupt 25 stays as it is: No space left on device',
                      lines)
        self.assertEqual(str(CPUS[0]), self.affinity(26).read_text().strip())

    def test_a_card_without_a_node_is_on_the_only_one(self):
        self.write(self.device / 'numa_node', '-1')
        self.assertIn('ghsched:device_numa=required',
                      self.refused(*self.apply))
        node0 = self.root / 'sys/devices/system/node/node0'
        (node0 / 'cpulist').unlink()
        node0.rmdir()
        self.assertEqual(0, self.run_script(*self.apply)[0])

    def test_a_virtio_card_has_the_interrupts_of_its_parent(self):
        virtio = self.device / 'virtio1'
        virtio.mkdir()
        link = self.root / 'sys/class/net/eth1/device'
        link.unlink()
        link.symlink_to(virtio)
        self.assertEqual(0, self.run_script(*self.apply)[0])
        self.assertEqual([str(CPUS[0])] * 3, self.irqs())

    def test_threads_that_started_since_are_restored_too(self):
        self.run_script(*self.apply)
        state = self.root / GUEST.NETWORK_STATE
        before = json.loads(state.read_text())
        thread = self.tasks()[1]
        del before['threads'][thread]
        state.write_text(json.dumps(before))
        self.assertEqual(0, self.run_script('network', 'undo')[0])
        self.assertEqual([CPUS] * 2, self.service_cpus())

    def test_irqbalance_is_named(self):
        self.write(self.root / 'proc/7/comm', 'irqbalance')
        self.assertIn('irqbalance runs', self.run_script(*self.apply)[1])

    def test_a_unit_has_the_processes_of_its_control_group(self):
        commands = self.root / 'bin'
        self.write(commands / 'systemctl',
                   '#!/bin/sh\necho ControlGroup=/system.slice/r.service')
        (commands / 'systemctl').chmod(0o755)
        path = os.environ['PATH']
        self.addCleanup(os.environ.update, PATH=path)
        os.environ['PATH'] = f'{commands}:{path}'
        arguments = ('network', 'apply', '--nic', 'eth1', '--unit', 'r')
        self.assertIn('r does not run', self.refused(*arguments))
        self.write(self.root / 'sys/fs/cgroup/system.slice/r.service'
                   / 'cgroup.procs', str(self.pid))
        self.assertEqual(0, self.run_script(*arguments)[0])
        self.assertEqual([CPUS[1:]] * 2, self.service_cpus())

    def test_queues_send_from_the_cpus_of_the_service_and_are_restored(self):
        queues = self.root / 'sys/class/net/eth1/queues'
        self.write(queues / 'tx-0/xps_cpus', '00000000,0000000f')
        self.write(queues / 'rx-0/rps_cpus', '3')
        self.assertEqual(0, self.run_script(*self.apply)[0])
        read = GUEST.mask_cpus
        self.assertEqual(set(CPUS[1:]),
                         read((queues / 'tx-0/xps_cpus').read_text()))
        self.assertEqual(set(), read((queues / 'rx-0/rps_cpus').read_text()))
        self.assertEqual(0, self.run_script('network', 'undo')[0])
        self.assertEqual({0, 1, 2, 3},
                         read((queues / 'tx-0/xps_cpus').read_text()))
        self.assertEqual({0, 1},
                         read((queues / 'rx-0/rps_cpus').read_text()))

    def test_a_service_that_does_not_run_refuses_all_of_a_plan(self):
        other = self.root / 'sys/class/net/eth2'
        other.mkdir()
        (other / 'device').symlink_to(self.device)
        cpus = f'{CPUS[0]},{CPUS[1]}'
        code, _out, error = self.run_script(
            'network', 'apply', f'{self.pid}=eth1:{cpus}',
            f'4194305=eth2:{cpus}', '--share')
        self.assertEqual(1, code)
        self.assertIn('no process 4194305', error)
        self.assertEqual(['0-3'] * 3, self.irqs())

    def test_missing_parts_are_named(self):
        for arguments, text in (
                (('network', 'apply', '--nic', 'eth9', '--pid', '1'),
                 'no network device eth9'),
                (('network', 'apply', '--nic', 'eth1', '--pid', '4194305'),
                 'no process 4194305')):
            self.assertIn(text, self.refused(*arguments))
        for irq in (24, 25, 26):
            self.affinity(irq).unlink()
        self.assertIn('is it up?', self.refused(*self.apply))
