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


"""Load and wait time of a host between two samples (pure).

A figure needs its counters in both samples. A counter that decreased was
reset, so its figure is unknown for that period.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
from dataclasses import dataclass
from dataclasses import field
import math
from typing import Any
from typing import TypeVar

from ghsched_nova.features.load import load_files
from ghsched_nova.guest import cells
from ghsched_nova.monitor import rates
from ghsched_nova.monitor import view
from ghsched_placement.features.load.load import GuestNodeLoad
from ghsched_placement.features.load.load import HostLoad
from ghsched_placement.features.load.load import HostNodeLoad

_Node = TypeVar('_Node', bound=HostNodeLoad | GuestNodeLoad)


@dataclass(frozen=True)
class NodeCounters:
    """Counters of a host NUMA node at the time of a sample.

    :param memory: total and free KiB.
    :param vmstat: counters by name.
    """

    cpus: frozenset[int]
    memory: tuple[int, int] | None = None
    vmstat: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ThreadCounters:
    """Counters of a vCPU thread.

    :param cpu: host CPU on which the thread ran last.
    """

    times: load_files.RunTimes
    cpu: int | None


@dataclass(frozen=True)
class GuestCounters:
    """Counters of a running guest.

    :param id: libvirt's domain ID; each start of the guest gets a new one.
    :param threads: counters by vCPU.
    :param memory: bytes by host NUMA node; None if unknown.
    :param stalled: microseconds in which some thread waited for memory.
    :param io_stalled: microseconds in which some thread waited for I/O.
    """

    uuid: str
    id: int
    cells: tuple[cells.Cell, ...]
    threads: Mapping[int, ThreadCounters] = field(default_factory=dict)
    memory: Mapping[int, int] | None = None
    stalled: int | None = None
    io_stalled: int | None = None


@dataclass(frozen=True)
class LoadSample:
    """Counters of a host at one moment.

    :param when: seconds of a monotonic clock.
    :param cpus: times by CPU.
    :param disks: counters by name of the block devices whose node is known.
    :param disk_node: host NUMA node by name of the block device.
    :param stalled: microseconds in which some task of the host waited for
        memory.
    """

    when: float
    nodes: Mapping[int, NodeCounters]
    cpus: Mapping[int, load_files.CpuTicks] = field(default_factory=dict)
    disks: Mapping[str, load_files.DiskTime] = field(default_factory=dict)
    disk_node: Mapping[str, int] = field(default_factory=dict)
    stalled: int | None = None
    guests: tuple[GuestCounters, ...] = ()


@dataclass(frozen=True)
class MeasuredBandwidth:
    """Memory bandwidth measured with resctrl; only complete figures.

    :param used: bytes per second by host NUMA node.
    :param capacity: bytes per second by host NUMA node.
    :param guests: bytes per second by guest UUID and host NUMA node.
    """

    used: Mapping[int, float] = field(default_factory=dict)
    capacity: Mapping[int, float] = field(default_factory=dict)
    guests: Mapping[tuple[str, int], float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Demand:
    """CPU demand of a vCPU between two samples.

    :param node: host NUMA node on which the vCPU ran.
    :param running: seconds on a CPU.
    :param waiting: seconds in which the vCPU was runnable but had no CPU.
    """

    node: int | None
    running: float
    waiting: float


@dataclass(frozen=True)
class _GuestLoad:
    """Load of a guest between two samples.

    :param guest: counters of the guest in the later sample.
    :param demands: CPU demand by vCPU.
    :param host_nodes: host NUMA nodes on which the vCPUs ran.
    :param stalled: fraction of the time in which some thread waited for
        memory; None if unknown.
    :param io_stalled: fraction of the time in which some thread waited for
        I/O; None if unknown.
    """

    guest: GuestCounters
    demands: Mapping[int, _Demand]
    host_nodes: frozenset[int]
    stalled: float | None
    io_stalled: float | None

    @property
    def total_and_remote_memory(self) -> tuple[int, int] | None:
        """A guest's memory in bytes, in total and on remote NUMA nodes.

        A host NUMA node is remote if none of the guest's vCPUs ran on the
        node. The value is None if unknown.
        """
        found = self.guest.memory
        if not found or not self.host_nodes:
            return None
        return sum(found.values()), sum(
            amount for node, amount in found.items()
            if node not in self.host_nodes)


def compute_load(before: LoadSample, now: LoadSample, measured_at: float,
                 bandwidth: MeasuredBandwidth | None = None
                 ) -> HostLoad | None:
    """Compute the load of a host from two samples of kernel counters.

    :param before: the earlier sample.
    :param now: the later sample.
    :param measured_at: seconds since 1970 at the later sample.
    :param bandwidth: memory bandwidth over that time; None if unknown.
    :returns: None if no time lies between the samples.
    """
    period = now.when - before.when
    if period <= 0:
        return None
    bandwidth = bandwidth or MeasuredBandwidth()
    guests = list(_between(before, now, period))
    nodes = tuple(_host_node(node, before, now, guests, bandwidth)
                  for node in sorted(now.nodes))
    return HostLoad(measured_at, period, nodes, tuple(
        _guest_node(one, cell, period, bandwidth)
        for one in guests for cell in one.guest.cells))


def extract_known_bandwidth(snapshot: view.Snapshot | None
                            ) -> MeasuredBandwidth:
    """Return the fully known bandwidths of a resctrl measurement.

    A bandwidth is left out if it was measured for several host NUMA nodes
    together, or if it is a sum of which a part is unknown.

    :param snapshot: the measurement; None for none.
    :returns: bandwidths of host NUMA nodes and of guests on each node.
    """
    if snapshot is None:
        return MeasuredBandwidth()
    nodes = [node for node in snapshot.nodes if len(node.nodes) == 1]
    return MeasuredBandwidth(
        {node.nodes[0]: node.used.rate for node in nodes
         if _is_known(node.used) and node.used.rate is not None},
        {node.nodes[0]: float(node.capacity) for node in nodes
         if node.capacity},
        {(one.guest.uuid, part.nodes[0]): part.used.rate
         for one in snapshot.guests for part in one.nodes
         if len(part.nodes) == 1 and _is_known(part.used)
         and part.used.rate is not None})


def _is_known(figure: rates.Figure) -> bool:
    return figure.state is rates.RateState.OK


# -- guests -------------------------------------------------------------------


def _between(before: LoadSample, now: LoadSample,
             period: float) -> Iterator[_GuestLoad]:
    earlier = {(guest.uuid, guest.id): guest for guest in before.guests}
    node_of = {cpu: number for number, node in now.nodes.items()
               for cpu in node.cpus}
    for guest in now.guests:
        old = earlier.get((guest.uuid, guest.id))
        demands = {}
        on: set[int] = set()
        for cell in guest.cells:
            for vcpu in cell.vcpus & guest.threads.keys():
                thread = guest.threads[vcpu]
                node = cell.host_node
                if node is None and thread.cpu is not None:
                    node = node_of.get(thread.cpu)
                if node is not None:
                    on.add(node)
                demand = _demand(old, vcpu, thread, node)
                if demand is not None:
                    demands[vcpu] = demand
        yield _GuestLoad(guest, demands, frozenset(on), _rate(
            old.stalled if old else None, guest.stalled, period * 1e6),
            _rate(old.io_stalled if old else None, guest.io_stalled,
                  period * 1e6))


def _demand(old: GuestCounters | None, vcpu: int, thread: ThreadCounters,
            node: int | None) -> _Demand | None:
    then = old.threads.get(vcpu) if old else None
    if then is None:
        return None
    running = thread.times.running - then.times.running
    waiting = thread.times.waiting - then.times.waiting
    if running < 0 or waiting < 0:
        return None     # another thread runs the vCPU now
    return _Demand(node, running / 1e9, waiting / 1e9)


def _compute_mean_wait_ratio(
    demands: Iterable[_Demand], period: float
) -> float | None:
    """Return the mean fraction of the time that vCPUs waited for a CPU.

    The mean is weighted by the CPU demand of each vCPU. An unweighted mean
    would hide two vCPUs that compete for a CPU among many idle ones. The ratio
    of wait to demand alone would report a bottleneck where almost nothing ran.

    :param demands: CPU demand of each vCPU.
    :param period: time between the two samples.
    """
    wanted = waited = 0.0
    known = False
    for one in demands:
        known = True
        wanted += one.running + one.waiting
        waited += (one.running + one.waiting) * one.waiting
    if not known:
        return None
    return waited / wanted / period if wanted else 0.0


def _guest_node(one: _GuestLoad, cell: cells.Cell, period: float,
                bandwidth: MeasuredBandwidth) -> GuestNodeLoad:
    mine = [one.demands[vcpu] for vcpu in cell.vcpus & one.demands.keys()]
    complete = len(mine) == len(cell.vcpus) > 0
    node = cell.host_node
    return GuestNodeLoad(
        one.guest.uuid, cell.node, node, len(cell.vcpus),
        cell.memory // 1024,
        cpu_load=sum(demand.running for demand in mine) / period / len(mine)
        if complete else None,
        cpu_wait=_compute_mean_wait_ratio(mine, period) if complete else None,
        bandwidth=None if node is None else bandwidth.guests.get(
            (one.guest.uuid, node)),
        memory_wait=one.stalled,
        remote=_remote([one]), io_wait=one.io_stalled)


def _remote(guests: Iterable[_GuestLoad]) -> float | None:
    amounts = [one.total_and_remote_memory for one in guests]
    known = [amount for amount in amounts if amount is not None]
    total = sum(whole for whole, _far in known)
    return sum(far for _whole, far in known) / total if total else None


# -- the host's nodes ---------------------------------------------------------


def _host_node(number: int, before: LoadSample, now: LoadSample,
               guests: Iterable[_GuestLoad],
               bandwidth: MeasuredBandwidth) -> HostNodeLoad:
    node, old = now.nodes[number], before.nodes.get(number,
                                                    NodeCounters(frozenset()))
    period = now.when - before.when
    here = [one for one in guests if number in one.host_nodes]
    used, capacity = (bandwidth.used.get(number),
                      bandwidth.capacity.get(number))
    io_load, io_wait = _compute_disk_load(number, before, now)
    total, free = node.memory or (None, None)
    return HostNodeLoad(
        number,
        cpus=len(node.cpus),
        vcpus=_placed(number, now.guests),
        memory=None if total is None else total // 1024,
        memory_free=None if free is None else free // 1024,
        cpu_load=_busy(node.cpus, before, now),
        cpu_wait=_compute_mean_wait_ratio(
            (
                demand for one in here for demand in one.demands.values()
                if demand.node == number), period),
        bandwidth=used,
        capacity=capacity,
        memory_load=used / capacity if used is not None and capacity else None,
        memory_wait=_find_largest_stall_ratio(here, before, now),
        reclaim=_rate(
            load_files.count_reclaimed(old.vmstat),
            load_files.count_reclaimed(node.vmstat), period),
        refaults=_rate(
            load_files.count_refaults(old.vmstat),
            load_files.count_refaults(node.vmstat), period),
        remote=_remote(here),
        io_load=io_load,
        io_wait=io_wait,
    )


def _placed(number: int, guests: Iterable[GuestCounters]) -> int:
    return sum(len(cell.vcpus) for guest in guests for cell in guest.cells
               if cell.host_node == number)


def _busy(cpus: Iterable[int], before: LoadSample, now: LoadSample
          ) -> float | None:
    busy = total = 0
    for cpu in cpus:
        then, since = before.cpus.get(cpu), now.cpus.get(cpu)
        # The counters of a CPU restart when it comes online.
        if then and since and since.total > then.total:
            busy += max(0, since.busy - then.busy)
            total += since.total - then.total
    return min(1.0, busy / total) if total else None


def _find_largest_stall_ratio(
    guests_on_node: Iterable[_GuestLoad], before: LoadSample, now: LoadSample
) -> float | None:
    """Return the largest fraction of the time that a guest waited for memory.

    If the fraction is unknown for all guests, that of the whole host is used.
    The kernel does not measure it by NUMA node, so on a host with several
    nodes only a fraction of 0 can be used.

    :param guests_on_node: guests on one host NUMA node.
    :returns: None if the fraction is unknown.
    """
    known = [one.stalled for one in guests_on_node if one.stalled is not None]
    if known:
        return max(known)
    of_host = _rate(before.stalled, now.stalled,
                    (now.when - before.when) * 1e6)
    return of_host if of_host == 0 or len(now.nodes) == 1 else None


def _compute_disk_load(
    node_number: int, before: LoadSample, now: LoadSample
) -> tuple[float | None, float | None]:
    """Return the highest busy fraction and queue length of a node's disks.

    Both are means over the time between two samples. The queue length is the
    number of waiting requests. The two may be from different disks. They are
    None if unknown.

    :param node_number: number of the host NUMA node.
    """
    period = (now.when - before.when) * 1e3
    found = []
    for name, since in now.disks.items():
        then = before.disks.get(name)
        if then is None or now.disk_node.get(name) != node_number:
            continue
        busy = _rate(then.busy, since.busy, period)
        queued = _rate(then.queued, since.queued, period)
        if busy is not None and queued is not None:
            found.append((min(1.0, busy), max(0.0, queued - busy)))
    if not found:
        return None, None
    return (max(busy for busy, _wait in found),
            max(wait for _busy, wait in found))


def _rate(then: int | None, now: int | None, period: float) -> float | None:
    if then is None or now is None or now < then:
        return None
    return (now - then) / period


# -- smoothing ----------------------------------------------------------------

#: Constant fields, which are not smoothed.
_AS_IS = frozenset({'capacity'})


def smooth_load(before: HostLoad | None, now: HostLoad, time_constant: float
                ) -> HostLoad:
    """Smooth a load measurement exponentially with the previous one.

    Values that are unknown in one of the two measurements are not smoothed.

    :param time_constant: seconds after which earlier values weigh 1/e; 0
        disables smoothing.
    """
    if before is None or time_constant <= 0:
        return now
    part = 1 - math.exp(-now.period / time_constant)
    nodes = before.get_nodes_by_number()
    guests = {(one.guest, one.node): one for one in before.guests}
    return dataclasses.replace(
        now,
        nodes=tuple(_mean(nodes.get(one.node), one, part)
                    for one in now.nodes),
        guests=tuple(_mean(guests.get((one.guest, one.node)), one, part)
                     for one in now.guests))


def _mean(before: _Node | None, now: _Node, part: float) -> _Node:
    if before is None or (getattr(now, 'host_node', None)
                          != getattr(before, 'host_node', None)):
        return now      # values of a moved guest are not smoothed
    values: dict[str, Any] = {}
    for one in dataclasses.fields(now):
        old, new = getattr(before, one.name), getattr(now, one.name)
        if (isinstance(new, float) and isinstance(old, float)
                and one.name not in _AS_IS):
            values[one.name] = old + part * (new - old)
    return dataclasses.replace(now, **values)
