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

"""Network traffic between guests, from the reports of hosts (pure).

Hosts report traffic between IP addresses. Nova's ports show which guest has an
address. Addresses that several networks have are ambiguous, and their traffic
may be left out. A tenant chooses the addresses of its guests and the addresses
to which they send. Therefore the report of one guest suffices only within a
network; between networks, both guests must report traffic with each other.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
import ipaddress
import math
from typing import Any

from ghsched_placement.features.rebalance import affinity

KEY = 'ghsched_traffic'
#: Maximum number of peers that a guest reports, the busiest first.
MOST = 32
#: Maximum traffic of a guest in bytes per second: a port of 200 Gbit/s.
MAX_GUEST_RATE = 25e9


@dataclass(frozen=True)
class ListFormat:
    """Format of a record that is a list, such as that of traffic.

    Malformed items of the list are ignored.
    """

    name: str

    def is_malformed(self, fields: Mapping[str, Any]) -> bool:
        """Whether a host's stats have something else under the list's key."""
        return not isinstance(fields.get(self.name), list | None)


FORMAT = ListFormat(KEY)


@dataclass(frozen=True)
class AddressTraffic:
    """Mean network traffic between an address of a guest and another address.

    :param address: IP address of the guest.
    :param peer: the other IP address.
    :param rate: bytes per second; a decaying mean, see
        :class:`ghsched_placement.features.rebalance.affinity.AffinitySettings`.
    """

    address: str
    peer: str
    rate: float


@dataclass(frozen=True)
class Port:
    """Fixed IP address of a guest, with its network.

    :param guest: UUID of the guest.
    :param network: name of the network, with its project.
    :param address: the IP address.
    """

    guest: str
    network: str
    address: str


def make_traffic_diagnostics(averages: affinity.TrafficAverages,
                             addresses: Iterable[str]) -> dict[str, Any]:
    """Return a guest's network traffic as a field of its diagnostics.

    The field lists with which other IP addresses each of the guest's addresses
    exchanges traffic, and how many bytes per second, the most traffic first.

    :param averages: traffic between pairs of IP addresses.
    :param addresses: IP addresses of the guest.
    """
    mine = set(addresses)
    found = [AddressTraffic(*_order_pair(pair, mine), tie.strength)
             for pair, tie in averages.by_pair.items() if mine & set(pair)]
    found.sort(key=lambda talk: (-talk.rate, talk.address, talk.peer))
    return {KEY: [[talk.address, talk.peer, round(talk.rate)]
                  for talk in found[:MOST]]}


def _order_pair(pair: affinity.Pair, mine: set[str]) -> tuple[str, str]:
    one, other = pair
    return (one, other) if one in mine else (other, one)


def parse_traffic_diagnostics(
        diagnostics: Mapping[str, Any]) -> tuple[AddressTraffic, ...] | None:
    """Parse a guest's network traffic from its diagnostics.

    :returns: None if the diagnostics contain no such field.
    """
    found = diagnostics.get(KEY)
    if not isinstance(found, list):
        return None
    return tuple(talk for talk in map(_parse_talk, found[:MOST])
                 if talk is not None)


def _parse_talk(found: Any) -> AddressTraffic | None:
    try:
        address, peer, rate = found
        talk = AddressTraffic(str(ipaddress.ip_address(address)),
                              str(ipaddress.ip_address(peer)), float(rate))
    except (TypeError, ValueError, OverflowError):
        return None
    return talk if 0 <= talk.rate < float('inf') else None


def list_server_ports(server: Mapping[str, Any]) -> tuple[Port, ...]:
    """Return a server's network ports, each with its fixed IP and network.

    :param server: the server as Nova's API shows it.
    """
    found = []
    for name, entries in (server.get('addresses') or {}).items():
        for entry in entries:
            if entry.get('OS-EXT-IPS:type', 'fixed') == 'fixed':
                found.append(Port(
                    server['id'], f'{server.get("tenant_id", "")} {name}',
                    str(ipaddress.ip_address(entry['addr']))))
    return tuple(found)


def compute_guest_traffic(reports: Mapping[str, Iterable[AddressTraffic]],
                          ports: Iterable[Port]) -> affinity.TrafficAverages:
    """Return the network traffic between each pair of guests of a cloud.

    Hosts report traffic between IP addresses; these identify the guests. If
    both guests are in one network, the larger of the two reported amounts
    counts; otherwise the smaller one, which is 0 if one host reports nothing.
    The amounts that a guest reports are scaled to at most
    :data:`MAX_GUEST_RATE`.

    :param reports: traffic of each guest's addresses, by guest UUID.
    :param ports: all fixed IP addresses in the cloud.
    :returns: bytes per second by pair of guests, as decayed on the hosts.
    """
    by_address: dict[str, list[Port]] = {}
    networks: dict[tuple[str, str], set[str]] = {}
    for port in ports:
        by_address.setdefault(port.address, []).append(port)
        networks.setdefault((port.guest, port.address),
                            set()).add(port.network)
    near: dict[affinity.Pair, float] = {}
    far: dict[affinity.Pair, dict[str, float]] = {}
    for guest, talks in reports.items():
        for (peer, is_near), rate in _sum_peer_rates(
                guest, talks, by_address, networks).items():
            pair = affinity.make_pair_key(guest, peer)
            if is_near:
                near[pair] = max(near.get(pair, 0.0), rate)
            else:
                far.setdefault(pair, {})[guest] = rate
    found = near | {pair: near.get(pair, 0.0) + min(rates.values())
                    for pair, rates in far.items() if len(rates) == len(pair)}
    return affinity.TrafficAverages(0.0, {pair: affinity.PairTraffic(rate, 0.0)
                                          for pair, rate in found.items()})


def _sum_peer_rates(guest: str, talks: Iterable[AddressTraffic],
                    by_address: Mapping[str, Iterable[Port]],
                    networks: Mapping[tuple[str, str], set[str]]
                    ) -> dict[tuple[str, bool], float]:
    """Return the traffic of a guest by peer, at most MAX_GUEST_RATE together.

    :param by_address: ports of the cloud by IP address.
    :param networks: networks by guest UUID and IP address.
    :returns: bytes per second by UUID of the other guest, and whether both
        addresses are in one network.
    """
    rates: dict[tuple[str, bool], float] = {}
    for talk in talks:
        peer, is_near = _find_guest_by_address(
            by_address.get(talk.peer, ()),
            networks.get((guest, talk.address), set()))
        if peer and peer != guest:
            rates[peer, is_near] = rates.get((peer, is_near), 0.0) + talk.rate
    scale = min(1.0, MAX_GUEST_RATE / (math.fsum(rates.values()) or 1.0))
    return {peer: rate * scale for peer, rate in rates.items()}


def _find_guest_by_address(ports_of_address: Iterable[Port],
                           networks: set[str]) -> tuple[str, bool]:
    """Return the UUID of the guest that has an IP address.

    Guests in different networks can have the same address.

    :param ports_of_address: ports with the address, in different networks.
    :param networks: networks whose guests are preferred.
    :returns: an empty text if no guest, or more than one, has the address; and
        whether the guest is in one of the networks.
    """
    ports_of_address = list(ports_of_address)
    near = {port.guest for port in ports_of_address
            if port.network in networks}
    found = near or {port.guest for port in ports_of_address}
    return next(iter(found)) if len(found) == 1 else '', bool(near)
