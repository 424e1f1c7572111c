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

"""Findings of scenarios from samples, and their needs of a machine."""

from dataclasses import replace
from pathlib import Path
import shlex

import ddt
import fixtures
from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.bench import clients
from ghsched_nova.lab.bench import compare
from ghsched_nova.lab.bench import density
from ghsched_nova.lab.bench import environment
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.machine import Machine
from ghsched_nova.lab.bench.parsers import procfs
from ghsched_nova.lab.bench.parsers import redis
from ghsched_nova.lab.bench.parsers import sysstat
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench import redis_servers
from ghsched_nova.lab.bench.scenario import Bench
from ghsched_nova.lab.bench import scenario_list
from ghsched_nova.lab.bench.scenarios import guest_latency
from ghsched_nova.lab.bench.scenarios import mixed_load
from ghsched_nova.lab.bench.scenarios import numa_icon
from ghsched_nova.lab.bench.scenarios import numa_locality
from ghsched_nova.lab.bench.scenarios import redis_density
from ghsched_nova.lab.bench.scenarios import rt_latency
from ghsched_nova.tests.fixtures.results import capture
from ghsched_placement.tests import base


class Tree(fixtures.Fixture):
    """A machine with certain files, and with certain programs."""

    def __init__(self, files=(), programs=()):
        super().__init__()
        self._files = dict(files)
        self._programs = programs

    def _setUp(self):
        root = Path(self.useFixture(fixtures.TempDir()).path)
        for path, text in self._files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        (root / 'bin').mkdir(exist_ok=True)
        for program, script in dict(self._programs).items():
            (root / 'bin' / program).write_text(f'#!/bin/sh\n{script}\n')
            (root / 'bin' / program).chmod(0o755)
        self.useFixture(fixtures.EnvironmentVariable(
            'PATH', str(root / 'bin')))
        self.machine = Machine(root)


def values(name, **given_values):
    return scenario_list.named(name).values(
        {key.replace('_', '-'): value for key, value in given_values.items()})


@ddt.ddt
class EveryScenarioTest(base.TestCase):

    @ddt.data(*(scenario.name for scenario in scenario_list.ALL))
    def test_skips_with_a_reason_where_nothing_is_installed(self, name):
        machine = self.useFixture(Tree()).machine
        scenario = scenario_list.named(name)
        reasons = scenario.missing(machine, scenario.values({}))
        self.assertNotEqual((), reasons)
        for reason in reasons:
            self.assertRegex(
                reason, 'not installed|NUMA node|root|given|resctrl')

    @ddt.data(*(scenario.name for scenario in scenario_list.ALL))
    def test_parameters_parse_their_own_defaults(self, name):
        for parameter in scenario_list.named(name).parameters:
            shown = parameter.default
            if isinstance(shown, bool):
                shown = 'yes' if shown else 'no'
            self.assertEqual(parameter.default, parameter.parse(str(shown)))

    @given(st.text(max_size=8))
    def test_parameters_take_or_refuse_any_text(self, text):
        for scenario in scenario_list.ALL:
            for parameter in scenario.parameters:
                try:
                    value = parameter.parse(text)
                except errors.BenchError as error:
                    self.assertIn(parameter.name, str(error))
                else:
                    self.assertIs(type(parameter.default), type(value))

    def test_unknown_names(self):
        self.assertRaises(errors.BenchError, scenario_list.named, 'x')
        self.assertRaises(errors.BenchError, values, 'rt-latency', x=1)


class RedisDensityTest(base.TestCase):

    def test_command_is_that_of_the_published_density(self):
        server = redis_servers.Server(1, '192.0.2.1', 6379)
        self.assertEqual(
            'redis-benchmark -h 192.0.2.1 -p 6379 -c 40 -d 3 -n 2000000 '
            '-r 10000000 -t get --threads 50',
            ' '.join(redis_density.command_line(values('redis-density'),
                                                server)))

    def verify(self, metric, *samples):
        return redis_density.SCENARIO.verify(
            values('redis-density', requests=1000, connections=10),
            Measured((Series(metric, '', 'neither', samples),)))

    def benchmark(self):
        found, = redis.parse(
            capture('redis-benchmark-7.0.15-get-threads.txt'))
        return found

    def noise(self, *p99):
        runs = [redis_density.Run(replace(self.benchmark(), p99=value), 0, ())
                for value in p99]
        given_values = values('redis-density')
        ramp = {1: runs}
        return [one.text for one in redis_density.findings(
            density.Climb(ramp, density.judge(
                [density.Point(1, redis_density.latencies(runs))], 1.1)),
            given_values) if one.name == 'noise']

    def test_runs_that_differ_by_more_than_the_limit(self):
        self.assertEqual([], self.noise(1.0, 1.05, 1.1))
        self.assertIn('differ by 20%', self.noise(1.0, 1.0, 1.2)[0])
        self.assertIn('fewer than 3 runs', self.noise(1.0, 1.0)[0])

    def test_redis_must_have_counted_the_requests(self):
        served = 'requests served'
        self.assertEqual((), self.verify(served, 1000.0, 1010.0))
        self.assertIn('redis counted 999', self.verify(served, 999.0)[0])
        self.assertIn('counted 1011', self.verify(served, 1011.0)[0])

    def test_every_other_server_must_have_had_load(self):
        self.assertIn('no load', self.verify('least load of another', 5.0,
                                             0.0)[0])

    def series(self, ramp):
        bench = Bench(Machine(), values('redis-density'), Path(), print)
        return {one.title: one for one in redis_density.series_of(bench, ramp)}

    def test_servers_of_one_run_are_one_sample(self):
        run = redis_density.Run(self.benchmark(), 9, (10.0, 30.0))
        found = self.series({3: [run, replace(run, others=(20.0, 30.0))]})
        self.assertEqual((40.0, 50.0),
                         found['load of the others, N 3'].samples)
        self.assertEqual((10.0, 20.0),
                         found['least load of another, N 3'].samples)

    def test_runs_by_default_can_show_a_difference_at_each_n(self):
        given_values = values('redis-density')
        run = redis_density.Run(self.benchmark(), 9, (10.0,))
        metrics = [
            title for title, one in self.series(dict.fromkeys(
                range(1, given_values.integer('up-to') + 1), [run])).items()
            if one.metric not in redis_density.SCENARIO.checks]
        self.assertEqual(4 * 64 - 1, len(metrics))
        self.assertEqual(compare.enough(len(metrics)),
                         given_values.integer('runs'))

    def test_container_engine_that_does_not_answer(self):
        machine = self.useFixture(Tree(programs={
            'docker': 'echo no daemon >&2; exit 1', 'redis-cli': '',
            'redis-benchmark': ''})).machine
        reason, = redis_density.SCENARIO.missing(
            machine, values('redis-density', backend='docker'))
        self.assertIn('no daemon', reason)

    def test_remote_client_without_redis_benchmark(self):
        machine = self.useFixture(Tree(programs={
            'ssh': 'echo "no such command" >&2; exit 127', 'redis-cli': '',
            'redis-server': '', 'redis-benchmark': ''})).machine
        reason, = redis_density.SCENARIO.missing(
            machine, values('redis-density', clients='local,ssh:two'))
        self.assertIn('client 1 runs redis-benchmark over ssh', reason)

    def test_pins_go_round(self):
        self.assertEqual(['2', '4-5', '2'], [
            redis_servers.pin('2;4-5', number) for number in (1, 2, 3)])
        self.assertEqual('', redis_servers.pin('', 7))
        self.assertEqual('', redis_servers.check_pins('2;3;4-5'))
        self.assertIn('2,x', redis_servers.check_pins('2,x'))

    def test_address_of_a_container(self):
        self.assertEqual('10.88.0.2', redis_servers.address('\n10.88.0.2\n'))
        self.assertRaises(errors.BenchError, redis_servers.address,
                          '<no value>\n')


class ClientsTest(base.TestCase):

    def test_local(self):
        client, = clients.parse('local')
        self.assertEqual(['a', 'b c'], client.argv(['a', 'b c'], 9))

    def test_several_over_ssh(self):
        found = clients.parse('local,ssh:root@192.0.2.7', '-p 2222')
        self.assertEqual(
            ['ssh', '-o', 'BatchMode=yes', '-p', '2222', 'root@192.0.2.7',
             "timeout 9 a 'b c'"], found[1].argv(['a', 'b c'], 9))

    def test_endless_ones_end_with_their_terminal(self):
        client, = clients.parse('ssh:one')
        *_ssh, terminal, target, command = client.argv(['a', 'b c'], None)
        self.assertEqual(('-tt', 'one'), (terminal, target))
        shell, _option, script = shlex.split(command)
        self.assertEqual('sh', shell)
        self.assertTrue(script.startswith("a 'b c' & load=$!; trap"))

    def test_no_options_by_way_of_a_host(self):
        for text in ('', 'ssh:', 'ssh:-oProxyCommand=x', 'ssh:a b', 'one',
                     'local,'):
            self.assertRaises(errors.BenchError, clients.parse, text)
        self.assertRaises(errors.BenchError, clients.parse, 'local', '"')

    @given(st.text())
    def test_any_text(self, text):
        try:
            self.assertTrue(clients.parse(text))
        except errors.BenchError:
            pass


class MixedLoadTest(base.TestCase):

    def test_utilisation_of_all_and_of_each(self):
        whole, first, second = mixed_load.utilisation(
            sysstat.parse(capture('mpstat-12.6.1.txt')), 1)
        self.assertEqual(('utilisation', 2, 1),
                         (whole.metric, len(whole.samples), whole.warm_up))
        self.assertEqual([('0',), ('1',)], [
            tuple(dict(one.conditions).values()) for one in (first, second)])

    def test_faults_and_switches_of_all_stressors(self):
        found = {one.metric: one.samples for one in mixed_load.tasks(
            sysstat.parse(capture('pidstat-12.6.1-h.txt')), 0)}
        self.assertEqual((102732.35, 239345.0, 115585.15),
                         found['minor faults of the stressors'])
        self.assertEqual((361.76, 237.0, 266.33), tuple(
            round(value, 2) for value
            in found['involuntary switches of the stressors']))

    def test_faults_and_switches_of_the_machine(self):
        found = {one.metric: one.samples for one in mixed_load.system(
            sysstat.parse(capture('sar-12.6.1.txt')), 1)}
        self.assertEqual((2599.0, 2559.41), found['context switches'])
        self.assertEqual((101291.0, 97257.43), found['faults'])

    def test_memory_costs_and_waiting_guests(self):
        before = procfs.Moment(10.0, {'pgscan_kswapd': 5, 'pswpin': 1}, {
            'some': 100, 'full': 0}, {7: (10, 0), 8: (0, 0), 9: (1, 1)})
        after = procfs.Moment(12.0, {
            'pgscan_kswapd': 25, 'pgscan_direct': 9, 'pswpin': 1}, {
                'some': 1000100, 'full': 0}, {7: (40, 10), 8: (0, 0)})
        self.assertEqual(
            {('pages scanned for reclaim', ()): (10.0,),
             ('pages swapped in', ()): (0.0,),
             ('stalled for memory', (('tasks', 'some'),)): (50.0,),
             ('stalled for memory', (('tasks', 'full'),)): (0.0,),
             ('waiting for a CPU', ()): (25.0,)},
            {(one.metric, one.conditions): one.samples
             for one in mixed_load.memory(before, after)})

    def test_the_peak_is_next_to_the_mean(self):
        (found,) = mixed_load.findings([Series(
            'utilisation', '%', 'neither', (10.0, 40.0, 10.0))])
        self.assertEqual(40.0, found.value)
        self.assertIn('20.0 % on average', found.text)

    def test_equal_real_time_tasks(self):
        (found,) = mixed_load.findings([Series(
            'share of the CPU', '%', 'neither', (value,), (('task', task),))
            for task, value in (('beside rr', 5.0), ('rr 1', 45.0),
                                ('rr 2', 50.0))])
        self.assertEqual(('share of 2 real-time tasks', 95.0),
                         (found.name, found.value))
        self.assertIn('45.0 to 50.0 % each', found.text)

    def test_shares_by_process(self):
        found = mixed_load.shares(
            sysstat.parse(capture('pidstat-12.6.1-h.txt')),
            {'one': 19346, 'two': 19348}, 0)
        self.assertEqual([(57.84, 74.0, 63.37), (53.92, 77.0, 57.43)],
                         [one.samples for one in found])

    def test_nice_values(self):
        self.assertEqual((-5, 5), mixed_load.niceness('5,-5'))
        for text in ('', '5', '5,5', '-21,0', '0,20', 'a,b'):
            self.assertRaises(errors.BenchError, mixed_load.niceness, text)

    def test_ratio_that_the_weights_give(self):
        self.assertIn('9.316 is expected', mixed_load.priority_ratio(
            (-5, 90.0), (5, 9.7)).text)

    def test_share_too_small_to_see(self):
        found = mixed_load.priority_ratio((-20, 100.0), (19, 0.0))
        self.assertIsNone(found.value)

    def test_machine_and_cpus_must_agree(self):
        def verify(whole):
            return mixed_load.SCENARIO.verify(values('mixed-load'), Measured((
                Series('utilisation', '%', 'neither', (whole,)),
                Series('utilisation of a CPU', '%', 'neither', (40.0,)),
                Series('utilisation of a CPU', '%', 'neither', (60.0,)))))
        self.assertEqual((), verify(51.0))
        self.assertIn('60.0 %', verify(60.0)[0])


class RtLatencyTest(base.TestCase):

    def test_settings(self):
        self.assertEqual(
            [('fifo', False), ('fifo', True), ('rr', False), ('rr', True)],
            rt_latency.settings(values('rt-latency', policies='fifo,rr')))
        self.assertRaises(errors.BenchError, rt_latency.settings,
                          values('rt-latency', policies='deadline'))

    def test_only_real_time_policies_have_a_priority(self):
        given_values = values('rt-latency')
        self.assertIn('80', rt_latency.command(given_values, 'rr', False))
        other = rt_latency.command(given_values, 'other', True)
        self.assertEqual('0', other[other.index('-p') + 1])
        self.assertIn('-m', other)

    def test_a_guest_gets_the_settings_to_measure_with(self):
        text = guest_latency.init(values('rt-latency', runs='3', loops='7'))
        self.assertIn('seq 4', text)
        self.assertIn('-l 7 ', text)
        self.assertNotIn('LOOPS', text)

    def test_findings_of_guests_are_medians_with_the_worst_run(self):
        setting = guest_latency.conditions(('rr', False, True))
        finding, = guest_latency.findings([
            Series('median latency', 'us', 'lower', (3.0, 1.0, 2.0), setting),
            Series('maximum latency', 'us', 'lower', (9.0, 8.0), setting)])
        self.assertEqual(('2 us, worst run 9 us', 2.0),
                         (finding.text, finding.value))
        self.assertIn('guest TCG, policy rr', finding.name)

    def test_thresholds(self):
        self.assertEqual((50.0, 100.0), rt_latency.thresholds('50,100'))
        self.assertRaises(errors.BenchError, rt_latency.thresholds, '50,')

    def test_real_time_that_is_not_allowed(self):
        machine = self.useFixture(Tree(programs={
            'cyclictest': '', 'chrt': 'echo "not permitted" >&2; exit 1'}
        )).machine
        reason, = rt_latency.SCENARIO.missing(machine, values('rt-latency'))
        self.assertIn('not permitted', reason)
        self.assertEqual((), rt_latency.SCENARIO.missing(
            machine, values('rt-latency', policies='other')))


class NumaLocalityTest(base.TestCase):

    NODE = 'sys/devices/system/node/node{0}/{1}'

    def machine(self):
        files = {'sys/block/nvme0n1/device/device/numa_node': '1\n'}
        for node, cpus, memory in ((0, '0-3', 1000), (1, '4-7', 1000),
                                   (2, '', 500), (3, '8', 0)):
            files[self.NODE.format(node, 'cpulist')] = f'{cpus}\n'
            files[self.NODE.format(node, 'meminfo')] = (
                f'Node {node} MemTotal:       {memory} kB\n'
                f'Node {node} MemFree:        {memory} kB\n')
        return self.useFixture(Tree(files)).machine

    def test_nodes_without_cpus_or_memory(self):
        machine = self.machine()
        self.assertEqual((0, 1, 3), numa_locality.with_cpus(machine))
        self.assertEqual((0, 1, 2), numa_locality.with_memory(machine))

    def test_every_pair(self):
        self.assertEqual([(0, 0), (0, 1), (1, 0), (1, 1)],
                         numa_locality.pairs((0, 1), (0, 1)))

    def test_node_of_a_device(self):
        machine = self.machine()
        self.assertEqual(
            1, numa_locality.device_node(machine, '/dev/nvme0n1'))
        self.assertIsNone(numa_locality.device_node(machine, '/dev/sda'))

    def series(self, metric, cpus, home, *samples):
        return Series(metric, 'MiB/s', 'higher', samples, (
            ('CPUs of node', str(cpus)), ('at node', str(home)),
            ('access', 'local' if cpus == home else 'remote')))

    def test_memory_loses_against_the_local_memory_of_the_same_cpus(self):
        found = numa_locality.findings([
            self.series('memory copy', 0, 0, 1000.0),
            self.series('memory copy', 0, 1, 700.0),
            self.series('memory copy', 1, 0, 400.0),
            self.series('memory copy', 1, 1, 800.0)])
        self.assertEqual(
            [('memory copy of node 1 from node 0', 0.3),
             ('memory copy of node 0 from node 1', 0.5)],
            [(one.name, round(one.value, 6)) for one in found])


class NumaIconTest(base.TestCase):

    def test_not_bound_each_node_and_two(self):
        self.assertEqual(
            ['not bound', 'both on node 0', 'both on node 2',
             'nodes 0 and 2'],
            [place.name for place in numa_icon.places((0, 2))])

    def test_a_bind_has_its_memory_next_to_it(self):
        self.assertEqual(['redis'], numa_icon.bound(['redis'], None))
        self.assertEqual(
            ['numactl', '--cpunodebind=2', '--membind=2', 'redis'],
            numa_icon.bound(['redis'], 2))

    def test_the_best_bind_is_what_others_are_held_against(self):
        found = numa_icon.findings([
            Series('throughput', 'requests/s', 'higher', samples,
                   (('place', place), ('command', 'get'),
                    ('at a time', '1')))
            for place, samples in (
                ('not bound', (80.0,)), ('both on node 0', (90.0, 110.0)),
                ('both on node 1', (90.0,)), ('nodes 0 and 1', (50.0,)))])
        self.assertEqual(
            [('get, 1 at a time, not bound', '+25.0% by both on node 0'),
             ('get, 1 at a time, nodes 0 and 1', '+100.0% by both on node '
                                                 '0')],
            [(one.name, one.text) for one in found])


class EnvironmentTest(base.TestCase):

    def test_files_of_a_machine(self):
        machine = self.useFixture(Tree({
            'sys/devices/system/cpu/online': '0-1,4\n',
            'sys/devices/system/cpu/cpu0/cpufreq/scaling_governor':
                'performance\n',
            'sys/devices/system/cpu/cpu1/cpufreq/scaling_governor':
                'powersave\n',
            'sys/devices/system/cpu/vulnerabilities/meltdown':
                'Mitigation: PTI\n',
            'sys/devices/system/node/node0/cpulist': '0-1\n',
            'sys/devices/system/node/node1/cpulist': '4\n',
            'proc/meminfo': 'MemTotal:       24683520 kB\n',
            'proc/loadavg': '1.25 0.5 0.1 2/300 9\n',
            'proc/sys/kernel/osrelease': '6.6.0-1\n',
            'etc/os-release': 'NAME=x\nPRETTY_NAME="Example OS 1"\n'},
            {'mbw': '', 'tool': 'echo tool version 1.2.3',
             'mute': 'exit 1'})).machine
        found = environment.read(machine, ['tool', 'mute', 'absent'])
        self.assertEqual(
            (3, 2, 24105, '6.6.0-1', 'Example OS 1', 1.25, 'unknown'),
            (found.cpus, found.numa_nodes, found.memory_mib, found.kernel,
             found.distribution, found.load, found.virtual))
        self.assertEqual('performance, powersave', found.governors)
        self.assertEqual((('meltdown', 'Mitigation: PTI'),),
                         found.mitigations)
        self.assertEqual((('tool', '1.2.3'), ('mute', 'unknown')),
                         found.tools)

    def test_a_machine_that_tells_nothing(self):
        found = environment.read(self.useFixture(Tree()).machine, [])
        self.assertEqual((0, 0, 'unknown', 'none'), (
            found.cpus, found.memory_mib, found.kernel, found.governors))

    @given(st.text())
    def test_any_file(self, text):
        environment.memory_mib(text)
        environment.distribution_name(text)
