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

"""Output of ``ghsched-top --since``: largest users of bandwidth (pure)."""

from collections.abc import Iterable
from collections.abc import Sequence
import json
import re

from ghsched_nova.features.top import top_output
from ghsched_placement.features.history import usage_history

_TIME = re.compile(r'([1-9][0-9]{0,3})([mh])')
_TITLES = ('GUEST', 'NODE', 'MOVED GB', 'MEAN MB/s', '%', 'PEAK MB/s',
           'MINUTES')
#: Displayed name of a whole host NUMA node.
_ALL = '(all)'


def parse_minutes(text: str) -> int:
    """Parse a duration such as ``30m`` or ``1h`` as a number of minutes.

    :raises ValueError: if the text is malformed, or longer than the time for
        which bandwidth is recorded.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f'{text!r} is not a time such as 30m or 1h')
    minutes = int(match[1]) * (60 if match[2] == 'h' else 1)
    if minutes > usage_history.MINUTES_KEPT:
        raise ValueError(
            f'{text!r} is more than the {usage_history.MINUTES_KEPT // 60} '
            'hours that nova-compute records')
    return minutes


def list_bandwidth_uses_since(
        history: usage_history.History, minutes: int, now: float,
        name_filter: str = '') -> list[usage_history.BandwidthUse]:
    """Return the bandwidth that each guest used in the last minutes.

    The guest that used the most comes first.

    :param minutes: number of minutes, including the current one.
    :param now: seconds since 1970.
    :param name_filter: text; guests are left out if neither their name nor
        their UUID contains it.
    """
    first = usage_history.to_minute_number(now) - minutes + 1
    return [use for use in usage_history.list_bandwidth_uses(history, first)
            if not name_filter or name_filter in use.name
            or name_filter in use.key.server]


def render_bandwidth_uses(uses: Sequence[usage_history.BandwidthUse],
                          history: usage_history.History) -> str:
    """Return a text table of the bandwidth that guests have used."""
    rows = []
    for use in uses:
        capacity = history.capacity.get(use.key.node)
        name = (use.name or use.key.server) if use.key.server else _ALL
        rows.append([
            top_output.replace_unprintable(name), str(use.key.node),
            f'{use.moved / 1e9:.1f}', f'{use.rate / 1e6:.1f}',
            f'{100 * use.rate / capacity:.1f}' if capacity else '-',
            f'{use.peak / 1e6:.1f}', f'{use.seconds / 60:.0f}'])
    return '\n'.join(top_output.align_table_columns(_TITLES, rows, 2))


def render_bandwidth_uses_as_json(
        uses: Iterable[usage_history.BandwidthUse],
        history: usage_history.History,
        now: float, minutes: int) -> str:
    """Return the bandwidth that guests have used, as one line of JSON.

    :param now: seconds since 1970.
    :param minutes: number of minutes in which the bandwidth was used.
    """
    return json.dumps({'time': now, 'minutes': minutes, 'uses': [{
        'name': use.name or None, 'uuid': use.key.server or None,
        'node': use.key.node, 'bytes': use.moved,
        'bytes_per_second': use.rate, 'peak_bytes_per_second': use.peak,
        'measured_seconds': use.seconds,
        'capacity': history.capacity.get(use.key.node)} for use in uses]})
