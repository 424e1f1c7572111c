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
threads there are and what they use comes from a :class:`Threads`.

Followed are Documentation/filesystems/resctrl.rst, fs/resctrl/rdtgroup.c and
ctrlmondata.c, and for OLK-5.10 arch/arm64/kernel/mpam. Left out:
pseudo-locking, the feedback loop of ``mba_MBps``, moving a MON group by
rename, ``/proc/PID/cpu_resctrl_groups``.

Every figure of a monitor file is *simulated*: a thread that uses one CPU
fully moves :data:`FULL_RATE` bytes per second on the node and the L3 of the
CPU that it last ran on, times its group's MB percentage there (or no more
than its cap, where that is a bandwidth) unless the group may exceed it
(``MBHDL`` or ``MB_HLIM`` 0). An L3 holds :data:`OCCUPANCY` bytes per thread.
With a load, groups contend instead for what the nodes deliver, see
:mod:`ghsched_nova.lab.emulator.contention`.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
import errno
import functools
import re
import time
from typing import Literal
from typing import Protocol

from ghsched_nova.lab.emulator import contention
from ghsched_nova.lab.emulator import counters as counterlib
from ghsched_nova.lab.emulator import cpusets
from ghsched_nova.lab.emulator import faults as faultlib
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import staging

ResctrlError = staging.ResctrlError

#: Bytes per second of one busy thread without a cap (simulated).
FULL_RATE = 4e9
#: The part of what a busy thread moves that is local (simulated).
LOCAL = 0.8
#: Bytes of L3 per thread (simulated).
OCCUPANCY = 65536
#: A place that a thread runs on: NUMA node, L3 cache.
Place = tuple[int, int]
#: A rate is the mean since the last look, but of no less than this (seconds).
RATE_WINDOW = 0.05


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
        """The thread now, or None when there is none of that number."""

    def all(self) -> set[int]:
        """Every thread."""

    def offspring(self, tid: int) -> set[int]:
        """Other threads of process ``tid`` and its child processes.

        Of a thread that is not its process's first one, nothing.
        """

    def now(self) -> int:
        """The time at which a thread that starts now was started."""


@dataclass(eq=False)
class Group:
    """A CTRL_MON group, or with a parent a MON group."""

    name: str
    closid: int
    rmid: int
    parent: 'Group | None' = None
    values: staging.Values = field(default_factory=dict)
    cpus: frozenset[int] = frozenset()
    mode: str = 'shareable'
    children: dict[str, 'Group'] = field(default_factory=dict)
    iommu_groups: set[int] = field(default_factory=set)
    number: int = 0
    traffic: dict[Place, float] = field(default_factory=dict)
    before: dict[Place, float] = field(default_factory=dict)
    rates: dict[Place, float] = field(default_factory=dict)
    looked_at: float = 0.0
    created: float = field(default_factory=time.time)

    @property
    def control(self) -> 'Group':
        """The control group: itself, or the parent of a MON group."""
        return self.parent or self


@dataclass
class _Task:
    """A thread that was put into a group, at ``since``."""

    start: int
    group: Group
    since: int


@dataclass(frozen=True)
class Entry:
    """What a path names: a directory has ``children``, a file ``read``.

    :param operation: name of a write in the fault file.
    """

    mode: int
    children: 'Callable[[], dict[str, Entry]] | None' = None
    read: Callable[[], str] | None = None
    write: Callable[[str, int], None] | None = None
    group: Group | None = None
    role: Literal['group', 'mon_groups', 'other'] = 'other'
    operation: str = 'read'


class ResctrlModel:
    """A mounted resctrl file system.

    Paths are absolute within the mount (``/``, ``/info/MB``). Not thread
    safe: the caller serialises.

    :param iommu_groups: those that the machine has; None for any of them.
    """

    def __init__(
        self,
        machine: machines.Machine,
        threads: Threads,
        faults: Callable[[], faultlib.Faults] = faultlib.Faults,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        load: Callable[[], contention.Load | None] = lambda: None,
        iommu_groups: Collection[int] | None = None,
    ):
        self.machine = machine
        self._threads = threads
        self._faults = faults
        self._clock = clock
        self._sleep = sleep
        self._load = load
        self._drive = contention.Drive(machine, clock())
        self._driven: tuple[object, ...] = ()
        self._iommu_groups = iommu_groups
        #: What info/last_cmd_status says; empty is ``ok``.
        self.status = ''
        self._threshold = 65536
        self._groups: dict[str, Group] = {}
        self._tasks: dict[int, _Task] = {}
        self._seen: dict[int, Sample] = {}
        self._limbo: dict[int, float] = {}
        self._cpu_owners: dict[int, Group] = {}
        self._root = Group(
            '', 0, 0, values=staging.defaults(machine), cpus=machine.cpus,
            looked_at=clock(),
        )
        self._numbers = 0
        self._counters = {
            monitor.resource: counterlib.Counters(
                machine, monitor, functools.partial(self._bytes, monitor)
            )
            for monitor in machine.monitors if monitor.counters
        }
        self._count(self._root)

    # Paths ---------------------------------------------------------------

    def lookup(self, path: str) -> Entry:
        """What a path names.

        :raises ResctrlError: ENOENT or ENOTDIR; the status stays.
        """
        entry = self._group_dir(self._root)
        for name in filter(None, path.split('/')):
            if entry.children is None:
                raise ResctrlError(errno.ENOTDIR, None)
            found = entry.children().get(name)
            if found is None:
                raise ResctrlError(errno.ENOENT, None)
            entry = found
        return entry

    def listdir(self, path: str) -> list[str]:
        """Names in a directory.

        :raises ResctrlError: ENOENT or ENOTDIR.
        """
        children = self.lookup(path).children
        if children is None:
            raise ResctrlError(errno.ENOTDIR, None)
        return [*children()]

    def read(self, path: str) -> str:
        """The text of a file.

        :raises ResctrlError: ENOENT, EISDIR or an injected error.
        """
        entry = self.lookup(path)
        if entry.read is None:
            raise ResctrlError(errno.EISDIR, None)
        text = entry.read()
        for fault in self._struck(entry.operation, path, reading=True):
            text = fault.text + '\n' if fault.text else text
        return text

    def write(self, path: str, text: str, caller: int = 0) -> None:
        """One write() to a file.

        :param caller: the writing thread, which ``tasks`` calls 0.
        :raises ResctrlError: with the errno; the status says more.
        """
        entry = self.lookup(path)
        if entry.write is None:
            raise ResctrlError(errno.EACCES, None)
        with _Status(self):
            entry.write(text, caller)

    def mkdir(self, path: str) -> None:
        """Make a control group below the root or a MON group.

        :raises ResctrlError: EEXIST, EINVAL, ENOENT, ENOSPC, EBUSY, EPERM.
        """
        above, _, name = path.rpartition('/')
        parent = self.lookup(above)
        if parent.children is None:
            raise ResctrlError(errno.ENOTDIR, None)
        if name in parent.children():
            raise ResctrlError(errno.EEXIST, None)
        if '\n' in name:
            raise ResctrlError(errno.EINVAL, None)
        with _Status(self):
            self._struck('mkdir', name)
            if parent.group is self._root and parent.role == 'group':
                self._make_control(name)
            elif parent.role == 'mon_groups' and name != 'mon_groups':
                self._make_monitor(name, parent.group or self._root)
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
        if entry.role != 'group' or group is None or group is self._root:
            raise ResctrlError(errno.EPERM, None)
        # rdtgroup_rmdir() leaves the last status as it is.
        with _Status(self, keep=True):
            self._struck('rmdir', group.name)
            self._remove(group)

    def _struck(
        self, operation: str, subject: str, reading: bool = False
    ) -> 'list[faultlib.Fault]':
        subject = subject.lstrip('/')
        if reading and operation != 'mon':
            operation = 'read'
        struck = self._faults().take(operation, [subject], subject)
        self._suffer(struck)
        return struck

    def _suffer(self, struck: 'list[faultlib.Fault]') -> None:
        """Wait and fail as the faults say."""
        for fault in struck:
            if fault.delay:
                self._sleep(fault.delay)
            if fault.error:
                raise ResctrlError(fault.error, fault.status)

    # Directories ---------------------------------------------------------

    def _group_dir(self, group: Group) -> Entry:
        return Entry(
            0o755, children=lambda: self._group_entries(group), group=group,
            role='group',
        )

    def _group_entries(self, group: Group) -> dict[str, Entry]:
        entries = {
            'cpus': self._file(group, self._show_cpus, self._write_cpus),
            'cpus_list': self._file(
                group, self._show_cpus_list, self._write_cpus_list
            ),
            'tasks': self._file(group, self._show_tasks, self._write_tasks),
        }
        if group.parent is None:
            entries |= self._control_entries(group)
        if self.machine.monitors:
            entries['mon_data'] = self._dir(lambda: self._mon_data(group))
        if self.machine.old_layout:
            entries['rmid'] = Entry(0o644, read=lambda: f'{group.rmid}\n')
        for name, counters in self._counters.items():
            entries[f'mbm_{name}_assignments'] = self._assignments(
                group, counters)
        if group is self._root:
            entries['info'] = self._dir(self._info)
            entries |= {
                name: self._group_dir(x) for name, x in self._groups.items()
            }
        return entries

    def _control_entries(self, group: Group) -> dict[str, Entry]:
        entries = {
            'schemata': self._file(
                group, self._show_schemata, self._write_schemata
            ),
        }
        if not self.machine.old_layout:
            entries['mode'] = self._file(
                group, lambda g: f'{g.mode}\n', self._write_mode
            )
            entries['size'] = Entry(0o444, read=lambda: staging.sizes(
                self.machine, group.values
            ))
        for name, text in self.machine.group_files:
            entries[name] = Entry(
                0o444, read=lambda text=text: text)  # type: ignore[misc]
        if self.machine.monitors:
            entries['mon_groups'] = Entry(
                0o755, group=group, role='mon_groups',
                children=lambda: {
                    name: self._group_dir(child)
                    for name, child in group.children.items()
                },
            )
        return entries

    @staticmethod
    def _file(
        group: Group,
        show: Callable[[Group], str],
        store: Callable[[Group, str, int], None],
    ) -> Entry:
        return Entry(
            0o644, group=group, read=lambda: show(group),
            write=lambda text, caller: store(group, text, caller),
        )

    @staticmethod
    def _dir(children: Callable[[], dict[str, Entry]]) -> Entry:
        return Entry(0o555, children=children)

    def _assignments(
        self, group: Group, counters: counterlib.Counters
    ) -> Entry:
        def write(text: str, _caller: int) -> None:
            self._account(group, force=True)
            counters.write(group.number, text)

        return Entry(
            0o644, write=write, read=lambda: counters.show(group.number)
        )

    def _mon_data(self, group: Group) -> dict[str, Entry]:
        entries = {
            f'mon_{monitor.resource}_{domain:02d}': self._mon_domain(
                group, monitor, domain
            )
            for monitor in self.machine.monitors
            for domain in self.machine.domains(monitor.scope)
        }
        for name, scope in self.machine.empty_monitors:
            entries |= {
                f'mon_{name}_{domain:02d}': self._dir(dict)
                for domain in self.machine.domains(scope)
            }
        return entries

    def _mon_domain(
        self, group: Group, monitor: machines.Monitor, domain: int
    ) -> Entry:
        if self.machine.old_layout:
            return self._mon_file(
                group, monitor, monitor.features[0], domain)

        def children() -> dict[str, Entry]:
            entries = {
                feature: self._mon_file(group, monitor, feature, domain)
                for feature in monitor.features
            }
            return entries | self._mon_nodes(group, monitor, domain)

        return self._dir(children)

    def _mon_nodes(
        self, group: Group, monitor: machines.Monitor, domain: int
    ) -> dict[str, Entry]:
        """The files of each NUMA node below an L3 cache."""
        return {
            f'mon_sub_L3_{node.id:02d}': self._dir(
                lambda node=node: {  # type: ignore[misc]
                    feature: self._mon_file(
                        group, monitor, feature, domain, node.id)
                    for feature in monitor.features
                }
            )
            for node in self.machine.nodes
            if monitor.nodes and node.l3 == domain
        }

    def _mon_file(
        self, group: Group, monitor: machines.Monitor, feature: str,
        domain: int, node: int | None = None,
    ) -> Entry:
        return Entry(0o444, operation='mon', read=lambda: self._show_monitor(
            group, monitor, feature, domain, node
        ))

    def _info(self) -> dict[str, Entry]:
        files: dict[str, dict[str, str]] = {}
        for line in self.machine.lines:
            if line.info is not None:
                files[line.info] = self._line_info(line)
        for monitor in self.machine.monitors:
            files[f'{monitor.resource}_MON'] = self._monitor_info(monitor)
        for path, text in self.machine.info_files:
            above, _, name = path.rpartition('/')
            files.setdefault(above, {})[name] = text
        entries = {name: self._info_dir(name, x) for name, x in files.items()}
        entries['last_cmd_status'] = Entry(
            0o444, read=lambda: self.status or 'ok\n'
        )
        return entries

    def _monitor_info(self, monitor: machines.Monitor) -> dict[str, str]:
        files = {'num_rmids': f'{self.machine.num_rmids}\n'}
        if self.machine.old_layout:
            return files | {'num_monitors': '8\n'}
        return files | {
            'mon_features': ''.join(f'{x}\n' for x in monitor.features)
        }

    def _counter_info(
        self, counters: counterlib.Counters
    ) -> dict[str, Entry]:
        return {
            'mbm_assign_mode': Entry(
                0o644, read=counters.show_mode,
                write=lambda text, _caller: counters.write_mode(text)),
            'num_mbm_cntrs': Entry(0o444, read=counters.show_all),
            'available_mbm_cntrs': Entry(0o444, read=counters.show_free),
            counterlib.ON_MKDIR: Entry(
                0o644, read=counters.show_on_mkdir,
                write=lambda text, _caller: counters.write_on_mkdir(text)),
        }

    def _info_dir(self, name: str, files: dict[str, str]) -> Entry:
        entries = {
            file: Entry(0o444, read=lambda text=text: text)  # type: ignore
            for file, text in files.items()
        }
        if name == 'L3_MON' and not self.machine.old_layout:
            entries['max_threshold_occupancy'] = Entry(
                0o644, read=lambda: f'{self._threshold}\n',
                write=self._write_threshold,
            )
        counters = self._counters.get(name.removesuffix('_MON'))
        if counters and name.endswith('_MON'):
            entries |= self._counter_info(counters)
        return self._dir(lambda: entries)

    def _line_info(self, line: machines.Line) -> dict[str, str]:
        closids = line.closids or self.machine.num_closids
        files = {'num_closids': f'{closids}\n'}
        old = self.machine.old_layout
        if line.base == 10:
            lowest, step = line.info_minimum, line.info_granularity
            files |= {
                'bandwidth_gran': f'{step or line.granularity}\n',
                'min_bandwidth':
                    f'{line.minimum if lowest is None else lowest}\n',
            }
            return files if old else files | {
                'delay_linear': f'{line.linear}\n'}
        files |= {
            'cbm_mask': f'{line.maximum:x}\n',
            'min_cbm_bits': '1\n',
            'shareable_bits': f'{line.maximum if old else 0:x}\n',
        }
        return files if old else files | {
            'bit_usage': self._bit_usage(line),
            'sparse_masks': f'{int(line.sparse_masks)}\n',
        }

    def _bit_usage(self, line: machines.Line) -> str:
        def letter(domain: int, bit: int) -> str:
            users = {
                group.mode for group in self._controls()
                if group.values[line.name][domain] >> bit & 1
            }
            return 'S' if 'shareable' in users else 'E' if users else '0'

        return ';'.join(
            f'{domain}=' + ''.join(
                letter(domain, bit)
                for bit in reversed(range(line.maximum.bit_length()))
            )
            for domain in self.machine.domains(line.scope)
        ) + '\n'

    # Groups --------------------------------------------------------------

    def _controls(self) -> Iterator[Group]:
        yield self._root
        yield from self._groups.values()

    def _all_groups(self) -> Iterator[Group]:
        for control in self._controls():
            yield control
            yield from control.children.values()

    def _make_control(self, name: str) -> None:
        used = {group.closid for group in self._controls()}
        free = set(range(self.machine.num_closids)) - used
        if not free:
            raise ResctrlError(errno.ENOSPC, 'Out of CLOSIDs\n')
        closid = min(free)
        group = self._groups[name] = Group(
            name, closid, self._new_rmid(closid), values=self._new_values(),
            looked_at=self._clock(),
        )
        self._count(group)

    def _make_monitor(self, name: str, parent: Group) -> None:
        group = parent.children[name] = Group(
            name, parent.closid, self._new_rmid(parent.closid), parent,
            looked_at=self._clock(),
        )
        self._count(group)

    def _count(self, group: Group) -> None:
        """Give a new group its counters, as far as there are any.

        A group that gets none is made all the same; the status tells.
        """
        self._numbers += 1
        group.number = self._numbers
        for counters in self._counters.values():
            self.status += counters.made(group.number)

    def _bytes(
        self, monitor: machines.Monitor, number: int, domain: int
    ) -> float:
        """What a group has moved in a domain so far."""
        return sum(
            amount for group in self._all_groups() if group.number == number
            for place, amount in self._amounts(group, monitor.unit)
            if place[monitor.scope == 'l3'] == domain
        )

    def _amounts(
        self, group: Group, unit: str, feature: str = '',
    ) -> Iterator[tuple[Place, float]]:
        """What a group moved so far, or moves in a second, by place."""
        local = feature == 'mbm_local_bytes'
        used = group.rates if unit == 'MBps' else group.traffic
        for place, amount in used.items():
            yield place, amount * (LOCAL if local else 1)
        for place, amount in self._drive.figures(group.number, unit).items():
            if not local or self._is_local(place):
                yield place, amount

    def _is_local(self, place: Place) -> bool:
        return any(cache.id == place[1] for node in self.machine.nodes
                   if node.id == place[0] for cache in node.caches)

    def drive(self, changed: bool = False) -> None:
        """Let the load run until now, and go on by what holds now.

        :param changed: whether groups or schemata may be others than before.
        """
        self._drive.advance(self._clock())
        load = self._load()
        if load is None:
            now: tuple[object, ...] = ()
        else:
            now = (load, *map(self._group_of, load.tasks))
        if now != self._driven or changed and load:
            self._drive.steer(load, self._loaded(load) if load else [])
            self._driven = now

    def _loaded(self, load: contention.Load) -> list[contention.Member]:
        """The groups with what the load asks for in each."""
        def demands(group: Group) -> Iterator[contention.Demand]:
            path = group.name if group.parent is None else (
                f'{group.parent.name}/mon_groups/{group.name}'.lstrip('/'))
            yield load.groups.get(path, {})
            for tid, demand in load.tasks.items():
                if self._group_of(tid) is group:
                    yield demand
            for number, demand in load.iommu_groups.items():
                bound = (x for x in self._all_groups()
                         if number in x.iommu_groups)
                if next(bound, self._root) is group:
                    yield demand

        return [
            contention.Member(group.number, group.control.name,
                              group.control.values, tuple(demands(group)))
            for group in self._all_groups()
        ]

    def _group_of(self, tid: int) -> Group | None:
        """The group of a thread; None when there is no such thread."""
        if self._threads.sample(tid) is None:
            return None
        task = self._tasks.get(tid)
        return task.group if task else self._root

    def _new_values(self) -> staging.Values:
        """Defaults, without the cache portions of exclusive groups."""
        values = staging.defaults(self.machine)
        for line in self.machine.lines:
            if line.base != 16:
                continue
            for domain in values[line.name]:
                taken = 0
                for group in self._controls():
                    if group.mode == 'exclusive':
                        taken |= group.values[line.name][domain]
                # cbm_ensure_valid(): sparse masks are taken as they are.
                mask = line.default & ~taken
                if not line.sparse_masks:
                    mask = _lowest_run(mask)
                if mask < line.minimum:
                    raise ResctrlError(
                        errno.ENOSPC, f'No space on {line.name}:{domain}\n'
                    )
                values[line.name][domain] = mask
        return values

    def _new_rmid(self, closid: int) -> int:
        """A free RMID; on MPAM one of the control group's own few."""
        if not self.machine.monitors:
            return 0
        now = self._clock()
        self._limbo = {x: t for x, t in self._limbo.items() if t > now}
        groups = [*self._all_groups()]
        used = {group.rmid for group in groups}
        own = sum(group.closid == closid for group in groups)
        free = set(range(self.machine.num_rmids)) - used - set(self._limbo)
        per_closid = self.machine.rmids_per_closid
        if not free or per_closid and own >= per_closid:
            raise ResctrlError(
                errno.EBUSY if self._limbo and not free else errno.ENOSPC,
                'Out of RMIDs\n',
            )
        return min(free)

    def _remove(self, group: Group) -> None:
        for gone in [group, *group.children.values()]:
            self._account(gone, force=True)
        heir = group.parent or self._root
        for tid, task in list(self._tasks.items()):
            if task.group is group or task.group.parent is group:
                self._tasks[tid] = _Task(task.start, heir, task.since)
        if group.parent is None:
            self._root.cpus |= group.cpus
            del self._groups[group.name]
        else:
            if heir is not self._root:  # the default group lists none
                heir.iommu_groups |= group.iommu_groups
            del group.parent.children[group.name]
        self._note_owners()
        for gone in [group, *group.children.values()]:
            for counters in self._counters.values():
                counters.gone(gone.number)
        self._free_rmids([group, *group.children.values()])

    def _free_rmids(self, groups: Iterable[Group]) -> None:
        if self.machine.limbo_seconds:
            until = self._clock() + self.machine.limbo_seconds
            self._limbo |= {group.rmid: until for group in groups}

    # Tasks ---------------------------------------------------------------

    def _refresh(self) -> None:
        """Forget threads that ended; let new ones inherit their group."""
        for tid, task in list(self._tasks.items()):
            sample = self._threads.sample(tid)
            if sample is None or sample.start != task.start:
                del self._tasks[tid]
                continue
            self._inherit(tid, task)

    def _inherit(self, tid: int, parent: _Task) -> None:
        """Put what a process started since it was moved into its group."""
        for child in self._threads.offspring(tid):
            if child in self._tasks:
                continue
            sample = self._threads.sample(child)
            if sample and sample.start >= parent.since:
                self._tasks[child] = _Task(
                    sample.start, parent.group, sample.start
                )

    def _current(self, tid: int, sample: Sample) -> Group:
        """Where a thread is; what it started is put there as well.

        Looks at no other thread, however many have been placed.
        """
        task = self._tasks.get(tid)
        if task is None or task.start != sample.start:
            return self._root
        self._inherit(tid, task)
        return task.group

    def _members(self, group: Group) -> set[int]:
        """Threads that carry exactly this group's RMID and CLOSID."""
        placed = {t for t, x in self._tasks.items() if x.group is group}
        if group is self._root:
            return placed | self._threads.all() - set(self._tasks)
        return placed

    def _show_tasks(self, group: Group) -> str:
        self._refresh()
        tids = self._members(group)
        for child in group.children.values():
            tids |= self._members(child)
        lines = [f'{tid}\n' for tid in sorted(tids)]
        lines += [f'iommu_group:{x}\n' for x in sorted(group.iommu_groups)]
        return ''.join(lines)

    def _write_tasks(self, group: Group, text: str, caller: int) -> None:
        self._struck('tasks', group.name)
        if self.machine.old_layout and ',' in text:
            raise ResctrlError(errno.EINVAL)
        while text and text[0] != '\n':
            item, _, text = text.partition(',')
            item = item.strip()
            bound = re.fullmatch(r'iommu_group:([0-9]+)', item)
            if bound and self.machine.iommu_groups:
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
        current = next((one for one in self._all_groups()
                        if number in one.iommu_groups), self._root)
        if group.parent and current.control is not group.parent:
            raise ResctrlError(
                errno.EINVAL,
                "Can't move iommu_group to different control group\n")
        current.iommu_groups.discard(number)
        if group is not self._root:
            group.iommu_groups.add(number)

    def _move(self, group: Group, tid: int) -> None:
        sample = self._threads.sample(tid)
        if sample is None:
            raise ResctrlError(errno.ESRCH, f'No task {tid}\n')
        current = self._current(tid, sample)
        if group.parent and current.control is not group.parent:
            # A new thread may not have been seen in its parent's group yet.
            self._refresh()
            current = self._current(tid, sample)
        if group.parent and current.control is not group.parent:
            raise ResctrlError(
                errno.EINVAL, "Can't move task to different control group\n"
            )
        self._charge(current, tid)
        self._seen[tid] = sample
        self._tasks[tid] = _Task(sample.start, group, self._threads.now())

    # CPUs and mode -------------------------------------------------------

    def _show_cpus(self, group: Group) -> str:
        width = max(self.machine.cpus, default=0) + 1
        return cpusets.format_mask(group.cpus, width) + '\n'

    @staticmethod
    def _show_cpus_list(group: Group) -> str:
        return cpusets.format_list(group.cpus) + '\n'

    def _write_cpus(self, group: Group, text: str, _caller: int) -> None:
        self._store_cpus(group, text, cpusets.parse_mask)

    def _write_cpus_list(self, group: Group, text: str, _caller: int) -> None:
        self._store_cpus(group, text, cpusets.parse_list)

    def _store_cpus(
        self, group: Group, text: str,
        parse: Callable[[str], frozenset[int]],
    ) -> None:
        self._struck('cpus', group.name)
        # What threads did so far counts for the group of then.
        self._account(self._root, force=True)
        try:
            cpus = parse(text)
        except ValueError:
            raise ResctrlError(
                errno.EINVAL, 'Bad CPU list/mask\n'
            ) from None
        if cpus - self.machine.cpus:
            raise ResctrlError(
                errno.EINVAL, 'Can only assign online CPUs\n'
            )
        if group.parent is None:
            self._store_control_cpus(group, cpus)
        else:
            self._store_monitor_cpus(group, group.parent, cpus)
        self._note_owners()

    def _store_control_cpus(
        self, group: Group, cpus: frozenset[int]
    ) -> None:
        dropped = group.cpus - cpus
        if dropped and group is self._root:
            raise ResctrlError(
                errno.EINVAL, "Can't drop CPUs from default group\n"
            )
        self._root.cpus |= dropped
        for other in self._controls():
            if other is not group:
                other.cpus -= cpus - group.cpus
                for child in other.children.values():
                    child.cpus &= other.cpus
        group.cpus = cpus
        for child in group.children.values():
            child.cpus = frozenset()

    @staticmethod
    def _store_monitor_cpus(
        group: Group, parent: Group, cpus: frozenset[int]
    ) -> None:
        if cpus - parent.cpus:
            raise ResctrlError(
                errno.EINVAL,
                'Can only add CPUs to mongroup that belong to parent\n',
            )
        for sibling in parent.children.values():
            sibling.cpus -= cpus
        group.cpus = cpus

    def _write_mode(self, group: Group, text: str, _caller: int) -> None:
        if not text.endswith('\n'):
            raise ResctrlError(errno.EINVAL, None)
        self._struck('mode', group.name)
        mode = text[:-1]
        if mode not in ('shareable', 'exclusive'):
            raise ResctrlError(
                errno.EINVAL, 'Unknown or unsupported mode\n'
            )
        if mode == 'exclusive' and group.mode != mode:
            self._check_exclusive(group)
        group.mode = mode

    def _check_exclusive(self, group: Group) -> None:
        caches = [x.name for x in self.machine.lines if x.base == 16]
        if not caches:
            raise ResctrlError(
                errno.EINVAL, 'Cannot be exclusive without CAT/CDP\n'
            )
        if any(
            staging.overlap(group.values[name], other.values[name])
            for name in caches for other in self._controls()
            if other is not group
        ):
            raise ResctrlError(errno.EINVAL, 'Schemata overlaps\n')

    def _write_threshold(self, text: str, _caller: int) -> None:
        if not re.fullmatch(r'[0-9]+\n?', text):
            raise ResctrlError(errno.EINVAL, None)
        self._threshold = int(text)

    # Schemata ------------------------------------------------------------

    def _show_schemata(self, group: Group) -> str:
        return staging.show(self.machine, group.values)

    def _write_schemata(self, group: Group, text: str, _caller: int) -> None:
        names = staging.line_names(text)
        struck = [
            (name, fault) for name in dict.fromkeys(names)
            for fault in self._faults().take('schemata', [name], group.name)
        ]
        self._suffer([fault for _, fault in struck])
        ignored = {name for name, fault in struck if fault.ignore}
        # Traffic so far was under the old values.
        for one in [group, *group.children.values()]:
            self._account(one, force=True)
        staged = staging.stage(
            self.machine, text, group.mode == 'exclusive',
            [
                staging.Neighbour(x.mode == 'exclusive', x.values)
                for x in self._controls() if x is not group
            ],
            group.values if not ignored else None,
        )
        for name, values in staged.items():
            if name not in ignored:
                group.values[name] |= values

    # Monitors (simulated figures) ----------------------------------------

    def _show_monitor(
        self, group: Group, monitor: machines.Monitor, feature: str,
        domain: int, node: int | None,
    ) -> str:
        self._refresh()
        self.drive()
        groups = [group, *group.children.values()]

        def here(place: Place) -> bool:
            return place[monitor.scope == 'l3'] == domain and (
                node is None or place[0] == node)

        if feature == 'llc_occupancy':
            value = OCCUPANCY * sum(self._present(x, here) for x in groups)
            return f'{value}\n'
        if any(one in self._cpu_owners.values() for one in groups):
            self._account(self._root)
        for one in groups:
            self._account(one)
        counters = self._counters.get(monitor.resource)
        if counters and counters.enabled:
            counts = [
                counters.count(one.number, feature, domain) for one in groups
            ]
            if all(count is None for count in counts):
                return 'Unassigned\n'
            figure = sum(count or 0.0 for count in counts)
            if feature == 'mbm_local_bytes':
                figure *= LOCAL
        else:
            figure = sum(
                amount for one in groups
                for place, amount in self._amounts(one, monitor.unit, feature)
                if here(place)
            )
        # Hardware counts whole cache lines of 64 bytes.
        whole = int(figure) // 64 * 64
        return f'{int(figure) if monitor.unit == "MBps" else whole}\n'

    def _present(self, group: Group, here: Callable[[Place], bool]) -> int:
        """How many threads that count for a group last ran on these places.
        """
        samples = [self._threads.sample(tid) for tid in self._members(group)]
        if group in self._cpu_owners.values():
            samples += [x for x in map(self._threads.sample,
                                       self._members(self._root))
                        if x and self._owner(x.cpu) is group]
        elif group is self._root:
            samples = [x for x in samples if x and self._owner(x.cpu) is group]
        return sum(1 for x in samples if x and here(self._place(x.cpu)))

    def _owner(self, cpu: int) -> Group:
        """The group that threads of the default group count for on a CPU.

        Its cap holds for them as well (resctrl.rst, "Resource allocation
        rules" and "Resource monitoring rules").
        """
        return self._cpu_owners.get(cpu, self._root)

    def _note_owners(self) -> None:
        self._cpu_owners = {
            cpu: group for group in self._all_groups()
            if group is not self._root for cpu in group.cpus
        }

    def _place(self, cpu: int) -> Place:
        return self.machine.node_of(cpu).id, self.machine.cache_of(cpu).id

    def _account(self, group: Group, force: bool = False) -> None:
        """Charge a group for the CPU time of its threads since last time."""
        now = self._clock()
        elapsed = now - group.looked_at
        if elapsed < RATE_WINDOW and not force:
            return
        for tid in self._members(group):
            self._charge(group, tid)
        if elapsed < RATE_WINDOW:
            return
        group.rates = {
            place: (total - group.before.get(place, 0.0)) / elapsed / 1e6
            for place, total in group.traffic.items()
        }
        group.before = dict(group.traffic)
        group.looked_at = now

    def _charge(self, group: Group, tid: int) -> None:
        sample = self._threads.sample(tid)
        if sample is None:
            self._seen.pop(tid, None)
            return
        before = self._seen.get(tid)
        self._seen[tid] = sample
        if self._driven or before is None or before.start != sample.start:
            return
        if group is self._root:
            group = self._owner(sample.cpu)
        place = self._place(sample.cpu)
        spent = sample.cpu_seconds - before.cpu_seconds
        moved = spent * FULL_RATE * self._share(group.control, place)
        group.traffic[place] = group.traffic.get(place, 0.0) + moved

    def _share(self, control: Group, place: Place) -> float:
        """The part of the full rate that a control group gets on a place."""
        line = self.machine.line(self.machine.cap)
        if line is None:
            return 1.0
        domain = place[line.scope == 'l3']
        if not control.values.get(self.machine.hard, {}).get(domain, 1):
            return 1.0
        cap = control.values[line.name].get(domain, line.maximum)
        if self.machine.cap_unit:
            return min(1.0, cap * self.machine.cap_unit / FULL_RATE)
        return cap / line.maximum


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


def _tid(text: str) -> int:
    """A thread number as ``kstrtoint(text, 0)`` reads it."""
    number = re.fullmatch(
        '([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))', text
    )
    if number is None:
        raise ResctrlError(
            errno.EINVAL, f'Task list parsing error pid {text}\n'
        )
    sign, hexadecimal, octal, decimal = number.groups()
    if decimal:
        tid = int(decimal)
    else:
        tid = int(octal, 8) if octal else int(hexadecimal, 16)
    if sign == '-':
        tid = -tid
    if tid < 0:
        raise ResctrlError(errno.EINVAL, f'Invalid pid {tid}\n')
    return tid


def _lowest_run(mask: int) -> int:
    """The lowest run of consecutive 1-bits of a mask."""
    if not mask:
        return 0
    low = mask & -mask
    return mask & ~(mask + low)
