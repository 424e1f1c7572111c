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


"""The threads of guests: how they are and how they should be scheduled."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import get_args
from typing import Literal

from ghsched_placement import cpulist
from ghsched_placement.scheduling import Scheduling

#: What a thread of QEMU is.
Kind = Literal['vcpu', 'emulator', 'iothread']

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Role:
    """Which thread of a guest, e.g. vCPU 3; the emulator has number 0."""

    kind: Kind
    number: int = 0

    def __str__(self) -> str:
        names = {'vcpu': f'vCPU {self.number}', 'emulator': 'main thread',
                 'iothread': f'I/O thread {self.number}'}
        return names[self.kind]


@dataclass(frozen=True)
class Guest:
    """What the threads of one running guest should have.

    :param wanted: by role; threads without an entry are left alone.
    :param pins: host CPUs that threads are to run on, likewise.
    """

    uuid: str
    name: str
    wanted: Mapping[Role, Scheduling] = field(default_factory=dict)
    pins: Mapping[Role, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Thread:
    """A thread as the kernel has it.

    :param start: its start time in clock ticks since boot (field 22 of
        ``/proc/PID/stat``), which tells it from a later thread of the same
        number.
    :param cpus: those that it may run on.
    :param resets_on_fork: whether threads that it makes are of the class
        ``other`` (SCHED_RESET_ON_FORK of sched(7)).
    """

    tid: int
    start: int
    scheduling: Scheduling
    cpus: frozenset[int] = frozenset()
    resets_on_fork: bool = True


@dataclass(frozen=True)
class Action:
    """One thread whose class is to be set, or where it may run.

    :param domain: name of the guest's domain.
    :param reason: what it has now, in words.
    :param cpus: where it may run, for that; empty where the class is meant.
    """

    uuid: str
    domain: str
    role: Role
    thread: Thread
    scheduling: Scheduling
    reason: str
    cpus: frozenset[int] = frozenset()

    @property
    def kind(self) -> str:
        return 'set CPUs' if self.cpus else 'set class'

    @property
    def threads(self) -> tuple[int, ...]:
        return (self.thread.tid,)

    @property
    def subject(self) -> str:
        return str(self.role)

    @property
    def line(self) -> str:
        """What is set."""
        return (cpulist.render(self.cpus) if self.cpus
                else str(self.scheduling))

    @property
    def what(self) -> str:
        of = 'CPUs ' if self.cpus else ''
        return f'{self.role} (thread {self.thread.tid}): {of}{self.line}'


@dataclass(frozen=True)
class Problem:
    """What cannot be made so."""

    uuid: str
    reason: str

    def __str__(self) -> str:
        return f'guest {self.uuid}: {self.reason}'


def plan(guest: Guest, actual: Mapping[Role, Thread],
         ) -> tuple[tuple[Action, ...], tuple[Problem, ...]]:
    """What is to be set so that a guest's threads are as they should be.

    A guest that is as it should be gives nothing. CPUs come first, because
    the kernel does not move a thread under deadline.
    """
    actions = tuple(
        Action(guest.uuid, guest.name, role, actual[role],
               actual[role].scheduling,
               f'it may run on CPUs {cpulist.render(actual[role].cpus)}',
               cpus)
        for role, cpus in guest.pins.items()
        if role in actual and actual[role].cpus != cpus)
    actions += tuple(
        Action(guest.uuid, guest.name, role, actual[role], scheduling, reason)
        for role, scheduling in guest.wanted.items()
        if role in actual and (reason := _differs(actual[role], scheduling)))
    missing = [role for role in guest.wanted if role not in actual]
    if not missing:
        return actions, ()
    return actions, (Problem(
        guest.uuid, 'no thread is found for '
        + ', '.join(map(str, missing))),)


def _differs(thread: Thread, wanted: Scheduling) -> str:
    """Return what a thread has in place of a class; empty for the class."""
    if thread.scheduling != wanted:
        return f'it has {thread.scheduling}'
    if wanted.realtime and not thread.resets_on_fork:
        return f'the threads that it makes inherit {wanted}'
    return ''
