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

"""Network traffic of guests, as hosts report it, and its endpoints (pure).

A host knows addresses. Which guest has one is known to Nova, and two networks
may have the same one; what is not clear is left out.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
import ipaddress
from typing import Any

from ghsched_placement.rebalance import affinity

KEY = 'ghsched_traffic'
#: Of a guest: the busiest of its peers.
MOST = 32


@dataclass(frozen=True)
class AddressTraffic:
    """Mean network traffic between an address of a guest and another address.

    :param address: IP address of the guest.
    :param peer: the other IP address.
    :param rate: bytes per second; a decaying mean, see
        :class:`ghsched_placement.rebalance.affinity.Settings`.
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
    return tuple(talk for talk in map(_parse_talk, found) if talk is not None)


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
    both hosts report the traffic of a pair, the larger amount counts.

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
    found: dict[affinity.Pair, float] = {}
    for guest, guest_reports in reports.items():
        rates: dict[str, float] = {}
        for talk in guest_reports:
            peer = _find_guest_by_address(by_address.get(talk.peer, ()),
                                          networks.get((guest, talk.address),
                                                       set()))
            if peer and peer != guest:
                rates[peer] = rates.get(peer, 0.0) + talk.rate
        for peer, rate in rates.items():
            pair = affinity.make_pair_key(guest, peer)
            found[pair] = max(found.get(pair, 0.0), rate)
    return affinity.TrafficAverages(0.0, {pair: affinity.PairTraffic(rate, 0.0)
                                          for pair, rate in found.items()})


def _find_guest_by_address(ports_of_address: Iterable[Port],
                           networks: set[str]) -> str:
    """Return the UUID of the guest that has an IP address.

    Guests in different networks can have the same address.

    :param ports_of_address: ports with the address, in different networks.
    :param networks: networks whose guests are preferred.
    :returns: an empty text if no guest, or more than one, has the address.
    """
    ports_of_address = list(ports_of_address)
    near = {port.guest for port in ports_of_address
            if port.network in networks}
    found = near or {port.guest for port in ports_of_address}
    return found.pop() if len(found) == 1 else ''
