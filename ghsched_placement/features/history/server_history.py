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

"""Rows of ``openstack ghsched server bandwidth show --history``."""

from collections.abc import Iterator
from collections.abc import Mapping
import time
from typing import Any

from ghsched_placement.features.history import usage_history
from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients
from ghsched_placement.osc import columns

COLUMNS = ('Time', 'Host Node', 'Used (MB/s)', 'Used (%)', 'Measured (s)')


def list_history_rows(client: clients.Client, record: Mapping[str, Any]
                      ) -> list[tuple[Any, ...]]:
    """Return table rows of the bandwidth that a server used in each minute.

    There is a row for each minute of the last hours and each host NUMA node.

    :param record: Nova's record of the server.
    :raises CommandRefused: if the server's host does not report the used
        bandwidth.
    """
    history = usage_history.parse_history_diagnostics(
        client.get_diagnostics(record['id']))
    if history is None:
        raise base.CommandRefused(
            f'no host reports the bandwidth of {record["name"]} in the last '
            'hours: only an admin sees it, and only of a server that runs '
            'and has a control group of its own for some minutes')
    return sorted(_yield_history_rows(history), key=lambda row: row[:2])


def _yield_history_rows(
        history: usage_history.History) -> Iterator[tuple[Any, ...]]:
    """Yield a table row for each minute and each host NUMA node of a server.

    :param history: bandwidth that the server used in each minute.
    """
    for key, minutes in history.minutes.items():
        capacity = history.capacity.get(key.node)
        for minute in minutes:
            yield (
                format_minute(minute.number), key.node,
                round(minute.rate / 1e6, 1),
                columns.mark_unknown(
                    round(100 * minute.rate / capacity, 1) if capacity
                    else None), round(minute.seconds, 1))


def format_minute(number: int) -> str:
    """Return the start of a minute as an ISO 8601 time in UTC.

    :param number: minutes since 1970.
    """
    return time.strftime('%Y-%m-%dT%H:%MZ',
                         time.gmtime(number * usage_history.MINUTE_S))


TABLE = base.ServerTable(
    'history', 'Show the mean bandwidth of each minute of the last hours, as '
    'the present host of the server has measured it', COLUMNS,
    list_history_rows)
