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

"""Random hosts with random guests, and what must be so after a repair.

A case is a host of some dialect with guests that Placement could have put
there, groups of others, and a state that somebody has disturbed. The engine
repairs it, perhaps with a refusal of the kernel on the way or a kill, and
:class:`Judge` looks at what the hardware holds then. It does not use what the
engine computes with: which values there are it finds out by writing all of
them to a kernel of its own.
"""

import collections
import dataclasses
import errno
import functools
import itertools
from pathlib import Path
import random
import tempfile

from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resolve
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy

DIALECTS = ('intel', 'intel-mbps', 'amd', 'mpam', 'mpam71', 'openeuler510',
            'openeuler66', 'openeuler66-6bit', 'openeuler66-7bit',
            'kunpeng950', 'nvidia')
MAKERS = ('ghsched', 'libvirt', 'libvirt-process')
STALE = ('qemu-91-instance-000000ff-vcpus_0-1',
         naming.render_own_group_name(world.UUID.format(98)))
#: What the kernel may refuse, and how.
REFUSALS = (('mkdir', errno.ENOSPC), ('mkdir', errno.EBUSY),
            ('schemata', errno.EINVAL), ('tasks', errno.ESRCH),
            ('rmdir', errno.EBUSY))


class Failure(Exception):
    """Something that must not be; says what."""


@functools.cache
def shown(dialect, line):
    """Return the values that a line shows, by the percentage that was written.
    """
    probe = emulated.model(dialect)
    domain = min(probe.machine.domains(probe.machine.line(line).scope))
    found = {}
    for value in range(101):
        try:
            probe.write('/schemata', f'{line}:{domain}={value}\n')
        except kernel.ResctrlError:
            continue
        row = next(row for row in probe.read('/schemata').splitlines()
                   if row.strip().startswith(f'{line}:'))
        found[value] = int(row.partition('=')[2].partition(';')[0])
    return found


class Case(world.World):
    """A host with guests.

    :ivar asked: policy and host node of each guest, by number.
    :ivar dead: numbers of guests whose process has ended.
    :ivar lost: numbers of those whose process libvirt has not noted.
    """

    def __init__(self, top, draw, dialect):
        super().__init__(top, dialect, ())
        self.draw, self.dialect = draw, dialect
        rooms = draw.randint(3, 9)
        self.model = self.files.model = kernel.ResctrlModel(
            machines.build(dialect, emulated.NODES, closids=rooms),
            self.threads)
        self.host = dataclasses.replace(self.host, num_closids=rooms)
        self.files.wait = lambda _seconds: None
        self.asked = []
        self.dead = set()
        self.lost = set()
        self.promised = collections.Counter()
        for number in range(draw.randint(1, 6)):
            self.put(number)
        self.disturb()

    def put(self, number):
        """A guest, with a guarantee as far as Placement has some left."""
        draw, held = self.draw, self.host.capabilities()
        node = draw.randrange(2)
        minimum = draw.choice((0, 0, draw.randint(1, 60)))
        share = (self.host.make_description().round_up_guarantee(minimum)
                 if minimum else 0)
        if ('MEM_BW_MIN' not in held
                or self.promised[node] + share > 100):
            minimum = share = 0
        self.promised[node] += share
        maximum = draw.choice((100, draw.randint(max(minimum, 1), 100)))
        hard = 'MEM_BW_HARDLIMIT' in held and (
            'MEM_BW_SOFTLIMIT' not in held or draw.random() < .5)
        asked = NodePolicy(
            maximum=maximum, minimum=minimum, hardlimit=hard,
            priority=draw.randint(0, 7)
            if 'MEM_BW_PRIORITY' in held and draw.random() < .5 else None)
        self.asked.append((asked, node))
        domain = model.Domain(world.UUID.format(number), number + 1,
                              f'instance-{number:08x}')
        desired = resolve.make_desired_lines(
            self.host,
            resolve.resolve_settings(
                self.host, GuestPolicy(nodes=(asked,)), (node,)
            ),
        )
        self.guests.append(model.ResctrlGuest(
            domain, frozenset({0, 1}), 2, desired, draw.choice(MAKERS)))
        self.start(number, ['qemu-system-x86', 'CPU 0/KVM', 'CPU 1/KVM',
                            'IO mon_iothread'])

    # What happens to it -----------------------------------------------------

    def disturb(self):
        """Groups of guests and others, values and threads, at will."""
        draw = self.draw
        names = [*(guest.group for guest in self.guests), *STALE,
                 *world.OTHERS]
        draw.shuffle(names)
        room = self.host.num_closids - 1
        for name in names[:draw.randint(0, room)]:
            self.model.mkdir('/' + name)
            for _ in range(draw.randrange(3)):
                self.scribble(name)
        places = ['', *('/' + guest.group for guest in self.guests
                        if guest.group in self.groups())]
        for tid in sorted(self.threads.alive):
            if draw.random() < .3:
                self.model.write(f'{draw.choice(places)}/tasks', f'{tid}\n')
        for number in range(len(self.guests)):
            chance = draw.random()
            if chance < .08:
                self.end(number)
                self.dead.add(number)
            elif chance < .16:
                name = self.guests[number].domain.name
                (self.run / f'{name}.pid').unlink()
                self.lost.add(number)

    def scribble(self, name):
        knob = self.draw.choice(self.host.dialect.knobs)
        machine = self.model.machine
        line = machine.line(knob.line)
        domain = self.draw.choice(machine.domains(line.scope))
        highest = min(line.maximum, 100 if line.base == 10 else 1)
        value = self.draw.randint(line.minimum, highest)
        self.model.write(f'/{name}/schemata',
                         f'{knob.line}:{domain}={value}\n')

    def refuse(self):
        """Make the kernel refuse one operation once; return its name."""
        what, number = self.draw.choice(REFUSALS)
        left = itertools.count(self.draw.randrange(4), -1)

        def before(operation, *_rest):
            if operation == what and next(left) == 0:
                raise OSError(number, 'refused')

        self.files.before = before
        return what

    def calm(self):
        self.files.before = lambda *_operation: None

    def state(self):
        return {name: (self.model.read(f'/{name}/schemata'),
                       self.model.read(f'/{name}/tasks'))
                for name in ('', *self.groups())}

    def fix(self):
        return self.reconcile(without=self.dead)


class Judge:
    """Looks at a case after a repair.

    :raises Failure: in each method.
    """

    def __init__(self, case):
        self.case = case
        self.foreign = case.foreign()

    def repaired(self, report, excused=False):
        """Check a case after a repair; ``excused`` tells that something was
        refused on the way.
        """
        case = self.case
        self.same('groups of others', self.foreign, case.foreign())
        told = {problem.guest for problem in report.problems}
        for number, guest in enumerate(case.guests):
            if number in case.dead or guest.domain.uuid in told:
                continue
            self.holds(number)
        if not excused:
            self.same('groups of nobody', set(),
                      set(STALE) & set(case.groups())
                      - self.list_remaining_groups())
            self.check_guarantee_sums()
            self.reported(report, told)

    def reported(self, report, problems):
        case = self.case
        alive = [number for number in range(len(case.guests))
                 if number not in case.dead]
        others = set(case.groups()) - {
            case.guests[number].group for number in alive}
        scarce = len(alive) + len(others) > case.host.num_closids - 1
        for number in alive:
            uuid = case.guests[number].domain.uuid
            if (uuid in problems and not scarce and number not in case.lost
                    and not self.strangers(number)):
                raise Failure(f'guest {number} is not held: '
                              f'{[*map(str, report.problems)]}')

    def strangers(self, number):
        """Threads of lost guests in the group of another one."""
        lost = {self.case.process(one) + tid for one in self.case.lost
                for tid in range(4)}
        group = self.case.guests[number].group
        return lost & (self.case.tasks(group)
                       if group in self.case.groups() else set())

    def list_remaining_groups(self):
        """Groups of nobody that somebody's threads are in; they stay."""
        names = {*STALE, *(self.case.guests[number].group
                           for number in self.case.dead)}
        return {name for name in names & set(self.case.groups())
                if self.case.tasks(name)}

    def same(self, what, expected, found):
        if expected != found:
            raise Failure(f'{what}: {expected} became {found}')

    def quiet(self):
        """Check that one more repair changes nothing."""
        before = self.case.state()
        report = self.case.fix()
        self.same('what is done', (), report.actions)
        self.same('the state', before, self.case.state())

    def check_guarantee_sums(self):
        """Guarantees in a domain do not exceed it."""
        knob = self.case.host.dialect.find_knob('minimum')
        if knob is None:
            return
        total = collections.Counter()
        for name in self.case.groups():
            if (name not in world.OTHERS
                    and name not in self.list_remaining_groups()):
                total.update(self.case.schemata(name).values(knob.line))
        for domain, value in total.items():
            if value > 100:
                raise Failure(f'guarantees of domain {domain}: {value} %')

    def holds(self, number):
        """A guest has its group, with its threads and its values."""
        case, guest = self.case, self.case.guests[number]
        if guest.group not in case.groups():
            raise Failure(f'guest {number} has no group, and nobody says so')
        process = case.process(number)
        missing = {process + 1, process + 2} - case.tasks(guest.group)
        if missing and number not in case.lost:
            raise Failure(f'threads {missing} of guest {number} are outside')
        asked, node = case.asked[number]
        rows = case.schemata(guest.group)
        for knob in case.host.dialect.knobs:
            for domain, value in rows.values(knob.line).items():
                mine = domain in case.host.domains_by_node[node]
                if not self.right(knob, asked if mine else NodePolicy(),
                                  node, value, rows, domain):
                    raise Failure(
                        f'guest {number} asked {asked}, and domain {domain} '
                        f'of {knob.line} holds {value}')

    def right(self, knob, asked, node, value, rows, domain):
        host = self.case.host
        if knob.role == 'hardlimit':
            return not asked.is_capped or value == asked.hardlimit
        if knob.role == 'priority':
            return asked.priority in (None, value)
        if knob.role == 'minimum':
            return self.nearest(knob.line, asked.minimum, value)
        if host.dialect.has_absolute_caps:
            return self.delivers(asked, node, value)
        guarantee = host.dialect.find_knob('minimum')
        held = (rows.values(guarantee.line)[domain] if guarantee else 0)
        return self.nearest(knob.line, asked.maximum, value) or (
            held > asked.maximum and self.nearest(knob.line, held, value))

    def nearest(self, line, asked, value):
        """Whether it is the least that there is from what was asked on."""
        return value == min(
            one for one in shown(self.case.dialect, line).values()
            if one >= asked)

    def delivers(self, asked, node, value):
        """The same of a cap that is a bandwidth."""
        machine, host = self.case.model.machine, self.case.host
        if not asked.is_capped:
            return value == host.no_cap
        wanted = asked.maximum * world.SPEED * 2 ** 20 / 100
        unit = machine.cap_unit * len(host.domains_by_node[node])
        return value == host.no_cap or (
            wanted <= value * unit
            and ((value - host.granularity) * unit < wanted
                 or value == host.min_bandwidth))


@dataclasses.dataclass
class Count:
    """Numbers of cases and guests that were tried, and the failures."""

    cases: int = 0
    killed: int = 0
    refused: int = 0
    guests: int = 0
    dialects: collections.Counter = dataclasses.field(
        default_factory=collections.Counter)
    failures: list[str] = dataclasses.field(default_factory=list)


def run(seed, number, count):
    """Run a case; the same arguments give the same case."""
    draw = random.Random(f'{seed}/{number}')  # noqa: S311
    dialect = DIALECTS[number % len(DIALECTS)]
    count.cases += 1
    count.dialects[dialect] += 1
    with tempfile.TemporaryDirectory(dir=world.memory()) as top:
        case = Case(Path(top), draw, dialect)
        count.guests += len(case.guests)
        try:
            _run(case, draw, count)
        except Exception as exc:  # whatever it is, it is a finding
            count.failures.append(
                f'{seed}/{number} {dialect}: {type(exc).__name__}: {exc}')


def _run(case, draw, count):
    judge = Judge(case)
    way = draw.choice(('plain', 'kill', 'kill', 'refuse'))
    if way == 'kill':
        case.files.kill_at(draw.randrange(10))
        try:
            case.fix()
        except KeyboardInterrupt:
            count.killed += 1
    elif way == 'refuse':
        count.refused += 1
        case.refuse()
        judge.repaired(case.fix(), excused=True)
    case.calm()
    planned = case.preview(without=case.dead).actions
    report = case.fix()
    if not report.problems:
        judge.same('the plan', planned, report.actions[:len(planned)])
    judge.repaired(report)
    judge.quiet()
