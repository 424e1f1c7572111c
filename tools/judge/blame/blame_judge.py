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


"""Staged cases and killed proofs for ``ghsched-host blame``.

Each case is a simulated host of 2 to 40 guests beside the emulated kernel, see
ghsched_nova/tests/fixtures/blame_cases.py: does the answer name who disturbs
a server? Half of them have a decoy that works whenever the culprit does, one
in four has no culprit in memory. Then proofs are killed at random moments, and
after the next reconciliation every control group has to be as before. Exit
status 1 if precision or recall is below the goal, an answer came late, or a
control group is not as before.
"""

import argparse
from pathlib import Path
import sys
import time

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from ghsched_nova.tests.fixtures import blame_cases  # noqa: E402
from ghsched_nova.tests.fixtures import blame_hosts  # noqa: E402

GOAL = 0.9
LATEST_S = 60


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--cases', type=int, default=200, metavar='N')
    parser.add_argument('--kills', type=int, default=1000, metavar='N')
    parser.add_argument('--seed', default='1')
    parser.add_argument('--only', type=int, metavar='NUMBER')
    parser.add_argument('--no-prove', action='store_true')
    parser.add_argument('--fast', action='store_true',
                        help='without the emulated kernel')
    args = parser.parse_args(argv)
    failed = judge_cases(args)
    if args.only is None and args.kills:
        failed |= judge_kills(args)
    return failed


def judge_cases(args):
    """Run the staged cases; return whether a goal is missed."""
    count, changed = blame_cases.Count(), 0
    began = time.process_time()
    for number in (range(args.cases) if args.only is None else [args.only]):
        case = blame_cases.make_case(args.seed, number)
        run = blame_cases.run_case if args.fast else blame_hosts.run_case
        found, seconds, *restored = run(case, args.seed, not args.no_prove)
        changed += not all(restored)
        right = count.add(case, found, seconds)
        if not right or args.only is not None:
            show_case(case, found, seconds)
    print(f'{count.cases} cases: {count.right} culprits found, '
          f'{count.missed} missed, {count.wrong} wrongly named, '
          f'{count.correct_none} rightly nobody; precision '
          f'{count.precision:.3f}, recall {count.recall:.3f}; longest '
          f'{count.longest:.0f} s, {changed} with control groups left '
          f'changed; {time.process_time() - began:.0f} s of CPU', flush=True)
    return bool(changed) or count.longest > LATEST_S or (
        not args.no_prove and min(count.precision, count.recall) < GOAL)


def judge_kills(args):
    """Kill proofs; return whether a control group was left changed."""
    began = time.process_time()
    changed, hit = blame_hosts.run_killed(args.seed, args.kills)
    print(f'{args.kills} killed proofs, {hit} of them while a control group '
          f'was changed: {changed} not restored by the next reconciliation; '
          f'{time.process_time() - began:.0f} s of CPU', flush=True)
    return bool(changed)


def show_case(case, found, seconds):
    """Print a case whose answer is wrong."""
    names = {one.uuid: one.name for one in case.tenants}
    print(f'case {case.number}: {case.kind}, {len(case.tenants)} guests, '
          f'decoy {case.decoy}: {found.verdict.kind} '
          f'{names.get(found.verdict.suspect, "")} {found.verdict.cause} '
          f'{found.verdict.value}, load {found.load}, {seconds:.0f} s',
          flush=True)
    gains = blame_cases.measure_gains(case.tenants)
    for one in found.suspects[:5]:
        name = names.get(one.uuid, 'host')
        print(f'   {name}: true {gains.get(name)}, share {one.share:.2f}, '
              f'r {one.correlation}, {one.effect} {one.untried}')


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
