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

"""Privileged function that reads the connections of guests."""

from collections.abc import Iterable
import functools
import ipaddress
import time
from typing import Annotated

from ghsched_nova.base import bounds
from ghsched_nova.base import privsep
from ghsched_nova.features.rebalance import conntrack_table
from ghsched_nova.features.rebalance.flow_source import Flow

#: proc(5); mode 0440, owned by root.
TABLE = '/proc/net/nf_conntrack'
#: Seconds in which the table is read; a million lines take about five.
READ_TIMEOUT = 10.0
#: Characters of a line; the kernel's have about 300.
_LINE = 4096


def _check_ip_address(value: str) -> None:
    """Refuse a text that is not an IP address."""
    try:
        ipaddress.ip_address(value)
    except ValueError as error:
        raise bounds.OutOfBounds(str(error)) from None


_Address = Annotated[str, bounds.Text('[0-9a-f.:]+', 45), _check_ip_address]
#: The fields of conntrack_table.Selection, in order.
_Selection = tuple[list[tuple[str, str, str, int]], bool, bool,
                   list[tuple[str, int]]]


def read_connections(addresses: Iterable[str]) -> conntrack_table.Selection:
    """Read this host's network connections from or to some IP addresses.

    The privileged helper reads them from the conntrack table.

    :raises OSError: if the table cannot be read.
    :raises HelperTimeout: if the helper does not answer.
    """
    flows, is_counted, is_complete, floors = _connections(sorted(addresses))
    return conntrack_table.Selection(
        tuple(Flow(*fields) for fields in flows), is_counted, is_complete,
        dict(floors))


@privsep.entrypoint(privsep.connections, timeout=60.0)
def _connections(addresses: list[_Address]) -> _Selection:
    end = time.monotonic() + READ_TIMEOUT
    with open(TABLE, encoding='ascii', errors='replace') as stream:
        found = conntrack_table.select_connections(
            iter(functools.partial(stream.readline, _LINE), ''),
            frozenset(addresses), lambda: time.monotonic() > end)
    return ([(flow.key, flow.source, flow.destination, flow.count)
             for flow in found.flows], found.is_counted, found.is_complete,
            list(found.floors.items()))
