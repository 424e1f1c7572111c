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

"""Measurements of a server and of other guests during an investigation."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import logging
import time
from typing import Any

from ghsched_nova.features.blame import blame_cap
from ghsched_nova.features.blame import blame_periods
from ghsched_nova.features.load import load_rates
from ghsched_nova.monitor import reader as readers
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view
from ghsched_placement.features.blame import blame
from ghsched_placement.features.load import load as loads
from ghsched_placement.features.load import pressure

LOG = logging.getLogger(__name__)

#: Shortest wait, in seconds, during which events are counted. The short waits
#: after a changed cap are not evaluated, and each count opens all counters.
LEAST_COUNTED_S = 0.5

#: Function that measures the load of the server; None at the first call.
MeasureLoad = Callable[[load_rates.MeasuredBandwidth], loads.HostLoad | None]
#: Function that counts events for a number of milliseconds. The second
#: argument is whether to count only those that show the server's speed.
CountEvents = Callable[[int, bool], 'Counts']


@dataclasses.dataclass(frozen=True)
class Clocks:
    """Clocks of an investigation, which tests can replace.

    :param monotonic: function that returns the time of a monotonic clock in
        seconds.
    :param wall: function that returns the seconds since 1970.
    :param sleep: function that waits for a number of seconds.
    """

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


@dataclasses.dataclass(frozen=True)
class Counts:
    """Numbers of events of guests' vCPUs in one period.

    :param server: number of events of the server by name, see
        :data:`ghsched_nova.features.blame.counters.EVENTS`.
    :param misses: number of cache misses of other guests by UUID.
    """

    server: Mapping[str, float] = dataclasses.field(default_factory=dict)
    misses: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class HostProbe:
    """Measurements and caps on this host, see :class:`blame_session.Probe`.

    :param server: UUID of the investigated server.
    :param guests: running guests of this host.
    :param nodes: host NUMA nodes of the server.
    :param reader: reader of bandwidth. No other object may use it, because
        each measurement covers the time since the previous one.
    :param measure_load: function that returns the CPU load and waits of the
        server since its previous call.
    :param capper: object that caps suspected guests.
    :param count_events: function that counts CPU events of the server and of
        other guests; None if they cannot be counted.
    :param reported: pressure that the server reports of itself; None if it
        reports none.
    :ivar uncounted: reason why events cannot be counted; None if they can.
    """

    server: str
    guests: Sequence[view.MonitoredGuest]
    nodes: Collection[int]
    reader: readers.Reader
    measure_load: MeasureLoad
    capper: blame_cap.Capper
    clocks: Clocks = dataclasses.field(default_factory=Clocks)
    count_events: CountEvents | None = None
    reported: pressure.Pressure | None = None
    uncounted: blame.UncountedReason | None = None
    _snapshot: view.Snapshot | None = None
    _measured_at: float = 0.0
    _counts: Counts = dataclasses.field(default_factory=Counts)
    _has_capped: bool = False

    def get_time(self) -> float:
        """Return the time of a monotonic clock in seconds."""
        return self.clocks.monotonic()

    def wait(self, seconds: float) -> None:
        """Sleep for some seconds, and count CPU events of guests meanwhile.

        The counts become part of the next measurement. They are instructions,
        cycles and cache misses of the server, and cache misses of other
        guests. From the first cap on, only the speed of the server is counted.
        Nothing is counted in sleeps below :data:`LEAST_COUNTED_S`, or after
        counting has failed once.
        """
        end = self.get_time() + seconds
        self._counts = Counts()
        if self.count_events is not None and seconds >= LEAST_COUNTED_S:
            self._counts, self.uncounted = self._count_events(
                self.count_events, int(1000 * seconds))
            if self.uncounted:
                self.count_events = None
        left = end - self.get_time()
        if left > 0:
            self.clocks.sleep(left)

    def _count_events(self, count: CountEvents, milliseconds: int
                      ) -> tuple[Counts, blame.UncountedReason | None]:
        """Count CPU events of guests' vCPUs.

        :param count: function that counts for a number of milliseconds.
        :param milliseconds: how long to count.
        :returns: the counts, and the reason why the investigated server's
            instructions were not counted; None if they were.
        """
        try:
            found = count(milliseconds, self._has_capped)
        except Exception as error:
            LOG.info('ghsched: cannot count instructions of server '
                     '%(uuid)s; using its memory bandwidth as the measure of '
                     'its speed: %(error)s',
                     {'uuid': self.server, 'error': error})
            return Counts(), (
                blame.UncountedReason.REFUSED
                if isinstance(error, PermissionError)
                else blame.UncountedReason.FAILED)
        if 'instructions' not in found.server:
            return found, blame.UncountedReason.NO_COUNTERS
        return found, None

    def cap(self, uuid: str) -> None:
        """Limit a guest's bandwidth on the nodes of the investigated server.

        :param uuid: UUID of the guest.
        :raises NotCapped: if the guest cannot be capped; nothing is changed.
        """
        self._has_capped = True
        self.capper.cap(uuid, self.nodes)

    def restore_limits(self) -> None:
        """Restore the bandwidth limits of the capped guest; never raises."""
        self.capper.restore_limits()

    def measure(self) -> blame.BlameSample | None:
        """Measure bandwidth and load of the guests since the previous call.

        :returns: None if the investigated server's bandwidth is not known.
        :raises MonitorUnavailable: if the host reports no bandwidth.
        """
        snapshot = self._snapshot = view.make_bandwidth_snapshot(
            self.reader.measure_group_bandwidth(), self.guests)
        bandwidth = load_rates.extract_known_bandwidth(snapshot)
        load = self.measure_load(bandwidth)
        now = self.clocks.monotonic()
        seconds, self._measured_at = now - self._measured_at, now
        sample = blame_periods.make_server_sample(
            blame_periods.make_period_record(
                bandwidth, load, seconds, self.clocks.wall()),
            self.server, self.nodes)
        if self.server not in sample.rates or seconds <= 0:
            return None
        own = self._list_node_bandwidths(self.server)
        waits = _get_wait_fractions(load, self.server)
        return dataclasses.replace(
            sample, cap=_sum_caps(own), cached=_sum_cached_bytes(own),
            cpu_wait=waits['cpu_wait'], stalled=waits['memory_wait'],
            io_wait=waits['io_wait'],
            misses_by_guest={
                uuid: count / seconds for uuid, count
                in self._counts.misses.items()},
            **{f'reported_{name}': percent / 100 for name, percent in (
                vars(self.reported) if self.reported else {}).items()},
            **compute_event_rates(self._counts.server))

    def get_limits(self, uuid: str) -> object:
        """Return the bandwidth limits of a guest in the last measurement.

        There is one item per host NUMA node of the investigated server. Two
        results are equal if and only if the limits are equal.
        """
        return tuple(row.effective for row in self._list_node_bandwidths(uuid))

    def _list_node_bandwidths(self, uuid: str
                              ) -> list[view.GuestNodeBandwidth]:
        """Return a guest's bandwidth and limits in the last measurement.

        There is one item per host NUMA node. Only nodes on which the
        investigated server runs are returned.
        """
        return [row for one in (self._snapshot.guests if self._snapshot
                                else ())
                if one.guest.uuid == uuid
                for row in one.nodes if set(row.nodes) & set(self.nodes)]


def find_guest_memory_nodes(guest: view.MonitoredGuest,
                            host: topology.MonitoredHost) -> frozenset[int]:
    """Return the host NUMA nodes that provide a guest's memory.

    If the domain XML of the guest names no node, all nodes of the host are
    returned.
    """
    bound = {node for cell in guest.cells for node in cell.host_nodes}
    return frozenset(bound or host.l3 or host.control)


def compute_event_rates(counts: Mapping[str, float]) -> dict[str, Any]:
    """Compute a server's speed and cache misses from counted CPU events.

    These are instructions per second of CPU time, instructions per cycle,
    cache misses per 1000 instructions, and the fraction of stalled cycles. A
    figure is left out if one of its events was not counted.

    :param counts: number of events by name, see
        :data:`ghsched_nova.features.blame.counters.EVENTS`; may be empty.
    :returns: values by the name of the field of :class:`blame.BlameSample`.
    """
    instructions = counts.get('instructions')
    cycles = counts.get('cycles')
    found: dict[str, Any] = {}
    if instructions and counts.get('cpu_ns'):
        found['work'] = instructions / counts['cpu_ns'] * 1e9
    if instructions and cycles:
        found['per_cycle'] = instructions / cycles
    if instructions and 'cache_misses' in counts:
        found['misses'] = 1000 * counts['cache_misses'] / instructions
    if cycles and 'stalled_cycles' in counts:
        found['stalled_cycles'] = counts['stalled_cycles'] / cycles
    return found


def _sum_caps(rows: Sequence[view.GuestNodeBandwidth]) -> float | None:
    """Return the sum of a guest's bandwidth caps in bytes per second.

    :param rows: bandwidth limits of the guest by host NUMA node.
    :returns: None if the guest has no cap on one of the nodes.
    """
    caps = [row.effective.rate if row.effective else None for row in rows]
    known = [cap for cap in caps if cap is not None]
    return float(sum(known)) if known and len(known) == len(caps) else None


def _sum_cached_bytes(rows: Sequence[view.GuestNodeBandwidth]) -> float | None:
    """Return the number of bytes that a guest occupies in L3 caches.

    :param rows: cache occupancy of the guest by host NUMA node.
    :returns: None if the occupancy is unknown on one of the nodes.
    """
    known = [row.cached for row in rows if row.cached is not None]
    return float(sum(known)) if known and len(known) == len(rows) else None


def _get_wait_fractions(load: loads.HostLoad | None,
                        server: str) -> Mapping[str, float | None]:
    """Return the fractions of time in which a server waited, by kind of wait.

    If the server has several NUMA nodes, the largest fraction is returned.

    :param load: measured load of the host.
    :returns: fraction of the time by ``cpu_wait``, ``memory_wait`` and
        ``io_wait``; None if unknown.
    """
    mine = [one for one in (load.guests if load else ())
            if one.guest == server]
    return {name: max((value for one in mine
                       if (value := getattr(one, name)) is not None),
                      default=None)
            for name in ('cpu_wait', 'memory_wait', 'io_wait')}
