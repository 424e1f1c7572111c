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

"""Unmodified libvirtd on a host with faked NUMA nodes and resctrl.

The tests hold what stock libvirt (checked: 9.0.0 of Debian 12, with QEMU
7.2) does with ``<memorytune>`` on each dialect, because ghsched is built on
these facts. src/util/virresctrl.c reads every line of ``schemata`` that
begins with MB as the line MB, and every line that begins with L as a cache.
"""

import os
import subprocess
import tempfile
import time
import unittest

import fixtures
from lxml import etree

from ghsched_nova.lab.emulator import daemons
from ghsched_nova.lab.emulator import resctrl
from ghsched_nova.lab.emulator import testhost
from ghsched_nova.tests.fixtures import libvirt_host
from ghsched_placement.tests import base

NODE_1 = libvirt_host.NODE_1
MONITOR = libvirt_host.MONITOR


class IntelTest(libvirt_host.HostTestCase):
    settings = testhost.Settings(dialect='intel', closids=3, log_fs=True,
                                 hostname='intel-1')

    def test_host_has_a_name_of_its_own(self):
        self.assertEqual('intel-1', self.virsh('hostname').stdout.strip())
        self.assertNotEqual('intel-1', os.uname().nodename)

    def test_default_group_has_the_threads_of_the_host_alone(self):
        tasks = self.read('tasks').split()
        self.assertIn(str(self.host.pid('libvirtd')), tasks)
        self.assertNotIn(str(os.getpid()), tasks)

    def test_capabilities_show_nodes_caches_and_bandwidth(self):
        text = self.virsh('capabilities').stdout
        self.assertIn("<cells num='2'>", text)
        self.assertIn("<sibling id='1' value='21'/>", text)
        for number in (0, 1):
            self.assertIn(f"<bank id='{number}' level='3'", text)
        self.assertIn("<control granularity='10' min='10' maxAllocs='3'/>",
                      text)

    def test_capabilities_are_those_of_the_kernels_files(self):
        host = etree.fromstring(self.virsh('capabilities').stdout).find('host')
        for bank in host.findall('cache/bank'):
            control = bank.find('control')
            self.assertEqual(('both', '3'), (control.get('type'),
                                             control.get('maxAllocs')))
        self.assertEqual(
            [('3', '65536', '224', ['llc_occupancy'])],
            [(monitor.get('level'), monitor.get('reuseThreshold'),
              monitor.get('maxMonitors'), self.features(monitor))
             for monitor in host.findall('cache/monitor')])
        bandwidth = host.find('memory_bandwidth')
        self.assertEqual(
            [('0', '10', '10', '3'), ('1', '10', '10', '3')],
            [(node.get('id'), *(node.find('control').get(name) for name in (
                'granularity', 'min', 'maxAllocs')))
             for node in bandwidth.findall('node')])
        self.assertEqual(
            [('224', ['mbm_total_bytes', 'mbm_local_bytes'])],
            [(monitor.get('maxMonitors'), self.features(monitor))
             for monitor in bandwidth.findall('monitor')])

    @staticmethod
    def features(monitor):
        return [feature.get('name') for feature in monitor.findall('feature')]

    def test_domstats_are_the_counters_of_the_group(self):
        self.assertEqual('', self.start('a', NODE_1 + MONITOR))
        (group,) = self.groups()

        def read_counters():
            return [int(self.read(f'{group}/mon_data/mon_L3_{node:02}/'
                                  f'mbm_{what}_bytes'))
                    for node in (0, 1) for what in ('total', 'local')]

        before = read_counters()
        lines = self.virsh('domstats', '--memory', 'a').stdout.split()
        after = read_counters()
        stats = dict(line.split('=') for line in lines if '=' in line)
        prefix = 'memory.bandwidth.monitor.'
        self.assertEqual(
            ('1', 'vcpus_0-1', '0-1', '2', '0', '1'), tuple(
                stats[prefix + name] for name in (
                    'count', '0.name', '0.vcpus', '0.node.count',
                    '0.node.0.id', '0.node.1.id')))
        shown = [int(stats[f'{prefix}0.node.{node}.bytes.{what}'])
                 for node in (0, 1) for what in ('total', 'local')]
        for low, value, high in zip(before, shown, after, strict=True):
            self.assertTrue(low <= value <= high, (before, shown, after))

    def test_group_holds_the_bandwidth_and_the_vcpu_threads(self):
        self.assertEqual('', self.start('a', NODE_1))
        (group,) = self.groups()
        self.assertRegex(group, r'^qemu-\d+-a-vcpus_0-1$')
        self.assertIn('MB:0=100;1=60\n', self.read(f'{group}/schemata'))
        self.assertEqual(['CPU 0/TCG', 'CPU 1/TCG'],
                         self.threads(self.read(f'{group}/tasks')))
        self.virsh('destroy', 'a')
        self.assertEqual([], self.groups())

    def test_start_is_refused_when_no_group_is_left(self):
        self.assertEqual('', self.start('a', NODE_1))
        self.assertEqual('', self.start('b', NODE_1))
        self.assertIn('No space left on device', self.start('c', NODE_1))
        self.assertEqual(['a', 'b'],
                         self.virsh('list', '--name').stdout.split())

    def test_monitor_of_the_same_vcpus_is_the_groups_own(self):
        self.assertEqual('', self.start('a', NODE_1 + MONITOR))
        (group,) = self.groups()
        self.assertEqual([], self.groups(f'{group}/mon_groups'))
        stats = self.virsh('domstats', '--memory', 'a').stdout
        self.assertIn('memory.bandwidth.monitor.count=1', stats)
        self.assertIn('node.1.bytes.total=', stats)

    def test_guests_survive_a_restart_of_libvirtd(self):
        self.assertEqual('', self.start('a', NODE_1))
        before = self.groups()
        for kill in (False, True):
            self.host.restart_libvirtd(kill=kill)
            self.assertEqual('running', self.virsh('domstate', 'a')
                             .stdout.strip())
        self.assertEqual(before, self.groups())

    def test_mount_that_vanished(self):
        self.host.umount_resctrl()
        self.addCleanup(self.host.mount_resctrl)
        self.assertFalse(self.host.mounted())
        self.assertIn('unsupported', self.start('a', NODE_1).lower())

    def test_mount_that_died(self):
        self.host.umount_resctrl(crash=True)
        self.addCleanup(self.host.mount_resctrl)
        done = self.host.run(['ls', '/sys/fs/resctrl'])
        self.assertIn('not connected', done.stderr)
        self.host.mount_resctrl()
        self.assertEqual('', self.start('a', NODE_1))

    def test_the_machine_outside_sees_nothing(self):
        self.assertFalse(os.path.exists('/sys/fs/resctrl/tasks'))
        with open('/proc/self/mountinfo') as stream:
            self.assertNotIn(self.host.state, stream.read())

    def test_command_runs_in_the_same_directory(self):
        done = self.host.run(['pwd'])
        self.assertEqual(os.getcwd(), done.stdout.strip())

    def test_up_again_changes_nothing(self):
        before = self.host.status()['pids']
        self.host.up(self.settings)
        self.assertEqual(before, self.host.status()['pids'])
        exc = self.assertRaises(
            testhost.HostError, self.host.up, testhost.Settings(nodes=1)
        )
        self.assertIn('other settings', str(exc))


class IntelFaultsTest(libvirt_host.HostTestCase):
    @classmethod
    def setUpClass(cls):
        faults = tempfile.NamedTemporaryFile(  # noqa: SIM115
            suffix='.json', delete=False
        )
        cls.addClassCleanup(os.unlink, faults.name)
        cls.settings = testhost.Settings(dialect='intel', faults=faults.name)
        super().setUpClass()

    def inject(self, text):
        with open(self.settings.faults, 'w') as stream:
            stream.write(text)

    def setUp(self):
        super().setUp()
        self.addCleanup(self.inject, '')

    def test_unavailable_monitor_leaves_no_statistics(self):
        self.assertEqual('', self.start('a', NODE_1 + MONITOR))
        self.inject('{"mon": "Unavailable"}')
        done = self.virsh('domstats', '--memory', 'a')
        self.assertIn("Invalid unsigned long long value 'Unavailable'",
                      done.stderr)
        self.assertNotIn('bytes.total', done.stdout)
        self.inject('')
        self.assertIn('bytes.total',
                      self.virsh('domstats', '--memory', 'a').stdout)

    def test_failed_starts_leave_no_group(self):
        for fault, text in (
            ('{"mkdir": "EBUSY"}', 'Cannot create resctrl directory'),
            ('{"schemata": "EINVAL"}', 'Cannot write into schemata file'),
            ('{"tasks": "ESRCH"}', 'Cannot write'),
        ):
            self.inject(fault)
            self.assertIn(text, self.start('a', NODE_1))
            self.assertEqual([], self.groups())
            self.assertEqual('', self.virsh('list', '--name').stdout.strip())


class OpenEulerTest(libvirt_host.HostTestCase):
    """All lines of OLK-6.6."""

    def test_capabilities_have_sparse_cache_ids(self):
        text = self.virsh('capabilities').stdout
        for number in (1, 122):
            self.assertIn(f"<bank id='{number}' level='3'", text)
            self.assertIn(f"<node id='{number}' cpus=", text)

    def test_node_is_refused_for_the_lines_it_does_not_know(self):
        # MBMIN is taken for MB, and its default of 0 is below MB's minimum.
        self.assertIn(
            "Missing or inconsistent resctrl info for memory bandwidth node"
            " '0'", self.start('a', NODE_1),
        )
        self.write('schemata', 'MBMIN:0=1;1=1')
        self.addCleanup(self.write, 'schemata', 'MBMIN:0=0;1=0')
        # L3PRI is taken for a cache of type PRI.
        self.assertIn('Cannot parse resctrl schema level',
                      self.start('a', NODE_1))
        self.assertEqual([], self.groups())

    def test_monitor_without_node_is_a_group_of_the_root(self):
        # No control group, so neither schemata is read nor a CLOSID used:
        # this is what a guest may have on any dialect but openEuler 5.10.
        self.assertEqual('', self.start('a', MONITOR))
        self.assertEqual([], self.groups())
        (group,) = self.groups('mon_groups')
        self.assertRegex(group, r'^qemu-\d+-a-vcpus_0-1$')
        tids = self.read(f'mon_groups/{group}/tasks')
        self.assertEqual(['CPU 0/TCG', 'CPU 1/TCG'], self.threads(tids))
        # Threads that move on to a control group leave the monitor group,
        # and the guest is destroyed as ever.
        self.resctrl('mkdir', '/sys/fs/resctrl/own')
        self.write('own/tasks', ','.join(tids.split()))
        self.assertEqual('', self.read(f'mon_groups/{group}/tasks'))
        self.assertEqual(tids, self.read('own/tasks'))
        self.virsh('destroy', 'a')
        self.assertEqual([], self.groups('mon_groups'))
        self.assertEqual('', self.read('own/tasks'))
        self.resctrl('rmdir', '/sys/fs/resctrl/own')

    def test_guest_is_pinned_to_a_node_that_is_faked(self):
        self.assertEqual('', self.start('a', MONITOR))
        pid = int(self.resctrl('cat', '/run/libvirt/qemu/a.pid'))
        with open(f'/proc/{pid}/cmdline') as stream:
            command = stream.read()
        self.assertNotIn('host-nodes', command)
        self.assertIn('tcg,thread=multi', command)
        node = self.virsh('numatune', 'a').stdout
        self.assertRegex(node, r'numa_nodeset\s*: 1')


class OpenEulerWithoutL3PRITest(libvirt_host.HostTestCase):
    """A machine whose L3 has no priority control."""

    settings = testhost.Settings(without=('L3PRI',))

    def test_unnamed_nodes_get_the_value_of_another_line(self):
        self.write('schemata', 'MBMIN:0=1;1=1')
        self.addCleanup(self.write, 'schemata', 'MBMIN:0=0;1=0')
        self.assertEqual('', self.start('a', NODE_1))
        (group,) = self.groups()
        # The last line that begins with MB is MBHDL with 1: the guest is
        # capped at 1 % of node 0, which its XML does not name.
        self.assertIn('   MB:0=0000001;1=0000060\n',
                      self.read(f'{group}/schemata'))
        # The new group's own MBMIN of 0 keeps the next guest from starting.
        self.assertIn('Could not read schemata file for group',
                      self.start('b', NODE_1))
        self.write(f'{group}/schemata', 'MBMIN:0=1;1=1')
        self.assertEqual('', self.start('b', NODE_1))

    def test_all_nodes_named_get_what_the_xml_says(self):
        self.write('schemata', 'MBMIN:0=1;1=1')
        self.addCleanup(self.write, 'schemata', 'MBMIN:0=0;1=0')
        both = "<node id='0' bandwidth='100'/>" + NODE_1
        self.assertEqual('', self.start('a', both))
        (group,) = self.groups()
        self.assertIn('   MB:0=0000100;1=0000060\n',
                      self.read(f'{group}/schemata'))


@unittest.skipIf(libvirt_host.REASON, libvirt_host.REASON)
class DownTest(base.TestCase):
    def test_nothing_is_left(self):
        host = testhost.TestHost(libvirt_host.state())
        self.addCleanup(host.down)
        host.up(testhost.Settings())
        inside = os.readlink(f'/proc/{host.pid("holder")}/ns/mnt')
        sleeper = subprocess.Popen(host.command(['sleep', '9999']))
        self.addCleanup(sleeper.wait)
        deadline = time.monotonic() + base.GIVE_UP_S
        while (resctrl.namespace_of(sleeper.pid) != inside
               and time.monotonic() < deadline):
            time.sleep(0.05)
        host.down()
        self.assertEqual([], daemons.processes(inside))
        self.assertFalse(host.is_up())
        host.down()

    def test_down_spares_a_namespace_made_meanwhile(self):
        host = testhost.TestHost(libvirt_host.state())
        self.addCleanup(host.down)
        host.up(testhost.Settings())
        others = []

        def end_and_make_namespaces(pids, *args):
            end(pids, *args)
            for _number in range(8):
                others.append(subprocess.Popen(
                    ['unshare', '--mount', 'sleep', '9999']))
                self.addCleanup(others[-1].wait)
                self.addCleanup(others[-1].kill)

        end = daemons.end
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.lab.emulator.daemons.end', end_and_make_namespaces))
        host.down()
        self.assertEqual([None] * len(others),
                         [other.poll() for other in others])

    def test_failed_up_says_where_to_look_and_leaves_nothing(self):
        host = testhost.TestHost(libvirt_host.state())
        self.addCleanup(host.down)
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.lab.emulator.testhost.RESCTRL', '/nonexistent/dir'
        ))
        exc = self.assertRaises(
            testhost.HostError, host.up, testhost.Settings()
        )
        self.assertIn(os.path.join(host.log, 'resctrl.out'), str(exc))
        self.assertFalse(host.is_up())
