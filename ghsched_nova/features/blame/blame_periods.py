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

"""Periods of bandwidth of all guests of a host, and a record of them (pure).

nova-compute records one period with each of its reports. An investigation of
one server makes samples of them, and of shorter periods that it measures.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from ghsched_nova.features.load import load_rates
from ghsched_placement.base import wire
from ghsched_placement.features.blame import blame
from ghsched_placement.features.load import load as loads

VERSION = 1
#: Maximum number of periods in the record, and of guests in each period.
PERIODS_KEPT = 15
GUESTS_KEPT = 1024


@dataclass(frozen=True)
class BlamePeriod:
    """Bandwidth and load of a host between two reports of nova-compute.

    Bandwidths are in bytes per second.

    :param time: end of the period, in seconds since 1970.
    :param seconds: length of the period.
    :param used: bandwidth used by host NUMA node.
    :param capacity: bandwidth that a host NUMA node can deliver, by node.
    :param guests: bandwidth used by guest UUID and host NUMA node.
    :param busy: mean load of the vCPUs, from 0 to 1, by guest UUID.
    """

    time: float
    seconds: float
    used: Mapping[int, float] = field(default_factory=dict)
    capacity: Mapping[int, float] = field(default_factory=dict)
    guests: Mapping[tuple[str, int], float] = field(default_factory=dict)
    busy: Mapping[str, float] = field(default_factory=dict)


def make_period_record(
        bandwidth: load_rates.MeasuredBandwidth,
        measured: loads.HostLoad | None,
        seconds: float, time: float) -> BlamePeriod:
    """Return the record of a host's bandwidth and load in one period.

    A period is the time between two reports of nova-compute. The records of
    the last periods show which guests slow down a server.

    :param measured: load in the same period; None if unknown.
    :param seconds: length of the period.
    :param time: end of the period, in seconds since 1970.
    """
    return BlamePeriod(time, seconds, bandwidth.used, bandwidth.capacity,
                       bandwidth.guests, compute_mean_vcpu_loads(
                           measured.guests if measured else ()))


def compute_mean_vcpu_loads(
        nodes: Iterable[loads.GuestNodeLoad]) -> dict[str, float]:
    """Return the mean load of each guest's vCPUs, from 0 to 1, by guest UUID.

    A guest is left out if the load of one of its vCPUs is unknown.

    :param nodes: loads of the guests' NUMA nodes.
    """
    sums: dict[str, tuple[float, int]] = {}
    unknown = set()
    for node in nodes:
        if node.cpu_load is None or not node.vcpus:
            unknown.add(node.guest)
            continue
        busy, vcpus = sums.get(node.guest, (0.0, 0))
        sums[node.guest] = (busy + node.cpu_load * node.vcpus,
                            vcpus + node.vcpus)
    return {uuid: busy / vcpus for uuid, (busy, vcpus) in sums.items()
            if uuid not in unknown}


def make_server_sample(period: BlamePeriod, server: str,
                       nodes: Collection[int]) -> blame.BlameSample:
    """Convert a period to a sample, to find guests that slow down a server.

    The sample has the bandwidth of each guest on the server's host NUMA nodes.
    Bandwidth that was not used by a guest is counted as that of the host.

    :param period: measurements of all guests and NUMA nodes of the host.
    :param server: UUID of the server.
    :param nodes: host NUMA nodes of the server.
    """
    rates: dict[str, float] = {}
    for (uuid, node), rate in period.guests.items():
        if node in nodes:
            rates[uuid] = rates.get(uuid, 0.0) + rate
    used = sum(period.used.get(node, 0.0) for node in nodes)
    rates[blame.HOST] = max(0.0, used - sum(rates.values()))
    parts = [period.used[node] / period.capacity[node] for node in nodes
             if node in period.used and period.capacity.get(node)]
    return blame.BlameSample(period.time, period.seconds, rates,
                             max(parts, default=None), period.busy.get(server))


# -- JSON ---------------------------------------------------------------------


def _make_fields(periods: Sequence[BlamePeriod]) -> dict[str, Any]:
    return {'periods': [{
        'time': round(one.time, 3), 'seconds': round(one.seconds, 3),
        'used': _pack(one.used), 'capacity': _pack(one.capacity),
        'guests': [[uuid, node, round(rate)] for (uuid, node), rate
                   in list(one.guests.items())[:GUESTS_KEPT]],
        'busy': {uuid: round(busy, 4) for uuid, busy
                 in list(one.busy.items())[:GUESTS_KEPT]},
    } for one in periods[-PERIODS_KEPT:]]}


def _pack(amounts: Mapping[int, float]) -> list[list[int]]:
    return [[node, round(amount)] for node, amount in amounts.items()]


def _parse_periods(found: Mapping[str, Any]) -> tuple[BlamePeriod, ...]:
    return tuple(BlamePeriod(
        wire.check_number(one['time'], wire.MAX_TIME),
        wire.check_number(one['seconds']), _unpack(one['used']),
        _unpack(one['capacity']),
        {(wire.check_text(uuid), wire.check_node(node)):
         wire.check_number(rate)
         for uuid, node, rate in one['guests'][:GUESTS_KEPT]},
        {wire.check_text(uuid): wire.check_number(busy, wire.MAX_LOAD)
         for uuid, busy in wire.check_object(one['busy']).items()})
        for one in found['periods'][-PERIODS_KEPT:])


def _unpack(pairs: object) -> dict[int, float]:
    return {wire.check_node(node): wire.check_number(amount)
            for node, amount in wire.check_list(pairs)}


#: A host's bandwidth and load in the last periods, the oldest first. A period
#: is the time between two reports of nova-compute.
FORMAT: wire.FileFormat[Sequence[BlamePeriod]] = wire.FileFormat(
    'ghsched-blame.json', VERSION, _parse_periods, _make_fields, tuple)
