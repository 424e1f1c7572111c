#!/usr/bin/env python3
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

"""Cases on the real memory of this machine for ``blame --prove``.

A victim on CPU 0 chases pointers, other loads on CPU 1 disturb it or do not:
half of the cases have a decoy, computation with little memory that works
whenever the culprit does, and one in four has no culprit in memory. The answer
is that of the product's own Session; only its host is replaced, see
real_machine.py, and its clock runs --factor times as fast.

The truth is measured another way, before and after the answer: each other
load is stopped (SIGSTOP) and resumed repeatedly, and the victim's gain is
taken with its interval of 99 %. A culprit is a load whose gain is surely at
least the product's smallest effect, surely above each other load's and at
least twice as much; a case without a culprit is one in which all gains are
surely below that effect. All other cases are not clear and do not count, nor
do those in which the hypervisor or other work took CPU time away. Needs
root, two CPUs and the control group controller cpu (version 1).
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
from pathlib import Path
import random
import signal
import statistics
import subprocess  # noqa: S404
import sys
import tempfile
import time

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from ghsched_nova.host import blame_session  # noqa: E402
from ghsched_placement import blame  # noqa: E402
from ghsched_placement import blame_trials  # noqa: E402
import real_machine  # noqa: E402

GOAL = 0.9
#: Share of the time above which steal, or waiting of the victim for its CPU,
#: discards an attempt.
MOST_STOLEN = 0.02
MOST_WAITING = 0.05
#: Stops of each load before the answer, and as many after it; seconds of a
#: window and of settling before it; and Student's quantile of their interval.
#: The contention itself comes and goes within seconds, so they are few where
#: it is high, and more where the question is whether there is none at all.
SHORT, LONG = (4, 0.04, 0.005, 3.499), (8, 0.12, 0.02, 2.947)
#: Record of the last minutes: periods, and seconds of each on this machine.
PERIODS, PERIOD_S = 8, 0.1
#: An attempt begins when stopping the culprit has sped up the victim by GATE
#: or more in GATES successive windows, or after GATE_LIMIT_S seconds. A case
#: has at most ATTEMPTS attempts.
GATE, GATES, GATE_LIMIT_S, ATTEMPTS = 0.2, 3, 15, 6
HEALTHY = ('quiet', 'computing', 'decoy')


def make_case(seed, number):
    """Return a case: its kind, and options of each load by name."""
    chance = random.Random(f'{seed} {number}')  # noqa: S311
    guilty, decoy = number % 4 != 0, number // 2 % 2 == 1
    kind = (chance.choice(('large', 'small', 'mixed')) if guilty
            else HEALTHY[number // 4 % len(HEALTHY)])
    phases = (chance.uniform(0.5, 2.5), chance.uniform(0.6, 1),
              chance.uniform(0, 2.5))
    loads = {real_machine.VICTIM: {
        'cpu': 0, 'kind': 'chase', 'megabytes': chance.choice((256, 512)),
        'chains': chance.choice((1, 1, 2)),
        'compute': chance.uniform(0, .3)}}
    if kind == 'computing':
        loads[real_machine.VICTIM]['compute'] = 60.0
    others = []
    if guilty or kind == 'computing':
        others.append(('culprit' if guilty else 'bully', {
            **make_hog(chance, kind), 'phases': phases,
            'quota': chance.randint(50, 70)}))
    if decoy or kind == 'decoy':
        others.append(('decoy', {
            'kind': 'stream', 'phases': phases, 'quota': 15,
            'compute': chance.uniform(6, 12)}))
    for place in range(1 if decoy or kind == 'decoy'
                       else chance.randint(1, 2)):
        others.append((f'guest-{place}', {
            'kind': chance.choice(('stream', 'chase', 'none')),
            'chains': 2, 'quota': 10, 'compute': 1.0}))
    chance.shuffle(others)
    loads.update(others)
    loads[real_machine.FILLER] = {'kind': 'none'}
    return kind, 'culprit' if guilty else '', loads


def make_hog(chance, kind):
    return {'kind': 'stream', 'megabytes': 128 if kind == 'small' else 512,
            'compute': chance.uniform(0.1, 0.4) if kind == 'mixed' else 0}


@dataclasses.dataclass
class Gains:
    """Gain of the victim from stopping one load, measured by stops.

    :param quantile: Student's quantile of the interval.
    """

    quantile: float
    changes: list = dataclasses.field(default_factory=list)

    def interval(self):
        """Return the mean gain and both ends of its interval of 99 %."""
        mean = statistics.fmean(self.changes)
        half = self.quantile * statistics.stdev(self.changes) / math.sqrt(
            len(self.changes))
        return tuple(math.expm1(one) for one in (mean, mean - half,
                                                 mean + half))


def measure_speed(victim, window, settle):
    time.sleep(settle)
    count, busy = victim.read_bytes(), victim.read_times()[0]
    time.sleep(window)
    return (victim.read_bytes() - count) / (victim.read_times()[0] - busy)


def measure_stopped_speed(victim, load, window, settle):
    load.stop()
    try:
        return measure_speed(victim, window, settle)
    finally:
        load.resume()


def measure_gains(machine, effort, found):
    """Stop each load in turn, and add the victim's gains to those found."""
    stops, window, settle, quantile = effort
    victim = machine.loads[real_machine.VICTIM]
    machine.work_always(True)
    before = measure_speed(victim, window, settle)
    for _number in range(stops):
        for name, load in machine.loads.items():
            if name in (real_machine.VICTIM, real_machine.FILLER):
                continue
            during = measure_stopped_speed(victim, load, window, settle)
            after = measure_speed(victim, window, settle)
            found.setdefault(name, Gains(quantile)).changes.append(
                math.log(during) - (math.log(before) + math.log(after)) / 2)
            before = after
    machine.work_always(False)


def wait_for_contention(machine, culprit):
    """Wait until stopping the culprit helps the victim, or for some seconds.
    """
    _stops, window, settle, _quantile = SHORT
    victim, load = (machine.loads[name]
                    for name in (real_machine.VICTIM, culprit))
    limit, seen = time.monotonic() + GATE_LIMIT_S, 0
    machine.work_always(True)
    while seen < GATES and time.monotonic() < limit:
        slow = measure_speed(victim, window, settle)
        gain = measure_stopped_speed(victim, load, window, settle) / slow - 1
        seen = seen + 1 if gain >= GATE else 0


def find_truth(gains):
    """Return the culprit; empty if there is none, None if that is not clear.
    """
    least = blame_trials.LEAST_EFFECT
    ends = {name: one.interval() for name, one in gains.items()}
    if all(high < least for _mean, _low, high in ends.values()):
        return ''
    worst = max(ends, key=lambda name: ends[name][0])
    if ends[worst][1] < least:
        return None
    for name, one in gains.items():
        # The stops of a round are close together, so they are compared.
        more = Gains(one.quantile, [
            first - second for first, second in zip(
                gains[worst].changes, one.changes, strict=True)])
        if name != worst and (more.interval()[1] <= 0
                              or ends[name][0] > ends[worst][0] / 2):
            return None
    return worst


def run_case(args, number, peak):
    """Yield the result of each attempt of a case as a dict."""
    kind, culprit, loads = make_case(args.seed, number)
    with tempfile.TemporaryDirectory(dir='/dev/shm') as place, (  # noqa: S108
            real_machine.Machine(args.program, f'{place}/slots')) as machine:
        for name, more in loads.items():
            machine.add(name, **{'cpu': 1, **more})
        machine.start()
        probe = real_machine.RealProbe(machine, args.factor, peak)
        for attempt in range(ATTEMPTS):
            if culprit:
                wait_for_contention(machine, culprit)
            found = run_attempt(machine, probe, SHORT if culprit else LONG)
            yield {'number': number, 'attempt': attempt, 'kind': kind,
                   'decoy': 'decoy' in loads, **found}
            if found['counts']:
                return


def run_attempt(machine, probe, effort):
    """Return the result of an attempt as a dict."""
    gains = {}
    begun, stolen = time.monotonic(), real_machine.read_steal()
    measure_gains(machine, effort, gains)
    record = make_record(probe)
    waited, first = probe.victim.read_times()[1], time.monotonic()
    found = blame_session.Session(
        real_machine.VICTIM, record, probe).collect_evidence(True)
    seconds = time.monotonic() - first
    waited = (probe.victim.read_times()[1] - waited) / seconds
    measure_gains(machine, effort, gains)
    stolen = (real_machine.read_steal() - stolen) / (
        time.monotonic() - begun)
    return describe(gains, found, {
        'stolen': round(stolen, 4), 'waited': round(waited, 4),
        'seconds': round(seconds * probe.factor, 1),
        'discarded': stolen > MOST_STOLEN or waited > MOST_WAITING})


def make_record(probe):
    """Return samples of some periods, as nova-compute records them."""
    probe.measure()
    record = []
    for _number in range(PERIODS):
        time.sleep(PERIOD_S)
        record.append(dataclasses.replace(probe.measure(), cpu_wait=None,
                                          stalled=None, io_wait=None))
    return record


def describe(gains, found, more):
    verdict = found.verdict
    truth = find_truth(gains)
    named = verdict.suspect if verdict.kind is blame.VerdictKind.GUEST else ''
    return {
        **more, 'truth': truth,
        'gains': {name: [round(value, 4) for value in one.interval()]
                  for name, one in gains.items()},
        'named': named, 'verdict': str(verdict.kind),
        'cause': verdict.cause and str(verdict.cause),
        'proven': verdict.proven, 'load': round(found.load or 0, 3),
        'suspects': [{
            'name': one.uuid, 'share': round(one.share, 3),
            'strength': round(one.strength, 3),
            'effect': one.effect and [
                round(one.effect.mean, 4), round(one.effect.low, 4),
                round(one.effect.high, 4), one.effect.trials]}
            for one in found.suspects],
        'trials': {name: [[round(value) for value in (
            one.before, one.during, one.after)] for one in done]
            for name, done in found.tried.items()},
        'counts': not more['discarded'] and truth is not None}


def measure_peak(args):
    """Return the bytes per second that streams on both CPUs move."""
    with tempfile.TemporaryDirectory(dir='/dev/shm') as place, (  # noqa: S108
            real_machine.Machine(args.program, f'{place}/slots')) as machine:
        for cpu in (0, 1):
            machine.add(f'stream-{cpu}', cpu, 'stream', megabytes=256)
        machine.start()
        before = [one.read_bytes() for one in machine.loads.values()]
        time.sleep(2)
        return (sum(one.read_bytes() for one in machine.loads.values())
                - sum(before)) / 2


def compute_wilson_interval(right, count):
    """Return both ends of the interval of 95 % of a share."""
    if not count:
        return 0.0, 1.0
    z, share = 1.96, right / count
    middle = (share + z * z / 2 / count) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(
        share * (1 - share) / count + (z / 2 / count) ** 2)
    return middle - half, middle + half


def summarize(results):
    """Return the lines of the summary, and whether the goal is met."""
    clear = [one for one in results if one['counts']]
    right = sum(bool(one['truth']) and one['named'] == one['truth']
                for one in clear)
    named = sum(bool(one['named']) for one in clear)
    guilty = sum(bool(one['truth']) for one in clear)
    nobody = sum(not one['truth'] and not one['named'] for one in clear)
    discarded = sum(one['discarded'] for one in results)
    shares = []
    for what, count in (('precision', named), ('recall', guilty)):
        low, high = compute_wilson_interval(right, count)
        shares.append(f'{what} {right}/{count} = '
                      f'{right / max(1, count):.3f} ({low:.3f} to {high:.3f})')
    longest = max((one['seconds'] for one in results), default=0)
    return [
        f'{len(results)} attempts: {discarded} discarded because CPU time was '
        f'taken away, {len(results) - discarded - len(clear)} not clear, '
        f'{len(clear)} counted, {sum(one["decoy"] for one in clear)} of them '
        f'with a decoy, {len(clear) - guilty} without a culprit',
        f'{right} culprits found, {guilty - right} missed, {named - right} '
        f'wrongly named, {nobody} rightly nobody; longest answer '
        f'{longest:.0f} s of the product',
        '; '.join(shares)], right >= GOAL * max(named, guilty, 1)


def show_case(one):
    right = one['truth'] == one['named']
    state = ('discarded' if one['discarded'] else 'unclear'
             if one['truth'] is None else 'right' if right else 'WRONG')
    print(f'{one["number"]} {one["kind"]}, decoy {one["decoy"]}: {state}; '
          f'truth {one["truth"]!r}, named {one["named"]!r} {one["verdict"]} '
          f'{one["cause"]}, stolen {one["stolen"]:.3f}, waited '
          f'{one["waited"]:.3f}, {one["seconds"]:.0f} s', flush=True)
    effects = {each['name']: each['effect'] for each in one['suspects']}
    for name, gain in one['gains'].items():
        print(f'   {name}: true {gain}, effect {effects.get(name)}',
              flush=True)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--minutes', type=float, default=25)
    parser.add_argument('--cases', type=int, default=1000)
    parser.add_argument('--seed', default='1')
    parser.add_argument('--factor', type=float, default=16)
    parser.add_argument('--out', metavar='FILE')
    args = parser.parse_args(argv)
    os.sched_setaffinity(0, {1})
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK,
                          os.sched_param(1))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    results = []
    with tempfile.TemporaryDirectory() as place, contextlib.suppress(
            KeyboardInterrupt):
        args.program = f'{place}/real_load'
        subprocess.run(['cc', '-O2', '-o', args.program,  # noqa: S603,S607
                        HERE / 'real_load.c'], check=True)
        judge_cases(args, results)
    lines, met = summarize(results)
    print('\n'.join(lines))
    if args.out:
        Path(args.out).write_text(json.dumps({
            'seed': args.seed, 'factor': args.factor,
            'attempts': results}, indent=1) + '\n')
    return not met


def judge_cases(args, results):
    """Add the result of each attempt to a list until the time is over."""
    limit = time.monotonic() + 60 * args.minutes
    peak = measure_peak(args)
    print(f'memory delivers {peak / 1e9:.1f} GB/s', flush=True)
    for number in range(args.cases):
        for found in run_case(args, number, peak):
            results.append(found)
            show_case(found)
            if time.monotonic() > limit:
                return


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
