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

"""Scheduling classes of a guest's threads, and keys of devices."""

from tempest import config
from tempest.lib import decorators

from ghsched_placement.providers import names
from tempest_plugin.tests import base

CONF = config.CONF

#: A vCPU under real time on shared CPUs takes a fifth of one.
RUNTIME_US = 2000
PERIOD_US = 10000
PERMILLE = 200

#: Real-time vCPUs share CPUs only where the flavor says so.
SHARED = {'hw:cpu_policy': 'shared'}

#: vCPUs with host CPUs of their own, and QEMU's other threads elsewhere.
DEDICATED = {'hw:cpu_policy': 'dedicated',
             'hw:emulator_threads_policy': 'share'}


class SchedulingClassTestCase(base.GhschedTest):
    """Base of tests that read classes in the XML and on the host."""

    def _read_classes(self, server, kind):
        """Return <vcpusched> or its like, by attributes."""
        return [dict(one.attrib) for one
                in self._read_xml(server).findall(f'./cputune/{kind}')]

    def _read_kernel_classes(self, server):
        """Return the class and priority of each vCPU thread, as chrt says."""
        found = set()
        for thread in self._read_threads(server):
            lines = self._host(server).run_command(
                'chrt', '-p', str(thread)).splitlines()
            found.add(tuple(line.rpartition(': ')[2] for line in lines[:2]))
        return found


class SchedulingClassTest(SchedulingClassTestCase):
    """The class of a thread is in the XML, and holds on the host."""

    @decorators.idempotent_id('d3e6f86a-12c3-4d57-b7f8-a3b4c5d6e739')
    @base.looks_at_host
    def test_batch_vcpus_leave_out_those_of_the_mask(self):
        server = self._boot_server(self._create_flavor(
            nodes=2, vcpu_scheduler='batch', vcpu_scheduler_mask='^0'))
        self.assertEqual([{'vcpus': '1', 'scheduler': 'batch'}],
                         self._read_classes(server, 'vcpusched'))
        self.assertEqual({('SCHED_BATCH', '0'), ('SCHED_OTHER', '0')},
                         self._read_kernel_classes(server))

    @decorators.idempotent_id('e4f7097b-23d4-4e68-8809-b4c5d6e7f840')
    @base.looks_at_host
    def test_emulator_and_io_threads_have_their_class(self):
        server = self._boot_server(self._create_flavor(
            emulator_scheduler='batch', iothread_scheduler='idle'))
        self.assertEqual([{'scheduler': 'batch'}],
                         self._read_classes(server, 'emulatorsched'))
        for one in self._read_classes(server, 'iothreadsched'):
            self.assertEqual('idle', one['scheduler'])

    @decorators.idempotent_id('f5081a8c-34e5-4f79-991a-c5d6e7f80941')
    @base.needs('VCPU_REALTIME', 'RT_CPU_PERMILLE')
    @base.looks_at_host
    def test_real_time_on_shared_cpus_is_counted_and_holds(self):
        server = self._boot_server(self._create_flavor(
            specs=SHARED, vcpu_scheduler='rr', vcpu_priority=10,
            vcpu_runtime_us=RUNTIME_US, vcpu_period_us=PERIOD_US,
            iothread_scheduler='fifo', iothread_priority=2))
        self.assertEqual([PERMILLE], self._get_amounts(
            server, names.RT_CPU_PERMILLE))
        self._wait(lambda: {
            (one.partition('|')[0], priority) for one, priority
            in self._read_kernel_classes(server)} == {('SCHED_RR', '10')},
            'the vCPU is under SCHED_RR with priority 10')

    @decorators.attr(type='negative')
    @decorators.idempotent_id('06192b9d-45f6-408a-aa2b-d6e7f8091a42')
    @base.needs('VCPU_REALTIME', 'RT_CPU_PERMILLE')
    def test_priority_above_that_of_the_host_is_refused(self):
        """No host allows more than 98 by default."""
        refused = self._boot_server(self._create_flavor(
            specs=SHARED, vcpu_scheduler='rr', vcpu_priority=99,
            vcpu_runtime_us=RUNTIME_US, vcpu_period_us=PERIOD_US),
            status='ERROR')
        self.assertIn('ghsched:vcpu_priority', refused['fault']['message'])
        self.assertEqual({}, self._get_allocations(refused))

    @decorators.idempotent_id('172a3cae-5607-419b-bb3c-e7f8091a2b43')
    @base.needs('VCPU_DEADLINE_SHARED', 'RT_CPU_PERMILLE')
    @base.looks_at_host
    def test_deadline_holds_on_the_host(self):
        server = self._boot_server(self._create_flavor(
            specs=SHARED, vcpu_scheduler='deadline',
            vcpu_runtime_us=RUNTIME_US, vcpu_period_us=PERIOD_US,
            vcpu_deadline_us=PERIOD_US // 2))
        self._wait(lambda: {
            one.partition('|')[0] for one, _
            in self._read_kernel_classes(server)} == {'SCHED_DEADLINE'},
            'the vCPU is under SCHED_DEADLINE')

    @decorators.idempotent_id('283b4dbf-6718-42ac-8c4d-f8091a2b3c44')
    @base.needs('DEVICE_NUMA')
    def test_guest_without_devices_boots_with_keys_of_devices(self):
        self._boot_server(self._create_flavor(
            device_numa='required', vfs_locality='node',
            irq_affinity='housekeeping'))


class DedicatedCpusTest(SchedulingClassTestCase):
    """Keys of guests whose vCPUs have host CPUs of their own."""

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        if not CONF.ghsched.dedicated_cpus:
            raise cls.skipException('[ghsched]dedicated_cpus is off')

    @decorators.idempotent_id('58d1f3a7-2c64-4be9-9b0f-7e5a3c1d8f46')
    @base.needs('VCPU_REALTIME', 'PV_HINTS')
    @base.looks_at_host
    def test_emulator_is_real_time_and_the_guest_has_hints(self):
        server = self._boot_server(self._create_flavor(
            specs=DEDICATED, emulator_scheduler='fifo', emulator_priority=5,
            irq_bypass='preferred', pv_hints='dedicated',
            cpu_cache='prefer'))
        self.assertEqual([{'scheduler': 'fifo', 'priority': '5'}],
                         self._read_classes(server, 'emulatorsched'))
        for hint in ('hint-dedicated', 'poll-control'):
            self.assertEqual('on', self._read_xml(server).find(
                f'./features/kvm/{hint}').get('state'))
