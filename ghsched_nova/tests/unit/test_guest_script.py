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

"""Plans, messages and the channel of ghsched-guest, without a server."""

import ast
import contextlib
import errno
import io
import json
import os
import pathlib
import random
import socket
import tempfile
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
import yaml

from ghsched_nova.tests.fixtures import guest_script
from ghsched_placement.tests import base

GUEST = guest_script.GUEST
ONLINE = set(range(80))


def draw_layout(rng):
    """Draw 20 services, some of which want each other's CPUs."""
    services = []
    free = rng.sample(range(80), 80)
    for number in range(20):
        cpus = {free.pop() for _cpu in range(rng.randint(2, 4))}
        if rng.random() < 0.02:
            cpus.add(rng.randrange(80))
        irq_cpu = rng.choice(
            [[], [rng.choice(sorted(cpus))], [rng.randrange(80)]]
            if rng.random() < 0.1 else [[]])
        services.append(GUEST.Service('unit', f's{number}', f'eth{number}',
                                      cpus, set(irq_cpu), None))
    return services


def busy(plan):
    """Return the CPUs that have both, with a map of our own."""
    users = [set() for _cpu in range(80)]
    for one in plan:
        for cpu in one.cpus:
            users[cpu].add('service')
        for cpu in one.irq_cpus:
            users[cpu].add('interrupt')
    return [cpu for cpu, kinds in enumerate(users) if len(kinds) == 2]


class PlanTest(base.TestCase):

    def test_script_has_the_syntax_of_python_3_6(self):
        ast.parse(guest_script.SCRIPT.read_text(), feature_version=(3, 6))

    def test_random_layouts_have_no_cpu_with_both(self):
        rng = random.Random(46)     # noqa: S311
        planned = refused = 0
        for _layout in range(2000):
            services = draw_layout(rng)
            try:
                plan = GUEST.plan_network(services, ONLINE)
            except GUEST.GuestError:
                refused += 1
                continue
            planned += 1
            self.assertEqual([], busy(plan))
            self.assertEqual([one.nic for one in services],
                             [one.nic for one in plan])
            self.assertTrue(all(one.cpus and one.irq_cpus for one in plan))
        self.assertGreater(min(planned, refused), 100, (planned, refused))

    def test_layout_of_the_reference_is_never_refused(self):
        rng = random.Random(20)     # noqa: S311
        for _layout in range(200):
            cpus = rng.sample(range(80), 80)
            plan = GUEST.plan_network([GUEST.parse_service(
                f's{number}=eth{number}:{cpus[2 * number]},'
                f'{cpus[2 * number + 1]}:{cpus[2 * number]}')
                for number in range(20)], ONLINE)
            self.assertEqual([], busy(plan))
            self.assertEqual([{cpus[2 * number + 1]} for number in range(20)],
                             [one.cpus for one in plan])

    def test_service_under_interrupts_of_another_is_refused_unless_shared(
            self):
        services = [GUEST.parse_service('a=eth0:0-1:1'),
                    GUEST.parse_service('b=eth1:1-2:2')]
        with self.assertRaisesRegex(GUEST.GuestError, 'CPU 1 would have b'):
            GUEST.plan_network(services, ONLINE)
        shared = GUEST.plan_network(services, ONLINE, share=True)
        self.assertEqual([1, 2], busy(shared))

    def test_malformed_services_are_refused(self):
        for text in ('', 'a', 'a=eth0', 'a=:1', 'a=../x:1', '0=eth0:1-2',
                     '/../x=eth0:1-2', 'a=eth0:x'):
            self.assertRaises(GUEST.GuestError, GUEST.parse_service, text)
        for text in ('', '[]', '{"services": [1]}', '{"services": {"a": 1}}',
                     '[' * 100000):
            self.assertRaises(GUEST.GuestError, GUEST.parse_services, text)

    def test_kind_of_a_service_is_read_from_its_name(self):
        self.assertEqual(['pid', 'cgroup', 'unit'], [
            GUEST.parse_service(f'{name}=eth0:1-2').kind
            for name in ('12,13', 'a.slice/b.scope', 'redis@1')])

    def test_slices_are_those_of_the_classes_and_the_rest(self):
        classes = GUEST.parse_classes('latency:0-1,8,batch:4')
        self.assertEqual(
            {'ghsched-batch.slice': ('4', '0'),
             'ghsched-default.slice': ('2-3,5-7,9-15', '0-1'),
             'ghsched-latency.slice': ('0-1,8', '0-1')},
            GUEST.plan_slices(classes, {0: set(range(8)),
                                        1: set(range(8, 16))}))

    def test_malformed_classes_are_refused(self):
        for text in ('a-b:0', 'a:', 'a:x', '0', ':0', 'a:0,', 'a:0,a:1',
                     'a:0-3,b:3', 'a:0,b:1,0', 'a' * 32 + ':0', 'a:9-1'):
            self.assertRaises(GUEST.GuestError, GUEST.parse_classes, text)
        with self.assertRaisesRegex(GUEST.GuestError, 'no CPUs 9'):
            GUEST.plan_slices({'a': {9}}, {0: {0, 1}})

    @given(st.sets(st.integers(0, 200)))
    def test_lists_and_masks_are_read_as_they_are_written(self, cpus):
        self.assertEqual(cpus, GUEST.cpu_list(GUEST.cpu_text(cpus)))
        self.assertEqual(cpus, GUEST.mask_cpus(GUEST.cpu_mask(cpus)))

    @given(st.sets(st.integers(0, 64)), st.integers(-1, 66))
    def test_split_leaves_cpus_for_the_service(self, cpus, count):
        if 0 < count < len(cpus):
            self.assertEqual(sorted(cpus)[:count],
                             sorted(GUEST.split(cpus, count)))
        else:
            self.assertRaises(GUEST.GuestError, GUEST.split, cpus, count)

    @given(st.sets(st.integers(1, 999), min_size=1),
           st.sets(st.integers(0, 64), min_size=1))
    def test_interrupts_are_spread_evenly(self, irqs, cpus):
        chosen = list(GUEST.spread(irqs, sorted(cpus)).values())
        counts = [chosen.count(cpu) for cpu in cpus]
        self.assertLessEqual(max(counts) - min(counts), 1)


class MessagesTest(base.TestCase):

    def test_malformed_lines_of_the_host_are_dropped(self):
        for line in (b'', b'{', b'[]', b'{"ghsched":2,"policy":{}}',
                     b'{"ghsched":1}', b'{"ghsched":1,"policy":[]}',
                     b'{"ghsched":1,"policy":{},"why":1}', b'\xff',
                     b'[' * 4000):
            self.assertIsNone(GUEST.decode(line))
        self.assertIsNotNone(GUEST.decode(
            b'{"ghsched":1,"policy":{},"later":[1]}'))

    def test_lines_are_bounded_and_joined(self):
        lines = GUEST.Lines()
        self.assertEqual([], lines.feed(b'a'))
        self.assertEqual([b'ab', b'c'], lines.feed(b'b\nc\n'))
        for _part in range(3):
            self.assertEqual([], lines.feed(b'x' * 4000))
        self.assertEqual([b'd'], lines.feed(b'\nd\n'))

    def test_long_messages_are_not_sent(self):
        self.assertRaises(GUEST.GuestError, GUEST.encode, why='x' * 4096)

    def test_policy_is_among_the_strings_of_smbios(self):
        self.assertEqual({'a': 1}, GUEST.policy_in_dmi(
            b'\1other\0ghsched={"a":1}\0\0'))
        for table in (b'', b'ghsched={\0', b'ghsched=[]\0'):
            self.assertIsNone(GUEST.policy_in_dmi(table))

    def test_pressure_is_in_percent(self):
        self.assertEqual(1.5, GUEST.psi_average(
            'some avg10=1.50 avg60=0.00 avg300=0.00 total=1\n'))
        self.assertEqual(0.0, GUEST.psi_average(''))
        self.assertEqual(20.0, GUEST.steal_percent(
            'cpu 0 0 0 100 0 0 0 0 0 0', 'cpu 4 0 0 104 0 0 0 2 0 0'))


class FilesTest(base.TestCase):
    """A server without systemd, and what is shipped beside the program."""

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(
            self.enterContext(tempfile.TemporaryDirectory()))
        self.write('sys/devices/system/cpu/online', '0-3')
        self.write('sys/devices/system/node/node0/cpulist', '0-3')

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_script(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), \
                contextlib.redirect_stderr(out):
            code = GUEST.main(['--root', str(self.root), *arguments])
        return code, out.getvalue()

    def test_plain_groups_are_made_and_restored(self):
        self.write('sys/fs/cgroup/cgroup.controllers', 'cpuset')
        self.write('sys/fs/cgroup/ghsched-a.slice/cpuset.cpus', '3')
        self.write('sys/fs/cgroup/ghsched-a.slice/cpuset.mems', '')
        apply = ('slices', 'apply', '--classes', 'a:0-1')
        self.assertEqual(0, self.run_script(*apply)[0])
        group = self.root / 'sys/fs/cgroup/ghsched-a.slice'
        self.assertEqual('0-1\n', (group / 'cpuset.cpus').read_text())
        self.assertEqual(0, self.run_script('slices', 'undo')[0])
        self.assertEqual('3\n', (group / 'cpuset.cpus').read_text())
        self.assertIn('nothing was changed',
                      self.run_script('slices', 'undo')[1])

    def test_slices_are_those_of_the_policy_where_none_are_named(self):
        self.write('sys/fs/cgroup/cgroup.controllers', 'cpuset')
        for number, cpus in enumerate(('0-1', '2-3')):
            self.write(f'sys/devices/system/node/node{number}/cpulist', cpus)
        self.write(GUEST.DMI, 'ghsched={"classes":[{"name":"latency",'
                   '"vcpus":"0,2","nodes":[]},{"name":"default",'
                   '"vcpus":"1,3","nodes":[]}]}\0')
        code, out = self.run_script('slices', 'plan')
        self.assertEqual(0, code, out)
        self.assertIn('ghsched-latency.slice', out)
        self.assertRegex(out, r'ghsched-latency\.slice.*0,2')
        for policy in ('{"classes":7}', '{"classes":[7]}', '{}',
                       '{"classes":[{"name":"a"}]}'):
            self.write(GUEST.DMI, f'ghsched={policy}\0')
            code, out = self.run_script('slices', 'plan')
            self.assertEqual(1, code)
            self.assertIn('the policy of this server has no classes', out)

    def test_class_is_set_as_the_host_answers(self):
        for message, code, text in (
                ({'policy': {'classes': [{'name': 'a', 'vcpus': '0-2'}]}}, 0,
                 'class a has the CPUs 0-2'),
                ({'reason': 'refused', 'why': 'no class a'}, 1,
                 'the host refuses: no class a'),
                ({'policy': {'classes': [7, {'name': 'a', 'vcpus': '1'}]}}, 1,
                 'the host does not answer')):
            channel = mock.Mock()
            channel.receive = lambda _timeout, wanted, one=message: (
                one if wanted(one) else None)
            with mock.patch.object(GUEST, 'Channel', return_value=channel):
                self.assertEqual(code, (found := self.run_script(
                    'classes', 'set', 'a', '0,1-2'))[0])
            self.assertIn(text, found[1])
            line, = channel.send.call_args.args
            self.assertEqual({'a': '0-2'}, json.loads(line)['classes'])

    def test_slices_follow_a_class_where_they_were_made(self):
        self.write('sys/fs/cgroup/cgroup.controllers', 'cpuset')
        channel = mock.Mock()
        self.enterContext(
            mock.patch.object(GUEST, 'Channel', return_value=channel))
        group = self.root / 'sys/fs/cgroup/ghsched-a.slice'
        for cpus, there in (('0', False), ('0', True), ('1-2', True)):
            channel.receive.return_value = {'policy': {
                'classes': [{'name': 'a', 'vcpus': cpus}]}}
            code, out = self.run_script('classes', 'set', 'a', cpus)
            self.assertEqual(0, code, out)
            self.assertEqual(there, group.exists())
            self.run_script('slices', 'apply', '--classes', f'a:{cpus}')
            if there:
                self.assertIn(f'ghsched-a.slice: CPUs {cpus},', out)
                self.assertEqual(f'{cpus}\n',
                                 (group / 'cpuset.cpus').read_text())

    def test_status_has_the_limits_of_each_class(self):
        message = {'effective_by_class': {
            'latency': [{'mem_bw_min': 30, 'max_mib': None}, 7], 'odd': 3}}
        status = GUEST.make_status('channel', message, {0: {0}}, {}, None)
        self.assertEqual({'latency': [{'mem_bw_min': 30, 'max_mib': None}]},
                         status['classes'])
        self.assertIn('class latency on node 0: mem_bw_min=30',
                      list(GUEST.status_lines(status)))

    def test_slices_of_systemd_are_set_and_restored(self):
        calls = []
        self.write('sys/fs/cgroup/cgroup.controllers', 'cpuset')
        machine = GUEST.Machine(self.root)
        machine.has_systemd = lambda: True
        machine.run = lambda *words: calls.append(words) or (
            'AllowedCPUs=0-1 3\nActiveState=inactive\n')
        slices = GUEST.Slices(machine, lambda text: None)
        slices.apply({'ghsched-a.slice': ('2', '0')})
        self.assertIn('AllowedCPUs=2', calls[1])
        GUEST.Slices(machine, lambda text: None).undo()
        self.assertIn('AllowedCPUs=0-1,3', calls[3])
        self.assertEqual(('systemctl', 'stop', 'ghsched-a.slice'), calls[-1])

    def test_status_without_channel_has_the_policy_of_smbios(self):
        self.write(GUEST.DMI, 'ghsched={"lock_memory":true}\0')
        code, out = self.run_script('status', '--json')
        self.assertEqual((0, 'SMBIOS'), (code, json.loads(out)['source']))
        (self.root / GUEST.DMI).unlink()
        self.assertIn('policy: none', self.run_script('status')[1])

    def test_slices_need_control_groups_of_version_2(self):
        code, out = self.run_script('slices', 'apply', '--classes', 'a:0')
        self.assertEqual(1, code)
        self.assertIn('control groups of version 2', out)

    def test_port_that_another_program_reads_is_in_use(self):
        self.write(GUEST.PORT, '')
        with mock.patch.object(GUEST.os, 'open',
                               side_effect=OSError(errno.EBUSY, 'busy')):
            code, out = self.run_script('watch')
        self.assertEqual(1, code)
        self.assertIn('the channel is in use', out)

    def test_line_without_a_policy_is_a_message(self):
        self.assertIsNotNone(GUEST.decode(
            b'{"ghsched":1,"reason":"changed","why":""}'))

    def test_watch_ends_without_a_channel(self):
        code, out = self.run_script('watch')
        self.assertEqual(3, code)
        self.assertIn('no channel to the host', out)

    def test_vendordata_installs_the_unit_that_is_shipped(self):
        folder = guest_script.SCRIPT.parent
        config = yaml.safe_load((folder / 'vendordata.yaml').read_text())
        self.assertEqual((folder / 'ghsched-guest.service').read_text(),
                         config['write_files'][0]['content'])


class WatchTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(
            self.enterContext(tempfile.TemporaryDirectory()))
        self.host, port = socket.socketpair()
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path = str(self.root / GUEST.SOCKET)
        os.makedirs(os.path.dirname(self.path))
        server.bind(self.path)
        server.listen()
        for one in (self.host, port, server):
            self.addCleanup(one.close)
        port.setblocking(False)
        self.said = []
        self.watch = GUEST.Watch(self.root, port.fileno(), server,
                                 self.said.append)
        self.addCleanup(self.watch._selector.close)

    def test_messages_pass_between_host_and_local_programs(self):
        channel = GUEST.Channel(self.root)
        self.addCleanup(channel._socket.close)
        self.watch.step(0)
        channel.send(GUEST.encode(ask='policy'))
        self.watch.step(0)
        self.assertEqual(b'{"ask":"policy","ghsched":1}\n',
                         self.host.recv(4096))
        self.host.send(b'junk\n{"ghsched":1,"policy":{"a":1},'
                       b'"reason":"moved","why":"load"}\n')
        self.watch.step(0)
        self.assertEqual([{'a': 1}],
                         [one['policy'] for one in channel.read()])
        self.assertEqual(1, len(self.said))
        self.assertEqual({'reason': 'moved', 'why': 'load'}, json.loads(
            (self.root / GUEST.CHANGE).read_text()))

    def test_pressure_is_one_line(self):
        self.watch.send_pressure()
        self.assertEqual(
            {'ghsched': 1,
             'pressure': {'cpu': 0.0, 'memory': 0.0, 'steal': 0.0}},
            json.loads(self.host.recv(4096)))

    def test_a_host_that_does_not_read_blocks_nothing(self):
        line = GUEST.encode(why='x' * 4000)
        for _line in range(1000):
            self.watch.send(line)
        self.assertIn('not sent', self.said[-1])
