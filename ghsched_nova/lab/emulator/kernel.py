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

"""fs/resctrl without a kernel: groups, tasks, CPUs, monitors, errors.

:class:`ResctrlModel` answers path operations as the kernel's file system
does and knows nothing of FUSE, so that it can be tested by itself. Which
threads there are and what they use comes from a
:class:`~ghsched_nova.lab.emulator.tasks.Threads`.

Followed are Documentation/filesystems/resctrl.rst, fs/resctrl/rdtgroup.c and
ctrlmondata.c, and for OLK-5.10 arch/arm64/kernel/mpam. Left out:
pseudo-locking, the feedback loop of ``mba_MBps``, moving a MON group by
rename, ``/proc/PID/cpu_resctrl_groups``.

Every figure of a monitor file is *simulated*, see
:mod:`ghsched_nova.lab.emulator.traffic`.
"""

from collections.abc import Callable
from collections.abc import Collection
import errno
import time

from ghsched_nova.lab.emulator import contention
from ghsched_nova.lab.emulator import entries
from ghsched_nova.lab.emulator import faults as faultlib
from ghsched_nova.lab.emulator import group_cpus
from ghsched_nova.lab.emulator import groups as grouplib
from ghsched_nova.lab.emulator import info as infolib
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import staging
from ghsched_nova.lab.emulator import tasks as tasklib
from ghsched_nova.lab.emulator import traffic as trafficlib
from ghsched_nova.lab.emulator import tree as treelib

ResctrlError = staging.ResctrlError
Sample = tasklib.Sample


class ResctrlModel:
    """A mounted resctrl file system.

    Paths are absolute within the mount (``/``, ``/info/MB``). Not thread
    safe: the caller serialises.

    :param iommu_groups: those that the machine has; None for any of them.
    """

    def __init__(
        self,
        machine: machines.Machine,
        threads: tasklib.Threads,
        faults: Callable[[], faultlib.Faults] = faultlib.Faults,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        load: Callable[[], contention.Load | None] = lambda: None,
        iommu_groups: Collection[int] | None = None,
    ):
        self.machine = machine
        #: What info/last_cmd_status says; empty is ``ok``.
        self.status = ''
        self._injector = faultlib.Injector(faults, sleep)
        self._groups = grouplib.Groups(machine, clock)
        self._tasks = tasklib.Tasks(
            machine, threads, self._groups, self._before_move, iommu_groups)
        self._cpus = group_cpus.GroupCpus(machine, self._groups)
        self._traffic = trafficlib.Traffic(
            machine, self._groups, self._tasks, self._cpus, clock, load)
        info = infolib.Info(machine, self._groups, self._traffic.counters,
                            lambda: self.status or 'ok\n')
        self._tree = treelib.Tree(
            machine, self._groups, self._tasks, self._cpus, self._traffic,
            info, self._injector)
        self._count(self._groups.root)

    def _before_move(self, group: grouplib.Group, tid: int) -> None:
        self._traffic.charge(group, tid)

    def drive(self, changed: bool = False) -> None:
        """Advance the traffic until now, see
        :meth:`ghsched_nova.lab.emulator.traffic.Traffic.drive`.
        """
        self._traffic.drive(changed)

    def lookup(self, path: str) -> entries.Entry:
        """Return the entry at a path.

        :raises ResctrlError: ENOENT or ENOTDIR; the status stays.
        """
        entry = self._tree.root()
        for name in filter(None, path.split('/')):
            if entry.children is None:
                raise ResctrlError(errno.ENOTDIR, None)
            found = entry.children().get(name)
            if found is None:
                raise ResctrlError(errno.ENOENT, None)
            entry = found
        return entry

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory.

        :raises ResctrlError: ENOENT or ENOTDIR.
        """
        children = self.lookup(path).children
        if children is None:
            raise ResctrlError(errno.ENOTDIR, None)
        return [*children()]

    def read(self, path: str) -> str:
        """Return the text of a file.

        :raises ResctrlError: ENOENT, EISDIR or an injected error.
        """
        entry = self.lookup(path)
        if entry.read is None:
            raise ResctrlError(errno.EISDIR, None)
        try:
            text = entry.read()
        except ResctrlError as error:
            if error.status is not None:
                self.status = error.status
            raise
        if entry.clears_status or (
                self.machine.linux73 and not path.startswith('/info')):
            self.status = ''
        for fault in self._injector.strike(entry.operation, path):
            text = fault.text + '\n' if fault.text else text
        return text

    def write(self, path: str, text: str, caller: int = 0) -> None:
        """Write a text to a file in one write().

        :param caller: the writing thread, which ``tasks`` calls 0.
        :raises ResctrlError: with the errno; the status says more.
        """
        entry = self.lookup(path)
        if entry.write is None:
            raise ResctrlError(errno.EACCES, None)
        with _Status(self, keep=entry.keeps_status):
            try:
                entry.write(text, caller)
            except ResctrlError as error:
                if (self.machine.linux73 and error.status is None
                        and error.number == errno.EINVAL):
                    name = path.rpartition('/')[2]
                    error.status = f'{name}: Invalid input\n'
                raise

    def mkdir(self, path: str) -> None:
        """Make a control group below the root or a MON group.

        :raises ResctrlError: EEXIST, EINVAL, ENODEV, ENOENT, ENOSPC, EBUSY,
            EPERM.
        """
        above, _, name = path.rpartition('/')
        parent = self.lookup(above)
        if parent.children is None:
            raise ResctrlError(errno.ENOTDIR, None)
        if name in parent.children():
            raise ResctrlError(errno.EEXIST, None)
        if '\n' in name:
            raise ResctrlError(errno.EINVAL, None)
        if above.startswith('/info'):
            # kernfs_to_rdtgroup() finds no group there.
            raise ResctrlError(errno.ENODEV, None)
        with _Status(self):
            self._injector.strike('mkdir', name)
            if parent.group is self._groups.root and parent.role == 'group':
                self._count(self._groups.make_control(name))
            elif parent.role == 'mon_groups' and name != 'mon_groups':
                self._count(self._groups.make_monitor(
                    name, parent.group or self._groups.root))
            else:
                raise ResctrlError(errno.EPERM)

    def rmdir(self, path: str) -> None:
        """Remove a group; its tasks and CPUs go to the group above.

        :raises ResctrlError: ENOENT, ENOTDIR, EPERM.
        """
        entry = self.lookup(path)
        if entry.children is None:
            raise ResctrlError(errno.ENOTDIR, None)
        group = entry.group
        if (entry.role != 'group' or group is None
                or group is self._groups.root):
            raise ResctrlError(errno.EPERM, None)
        # rdtgroup_rmdir() leaves the last status as it is.
        with _Status(self, keep=True):
            self._injector.strike('rmdir', group.name)
            self._remove(group)

    def _count(self, group: grouplib.Group) -> None:
        """Assign counters to a new group, as far as any are free.

        A group that gets none is made all the same; the status says so.
        """
        for counters in self._traffic.counters.values():
            self.status += counters.made(group.number)

    def _remove(self, group: grouplib.Group) -> None:
        for gone in group.family:
            self._traffic.account(gone, force=True)
        self._tasks.give(group, group.parent or self._groups.root)
        self._groups.remove(group)
        self._cpus.note_owners()
        for gone in group.family:
            for counters in self._traffic.counters.values():
                counters.gone(gone.number)


class _Status:
    """Clears ``last_cmd_status`` and fills it in when a command fails.

    What a load moves before a command is by what held before it.
    """

    def __init__(self, model: ResctrlModel, keep: bool = False):
        self._model = model
        self._keep = keep

    def __enter__(self) -> None:
        self._before = self._model.status
        if not self._keep:
            self._model.status = ''
        self._model.drive()

    def __exit__(self, _type: object, exc: object, _trace: object) -> None:
        self._model.drive(changed=True)
        if isinstance(exc, ResctrlError):
            status = exc.status
            self._model.status = self._before if status is None else status
