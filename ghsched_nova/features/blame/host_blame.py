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

"""Investigations on this host: find the guests that slow down a server."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import itertools
from pathlib import Path
import threading
from typing import Any

from lxml import etree

from ghsched_nova.base import qemu
from ghsched_nova import conf
from ghsched_nova.features.blame import blame_cap
from ghsched_nova.features.blame import blame_periods
from ghsched_nova.features.blame import blame_probe
from ghsched_nova.features.blame import blame_session
from ghsched_nova.features.blame import counters
from ghsched_nova.features.load import load_rates
from ghsched_nova.features.load import load_reader
from ghsched_nova.features.load import load_use
from ghsched_nova.guest import cells
from ghsched_nova.guest import nova_metadata
from ghsched_nova.host import bandwidth_use
from ghsched_nova.host import desired
from ghsched_nova.monitor import reader as readers
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view
from ghsched_placement.features.blame import blame as evidence
from ghsched_placement.features.blame import blame_report
from ghsched_placement.features.load import load as loads
from ghsched_placement.features.load import pressure

#: Maximum number of concurrent investigations of one process.
MOST = 2
#: Prefix of the event types of notifications; ``start`` or ``end`` follows.
EVENT = 'ghsched.server.blame.cap.'


class NotInvestigated(Exception):  # noqa: N818
    """Reason why a server cannot be investigated."""


@dataclass
class Investigator:
    """Investigator of which guests slow down servers of this host.

    Thread-safe.

    :param capper: object that caps suspected guests.
    :param host: name of this host.
    :param list_running: function that lists all running domains.
    :param get_periods: function that returns the bandwidth and load in the
        last minutes.
    :param count_events: function that counts CPU events of guests, see
        :func:`ghsched_nova.features.blame.counters.count_guest_events`.
    :param clocks: clocks of investigations; replaced in tests.
    :param pressure_file: file with the pressure that guests report; None
        without one.
    """

    capper: blame_cap.Capper
    host: str
    list_running: Callable[[], Iterable[desired.Running]]
    get_periods: Callable[[], Sequence[blame_periods.BlamePeriod]]
    count_events: Callable[
        [counters.Process, Sequence[counters.Process], bool, int],
        Sequence[Mapping[str, float]]] = counters.count_guest_events_as_root
    clocks: blame_probe.Clocks = field(default_factory=blame_probe.Clocks)
    pressure_file: Path | None = None
    _free: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(MOST))

    def investigate_server(self, server: str, prove: bool) -> dict[str, Any]:
        """Return a report of which guests slow down a server.

        Guests slow down a server if they use memory bandwidth or L3 cache that
        the server needs.

        :param server: UUID of the server.
        :param prove: whether to cap the bandwidth of other guests for a
            moment, to see whether the server gets faster.
        :raises NotInvestigated: if the server cannot be investigated.
        """
        if not self._free.acquire(blocking=False):
            raise NotInvestigated(f'{MOST} servers of this host are being '
                                  'investigated; try again in a minute')
        try:
            with contextlib.ExitStack() as stack:
                if prove:
                    stack.enter_context(blame_cap.guest_cap_lock(
                        self.capper.engine.root))
                    if self.capper.pauses is not None:
                        stack.enter_context(
                            self.capper.pauses.investigation())
                return self._investigate(server, prove)
        except (topology.MonitorUnavailable, blame_cap.NotCapped) as error:
            raise NotInvestigated(str(error)) from error
        finally:
            self._free.release()

    def _investigate(self, server: str, prove: bool) -> dict[str, Any]:
        section = self.capper.engine.section
        guests = list(yield_guests_with_policies(self.list_running()))
        mine = next((one for one in guests if one.uuid == server), None)
        if mine is None:
            raise NotInvestigated('the server does not run on this host')
        reader = readers.Reader(
            Path(section.resctrl_path), Path(section.sysfs_path),
            conf.parse_node_values(section, 'node_bandwidth'),
            self.clocks.monotonic, occupancy=True)
        host = reader.get_monitored_host()
        nodes = blame_probe.find_guest_memory_nodes(mine, host)
        record = [blame_periods.make_server_sample(period, server, nodes)
                  for period in self.get_periods()
                  if any(uuid == server for uuid, _node in period.guests)]
        others = [one for one in _sort_by_bandwidth(guests, record)
                  if one is not mine and nodes
                  & blame_probe.find_guest_memory_nodes(one, host)]
        reported = pressure.read_pressures(
            self.pressure_file, self.clocks.wall()).get(server)
        probe = blame_probe.HostProbe(
            server, guests, nodes, reader,
            _make_guest_load_meter(section, mine),
            self.capper, self.clocks, self._make_event_counter(mine, others),
            reported.pressure if reported else None)
        found = replace(
            blame_session.Session(server, record, probe).collect_evidence(
                prove), uncounted=probe.uncounted)
        return blame_report.make_report(
            server, self.host, sorted(nodes), found,
            {one.uuid: blame_report.GuestName(one.title, one.project)
             for one in guests}, prove)

    def _make_event_counter(self, guest: view.MonitoredGuest,
                            others: Sequence[view.MonitoredGuest]
                            ) -> blame_probe.CountEvents:
        """Return a function that counts CPU events of guests' vCPUs.

        The function counts instructions, cycles and cache misses of the
        investigated guest, and cache misses of other guests. It raises
        ProcessLookupError if the QEMU process of the investigated guest is
        not found.

        :param guest: the investigated guest.
        :param others: other guests, the most important first. Guests at the
            end are not counted if there are too many.
        """
        run_path = Path(self.capper.engine.section.libvirt_run_path)

        def count(milliseconds: int, only_speed: bool) -> blame_probe.Counts:
            pid = qemu.find_qemu_process(run_path, guest.name)
            if pid is None:
                raise ProcessLookupError(
                    f'the QEMU process of guest {guest.name} is unknown')
            # Guests may have ended since the last call.
            there = ((one.uuid, (one.name, process)) for one in others
                     if (process := qemu.find_qemu_process(
                         run_path, one.name)) is not None)
            chosen = dict(itertools.islice(
                there, 0 if only_speed else counters.MOST_OTHERS))
            mine, *rest = self.count_events(
                (guest.name, pid), list(chosen.values()), only_speed,
                milliseconds)
            return blame_probe.Counts(mine, {
                uuid: events['cache_misses'] for uuid, events
                in zip(chosen, rest, strict=True) if 'cache_misses' in events})

        return count


def _sort_by_bandwidth(guests: Iterable[view.MonitoredGuest],
                       record: Sequence[evidence.BlameSample]
                       ) -> list[view.MonitoredGuest]:
    """Return guests in order of their bandwidth, the largest first.

    :param record: samples of the last minutes.
    """
    usual = evidence.find_usual_bandwidth((), record)
    return sorted(guests, key=lambda one: usual.get(one.uuid, 0.0),
                  reverse=True)


def yield_guests_with_policies(running: Iterable[desired.Running]
                               ) -> Iterator[view.MonitoredGuest]:
    """Yield each running guest with its bandwidth policy and NUMA nodes.

    Each guest also comes with its Nova flavor, server name and project.
    """
    by_uuid = {one.domain.uuid: one for one in running
               if one.domain.id >= 0 and one.xml}
    for guest in bandwidth_use.list_guests_and_policies(by_uuid.values()):
        root = by_uuid[guest.uuid].root
        yield replace(guest, cells=_parse_cells(root),
                      server=nova_metadata.read_server_name(root),
                      project=nova_metadata.read_project_id(root))


def _parse_cells(root: etree._Element) -> tuple[cells.Cell, ...]:
    """Return the NUMA nodes of a guest from its domain XML.

    :param root: root element of the XML.
    :returns: an empty tuple if the NUMA nodes are malformed.
    """
    try:
        return cells.parse_cells(root)
    except ValueError:
        return ()


def _make_guest_load_meter(section: Any,
                           guest: view.MonitoredGuest
                           ) -> blame_probe.MeasureLoad:
    """Return a function that measures the CPU load and waits of one guest.

    Each call of that function returns the load since its previous call.
    """
    meter = load_use.make_load_meter(section)
    running = [load_reader.RunningGuest(
        guest.uuid, guest.domain_id or 0, guest.name, guest.cells)]

    def measure(bandwidth: load_rates.MeasuredBandwidth
                ) -> loads.HostLoad | None:
        meter.measure_host_load(running, bandwidth)
        return meter.load

    return measure
