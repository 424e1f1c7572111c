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


"""Interrupts of passthrough devices are kept on housekeeping CPUs."""

import contextlib
import errno
import io
import json
from pathlib import Path
import tempfile
import types
from unittest import mock


from ghsched_nova.base import kernel_files
from ghsched_nova.cmd import host
from ghsched_nova.features.interrupts import engine
from ghsched_nova.features.interrupts import interrupt_changes
from ghsched_nova.features.interrupts import interrupts
from ghsched_nova.features.interrupts import privileged
from ghsched_nova.features.real_time import scheduling
from ghsched_nova.host import desired
from ghsched_nova.resctrl import model as resctrl_model
from ghsched_nova.tests.unit.features.interrupts import kernel
from ghsched_placement.features.real_time.scheduling import ThreadPolicy
from ghsched_placement.tests import base

UUID = 'c5a49498-ffaf-47ae-9208-77ea133d3fcf'
XML = f'''<domain><name>web</name><uuid>{UUID}</uuid><vcpu>2</vcpu><devices>
<hostdev mode="subsystem" type="pci" managed="yes"><source><address
domain="0x0000" bus="0x18" slot="0x00" function="0x2"/></source></hostdev>
</devices></domain>'''
STEERED = scheduling.render_scheduling(
    XML, ThreadPolicy(irq_affinity='housekeeping')
)
VF, OTHER = 'vfio-msix[0](0000:18:00.2)', 'vfio-msix[0](0000:18:00.3)'


class KernelTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.top / 'proc').mkdir()
        self.kernel = kernel.Kernel(self.top / 'proc')
        for node, cpus in ((0, '0-3'), (1, '4-7')):
            path = self.top / f'sys/devices/system/node/node{node}'
            path.mkdir(parents=True)
            (path / 'cpulist').write_text(f'{cpus}\n')
        cpu = self.top / 'sys/devices/system/cpu'
        cpu.mkdir()
        (cpu / 'isolated').write_text('7\n')
        self.running = [
            desired.Running(resctrl_model.Domain(UUID, 1, 'web'), STEERED)]

    def keeper(self, words=('none',)):
        return interrupts.InterruptMover(
            types.SimpleNamespace(irq_bypass=words,
                                  sysfs_path=str(self.top / 'sys')),
            {2, 3, 5}, self.top / 'proc', self.kernel.steer)


class KeeperTest(KernelTestCase):

    def test_interrupts_go_to_housekeeping_cpus_of_the_node_once(self):
        self.kernel.add(40, VF, node=1)
        self.kernel.add(41, OTHER, node=1)
        self.kernel.add(42, 'nvme0q0', node=1)
        keeper = self.keeper()
        action, = keeper.report_misplaced(self.running).actions
        self.assertEqual([], self.kernel.writes)
        self.assertEqual('4,6', action.line)
        for _ in range(3):
            keeper.reconcile_guests(self.running)
        self.assertEqual([(40, '4,6')], self.kernel.writes)
        self.assertEqual('4,6', self.kernel.cpus(40))
        self.assertEqual('0-7', self.kernel.cpus(41))

    def test_threads_moved_by_hand_return(self):
        self.kernel.add(40, VF, node=0)
        keeper = self.keeper()
        keeper.reconcile_guests(self.running)
        self.kernel.write(40, '2')
        keeper.reconcile_guests(self.running)
        self.assertEqual('0-1', self.kernel.cpus(40))

    def test_interrupts_that_the_guest_makes_later_are_steered(self):
        keeper = self.keeper()
        keeper.reconcile_guests(self.running)
        self.kernel.add(40, VF, node=1)
        keeper.reconcile_guests(self.running)
        self.assertEqual('4,6', self.kernel.cpus(40))

    def test_refusals_of_the_kernel_are_logged_once_while_they_last(self):
        self.kernel.add(40, VF, node=1, refused=errno.EIO)
        keeper = self.keeper()
        with self.assertLogs(interrupts.LOG, 'WARNING') as log:
            keeper.reconcile_guests(self.running)
        self.assertIn('interrupt 40 of 0000:18:00.2: CPUs 4,6: '
                      'Input/output error', log.output[0])
        with self.assertNoLogs(interrupts.LOG, 'INFO'):
            keeper.reconcile_guests(self.running)
        self.kernel.refused[40] = 0
        keeper.reconcile_guests(self.running)
        self.kernel.refused[40] = errno.EPERM
        self.kernel.write(40, '0-7')
        self.kernel._set(40, self.kernel.online)
        with self.assertLogs(interrupts.LOG, 'WARNING') as log:
            keeper.reconcile_guests(self.running)
        self.assertIn('Operation not permitted', log.output[0])

    def test_messages_on_a_host_that_they_bypass_are_left(self):
        self.kernel.add(40, VF, node=1)
        self.kernel.add(41, 'vfio-intx(0000:18:00.2)', node=1)
        self.keeper(['posted']).reconcile_guests(self.running)
        self.assertEqual([(41, '4,6')], self.kernel.writes)

    def test_guests_that_did_not_ask_cost_nothing(self):
        self.kernel.add(40, VF, node=1)
        plain = [desired.Running(self.running[0].domain, XML)]
        with mock.patch.object(engine, 'plan_interrupt_changes') as look:
            self.keeper().reconcile_guests(plain)
        look.assert_not_called()


class WriteTest(KernelTestCase):

    def setUp(self):
        super().setUp()
        self.kernel.add(40, VF, node=1)
        self.proc = self.top / 'proc'
        self.affinity = self.proc / 'irq/40/smp_affinity_list'
        # These files are on no procfs.
        self.enterContext(
            mock.patch.object(
                kernel_files,
                'PROC',
                {kernel_files.get_file_system_type(str(self.top))},
            )
        )

    def write(self, number=40, name=VF):
        return privileged.write_interrupt_affinity(
            number, name, [4, 6], self.proc)

    def test_write_interrupt_of_the_name_sets_its_cpus(self):
        self.assertEqual('', self.write())
        self.assertEqual('4,6', self.kernel.cpus(40))

    def test_write_interrupt_of_another_device_leaves_it(self):
        for number, name in ((40, OTHER), (41, VF), (40, '..'), (40, '')):
            self.assertEqual('it is not in use any more',
                             self.write(number, name))
        self.assertEqual('0-7', self.kernel.cpus(40))

    def test_write_refused_by_the_kernel_returns_the_reason(self):
        for number, words in (
                (errno.ENOSPC, 'No space left on device (these CPUs have no '
                               'interrupt vector left)'),
                (errno.EIO, 'Input/output error (the kernel keeps it where '
                            'it is')):
            with mock.patch.object(kernel_files.os, 'write',
                                   side_effect=OSError(number, '')):
                self.assertIn(words, self.write())

    def test_write_file_that_is_a_link_is_refused(self):
        victim = self.top / 'victim'
        victim.write_text('before')
        self.affinity.unlink()
        self.affinity.symlink_to(victim)
        self.assertIn('symbolic links', self.write())
        self.assertEqual('before', victim.read_text())


class HostCommandTest(KernelTestCase):
    """``ghsched-host`` shows where interrupts are to go, and sends them."""

    def call(self, command, form='json'):
        config = self.top / 'nova.conf'
        config.write_text(
            f'[ghsched]\nresctrl_path = {self.top}/none\n'
            f'sysfs_path = {self.top}/sys\nirq_bypass = none\n'
            '[compute]\ncpu_dedicated_set = 2-3,5\n')
        out = io.StringIO()
        with mock.patch.multiple(
                interrupt_changes, PROC=self.top / 'proc',
                _set_interrupt_cpus_as_root=self.kernel.steer), \
                mock.patch.object(host.domains, 'list_running_domains',
                                  return_value=self.running), \
                contextlib.redirect_stdout(out):
            status = host.main([command, '--format', form,
                                '--config-file', str(config)])
        return status, out.getvalue()

    def test_plan_shows_what_reconcile_sets(self):
        self.kernel.add(40, VF, node=1)
        status, text = self.call('plan')
        self.assertEqual(1, status)
        self.assertEqual([{
            'kind': 'steer interrupt', 'group': None, 'guest': UUID,
            'line': '4,6', 'threads': [], 'devices': [],
            'reason': 'interrupt 40 of 0000:18:00.2: it may go to CPUs 0-7, '
                      'and goes to 0'}], json.loads(text)['actions'])
        self.assertEqual([], self.kernel.writes)
        self.assertIn('steer interrupt', self.call('plan', 'table')[1])
        self.assertEqual(0, self.call('reconcile')[0])
        self.assertEqual('4,6', self.kernel.cpus(40))
        self.assertEqual(0, self.call('plan')[0])

    def test_refusals_of_the_kernel_are_problems(self):
        self.kernel.add(40, VF, node=1, refused=errno.EPERM)
        status, text = self.call('reconcile')
        problem, = json.loads(text)['problems']
        self.assertEqual((1, UUID), (status, problem['guest']))
        self.assertIn('Operation not permitted', problem['reason'])
