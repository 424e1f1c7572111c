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

"""``bandwidth-keys``: what the bandwidth keys do to a redis server.

redis is measured alone, beside memory streams on the other CPUs of its NUMA
node, and then with each key that the host can hold: caps of the streams, a
guarantee of the server, a priority of the server.
"""

from collections.abc import Sequence
import os
from pathlib import Path

from ghsched_nova.lab.bench import bandwidth_groups
from ghsched_nova.lab.bench.bandwidth_groups import Setting
from ghsched_nova.lab.bench import bandwidth_loads
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import guest
from ghsched_nova.lab.bench.machine import Machine
from ghsched_nova.lab.bench import needs
from ghsched_nova.lab.bench.parsers import redis
from ghsched_nova.lab.bench.record import Finding
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench.scenario import Bench
from ghsched_nova.lab.bench.scenario import common
from ghsched_nova.lab.bench.scenario import Need
from ghsched_nova.lab.bench.scenario import Parameter
from ghsched_nova.lab.bench.scenario import Scenario
from ghsched_nova.lab.bench.scenario import Values
from ghsched_nova.lab.bench.scenarios import loaded_latency
from ghsched_nova.lab.bench import stats
from ghsched_nova.resctrl import errors as resctrl_errors
from ghsched_nova.resctrl import resctrl_host

P99, STREAMS = 'p99 latency', 'bandwidth of the streams'

_P50, _THROUGHPUT, _SERVED = 'p50 latency', 'throughput', 'requests served'

Run = tuple[redis.Benchmark, float]


def _needs(values: Values) -> tuple[Need, ...]:
    found = [*needs.programs('cc', 'taskset', 'redis-server', 'redis-cli',
                             'redis-benchmark'),
             needs.root('a control group'), _resctrl(values)]
    if values.flag('in-guest'):
        image = Path(values.text('guest-image'))
        found += [*needs.programs(*guest.PROGRAMS), Need(
            "the guest's kernel", lambda machine: '' if machine.names(
                str(image).lstrip('/')) else (
                    f'there is no {image}: tools/guest-image.sh makes it'))]
        if values.text('accelerator') == 'kvm':
            found.append(Need('KVM', lambda machine: '' if machine.names(
                'sys/module/kvm/parameters') else 'the kernel has no KVM'))
    return tuple(found)


def _resctrl(values: Values) -> Need:
    """Return the need for a resctrl that controls memory bandwidth."""
    def missing(_machine: Machine) -> str:
        try:
            _read_host(values)
        except resctrl_errors.ResctrlUnavailable as error:
            return str(error)
        return ''
    return Need('control of memory bandwidth', missing)


def _read_host(values: Values) -> resctrl_host.ResctrlHost:
    return resctrl_host.read_host(Path(values.text('resctrl')),
                                  Path(values.text('sysfs')))


def _run(bench: Bench) -> Measured:
    values, host = bench.values, _read_host(bench.values)
    node = values.integer('node')
    if node not in host.domains_by_node:
        raise errors.BenchError(f'node: no bandwidth of NUMA node {node} is '
                                'controlled')
    loads = _start(bench, loaded_latency.find_cpus(bench, str(node)))
    bench.undo.callback(loads.stop)
    groups = bandwidth_groups.ControlGroups(
        Path(values.text('resctrl')), host, node)
    series: list[Series] = []
    skipped: list[tuple[str, str]] = []
    caps = map(int, values.text('caps').split(','))
    for setting in bandwidth_groups.list_settings(
            caps, values.integer('guarantee')):
        reason = bandwidth_groups.find_reason_against(host, setting, node)
        if reason:
            skipped.append((setting.title, reason))
            continue
        series += list_series(setting, bench.repeat(
            setting.title, lambda setting=setting: _measure(  # type: ignore
                loads, groups, setting)), values.integer('warm-up'))
    return Measured(tuple(series), (
        Finding('resctrl', host.dialect.name), *list_findings(series)),
        tuple(skipped))


def _start(bench: Bench, cpus: Sequence[int]) -> bandwidth_loads.Loads:
    """Return the server and the streams on the CPUs of a NUMA node.

    :raises BenchError: if the node has too few CPUs.
    """
    usable = sorted(os.sched_getaffinity(0).intersection(cpus))
    if len(usable) < 2:
        raise errors.BenchError(
            f'{len(usable)} CPUs of the node are too few for a server and '
            'streams')
    program = loaded_latency.compile_program(bench)
    kind = (bandwidth_loads.Guests if bench.values.flag('in-guest')
            else bandwidth_loads.Processes)
    return kind(bench, program, usable)


def _measure(loads: bandwidth_loads.Loads,
             groups: bandwidth_groups.ControlGroups, setting: Setting) -> Run:
    """Return a run of redis-benchmark, and the MB/s of the streams."""
    if setting.key == bandwidth_groups.ALONE:
        return redis.parse(loads.run_benchmark())[0], 0.0
    with bandwidth_loads.hold_streams(loads) as moved, groups.hold(
            setting, loads.list_threads()):
        printed = loads.run_benchmark()
    return redis.parse(printed)[0], moved[0]


def list_series(setting: Setting, runs: Sequence[Run], warm_up: int
                ) -> list[Series]:
    """Return the samples of a setting, by metric (pure)."""
    conditions = (('key', setting.title),)
    found = [Series(metric, unit, better, tuple(samples), conditions, warm_up)
             for metric, unit, better, samples in (
                 (P99, 'ms', 'lower', [mark.p99 for mark, _moved in runs]),
                 (_P50, 'ms', 'lower', [mark.p50 for mark, _moved in runs]),
                 (_THROUGHPUT, 'requests/s', 'higher',
                  [mark.throughput for mark, _moved in runs]),
                 (_SERVED, 'requests', 'neither',
                  [mark.requests for mark, _moved in runs]))]
    if setting.key != bandwidth_groups.ALONE:
        found.append(Series(STREAMS, 'MB/s', 'higher', tuple(
            moved for _mark, moved in runs), conditions, warm_up))
    return found


def find_ratios(series: Sequence[Series], metric: str, base: str
                ) -> dict[str, float]:
    """Return the median of a metric over that of a setting, by setting."""
    medians = {dict(one.conditions)['key']: stats.quantile(one.samples, 0.5)
               for one in series if one.metric == metric}
    return {key: median / medians[base] for key, median in medians.items()
            } if medians.get(base) else {}


def list_findings(series: Sequence[Series]) -> list[Finding]:
    """Return what each setting does to the server and to the streams (pure).
    """
    moved = find_ratios(series, STREAMS, bandwidth_groups.NO_KEY)
    found = []
    for key, ratio in find_ratios(series, P99,
                                  bandwidth_groups.ALONE).items():
        text = f'{ratio:.2f} x that alone'
        if key in moved:
            text += (f', streams {moved[key]:.0%} of what they move without '
                     'a key')
        if key != bandwidth_groups.ALONE:
            found.append(Finding(f'p99 with {key}', text, ratio))
    return found


def verify(values: Values, measured: Measured) -> tuple[str, ...]:
    """Return the reasons why the samples cannot be trusted."""
    asked = values.integer('requests')
    found = [f'{one.title}: {min(one.samples):.0f} of {asked} requests were '
             'served' for one in measured.series
             if one.metric == _SERVED and min(one.samples) < asked]
    found += [f'{one.title}: the streams moved nothing'
              for one in measured.series
              if one.metric == STREAMS and min(one.samples) <= 0]
    return tuple(found)


SCENARIO = Scenario(
    name='bandwidth-keys',
    title='p99 of redis beside memory streams, without and with bandwidth '
          'keys',
    parameters=(
        *common(runs=5, warm_up=1),
        Parameter('resctrl', '/sys/fs/resctrl', 'where resctrl is mounted',
                  private=True),
        Parameter('sysfs', '/sys', 'where sysfs is mounted', private=True),
        Parameter('node', 0, 'NUMA node of the server and of the streams'),
        Parameter('caps', '50,20,10', 'of the streams in percent, several by '
                  'commas'),
        Parameter('guarantee', 30, 'of the server in percent'),
        Parameter('memory', 256, 'of each stream in MiB; more than the '
                  'caches hold', minimum=1),
        Parameter('writes', 50, 'percent of the lines of the streams that '
                  'are written'),
        Parameter('connections', 40, 'of redis-benchmark', minimum=1),
        Parameter('requests', 1000000, 'of a run', minimum=1),
        Parameter('keyspace', 1000000, 'number of keys', minimum=1),
        Parameter('value-size', 1024, 'of a value in bytes', minimum=1),
        Parameter('port', 6390, 'of the server', minimum=1),
        Parameter('timeout', 600.0, 'of a run in seconds', minimum=1),
        Parameter('in-guest', False, 'server and streams in a guest each'),
        Parameter('accelerator', 'kvm', 'with in-guest: of QEMU',
                  ('kvm', 'tcg')),
        Parameter('guest-image', '/var/lib/ghsched/cache/guest',
                  'with in-guest: what tools/guest-image.sh makes',
                  private=True)),
    tools=lambda _values: ('cc', 'redis-server', 'redis-benchmark'),
    needs=_needs, run=_run, verify=verify, checks=(_SERVED,))
