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

"""Memory traffic and cache occupancy of groups, for monitor files (simulated).

A thread that uses one CPU fully moves :data:`FULL_RATE` bytes per second on
the node and the L3 of the CPU that it last ran on, times its group's MB
percentage there (or no more than its cap, where that is a bandwidth) unless
the group may exceed it (``MBHDL`` or ``MB_HLIM`` 0). An L3 holds
:data:`OCCUPANCY` bytes per thread. With a load, groups contend instead for
what the nodes deliver, see :mod:`ghsched_nova.lab.emulator.contention`.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import functools

from ghsched_nova.lab.emulator import contention
from ghsched_nova.lab.emulator import counters as counterlib
from ghsched_nova.lab.emulator import group_cpus
from ghsched_nova.lab.emulator import groups as grouplib
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import tasks as tasklib

Group = grouplib.Group
Place = grouplib.Place

#: Bytes per second of one busy thread without a cap (simulated).
FULL_RATE = 4e9
#: The part of what a busy thread moves that is local (simulated).
LOCAL = 0.8
#: Bytes of L3 per thread (simulated).
OCCUPANCY = 65536
#: What PERF_PKG_MON shows for each byte (simulated).
JOULES = 1e-9
#: A rate is the mean since the last look, but of no less than this (seconds).
RATE_WINDOW = 0.05


class Traffic:
    """Bytes that groups have moved so far, and their present rates.

    :param clock: seconds.
    :param load: what everybody would like to move, where that is said.
    """

    def __init__(
        self,
        machine: machines.Machine,
        groups: grouplib.Groups,
        tasks: tasklib.Tasks,
        cpus: group_cpus.GroupCpus,
        clock: Callable[[], float],
        load: Callable[[], contention.Load | None],
    ):
        self._machine = machine
        self._groups = groups
        self._tasks = tasks
        self._cpus = cpus
        self._clock = clock
        self._load = load
        self._drive = contention.Drive(machine, clock())
        self._driven: tuple[object, ...] = ()
        self._seen: dict[int, tasklib.Sample] = {}
        #: By monitor resource, where a group must be given one.
        self.counters = {
            monitor.resource: counterlib.Counters(
                machine, monitor, functools.partial(self._bytes, monitor)
            )
            for monitor in machine.monitors if monitor.modes
        }

    def _bytes(
        self, monitor: machines.Monitor, number: int, event: str, domain: int
    ) -> float:
        """Return the bytes or rate that an event counts for a group in a
        domain.
        """
        return sum(
            amount for group in self._groups.every_group()
            if group.number == number
            for place, amount in self._amounts(group, monitor.unit, event)
            if place[monitor.scope == 'l3'] == domain
        )

    def _amounts(
        self, group: Group, unit: str, feature: str = '',
    ) -> Iterator[tuple[Place, float]]:
        """Yield the bytes that a group has moved so far, or its rate, by
        place.
        """
        local = feature == 'mbm_local_bytes'
        used = group.rates if unit == 'MBps' else group.traffic
        for place, amount in used.items():
            yield place, amount * (LOCAL if local else 1)
        for place, amount in self._drive.figures(group.number, unit).items():
            if not local or self._is_local(place):
                yield place, amount

    def _is_local(self, place: Place) -> bool:
        return any(cache.id == place[1] for node in self._machine.nodes
                   if node.id == place[0] for cache in node.caches)

    def drive(self, changed: bool = False) -> None:
        """Advance the load until now, and set the rates by the present state.

        :param changed: whether groups or schemata may be others than before.
        """
        self._drive.advance(self._clock())
        load = self._load()
        if load is None:
            now: tuple[object, ...] = ()
        else:
            now = (load, *map(self._tasks.group_of, load.tasks))
        if now != self._driven or changed and load:
            self._drive.steer(load, self._loaded(load) if load else [])
            self._driven = now

    def _loaded(self, load: contention.Load) -> list[contention.Member]:
        """Return the groups with what the load asks for in each."""
        def demands(group: Group) -> Iterator[contention.Demand]:
            path = group.name if group.parent is None else (
                f'{group.parent.name}/mon_groups/{group.name}'.lstrip('/'))
            yield load.groups.get(path, {})
            for tid, demand in load.tasks.items():
                if self._tasks.group_of(tid) is group:
                    yield demand
            for number, demand in load.iommu_groups.items():
                bound = (x for x in self._groups.every_group()
                         if number in x.iommu_groups)
                if next(bound, self._groups.root) is group:
                    yield demand

        return [
            contention.Member(group.number, group.control.name,
                              group.control.values, tuple(demands(group)))
            for group in self._groups.every_group()
        ]

    def show(
        self, group: Group, monitor: machines.Monitor, feature: str,
        domain: int, node: int | None,
    ) -> str:
        """Return the text of a monitor file, with MON groups included.

        :param node: of the domain only what is on this NUMA node.
        """
        self._tasks.refresh()
        self.drive()
        groups = group.family

        def here(place: Place) -> bool:
            return place[monitor.scope == 'l3'] == domain and (
                node is None or place[0] == node)

        if feature == 'llc_occupancy':
            value = OCCUPANCY * sum(self._present(x, here) for x in groups)
            return f'{value}\n'
        if any(one in self._cpus.owners.values() for one in groups):
            self.account(self._groups.root)
        for one in groups:
            self.account(one)
        figure = self._figure(groups, monitor, feature, domain, here)
        if isinstance(figure, str):
            return f'{figure}\n'
        if monitor.resource == 'PERF_PKG':
            return f'{figure * JOULES:.6f}\n'
        # Hardware counts whole cache lines of 64 bytes.
        whole = int(figure) // 64 * 64
        return f'{int(figure) if monitor.unit == "MBps" else whole}\n'

    def _figure(
        self, groups: Sequence[Group], monitor: machines.Monitor,
        feature: str, domain: int, here: Callable[[Place], bool],
    ) -> float | str:
        """Bytes, or bytes in a second; a word where there is no figure."""
        if monitor.counters:
            return self.counters[monitor.resource].count(
                [x.number for x in groups], feature, domain)
        return sum(
            amount for one in groups
            for place, amount in self._amounts(one, monitor.unit, feature)
            if here(place)
        )

    def _present(self, group: Group, here: Callable[[Place], bool]) -> int:
        """Return the number of threads counted for a group that last ran on
        some places.
        """
        samples = [*map(self._tasks.sample, self._tasks.members(group))]
        if group in self._cpus.owners.values():
            samples += [x for x in map(self._tasks.sample,
                                       self._tasks.members(self._groups.root))
                        if x and self._cpus.owner(x.cpu) is group]
        elif group is self._groups.root:
            samples = [x for x in samples
                       if x and self._cpus.owner(x.cpu) is group]
        return sum(1 for x in samples if x and here(self._place_of_cpu(x.cpu)))

    def _place_of_cpu(self, cpu: int) -> Place:
        return self._machine.node_of(cpu).id, self._machine.cache_of(cpu).id

    def account(self, group: Group, force: bool = False) -> None:
        """Charge a group for the CPU time of its threads since last time."""
        now = self._clock()
        elapsed = now - group.looked_at
        if elapsed < RATE_WINDOW and not force:
            return
        for tid in self._tasks.members(group):
            self.charge(group, tid)
        if elapsed < RATE_WINDOW:
            return
        group.rates = {
            place: (total - group.before.get(place, 0.0)) / elapsed / 1e6
            for place, total in group.traffic.items()
        }
        group.before = dict(group.traffic)
        group.looked_at = now

    def charge(self, group: Group, tid: int) -> None:
        """Charge a group for what a thread of it did since last time."""
        sample = self._tasks.sample(tid)
        if sample is None:
            self._seen.pop(tid, None)
            return
        before = self._seen.get(tid)
        self._seen[tid] = sample
        if self._driven or before is None or before.start != sample.start:
            return
        if group is self._groups.root:
            group = self._cpus.owner(sample.cpu)
        place = self._place_of_cpu(sample.cpu)
        spent = sample.cpu_seconds - before.cpu_seconds
        moved = spent * FULL_RATE * self._share(group.control, place)
        group.traffic[place] = group.traffic.get(place, 0.0) + moved

    def _share(self, control: Group, place: Place) -> float:
        """Return a control group's share of the full rate at a place."""
        line = self._machine.line(self._machine.cap)
        if line is None:
            return 1.0
        domain = place[line.scope == 'l3']
        if not control.values.get(self._machine.hard, {}).get(domain, 1):
            return 1.0
        cap = control.values[line.name].get(domain, line.maximum)
        if self._machine.cap_unit:
            return min(1.0, cap * self._machine.cap_unit / FULL_RATE)
        return cap / line.maximum
