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

"""Parsers read what the real tools print, and nothing else."""

import json
import re
import string

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from ghsched_nova.lab.bench import environment
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.parsers import cyclictest
from ghsched_nova.lab.bench.parsers import fio
from ghsched_nova.lab.bench.parsers import iperf
from ghsched_nova.lab.bench.parsers import mbw
from ghsched_nova.lab.bench.parsers import redis
from ghsched_nova.lab.bench.parsers import stress_ng
from ghsched_nova.lab.bench.parsers import sysstat
from ghsched_nova.lab.bench.parsers import unixbench
from ghsched_nova.tests.fixtures.results import capture
from ghsched_placement.tests import base

WORD = st.text(string.ascii_letters + string.digits + '-_', min_size=1,
               max_size=8)
COUNT = st.integers(0, 10 ** 9)


def decimal(places, most=10 ** 6):
    """Numbers as a format with so many places can hold them."""
    return st.integers(0, most * 10 ** places).map(
        lambda value: value / 10 ** places)


class RedisTest(base.TestCase):

    def test_with_threads(self):
        found, = redis.parse(capture('redis-benchmark-7.0.15-get-threads.txt'))
        self.assertEqual(('GET', 20000, 0.5, 40, 39920.16),
                         (found.name, found.requests, found.seconds,
                          found.clients, found.throughput))
        self.assertEqual((0.486, 0.056, 0.471, 1.007, 1.423, 3.791),
                         (found.average, found.minimum, found.p50, found.p95,
                          found.p99, found.maximum))
        self.assertEqual(17, len(found.distribution))
        self.assertEqual((50.0, 0.471, 10092), found.distribution[1])
        self.assertEqual((100.0, 3.791, 20000), found.distribution[-1])

    def test_several_tests_of_a_run(self):
        found = redis.parse(capture('redis-benchmark-7.0.15-get-set.txt'))
        self.assertEqual(['SET', 'GET'], [test.name for test in found])

    def test_other_forms_of_its_output_are_refused(self):
        for name in ('quiet', 'csv'):
            self.assertRaises(errors.ParseError, redis.parse,
                              capture(f'redis-benchmark-7.0.15-{name}.txt'))

    def test_server_that_is_not_there(self):
        error = self.assertRaises(
            errors.ParseError, redis.parse,
            'Could not connect to Redis at 127.0.0.1:1: Connection refused\n'
            'WARNING: Could not fetch server CONFIG\n')
        self.assertIn('Connection refused', str(error))

    def test_output_that_ends_early(self):
        text = capture('redis-benchmark-7.0.15-get-threads.txt')
        for part in ('Summary:', 'latency summary', '0.486     0.056'):
            self.assertRaises(errors.ParseError, redis.parse,
                              text[:text.index(part)])

    def test_calls(self):
        self.assertEqual(
            {'config|get': 3, 'get': 1500, 'set': 1500},
            redis.calls(capture('redis-info-7.0.15-commandstats.txt')))

    @given(st.sampled_from(['GET', 'SET', 'LPUSH (needed to benchmark x)']),
           COUNT, st.lists(decimal(3), min_size=6, max_size=6),
           st.lists(st.tuples(decimal(3, 100), decimal(3), COUNT)),
           decimal(2))
    def test_round_trip(self, name, requests, latencies, points, rate):
        text = '\n'.join([
            f'{name}: rps=0.0 (overall: nan)\r====== {name} ======',
            f'  {requests} requests completed in 1.50 seconds',
            '  40 parallel clients', '  3 bytes payload', '',
            'Latency by percentile distribution:',
            *(f'{percent:.3f}% <= {ms:.3f} milliseconds '
              f'(cumulative count {count})'
              for percent, ms, count in points), '', 'Summary:',
            f'  throughput summary: {rate:.2f} requests per second',
            '  latency summary (msec):',
            '          avg       min       p50       p95       p99       max',
            ' '.join(f'{value:12.3f}' for value in latencies)])
        found, = redis.parse(text)
        self.assertEqual(
            redis.Benchmark(name, requests, 1.5, 40, rate, *latencies,
                            tuple(points)), found)


class CyclictestTest(base.TestCase):

    def test_priority_of_one_digit(self):
        found, = cyclictest.parse(capture('cyclictest-2.40-other-mlock.txt'))
        self.assertEqual((0, 1013), (found.priority, found.maximum))

    def test_histogram_has_no_line_of_a_thread(self):
        self.assertRaises(errors.ParseError, cyclictest.parse,
                          capture('cyclictest-2.40-histogram.txt'))

    def test_thread_that_measured_nothing(self):
        # What cyclictest starts with: a minimum of a million, nothing else.
        self.assertRaises(
            errors.ParseError, cyclictest.parse,
            'T: 0 (    1) P:80 I:1000 C:      0 Min:1000000 Act:    0 '
            'Avg:    0 Max:       0')

    def test_line_that_is_cut(self):
        self.assertRaises(errors.ParseError, cyclictest.parse,
                          'T: 0 ( 17) P:80 I:1000 C:  5 Min:  1 Act:')

    @given(st.lists(st.builds(
        cyclictest.Thread, st.integers(0, 400), COUNT, st.integers(0, 99),
        COUNT, COUNT, st.integers(0, 9), COUNT, st.integers(10, 99),
        st.integers(100, 10 ** 6)), min_size=1))
    def test_round_trip(self, threads):
        # rt-tests 2.4, cyclictest.c, print_stat()
        text = ''.join(
            f'T:{t.number:2d} ({t.pid:5d}) P:{t.priority:2d} '
            f'I:{t.interval} C:{t.cycles:7d} Min:{t.minimum:7d} '
            f'Act:{t.last:5d} Avg:{t.average:5d} Max:{t.maximum:8d}\n'
            for t in threads)
        self.assertEqual(tuple(threads), cyclictest.parse(text))


class SysstatTest(base.TestCase):

    def test_mpstat(self):
        rows = sysstat.parse(capture('mpstat-12.6.1.txt'))
        self.assertEqual(9, len(rows))
        self.assertEqual(['all', '0', '1'] * 3,
                         [row.values['CPU'] for row in rows])
        self.assertEqual(('11:04:01', 89.11),
                         (rows[4].time, rows[4].number('%usr')))

    def test_clock_of_twelve_hours(self):
        row, = sysstat.parse('11:04:00 PM  CPU  %idle\n'
                             '11:04:01 PM  all  1.50\n')
        self.assertEqual((1.5, '11:04:01'), (row.number('%idle'), row.time))

    def test_wrong_number_of_values(self):
        self.assertRaises(errors.ParseError, sysstat.parse,
                          '11:04:00 CPU %idle\n11:04:01 all\n')

    def test_value_that_is_no_number(self):
        row, = sysstat.parse('11:04:00 CPU %idle\n11:04:01 all 1,5\n')
        self.assertRaises(errors.ParseError, row.number, '%idle')
        self.assertRaises(errors.ParseError, row.number, '%usr')

    @given(st.lists(WORD.map('%{}'.format), min_size=1, max_size=6,
                    unique=True),
           st.lists(st.lists(decimal(2), min_size=6, max_size=6),
                    min_size=1, max_size=5))
    def test_round_trip(self, names, lines):
        text = ['Linux 6.6.0 (x) \t2026-01-01 \t_x86_64_\t(2 CPU)', '']
        text.append('10:00:00 ' + ' '.join(f'{n:>9}' for n in names))
        text += ['10:00:01 ' + ' '.join(
            f'{value:9.2f}' for value in line[:len(names)])
            for line in lines]
        rows = sysstat.parse('\n'.join(text))
        self.assertEqual([line[:len(names)] for line in lines],
                         [[row.number(n) for n in names] for row in rows])


class StressNgTest(base.TestCase):

    def test_metrics(self):
        self.assertEqual(
            (stress_ng.Stressor('cpu', 1937, 2.97, 1.10, 0.0, 651.10),
             stress_ng.Stressor('vm', 80711, 4.01, 0.83, 0.82, 20102.57)),
            stress_ng.parse(capture('stress-ng-0.15.06.txt')))

    @given(st.lists(st.builds(
        stress_ng.Stressor, WORD, COUNT, decimal(2), decimal(2), decimal(2),
        decimal(2)), min_size=1))
    def test_round_trip(self, stressors):
        text = ''.join(
            f'stress-ng: metrc: [17] {s.name:13s} {s.operations:9d} '
            f'{s.real:9.2f} {s.user:9.2f} {s.system:9.2f} {s.rate:12.2f} '
            f'{0.0:14.2f}\n' for s in stressors)
        self.assertEqual(tuple(stressors), stress_ng.parse(text))


class UnixBenchTest(base.TestCase):

    def test_report(self):
        run, = unixbench.parse(capture('unixbench-6.0.0.txt'))
        self.assertEqual((2, 1), (run.cpus, run.copies))
        self.assertEqual(
            [('Dhrystone 2 using register variables', 30535011.6, 'lps', 10.0,
              1), ('System Call Overhead', 1043589.7, 'lps', 10.0, 1)],
            [(s.test, s.value, s.unit, s.seconds, s.samples)
             for s in run.scores])

    def test_test_that_was_not_run(self):
        run, = unixbench.parse(capture('unixbench-6.0.0.txt'))
        self.assertRaises(errors.ParseError, run.score, 'Execl Throughput')

    @given(st.integers(1, 999), st.integers(1, 9), st.lists(st.builds(
        unixbench.Score, WORD, decimal(1), st.sampled_from(
            ['lps', 'lpm', 'KBps', 'MWIPS']), decimal(1, 999),
        st.integers(1, 99)), min_size=1))
    def test_round_trip(self, cpus, copies, scores):
        text = (f'{cpus} CPU{"s" * (cpus != 1)} in system; running {copies} '
                f'parallel cop{"y" if copies == 1 else "ies"} of tests\n\n')
        text += ''.join(
            f'{s.test:<40} {s.value:12.1f} {s.unit:<5} ({s.seconds:.1f} s, '
            f'{s.samples} samples)\n' for s in scores)
        self.assertEqual((unixbench.Run(cpus, copies, tuple(scores)),),
                         unixbench.parse(text))


class MbwTest(base.TestCase):

    def test_quiet(self):
        self.assertEqual(
            {'MEMCPY': (3041.825, 13582.343)},
            mbw.parse(capture('mbw-1.2.2-quiet.txt')))

    def test_missing_run(self):
        lines = capture('mbw-1.2.2-quiet.txt').splitlines(keepends=True)
        self.assertRaises(errors.ParseError, mbw.parse, ''.join(lines[1:]))

    @given(st.dictionaries(WORD, st.lists(decimal(3), min_size=1,
                                          max_size=4), min_size=1))
    def test_round_trip(self, methods):
        text = ''.join(
            f'{run}\tMethod: {name}\tElapsed: 0.00500\tMiB: 64.00000\tCopy: '
            f'{value:.3f} MiB/s\n' for name, values in methods.items()
            for run, value in enumerate(values))
        self.assertEqual({name: tuple(values)
                          for name, values in methods.items()},
                         mbw.parse(text))


class FioTest(base.TestCase):

    def test_both_directions(self):
        read, write = fio.parse(capture('fio-3.33-randrw.json'))
        self.assertEqual(
            ('random', 'read', 22090, 11039.48026, 45312.0, 667648.0),
            (read.job, read.name, read.operations, read.iops, read.p50,
             read.p99))
        self.assertEqual('write', write.name)

    def test_warning_before_the_document(self):
        text = capture('fio-3.33-randrw.json')
        self.assertEqual(fio.parse(text), fio.parse(
            'note: both iodepth >= 1 and synchronous I/O engine\n' + text))

    def test_failed_job(self):
        document = json.loads(capture('fio-3.33-randrw.json'))
        document['jobs'][0]['error'] = 5
        error = self.assertRaises(errors.ParseError, fio.parse,
                                  json.dumps(document))
        self.assertIn('job random failed', str(error))


class IperfTest(base.TestCase):

    def test_transfer(self):
        found = iperf.parse(capture('iperf3-3.12.json'))
        self.assertEqual(20982639542.51205, found.received)
        self.assertEqual(3, len(found.intervals))
        self.assertEqual(11, found.retransmits)

    def test_seconds_of_its_own_warm_up_are_left_out(self):
        document = json.loads(capture('iperf3-3.12.json'))
        document['intervals'][0]['sum']['omitted'] = True
        self.assertEqual(2, len(iperf.parse(json.dumps(document)).intervals))

    def test_server_that_is_not_there(self):
        error = self.assertRaises(errors.ParseError, iperf.parse,
                                  capture('iperf3-3.12-refused.json'))
        self.assertIn('Connection refused', str(error))


class LscpuTest(base.TestCase):

    def test_facts(self):
        found = environment.lscpu_facts(capture('lscpu-2.38.1.json'))
        self.assertEqual(('2', 'AMD EPYC'),
                         (found['CPU(s)'], found['Model name']))

    def test_nested_fields(self):
        self.assertEqual(
            {'Vendor ID': 'x', 'Model name': 'y', 'Empty': ''},
            environment.lscpu_facts(json.dumps({'lscpu': [
                {'field': 'Vendor ID:', 'data': 'x', 'children': [
                    {'field': 'Model name:', 'data': 'y'}]},
                {'field': 'Empty:', 'data': None}]})))


class AnyTextTest(base.TestCase):
    """Whatever a tool prints, a parser reads it or refuses it."""

    PARSERS = (cyclictest.parse, fio.parse, iperf.parse, mbw.parse,
               redis.parse, stress_ng.parse, sysstat.parse, unixbench.parse,
               environment.lscpu_facts)
    CAPTURES = ('cyclictest-2.40-fifo.txt', 'fio-3.33-randrw.json',
                'iperf3-3.12.json', 'mbw-1.2.2-quiet.txt',
                'redis-benchmark-7.0.15-get-set.txt', 'stress-ng-0.15.06.txt',
                'sar-12.6.1.txt', 'unixbench-6.0.0.txt', 'lscpu-2.38.1.json')

    def read(self, parse, text):
        try:
            parse(text)
        except errors.ParseError as error:
            self.assertLess(len(str(error)), 1000)

    @given(st.text())
    def test_noise(self, text):
        for parse in self.PARSERS:
            self.read(parse, text)

    @given(st.data())
    def test_captures_with_a_piece_cut_out(self, data):
        for parse, name in zip(self.PARSERS, self.CAPTURES, strict=True):
            text = capture(name)
            start = data.draw(st.integers(0, len(text)))
            end = data.draw(st.integers(start, len(text)))
            self.read(parse, text[:start] + text[end:])

    @given(st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
            st.sampled_from(['jobs', 'end', 'intervals', 'lscpu', 'error',
                             'sum_received', 'field', 'read', 'write']),
            inner, max_size=4)))
    def test_json_of_another_kind(self, document):
        for parse in (fio.parse, iperf.parse, environment.lscpu_facts):
            self.read(parse, json.dumps(document))


class LongNumbersTest(base.TestCase):
    """Python makes no int of more than 4,300 digits."""

    PARSERS = {
        'cyclictest-2.40-fifo.txt': cyclictest.parse,
        'fio-3.33-randrw.json': fio.parse, 'iperf3-3.12.json': iperf.parse,
        'lscpu-2.38.1.json': environment.lscpu_facts,
        'mbw-1.2.2.txt': mbw.parse, 'mpstat-12.6.1.txt': sysstat.parse,
        'redis-benchmark-7.0.15-get-set.txt': redis.parse,
        'redis-info-7.0.15-commandstats.txt': redis.calls,
        'stress-ng-0.15.06.txt': stress_ng.parse,
        'unixbench-6.0.0.txt': unixbench.parse}

    @settings(max_examples=300, deadline=None)
    @given(st.sampled_from(sorted(PARSERS)), st.integers(0, 10 ** 6),
           st.sampled_from(['9' * 5000, '[' * 100000]))
    def test_they_are_no_output_of_a_tool(self, name, where, instead):
        text = capture(name)
        numbers = list(re.finditer('[0-9]+', text))
        one = numbers[where % len(numbers)]
        try:
            self.PARSERS[name](text[:one.start()] + instead
                               + text[one.end():])
        except errors.ParseError:
            pass
