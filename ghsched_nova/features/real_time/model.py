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


"""Scheduling of the threads of guests: actual and required."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import get_args
from typing import Literal

from ghsched_nova.base.guest_changes import Problem
from ghsched_placement.base import cpulist
from ghsched_placement.features.real_time.scheduling import Scheduling

#: Kinds of QEMU threads.
Kind = Literal['vcpu', 'emulator', 'iothread']

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Role:
    """Role of a thread in its guest, e.g. vCPU 3; the emulator has number 0.
    """

    kind: Kind
    number: int = 0

    def __str__(self) -> str:
        names = {'vcpu': f'vCPU {self.number}', 'emulator': 'main thread',
                 'iothread': f'I/O thread {self.number}'}
        return names[self.kind]


@dataclass(frozen=True)
class GuestScheduling:
    """Required scheduling of the threads of a running guest.

    :param wanted: scheduling by role; threads without an entry are not
        changed.
    :param pins: host CPUs by role; threads without an entry are not changed.
    """

    uuid: str
    name: str
    wanted: Mapping[Role, Scheduling] = field(default_factory=dict)
    pins: Mapping[Role, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ScheduledThread:
    """Actual scheduling of a thread, as the kernel reports it.

    :param tid: thread id.
    :param start: start time of the thread in clock ticks since boot (field 22
        of ``/proc/PID/stat``), which shows whether the id has been reused.
    :param scheduling: scheduling class of the thread.
    :param cpus: host CPUs on which the thread may run.
    :param resets_on_fork: whether threads that this thread creates start in
        the class ``other`` (SCHED_RESET_ON_FORK of sched(7)).
    """

    tid: int
    start: int
    scheduling: Scheduling
    cpus: frozenset[int] = frozenset()
    resets_on_fork: bool = True


@dataclass(frozen=True)
class ThreadChange:
    """Change of the scheduling class or of the CPUs of one thread.

    :param uuid: UUID of the guest.
    :param domain: name of the guest's domain.
    :param role: role of the thread in the guest, e.g. vCPU 3.
    :param thread: the thread, with its present scheduling.
    :param scheduling: scheduling class to set.
    :param reason: present setting of the thread, as text.
    :param cpus: CPUs to set; empty if the class must be set.
    """

    uuid: str
    domain: str
    role: Role
    thread: ScheduledThread
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
        """Text of the value to set: the CPUs or the scheduling class."""
        return (cpulist.render_cpu_list(self.cpus) if self.cpus
                else str(self.scheduling))

    @property
    def details(self) -> str:
        of = 'CPUs ' if self.cpus else ''
        return f'{self.role} (thread {self.thread.tid}): {of}{self.line}'


def plan_guest_thread_changes(
    guest: GuestScheduling, threads: Mapping[Role, ScheduledThread]
) -> tuple[tuple[ThreadChange, ...], tuple[Problem, ...]]:
    """Return the changes that make a guest's threads comply with its policy.

    These are changes of scheduling class and of CPUs. Changes of CPUs come
    first, because the kernel does not move a thread under deadline scheduling.

    :param threads: the guest's threads, with their present scheduling.
    :returns: the changes, and a problem if threads of the policy are missing.
    """
    actions = tuple(
        ThreadChange(guest.uuid, guest.name, role, threads[role],
                     threads[role].scheduling,
                     'it may run on CPUs '
                     f'{cpulist.render_cpu_list(threads[role].cpus)}',
                     cpus)
        for role, cpus in guest.pins.items()
        if role in threads and threads[role].cpus != cpus)
    actions += tuple(
        ThreadChange(guest.uuid, guest.name, role, threads[role], scheduling,
                     reason)
        for role, scheduling in guest.wanted.items()
        if role in threads
        and (reason := _describe_class_difference(threads[role], scheduling)))
    missing = [role for role in guest.wanted if role not in threads]
    if not missing:
        return actions, ()
    return actions, (Problem(
        guest.uuid, 'no thread is found for '
        + ', '.join(map(str, missing))),)


def _describe_class_difference(thread: ScheduledThread, wanted: Scheduling
                               ) -> str:
    """Return how a thread's scheduling class differs from the wanted one.

    The text is empty if the class does not differ.
    """
    if thread.scheduling != wanted:
        return f'it has {thread.scheduling}'
    if wanted.realtime and not thread.resets_on_fork:
        return f'the threads that it makes inherit {wanted}'
    return ''
