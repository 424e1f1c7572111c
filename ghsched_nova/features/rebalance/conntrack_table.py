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

"""Parser of the kernel's connection tracking table (pure).

A guest decides how many connections it has, so what is taken of the table is
bounded for each address.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
import ipaddress

from ghsched_nova.features.rebalance.flow_source import Flow

#: Maximum number of connections of all addresses, and of one address. Those
#: with the most bytes are selected.
MAX_FLOWS = 65536
MAX_FLOWS_OF_ADDRESS = 1024
#: Number of lines after which the time limit is checked.
_LINES = 1024
_BYTES = ' bytes='
#: Fields that distinguish connections between the same addresses.
_KEYS = ('sport', 'dport', 'type', 'code', 'id')


@dataclass(frozen=True)
class Selection:
    """Network connections of guests, selected from the conntrack table.

    :param flows: the selected connections.
    :param is_counted: whether the kernel counts bytes; True for an empty
        table.
    :param is_complete: whether the table was read to its end.
    :param floors: byte count of the largest connection that was left out, by
        IP address; only for addresses with too many connections.
    """

    flows: tuple[Flow, ...]
    is_counted: bool
    is_complete: bool
    floors: Mapping[str, int] = field(default_factory=dict)


def select_connections(lines: Iterable[str], addresses: frozenset[str],
                       is_late: Callable[[], bool] = lambda: False
                       ) -> Selection:
    """Return the connections in conntrack's table that have given addresses.

    A connection is selected if the IP address of its client or server is one
    of the given addresses, before address translation. A connection that is
    listed several times counts once, with its largest byte count.

    :param lines: lines of ``/proc/net/nf_conntrack``.
    :param addresses: IP addresses in their shortest form.
    :param is_late: function that returns True to stop reading.
    """
    spelt = {
        _format_address_as_kernel(address): address for address in addresses}
    most = min(MAX_FLOWS_OF_ADDRESS, MAX_FLOWS // max(1, len(addresses)))
    kept = {address: _LargestFlows(most) for address in addresses}
    number, is_counted, is_complete = 0, False, True
    for number, line in enumerate(lines, 1):
        if number % _LINES == 0 and is_late():
            is_complete = False
            break
        is_counted = is_counted or _BYTES in line
        mine = {kept[spelt[end]] for end in _parse_source_addresses(line)
                if end in spelt}
        # Most lines of a long table are not taken: they are not read either.
        if mine and _parse_byte_count(line) > min(one.floor for one in mine):
            flow = _parse_connection(line)
            if flow is not None:
                for one in mine:
                    one.add_network_connection(flow)
    for one in kept.values():
        one.drop_smallest_flows()
    found = {key: flow for one in kept.values()
             for key, flow in one.flows.items()}
    return Selection(
        tuple(found.values()), is_counted or not number, is_complete,
        {address: one.floor for address, one in kept.items() if one.floor})


class _LargestFlows:
    """Collector of an IP address's network connections with the most bytes.

    :param max_flows: number of connections to keep.
    :ivar flows: the connections by key. Until :meth:`drop_smallest_flows` is
        called, these may be up to twice as many.
    :ivar floor: byte count of the largest connection that was dropped.
    """

    def __init__(self, max_flows: int) -> None:
        self._most = max_flows
        self.flows: dict[str, Flow] = {}
        self.floor = 0

    def add_network_connection(self, flow: Flow) -> None:
        """Add a network connection (flow) to those of this IP address.

        If the connection is known already, the larger byte count is kept.
        """
        before = self.flows.get(flow.key, flow)
        self.flows[flow.key] = max(before, flow, key=lambda one: one.count)
        if len(self.flows) > 2 * self._most:
            self.drop_smallest_flows()

    def drop_smallest_flows(self) -> None:
        """Drop the network connections (flows) with the fewest bytes.

        Nothing is dropped unless the IP address has too many connections.
        """
        ordered = sorted(self.flows.values(), reverse=True,
                         key=lambda one: (one.count, one.key))
        self.flows = {one.key: one for one in ordered[:self._most]}
        if len(ordered) > self._most:
            self.floor = max(self.floor, ordered[self._most].count)


def _format_address_as_kernel(address: str) -> str:
    """Return an IP address as the kernel writes it in conntrack tables."""
    return ipaddress.ip_address(address).exploded


def _parse_source_addresses(line: str) -> list[str]:
    """Return the addresses of client and server in a conntrack line.

    A line has a source address for each of the two directions.
    """
    return [part.partition(' ')[0] for part in line.split(' src=')[1:]]


def _parse_byte_count(line: str) -> int:
    """Return the bytes sent in both directions, from a conntrack line.

    Returns -1 if the line has no valid byte counts.
    """
    try:
        # The largest number that goes through the channel of a helper.
        return min(2 ** 63 - 1, sum(int(part.partition(' ')[0]) for part
                                    in line.split(_BYTES)[1:])
                   if _BYTES in line else -1)
    except ValueError:
        return -1


def _fields(line: str) -> Iterator[tuple[str, str]]:
    for word in line.split():
        name, equals, value = word.partition('=')
        if equals:
            yield name, value


def _parse_connection(line: str) -> Flow | None:
    """Return the connection that a conntrack line describes.

    Returns None if the line does not have two valid addresses.
    """
    fields = list(_fields(line))
    sources = [value for name, value in fields if name == 'src']
    if len(sources) != 2:
        return None
    try:
        ends = [str(ipaddress.ip_address(source)) for source in sources]
    except ValueError:
        return None
    words = line.split()
    # The first of each is that of who began.
    first = dict(reversed(fields))
    key = ' '.join([words[2] if len(words) > 2 else '', *ends,
                    *(first.get(name, '') for name in _KEYS)])
    return Flow(key, ends[0], ends[1], _parse_byte_count(line))
