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

"""Network traffic between guests, as a host counts it.

A source is a plug-in: a class of the entry point group :data:`SOURCES` that is
called without arguments. Its byte count of a connection grows as long as the
connection exists, so the difference between two readings is the traffic
between them.
"""

import abc
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass

from ghsched_placement.features.rebalance import affinity

#: Group of the entry points from which [ghsched]affinity_source is loaded.
SOURCES = 'ghsched.affinity_sources'
#: Maximum number of peers for which an address has an average. Only 32 of a
#: guest are reported (ghsched_placement.features.rebalance.traffic.MOST), but
#: the traffic of others may grow.
MAX_PEERS = 128


class SourceError(Exception):
    """Reason why the bytes of network connections cannot be counted."""


@dataclass(frozen=True)
class Flow:
    """A network connection between two IP addresses.

    :param key: identifier of the connection, which is the same in each
        reading.
    :param source: IP address in its shortest form.
    :param destination: IP address in its shortest form.
    :param count: bytes in both directions since the connection began.
    """

    key: str
    source: str
    destination: str
    count: int


class Source(abc.ABC):
    """Reader of the network connections of this host.

    :ivar floors: by IP address, maximum bytes of the connections that the
        last reading left out. Addresses without such connections are missing.
    """

    def __init__(self) -> None:
        self.floors: Mapping[str, float] = {}

    @abc.abstractmethod
    def flows(self, addresses: frozenset[str]) -> Iterable[Flow]:
        """Read the host's network connections from or to some IP addresses.

        A connection is returned if its client or server has one of the
        addresses.

        :param addresses: IP addresses of guests of this host, in their
            shortest form.
        :raises SourceError: if the connections cannot be read.
        """


def count_new_bytes(before: Mapping[str, Flow], flows: Iterable[Flow],
                    floors: Mapping[str, float]) -> dict[affinity.Pair, float]:
    """Return the bytes sent between IP addresses since the last reading.

    If a connection has fewer bytes than before, it is a new connection with
    the same key.

    :param before: connections of the earlier reading, by key.
    :param flows: connections of this reading.
    :param floors: by address, maximum bytes of connections that the earlier
        reading left out.
    :returns: bytes by pair of addresses.
    """
    found: dict[affinity.Pair, float] = {}
    for flow in flows:
        last = before.get(flow.key)
        base: float = max(floors.get(flow.source, 0),
                          floors.get(flow.destination, 0))
        if last is not None:
            base = last.count if last.count <= flow.count else 0
        pair = affinity.make_pair_key(flow.source, flow.destination)
        found[pair] = found.get(pair, 0) + max(0, flow.count - base)
    return found


class Meter:
    """Meter of the mean network traffic between guests' IP addresses.

    Each reading of the connections adds the bytes that were sent since the
    previous reading. Bytes of a connection count only from the first reading
    that included its address.

    :param source: reader of the host's network connections.
    :ivar averages: mean traffic by pair of addresses; None before the first
        reading.
    """

    def __init__(self, source: Source,
                 settings: affinity.AffinitySettings) -> None:
        self._source = source
        self._settings = settings
        self._before: dict[str, Flow] = {}
        self._floors: Mapping[str, float] = {}
        self._addresses: frozenset[str] = frozenset()
        self.averages: affinity.TrafficAverages | None = None

    def update_traffic_averages(
            self, addresses: frozenset[str], now: float) -> None:
        """Update the averages of the network traffic between IP addresses.

        The connections of the addresses are read, and the bytes that were sent
        since the previous call are added to the averages.

        :param addresses: IP addresses of guests of this host.
        :param now: seconds of a monotonic clock.
        :raises SourceError: if the connections cannot be read.
        """
        flows = {flow.key: flow for flow in self._source.flows(addresses)}
        if self.averages is None:
            self.averages = affinity.TrafficAverages(now)
        else:
            known = [flow for flow in flows.values()
                     if {flow.source, flow.destination} & self._addresses]
            averages = affinity.update_traffic_averages(
                self.averages,
                count_new_bytes(self._before, known, self._floors),
                now,
                self._settings,
            )
            self.averages = affinity.select_busiest_pairs(
                averages, addresses, MAX_PEERS)
        self._before, self._addresses = flows, addresses
        # A plug-in need not call the constructor of its base.
        self._floors = getattr(self._source, 'floors', {})
