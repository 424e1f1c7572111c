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

"""Threads of the emulated machine, and which group each of them is in."""

from collections.abc import Callable
from collections.abc import Collection
from dataclasses import dataclass
import errno
import re
from typing import Protocol

from ghsched_nova.lab.emulator import groups as grouplib
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import staging

Group = grouplib.Group
ResctrlError = staging.ResctrlError
_INT_MAX = 2 ** 31 - 1


@dataclass(frozen=True)
class Sample:
    """A thread at one moment.

    :param start: when it was started, in ticks of :meth:`Threads.now`; tells
        a reused number apart.
    :param cpu_seconds: CPU time that it used so far.
    :param cpu: CPU that it last ran on.
    """

    start: int
    cpu_seconds: float
    cpu: int


class Threads(Protocol):
    """The threads of the machine."""

    def sample(self, tid: int) -> Sample | None:
        """Return the thread now, or None when there is none of that number."""

    def thread_ids(self) -> set[int]:
        """Return every thread."""

    def offspring(self, tid: int) -> set[int]:
        """Other threads of process ``tid`` and its child processes.

        Of a thread that is not its process's first one, nothing.
        """

    def now(self) -> int:
        """Return the time at which a thread that starts now was started."""


@dataclass
class _Task:
    """A thread that was put into a group, at ``since``."""

    start: int
    group: Group
    since: int


class Tasks:
    """Group of each thread.

    :param before_move: called with the group that a thread is in and the
        thread, before it goes to another one.
    :param iommu_groups: those that the machine has; None for any of them.
    """

    def __init__(
        self,
        machine: machines.Machine,
        threads: Threads,
        groups: grouplib.Groups,
        before_move: Callable[[Group, int], None],
        iommu_groups: Collection[int] | None,
    ):
        self._machine = machine
        self._threads = threads
        self._groups = groups
        self._before_move = before_move
        self._iommu_groups = iommu_groups
        self._tasks: dict[int, _Task] = {}

    def sample(self, tid: int) -> Sample | None:
        """Return the thread now, or None when there is none of that number."""
        return self._threads.sample(tid)

    def refresh(self) -> None:
        """Forget threads that ended; let new ones inherit their group."""
        for tid, task in list(self._tasks.items()):
            sample = self._threads.sample(tid)
            if sample is None or sample.start != task.start:
                del self._tasks[tid]
                continue
            self._inherit(tid, task)

    def _inherit(self, tid: int, parent: _Task) -> None:
        """Move threads started after a move of their process to its group."""
        for child in self._threads.offspring(tid):
            if child in self._tasks:
                continue
            sample = self._threads.sample(child)
            if sample and sample.start >= parent.since:
                self._tasks[child] = _Task(
                    sample.start, parent.group, sample.start
                )

    def _current(self, tid: int, sample: Sample) -> Group:
        """Return the group of a thread, and put the threads that it started
        there too.

        Looks at no other thread, however many have been placed.
        """
        task = self._tasks.get(tid)
        if task is None or task.start != sample.start:
            return self._groups.root
        self._inherit(tid, task)
        return task.group

    def members(self, group: Group) -> set[int]:
        """Return threads that carry exactly this group's RMID and CLOSID."""
        placed = {t for t, x in self._tasks.items() if x.group is group}
        if group is self._groups.root:
            return placed | self._threads.thread_ids() - set(self._tasks)
        return placed

    def show(self, group: Group) -> str:
        """Return ``tasks``, with those of MON groups included."""
        self.refresh()
        tids = self.members(group)
        for child in group.children.values():
            tids |= self.members(child)
        lines = [f'{tid}\n' for tid in sorted(tids)]
        lines += [f'iommu_group:{x}\n' for x in sorted(group.iommu_groups)]
        return ''.join(lines)

    def write(self, group: Group, text: str, caller: int) -> None:
        """Put threads into a group.

        :param caller: the writing thread, which is called 0.
        :raises ResctrlError: EINVAL, ESRCH; those before are put there.
        """
        if self._machine.old_layout and ',' in text:
            raise ResctrlError(errno.EINVAL)
        while text and text[0] != '\n':
            item, _, text = text.partition(',')
            item = item.strip()
            bound = re.fullmatch(r'iommu_group:([0-9]+)', item)
            if bound and self._machine.iommu_groups:
                self._move_iommu_group(group, int(bound[1]))
                continue
            tid = _tid(item)
            try:
                self._move(group, tid or caller)
            except ResctrlError as exc:
                raise ResctrlError(
                    exc.number,
                    f'{exc.status}Error while processing task {tid}\n',
                ) from None

    def _move_iommu_group(self, group: Group, number: int) -> None:
        """rdtgroup_move_iommu() of the MPAM that OLK-6.6 began with."""
        if (self._iommu_groups is not None
                and number not in self._iommu_groups):
            raise ResctrlError(errno.ESRCH, 'No matching iommu group\n')
        current = next((one for one in self._groups.every_group()
                        if number in one.iommu_groups), self._groups.root)
        if group.parent and current.control is not group.parent:
            raise ResctrlError(
                errno.EINVAL,
                "Can't move iommu_group to different control group\n")
        current.iommu_groups.discard(number)
        if group is not self._groups.root:
            group.iommu_groups.add(number)

    def _move(self, group: Group, tid: int) -> None:
        sample = self._threads.sample(tid)
        if sample is None:
            raise ResctrlError(errno.ESRCH, f'No task {tid}\n')
        current = self._current(tid, sample)
        if group.parent and current.control is not group.parent:
            # A new thread may not have been seen in its parent's group yet.
            self.refresh()
            current = self._current(tid, sample)
        if group.parent and current.control is not group.parent:
            raise ResctrlError(
                errno.EINVAL, "Can't move task to different control group\n"
            )
        self._before_move(current, tid)
        self._tasks[tid] = _Task(sample.start, group, self._threads.now())

    def group_of(self, tid: int) -> Group | None:
        """Return the group of a thread; None when there is no such thread."""
        if self._threads.sample(tid) is None:
            return None
        task = self._tasks.get(tid)
        return task.group if task else self._groups.root

    def give(self, gone: Group, heir: Group) -> None:
        """Move all threads of a removed group into another one."""
        for tid, task in list(self._tasks.items()):
            if task.group is gone or task.group.parent is gone:
                self._tasks[tid] = _Task(task.start, heir, task.since)


def _tid(text: str) -> int:
    """Return a thread number as ``kstrtoint(text, 0)`` reads it."""
    sign = text[0] if text[:1] in ('+', '-') else ''
    tid = staging.read_integer(text.removeprefix(sign))
    # An int, of which the lowest is one more than the highest.
    if tid is None or tid > _INT_MAX + (sign == '-'):
        raise ResctrlError(
            errno.EINVAL, f'Task list parsing error pid {text}\n'
        )
    if sign == '-' and tid:
        raise ResctrlError(errno.EINVAL, f'Invalid pid {-tid}\n')
    return tid
