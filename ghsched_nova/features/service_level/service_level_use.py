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

"""Service levels of the host's servers, measured with each report."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path

from ghsched_nova.base import record_file
from ghsched_nova.features.service_level import protection_events
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_nova.monitor import view
from ghsched_placement.features.load import load
from ghsched_placement.features.service_level import service_level
from ghsched_placement.features.service_level.service_level import LevelKey
from ghsched_placement.features.service_level.service_level import LevelPeriod
from ghsched_placement.features.service_level.service_level import Owner


class ServiceLevelRecorder(compute_hooks.ComputeHooks):
    """Recorder of the service levels of this host's servers.

    The service level is how much of its guaranteed bandwidth a server got.

    :param path: file that preserves the record over restarts of nova-compute.
    :param notify_protection: function that notifies about guests that lost or
        regained their protection.
    """

    def __init__(self, path: Path, notify_protection: Callable[[], None]
                 = lambda: None) -> None:
        self._notify_protection = notify_protection
        self._file = record_file.RecordFile(path, service_level.FORMAT)
        # Replaced as a whole, so that readers do not wait for the disk.
        self.levels: service_level.Levels = self._file.read()

    def observe(self, snapshot: compute_hooks.HostSnapshot
                ) -> tuple[float,
                           Mapping[LevelKey, tuple[Owner, LevelPeriod]]]:
        """Record each server's service level since the previous snapshot.

        The service level is how much of its guaranteed bandwidth a server
        really got.

        :returns: length of the period in seconds, and the bandwidth by server
            and host NUMA node.
        """
        if snapshot.bandwidth is None or snapshot.since is None:
            return 0.0, {}
        periods = dict(yield_received_bandwidth(
            snapshot.bandwidth, snapshot.results.get('load'),
            snapshot.not_held, snapshot.uncounted))
        seconds = min(snapshot.time - snapshot.since,
                      compute_hooks.PERIOD_MAX_S)
        self.levels = service_level.add_period_to_levels(
            self.levels, periods, seconds, snapshot.time)
        if self.levels:
            self._file.write(self.levels)
        return seconds, periods

    def reconcile_guest(self, running: desired.Running,
                        has_arrived: bool = False) -> None:
        """Notify about guests that lost or regained their protection."""
        self._notify_protection()

    def reconcile_guests(self, running: Sequence[desired.Running]
                         ) -> Iterable[str]:
        """Notify about guests that lost or regained their protection."""
        self._notify_protection()
        return ()


def make_compute_hooks(services: compute_hooks.ComputeServices
                       ) -> ServiceLevelRecorder:
    """Return nova-compute's recorder of service levels."""
    notifier = protection_events.ProtectionNotifier(services.notify)
    return ServiceLevelRecorder(
        services.state_path / service_level.FORMAT.name,
        lambda: notifier.notify_protection_changes(
            services.host_name, dict(services.engine.not_held)))


def yield_received_bandwidth(snapshot: view.Snapshot,
                             measured: load.HostLoad | None,
                             unprotected: Collection[str],
                             unallocated: Collection[str]
                             ) -> Iterator[tuple[LevelKey,
                                                 tuple[Owner, LevelPeriod]]]:
    """Yield each server's requested and used bandwidth by host NUMA node.

    These are the guarantee and the limit of the server, and the bandwidth it
    used since the last report of nova-compute. Servers without a bandwidth
    policy are left out. Of a server with vCPU classes, each class with
    bandwidth keys is one item, and they add up to the server.

    :param snapshot: bandwidth since the last report.
    :param measured: load since the last report; None if unknown.
    :param unprotected: UUIDs of guests whose bandwidth policy is not enforced.
    :param unallocated: UUIDs of guests whose guarantee Placement has not
        allocated.
    :returns: pairs of a key, which has server, host NUMA node and vCPU class,
        and the server's owner and bandwidth.
    """
    used = {node: usage for usage in snapshot.nodes for node in usage.nodes}
    busy = _map_cpu_loads(measured)
    for usage in snapshot.guests:
        guest = usage.guest
        for name, row, is_limited in _yield_rows(usage):
            if row.asked is None or len(row.nodes) != 1 or not (
                    row.asked.minimum or row.asked.maximum < 100):
                continue
            node, = row.nodes
            yield LevelKey(guest.uuid, node, name), (
                Owner(guest.server or guest.name, guest.project,
                      guest.flavor),
                _make_service_level_period(
                    row, used.get(node), busy.get((guest.uuid, node)),
                    is_limited and guest.uuid not in unprotected,
                    guest.uuid in unallocated))


def _yield_rows(usage: view.GuestUsage
                ) -> Iterator[tuple[str, view.GuestNodeBandwidth, bool]]:
    """Yield each vCPU class of a guest with its bandwidth on a host node.

    :returns: name of the class, empty for a guest without classes; the
        bandwidth; and whether a control group limits it.
    """
    parts: list[tuple[str, view.GuestUsage | view.ClassUsage]] = [
        (one.vcpu_class.name, one) for one in usage.classes]
    for name, part in parts or [('', usage)]:
        for row in part.nodes:
            yield name, row, bool(part.control_groups)


def _make_service_level_period(row: view.GuestNodeBandwidth,
                               node: view.NodeUsage | None, busy: float | None,
                               protected: bool, unallocated: bool
                               ) -> LevelPeriod:
    """Return requested and received bandwidth of a server on one host node.

    The period is the time since the last report of nova-compute.

    :param row: measured bandwidth of the server on the host NUMA node.
    :param node: measured bandwidth of the host NUMA node; None if unknown.
    :param busy: load of the server's vCPUs; None if unknown.
    :param protected: whether the server's policy is enforced.
    :param unallocated: whether Placement has not allocated the server's
        guarantee.
    """
    asked = row.asked
    if asked is None:
        raise ValueError('a server without a policy has no service level')
    capacity = node.capacity if node is not None else None
    return LevelPeriod(
        asked.minimum, asked.maximum, None if unallocated else asked.minimum,
        row.effective.minimum if row.effective else None,
        _to_percent(row.used.rate, capacity),
        _to_percent(node.used.rate, capacity) if node is not None else None,
        busy, protected)


def _to_percent(rate: float | None, capacity: int | None) -> float | None:
    """Convert a bandwidth in bytes per second to percent of a capacity.

    :param rate: the bandwidth; None if unknown.
    :param capacity: the capacity in bytes per second; None if unknown.
    :returns: None if the bandwidth or the capacity is unknown.
    """
    if rate is None or not capacity:
        return None
    return round(100 * rate / capacity, 3)


def _map_cpu_loads(measured: load.HostLoad | None
                   ) -> Mapping[tuple[str, int], float]:
    """Return the load of guests' vCPUs, by guest and host NUMA node.

    If several guest NUMA nodes are on one host NUMA node, the busiest counts.
    """
    found: dict[tuple[str, int], float] = {}
    for one in (measured.guests if measured is not None else ()):
        if one.host_node is not None and one.cpu_load is not None:
            key = one.guest, one.host_node
            found[key] = max(found.get(key, 0.0), one.cpu_load)
    return found
