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


"""Random described controls with random guests, and what must be so.

A case is a machine whose kernel describes controls of any resolution, scale,
tolerance, range and reset value, with guests that Placement could have put
there. The engine makes their groups, somebody disturbs them, and the engine
repairs them, perhaps after it was killed. :class:`Judge` works with the lines
of the emulated machine and the definition of the linux-kernel list, amount =
value x scale x unit / resolution, and with nothing that the engine has
computed but the percentage that Placement counts.
"""

import collections
import dataclasses
from fractions import Fraction
from pathlib import Path
import random
import tempfile

from ghsched_nova.lab.emulator import described
from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import resolve
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_nova.tests.unit.resctrl import fuzz
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy

Failure = fuzz.Failure
BASES = ('intel', 'mpam', 'amd', 'nothing')


def machine(draw):
    """A machine with described controls."""
    base = draw.choice(BASES)
    known = machines.build('mpam' if base == 'nothing' else base,
                           emulated.NODES, closids=draw.randint(4, 12))
    lines = list(known.lines)
    if base == 'nothing':
        lines = [line for line in lines if line.name != 'MB']
        if draw.random() < .6:
            lines.append(_line(draw, 'MB_MAX', 'top'))
    if draw.random() < .8 or len(lines) == 1:
        lines.append(_minimum(draw, known.num_closids))
    if draw.random() < .4:
        lines.append(_line(draw, 'MB_KEPT', draw.choice(('top', 'any')),
                           reset='default'))
    if draw.random() < .4:
        lines.append(_line(draw, 'MB_ODD', 'any'))
    if draw.random() < .4:      # nothing describes it
        lines.append(machines.Line('MB_DARK', 'l3', 0, 999, 7,
                                   label='MB_DARK'))
    draw.shuffle(lines)
    return dataclasses.replace(known, dialect='random', lines=tuple(lines))


def _line(draw, name, default, **more):
    whole = draw.choice((draw.randint(2, 130), draw.randint(2, 70000),
                         100, 255, 256, 1000, 65535))
    scale = draw.choice((1, 1, 1, draw.randint(2, 9)))
    tolerance = draw.choice((0, 0, draw.randint(0, max(1, whole // 200))))
    lowest = draw.choice((0, 0, 1, draw.randint(0, whole // 4)))
    value = {'top': whole, 'any': draw.randint(lowest, whole),
             'low': lowest}[default]
    step = 2 * tolerance + 1
    if tolerance and default != 'top':
        value = lowest = 0
    return described.described_line(
        name, 'l3', whole, value, machines.Description(
            resolution=whole * scale, scale=scale,
            tolerance=draw.choice((tolerance, tolerance, None))
            if tolerance == 1 else tolerance, **more),
        minimum=lowest, rounding='nearest', granularity=step)


def _minimum(draw, closids):
    line = _line(draw, 'MB_MIN', 'low')
    if (line.maximum > 3 * closids and line.granularity == 1
            and draw.random() < .5):
        return dataclasses.replace(line, minimum=1, default=1,
                                   bound=line.maximum)
    if draw.random() < .3:
        line = dataclasses.replace(line, maximum=draw.randint(
            line.maximum // 2, line.maximum) or 1)
    return dataclasses.replace(line, minimum=0, default=0)


class Case(world.World):
    """A host with guests.

    :ivar asked: policy and host node of each guest.
    """

    def __init__(self, top, draw):
        super().__init__(top, machine(draw), ())
        self.draw, self.asked = draw, []
        self.files.wait = lambda _seconds: None
        self.promised = collections.Counter()
        described_host = self.host.make_description()
        self.most = 100 - described_host.kept_share
        for number in range(draw.randint(1, 5)):
            if number < self.host.num_closids - 1:
                self.put(number, described_host)

    def put(self, number, seen):
        draw, held, node = (self.draw, self.host.capabilities(),
                            self.draw.randrange(2))
        least = draw.choice((0, draw.randint(1, 70), 100 // (number + 1)))
        share = seen.round_up_guarantee(least) if least else 0
        if ('MEM_BW_MIN' not in held or not seen.guarantees
                or least > max(seen.guarantees)
                or self.promised[node] + share > self.most):
            least = share = 0
        self.promised[node] += share
        most = (draw.choice((100, draw.randint(max(least, 1), 100)))
                if 'MEM_BW_MAX' in held else 100)
        asked = NodePolicy(minimum=least, maximum=most,
                           hardlimit='MEM_BW_SOFTLIMIT' not in held)
        self.asked.append((asked, node, share))
        self.add(number, draw.choice(fuzz.MAKERS))
        self.guests[number] = dataclasses.replace(
            self.guests[number], desired=resolve.make_desired_lines(
                self.host, resolve.resolve_settings(
                    self.host, GuestPolicy(nodes=(asked,)), (node,))))

    def disturb(self):
        """Write any values to the groups of guests."""
        for group in self.groups():
            for line in self.model.machine.lines:
                if line.base == 16 or self.draw.random() < .5:
                    continue
                domain = self.draw.choice(self.model.machine.domains(
                    line.scope))
                value = self.draw.randint(line.minimum, min(
                    line.maximum, 2 ** 20))
                try:
                    self.model.write(f'/{group}/schemata',
                                     f'{line.name}:{domain}={value}\n')
                except kernel.ResctrlError:
                    continue    # more than there is


class Judge:
    """Looks at a case after a repair.

    :raises Failure: in each method.
    """

    def __init__(self, case):
        self.case = case
        self.lines = {line.name: line for line in case.model.machine.lines}

    def repaired(self, report):
        if report.problems:
            raise Failure(f'problems: {[*map(str, report.problems)]}')
        for number in range(len(self.case.guests)):
            self.holds(number)
        self.check_guarantee_sums()
        self.quiet()

    def holds(self, number):
        case = self.case
        asked, node, share = case.asked[number]
        rows = case.schemata(case.guests[number].group)
        own = case.host.domains_by_node[node]
        for name, line in self.lines.items():
            if line.base == 16 or not line.description:
                continue
            for domain, value in rows.values(name).items():
                mine = domain in own
                right = (
                    self.least(line, asked.minimum * mine, share, value)
                    if name == 'MB_MIN' else
                    self.most(line, asked.maximum if mine else 100, share,
                              value) if name == 'MB_MAX' else
                    name != 'MB_KEPT'
                    or self.is_near(line, line.default, value))
                if not right:
                    raise Failure(f'{asked} (counted {share}): {name} of '
                                  f'{domain} is {value} of {line}')

    def is_near(self, line, wanted, value):
        return abs(value - wanted) <= self.slack(line)

    def slack(self, line):
        told = line.description.tolerance
        return 1 if told is None else told

    def amount(self, line, value):
        """Percent that a value stands for."""
        told = line.description
        return Fraction(100 * value * told.scale, told.resolution)

    def least(self, line, asked, share, value):
        """Whether it is what was asked for, within one step of the hardware,
        and no more than Placement counts.
        """
        if 'MEM_BW_MIN' not in self.case.host.capabilities():
            return True
        if not asked:
            return self.is_near(line, line.default, value)
        slack = self.slack(line)
        return (self.amount(line, value + slack + 1) > asked
                and self.amount(line, value - slack) <= share)

    def most(self, line, asked, share, value):
        if asked == 100:
            return self.is_near(line, line.default, value)
        slack = self.slack(line)
        # The lowest cap goes up to a whole percentage, as all do.
        lowest = self.amount(line, max(line.minimum, slack + 1)) + 1
        return (self.amount(line, value + slack) >= asked
                and self.amount(line, value - slack - 1)
                < max(asked, share, lowest))

    def check_guarantee_sums(self):
        line = self.lines.get('MB_MIN')
        if (line is None
                or 'MEM_BW_MIN' not in self.case.host.capabilities()):
            return
        total = collections.Counter()
        groups = [guest.group for guest in self.case.guests]
        for group in ('', *groups) if line.bound else groups:
            total.update(self.case.schemata(group).values('MB_MIN'))
        for domain, value in total.items():
            slack = self.slack(line) * len(groups)
            if self.amount(line, value - slack) > 100 or (
                    line.bound and value > line.bound):
                raise Failure(f'the sum of domain {domain} is {value}')

    def quiet(self):
        before = self.state()
        report = self.case.reconcile()
        if report.actions or before != self.state():
            raise Failure(f'a second run did {[*map(str, report.actions)]}')

    def state(self):
        return {name: self.case.model.read(f'/{name}/schemata')
                for name in ('', *self.case.groups())}

    def untouched(self, before):
        """Lines that nobody here knows are as they were."""
        for name, text in before.items():
            after = self.case.schemata(name)
            for line in ('MB_DARK', 'MB_ODD'):
                if text.line(line) != after.line(line):
                    raise Failure(f'{line} of {name or "root"} was written')


def run(seed, number, count):
    """Run a case; the same arguments give the same case."""
    draw = random.Random(f'described/{seed}/{number}')  # noqa: S311
    count.cases += 1
    with tempfile.TemporaryDirectory(dir=world.memory()) as top:
        try:
            case = Case(Path(top), draw)
            count.dialects[case.host.dialect.name] += 1
            count.guests += len(case.guests)
            _run(case, draw, count)
        except Exception as exc:  # whatever it is, it is a finding
            count.failures.append(
                f'{seed}/{number} described: {type(exc).__name__}: {exc}')


def _run(case, draw, count):
    judge = Judge(case)
    judge.repaired(case.reconcile())
    case.disturb()
    before = {name: case.schemata(name) for name in ('', *case.groups())}
    if draw.random() < .5:
        case.files.kill_at(draw.randrange(8))
        try:
            case.reconcile()
        except KeyboardInterrupt:
            count.killed += 1
        case.files.before = lambda *_operation: None
    judge.repaired(case.reconcile())
    judge.untouched(before)
