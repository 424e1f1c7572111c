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

"""``ghsched-bench`` with the real tools, and with very few requests.

The figures mean nothing; that they are taken, checked and reported does.
"""

import contextlib
import dataclasses
import os
from pathlib import Path
import random
import re
import signal
import socket
import subprocess
from unittest import mock

import fixtures

from ghsched_nova.lab.bench import container_plan
from ghsched_nova.lab.bench import guest_containers
from ghsched_nova.lab.bench import machine
from ghsched_nova.lab.bench import record
from ghsched_nova.lab.bench import report
from ghsched_nova.lab.bench import run
from ghsched_nova.lab.bench import scenario_list
from ghsched_nova.lab.bench.scenarios import cloud
from ghsched_nova.lab.bench.scenarios import gh_density
from ghsched_nova.lab.emulator import machines
from ghsched_nova.tests.fixtures.guests import Guests
from ghsched_nova.tests.fixtures import mount
from ghsched_placement.tests import base

SSHD = '/usr/sbin/sshd'


def free_ports(count):
    """A port with so many free ones from it on, as far as one can tell.

    It is below those that the kernel gives to whoever asks for any port
    (ip_local_port_range), as tests beside this one do.
    """
    while True:
        port = random.randrange(20000, 30000)  # noqa: S311
        taken = []
        try:
            for number in range(port, port + count):
                one = socket.socket()
                taken.append(one)
                one.bind(('127.0.0.1', number))
            return port
        except OSError:
            continue
        finally:
            for one in taken:
                one.close()


class PrivateSshd(fixtures.Fixture):
    """An SSH server of our own, which lets in the key of its own.

    :ivar options: of ssh, for its user.
    """

    def _setUp(self):
        where = Path(self.useFixture(fixtures.TempDir()).path)
        for name in ('host', 'user'):
            subprocess.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '',
                            '-f', where / name], check=True)
        port = free_ports(1)
        config = where / 'config'
        config.write_text('\n'.join([
            f'Port {port}', 'ListenAddress 127.0.0.1',
            f'HostKey {where}/host', 'UsePAM no', 'StrictModes no',
            f'AuthorizedKeysFile {where}/user.pub', 'PidFile none',
            'PermitRootLogin yes']) + '\n')
        # It changes its root to this directory, for those not let in yet.
        Path('/run/sshd').mkdir(mode=0o755, exist_ok=True)
        server = subprocess.Popen([SSHD, '-D', '-f', config],
                                  stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        self.options = (f'-p {port} -i {where}/user -o LogLevel=ERROR '
                        '-o StrictHostKeyChecking=no '
                        '-o UserKnownHostsFile=/dev/null')
        machine.wait_until(lambda: self._listens(port), 20, 'no sshd')

    @staticmethod
    def _listens(port):
        with socket.socket() as client:
            return not client.connect_ex(('127.0.0.1', port))


class BenchTestCase(base.TestCase):

    def result(self, name, **given):
        """Run a scenario; it is skipped where a tool is not installed."""
        found = run.run(
            scenario_list.named(name), {key.replace('_', '-'): value
                                        for key, value in given.items()},
            machine.Machine(), lambda _text: None)
        if found.status == 'skipped':
            self.skipTest('; '.join(found.reasons))
        self.assertEqual(('done', ()), (found.status, found.reasons))
        report = record.Report((found,))
        self.assertEqual(report, record.from_json(record.to_json(report)))
        return found

    def samples(self, found, metric):
        return {tuple(dict(one.conditions).values()): one.samples
                for one in found.measured.series if one.metric == metric}


class BandwidthKeysTest(BenchTestCase):
    """Bandwidth keys on an emulated resctrl, which slows nobody down."""

    TINY = {'memory': 1, 'requests': 500, 'keyspace': 50, 'runs': 1,
            'warm_up': 0, 'caps': '20'}

    def setUp(self):
        super().setUp()
        cpus = sorted(os.sched_getaffinity(0))
        self.resctrl = self.useFixture(mount.ResctrlFixture(machines.build(
            'openeuler66', f'0={cpus[0]}-{cpus[-1]}')))

    def measure(self, **given):
        return self.result('bandwidth-keys', resctrl=self.resctrl.path,
                           port=free_ports(1), **{**self.TINY, **given})

    def check_groups(self, found):
        """Each key was in its group, with threads, and no group is left."""
        self.assertEqual(
            [('alone',), ('none',), ('mem_bw_max=20',), ('mem_bw_min=30',),
             ('mem_bw_priority=7',)], list(self.samples(found, 'p99 latency')))
        written = {(one['path'].split('/')[-2], line)
                   for one in self.resctrl.operations()
                   if one['op'] == 'write'
                   and one['path'].endswith('/schemata')
                   for line in one['data'].split()}
        self.assertEqual({
            ('ghsched-bench-streams', 'MB:0=20'),
            ('ghsched-bench-server', 'MBMIN:0=30'),
            ('ghsched-bench-server', 'MBPRI:0=7'),
            ('ghsched-bench-streams', 'MBPRI:0=0')}, written)
        self.assertEqual([], [name for name in os.listdir(self.resctrl.path)
                              if name.startswith('ghsched-bench')])

    def test_processes_have_each_key(self):
        self.check_groups(self.measure())

    def test_guests_have_each_key(self):
        self.check_groups(self.measure(in_guest=True, accelerator='tcg'))


class RedisDensityTest(BenchTestCase):

    TINY = {'requests': 2000, 'threads': 2, 'connections': 4, 'runs': 2,
            'up_to': 2, 'go_on': True, 'keyspace': 1000}

    def ours(self):
        """Command lines of servers and load generators that still run."""
        found = subprocess.run(['ps', '-eo', 'args'], capture_output=True,
                               text=True, check=True).stdout
        return [line for line in found.splitlines() if re.match(
            'redis-(server|benchmark) ', line) and any(
                re.search(f'[: ]{self.port + place}( |$)', line)
                for place in range(3))]

    def setUp(self):
        super().setUp()
        self.port = free_ports(3)

    def test_ramp(self):
        found = self.result('redis-density', port=self.port, **self.TINY)
        p99 = self.samples(found, 'p99 latency')
        self.assertEqual({('1',), ('2',)}, set(p99))
        for samples in p99.values():
            self.assertEqual(2, len(samples))
            self.assertGreater(min(samples), 0)
        self.assertEqual(
            [2000.0] * 4, [value for samples in self.samples(
                found, 'requests served').values() for value in samples])
        self.assertGreater(
            min(self.samples(found, 'least load of another')[('2',)]), 0)
        self.assertEqual('density', found.measured.findings[0].name)
        self.assertEqual([], self.ours())

    def test_a_server_that_can_not_have_its_port(self):
        with socket.socket() as other:
            other.bind(('127.0.0.1', self.port))
            found = run.run(scenario_list.named('redis-density'), {
                'port': self.port, 'up-to': 1}, machine.Machine(),
                lambda _text: None)
        self.assertEqual('failed', found.status)
        self.assertIn('redis-server 1 has ended: ', found.reasons[0])
        self.assertIn(f'port {self.port}', found.reasons[0])

    def test_foreign_server_is_left_alone(self):
        work = self.useFixture(fixtures.TempDir()).path
        if not machine.Machine().which('redis-server'):
            self.skipTest('redis-server is not installed')
        server = subprocess.Popen(
            ['redis-server', '--port', str(self.port), '--save', '',
             '--dir', work, '--bind', '127.0.0.1'],
            stdout=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        ping = ['redis-cli', '-p', str(self.port), 'PING']
        machine.wait_until(lambda: machine.Machine().run(
            ping).stdout.strip() == 'PONG', 20, 'no redis')
        found = run.run(scenario_list.named('redis-density'), {
            'port': self.port, 'up-to': 1}, machine.Machine(),
            lambda _text: None)
        self.assertEqual('failed', found.status)
        self.assertIn('not ours', found.reasons[0])
        self.assertIsNone(server.poll())

    def test_load_over_ssh(self):
        if os.geteuid() or not os.path.exists(SSHD):
            self.skipTest('needs root and openssh-server')
        options = self.useFixture(PrivateSshd()).options
        found = self.result(
            'redis-density', port=self.port, clients='local,ssh:localhost',
            observed_client='ssh:root@localhost', ssh_options=options,
            **{**self.TINY, 'up_to': 3})
        self.assertEqual(3, len(self.samples(found, 'p99 latency')))
        self.assertEqual('local,ssh:(not shown)',
                         dict(found.parameters)['clients'])
        machine.wait_until(lambda: not self.ours(), 20,
                           'a load generator over ssh lives on')


class PlainGuests(Guests):
    """Guests whose commands over ssh run here; flavors are kept.

    :param pids: file with the processes that end with a guest.
    """

    def __init__(self, directory, room, pids):
        super().__init__(directory, room)
        self.pids = pids
        self.flavors = {}

    def delete(self, guest):
        super().delete(guest)
        self.end(self.pids)

    @staticmethod
    def end(pids):
        for pid in map(int, pids.read_text().split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        pids.write_text('')

    @contextlib.contextmanager
    def flavor(self, name, vcpus, memory, disk, extra_specs):
        self.flavors[name] = dict(extra_specs)
        yield name


class GhDensityTest(BenchTestCase):
    """Containers that are processes here, in guests that are none."""

    #: Runs the command, and drops the options and the target.
    SSH = '#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n'
    #: Notes its process, to be ended after the test.
    SERVER = '#!/bin/sh\necho $$ >>%s\nexec %s "$@"\n'

    def setUp(self):
        super().setUp()
        if not {0, 1} <= os.sched_getaffinity(0):
            self.skipTest('needs the CPUs 0 and 1')
        self.work = Path(self.useFixture(fixtures.TempDir()).path)
        self.port = free_ports(3)
        self.pids = self.work / 'pids'
        self.pids.touch()
        self.add_program('ssh', self.SSH)
        path = f'{self.work}/bin:{os.environ["PATH"]}'
        self.useFixture(fixtures.EnvironmentVariable('PATH', path))
        self.useFixture(fixtures.EnvironmentVariable('SSH_CONNECTION'))

    def add_program(self, name, text):
        path = self.work / 'bin' / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def measure(self, server, **given):
        real = machine.Machine().which(server)
        if not real:
            self.skipTest(f'{server} is not installed')
        self.add_program(server, self.SERVER % (self.pids, real))
        guests = PlainGuests(self.work, 2, self.pids)
        with mock.patch.object(cloud, 'connect_cloud', return_value=guests):
            found = self.result(
                'gh-density', image='i', network='n', vcpus=2, memory=512,
                nodes=2, cpu_policy='shared', container='taskset',
                port=self.port, requests=2000, threads=2, connections=4,
                runs=2, warm_up=0, step=1, go_on=True, keyspace=1000, **given)
        self.assertEqual({}, guests.running)
        return found, guests.flavors

    def findings(self, found):
        return {one.name: one.text for one in found.measured.findings}

    def test_two_arms_with_redis(self):
        found, flavors = self.measure('redis-server', arms='bind,classes',
                                      up_to=2)
        self.assertEqual(
            ['bind-1', 'bind-2', 'classes-1', 'classes-2'], list(flavors))
        self.assertEqual('observed:0',
                         flavors['classes-1']['ghsched:vcpu_classes'])
        self.assertEqual({(arm, n) for arm in ('bind', 'classes')
                          for n in ('1', '2')},
                         set(self.samples(found, 'p99 latency')))
        texts = self.findings(found)
        self.assertEqual(
            'processes with taskset (no engine of containers, no control '
            'groups) with redis-server', texts['classes: containers'])
        self.assertIn('classes over bind', texts)
        self.assertNotIn('bind: not as planned', texts)
        self.assertIn('rows', repr(report.arms(found.measured.series)[1]))

    def test_stand_in_where_guests_have_no_redis(self):
        facts = guest_containers.parse_facts
        with mock.patch.object(
                guest_containers, 'parse_facts',
                lambda text: dataclasses.replace(facts(text),
                                                 server='python3')):
            found, _flavors = self.measure('python3', arms='none', up_to=1)
        self.assertIn('with a stand-in for redis',
                      self.findings(found)['none: containers'])
        self.assertEqual([2000.0] * 2, list(self.samples(
            found, 'requests served')[('none', '1')]))

    def test_container_has_a_network_device_of_its_own(self):
        if os.geteuid() or not machine.Machine().which('ip'):
            self.skipTest('needs root and ip')
        ours, theirs = (f'ghb{self.port}{end}' for end in 'ab')
        first = f'198.19.{self.port % 250}'
        run_ip = machine.Machine().check
        run_ip(['ip', 'link', 'add', ours, 'type', 'veth', 'peer', theirs])
        self.addCleanup(machine.Machine().run, ['ip', 'link', 'del', ours])
        run_ip(['ip', 'address', 'add', f'{first}.1/24', 'dev', ours])
        run_ip(['ip', 'link', 'set', ours, 'up'])
        real = machine.Machine().which('python3')
        self.add_program('python3', self.SERVER % (self.pids, real))
        facts = guest_containers.parse_facts(
            'ghsched-bench cpus 0-1\nghsched-bench server python3\n')
        order = guest_containers.ContainerOrder(
            container_plan.ContainerPlace(7, 0, 0, 0, 1, shared=False),
            'taskset', '', '', (1,), '', theirs, f'{first}.7/24',
            guest_containers.server_command('taskset', facts, self.port, ()))
        said = machine.Machine().check(
            ['sh', '-c', guest_containers.start_script(
                order, gh_density._STANDIN.read_text())])
        self.addCleanup(PlainGuests.end, self.pids)
        self.assertEqual([], list(guest_containers.find_deviations(
            order, guest_containers.parse_started(said))))
        self.assertNotIn(theirs, os.listdir('/sys/class/net'))
        machine.wait_until(lambda: machine.Machine().run(
            ['redis-cli', '-h', f'{first}.7', '-p', str(self.port), 'PING']
        ).stdout.strip() == 'PONG', 20, 'no answer through the device')

    def test_guests_without_room_are_reported(self):
        guests = PlainGuests(self.work, 1, self.pids)
        with mock.patch.object(cloud, 'connect_cloud', return_value=guests):
            found = self.result('gh-density', image='i', network='n',
                                container='taskset', arms='none,keys')
        self.assertEqual(
            [(arm, 'no room for its guests: No valid host was found.')
             for arm in ('none', 'keys')], list(found.measured.skipped))
        self.assertEqual({}, guests.running)


class OtherScenariosTest(BenchTestCase):

    def test_wake_ups(self):
        found = self.result('rt-latency', runs=2, loops=50)
        maxima = self.samples(found, 'maximum latency')
        self.assertEqual(
            {(policy, mlock) for policy in ('other', 'fifo', 'rr')
             for mlock in ('yes', 'no')}, set(maxima))

    def test_mixed_load(self):
        found = self.result('mixed-load', cpu=1, vm=1, vm_bytes='16M',
                            runs=2, warm_up=1, wake_up_runs=2, loops=50)
        cpus = found.environment.cpus
        self.assertEqual(
            cpus, len(self.samples(found, 'utilisation of a CPU')))
        self.assertEqual(
            {('nice -5',), ('nice 5',), ('fifo',), ('beside fifo',)},
            set(self.samples(found, 'share of the CPU')))
        # One of the CPU stressor, one of the memory stressor and its parent.
        (waits,) = self.samples(found, 'waiting for a CPU').values()
        self.assertGreaterEqual(len(waits), 2)
        self.assertIn('refaults', [one.metric for one
                                   in found.measured.series])
        self.assertIn('balance',
                      [one.name for one in found.measured.findings])

    def test_memory_of_a_machine(self):
        found = self.result('virt-overhead', parts='mbw', mbw_size=4, runs=2)
        self.assertEqual({'MEMCPY', 'DUMB', 'MCBLOCK'}, {
            one.metric.split()[-1] for one in found.measured.series})

    def test_files(self):
        found = self.result('virt-overhead', parts='fio', fio_size=1,
                            seconds=1, runs=1, warm_up=0, fio_direct=False)
        self.assertEqual(4, len(self.samples(found, 'IO operations')))
