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

"""``rt-latency``: how late a thread wakes up under a scheduling policy."""

from collections.abc import Sequence

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench import needs
from ghsched_nova.lab.bench.parsers import cyclictest
from ghsched_nova.lab.bench.record import Finding
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Series
from ghsched_nova.lab.bench.scenario import Bench
from ghsched_nova.lab.bench.scenario import common
from ghsched_nova.lab.bench.scenario import Need
from ghsched_nova.lab.bench.scenario import Parameter
from ghsched_nova.lab.bench.scenario import Scenario
from ghsched_nova.lab.bench.scenario import Values
from ghsched_nova.lab.bench.scenarios import guest_latency
from ghsched_nova.lab.bench import stats

#: cyclictest's names of the policies.
POLICIES = ('other', 'fifo', 'rr')

#: (policy, whether memory is locked)
Setting = tuple[str, bool]


def command(values: Values, policy: str, locked: bool) -> list[str]:
    """Return the command line of one run; SCHED_OTHER has no priority."""
    priority = values.integer('priority') if policy != 'other' else 0
    cpus = values.text('cpus')
    return ['cyclictest', '-q', '-t', str(values.integer('threads')),
            f'--policy={policy}', '-p', str(priority),
            '-i', str(values.integer('interval')),
            '-l', str(values.integer('loops')),
            *(['-m'] if locked else []), *(['-a', cpus] if cpus else [])]


def settings(values: Values) -> list[Setting]:
    """Return the settings to compare: each policy with and without locked
    memory.

    :raises BenchError: for a policy that is none.
    """
    policies = values.text('policies').split(',')
    for policy in policies:
        if policy not in POLICIES:
            raise errors.BenchError(f'policies: {policy!r} is not one of '
                                    + ', '.join(POLICIES))
    locked = {'both': (False, True), 'yes': (True,), 'no': (False,)}
    return [(policy, lock) for policy in policies
            for lock in locked[values.text('mlock')]]


def _needs(values: Values) -> tuple[Need, ...]:
    found = [needs.program('cyclictest')]
    if values.flag('in-guest'):
        found += needs.programs(*guest_latency.PROGRAMS)
    if any(policy != 'other' for policy, _lock in settings(values)):
        found.append(needs.real_time())
    return tuple(found)


def _set_up(bench: Bench) -> None:
    """Refuse unusable parameters before hours of measuring."""
    thresholds(bench.values.text('thresholds'))


def _run(bench: Bench) -> Measured:
    """Measure all settings in turn in each run, so that drift affects them
    all.
    """
    todo = settings(bench.values)
    if bench.values.flag('in-guest'):
        return guest_latency.run(bench, [
            (policy, locked, hog) for hog in (False, True)
            for policy, locked in todo])

    def one_of_each() -> dict[Setting, cyclictest.Thread]:
        return {setting: _worst(bench, setting) for setting in todo}

    rounds = bench.repeat('cyclictest', one_of_each)
    series = [found for setting in todo for found in latencies(
        [taken[setting] for taken in rounds], conditions(*setting),
        bench.values.integer('warm-up'))]
    return Measured(tuple(series), findings(
        series, thresholds(bench.values.text('thresholds'))))


def _worst(bench: Bench, setting: Setting) -> cyclictest.Thread:
    """Return the thread with the highest latency."""
    values = bench.values
    expected = values.integer('interval') * values.integer('loops') / 1e6
    # The intervals of further threads are longer by 500 us each.
    text = bench.machine.check(command(values, *setting), expected * 3 + 60)
    return max(cyclictest.parse(text), key=lambda thread: thread.maximum)


def conditions(policy: str, locked: bool) -> tuple[tuple[str, str], ...]:
    return ('policy', policy), ('mlock', 'yes' if locked else 'no')


def latencies(threads: Sequence[cyclictest.Thread],
              setting: tuple[tuple[str, str], ...], warm_up: int
              ) -> list[Series]:
    """Minimum, average and maximum of each run as series."""
    return [Series(metric, 'us', 'lower', tuple(values), setting, warm_up)
            for metric, values in (
                ('maximum latency', [float(t.maximum) for t in threads]),
                ('average latency', [float(t.average) for t in threads]),
                ('minimum latency', [float(t.minimum) for t in threads]))]


def thresholds(text: str) -> tuple[float, ...]:
    """Return latencies in us from a list like ``100,500``.

    :raises BenchError: when it is no such list.
    """
    try:
        return tuple(float(part) for part in text.split(','))
    except ValueError:
        raise errors.BenchError(f'thresholds: {text!r} is no list of '
                                'latencies like 100,500') from None


def findings(series: Sequence[Series], limits: Sequence[float]
             ) -> tuple[Finding, ...]:
    """Return, for each setting, the worst run, the median of the maxima and
    the runs below limits.
    """
    found = []
    for one in series:
        if one.metric != 'maximum latency':
            continue
        where = ', '.join(f'{name} {value}' for name, value
                          in one.conditions)
        median = stats.quantile(one.samples, 0.5)
        counts = '; '.join(_count(one.samples, limit) for limit in limits)
        found.append(Finding(
            f'median of maxima, {where}',
            f'{median:g} us, worst run {max(one.samples):g} us; {counts}',
            median, 'us'))
    return tuple(found)


def _count(maxima: Sequence[float], limit: float) -> str:
    below = stats.below(maxima, limit)
    return (f'{below} of {len(maxima)} runs strictly below {limit:g} us, '
            f'{len(maxima) - below} at it or above')


def _verify(_values: Values, measured: Measured) -> tuple[str, ...]:
    """No run may be faster at its worst than another is on average."""
    by = {(one.metric, one.conditions): one.samples
          for one in measured.series}
    return tuple(
        f'{one.title}: an average is above its maximum'
        for one in measured.series if one.metric == 'average latency'
        and any(average > worst for average, worst in zip(
            one.samples, by['maximum latency', one.conditions],
            strict=True)))


SCENARIO = Scenario(
    name='rt-latency',
    title='wake-up latency of cyclictest under scheduling policies, with and '
          'without locked memory',
    parameters=(
        *common(runs=20, warm_up=1),
        Parameter('policies', 'other,fifo,rr', 'to compare'),
        Parameter('mlock', 'both', 'lock memory', ('both', 'yes', 'no')),
        Parameter('priority', 80, 'of fifo and rr', minimum=1),
        Parameter('threads', 1, 'that measure', minimum=1),
        Parameter('cpus', '', 'that they run on, e.g. 2-3'),
        Parameter('interval', 1000, 'between two wake-ups in us', minimum=1),
        Parameter('loops', 10000, 'wake-ups of a run', minimum=1),
        Parameter('in-guest', False, 'measure in guests whose vCPU has the '
                                     'policy, with and without a hog beside '
                                     'it; mlock is then that of QEMU'),
        Parameter('guest-image', '/var/lib/ghsched/cache/guest',
                  'with in-guest: what tools/guest-image.sh makes',
                  private=True),
        Parameter('thresholds', '100,500', 'in us, to count runs below')),
    tools=lambda _values: ('cyclictest',), needs=_needs,
    set_up=_set_up, run=_run, verify=_verify)
