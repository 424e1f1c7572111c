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


"""Bandwidth report of a compute host in the stats of its compute node (pure).

Nova stores a text for each key of the stats. The text is JSON: time of the
measurement and, by host NUMA node, used bandwidth and capacity in bytes per
second, or null. ``parts`` lists the nodes whose use is known in part only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import json
import math
from typing import Any
from typing import TYPE_CHECKING

from ghsched_nova.monitor import rates
from ghsched_placement import cpulist

if TYPE_CHECKING:       # nova-scheduler reads, and needs no resctrl for it
    from ghsched_nova.monitor import view

KEY = 'ghsched_bandwidth'


@dataclass(frozen=True)
class Measured:
    """Bandwidth report of a host, as the scheduler reads it.

    :param age: seconds since the measurement; negative if the host's clock is
        ahead.
    :param share: used share of the capacity by host NUMA node, from 0 on; only
        nodes whose use and capacity are known.
    :param parts: nodes whose use was measured in part only, so that the true
        share may be higher.
    """

    age: float
    share: Mapping[int, float]
    parts: frozenset[int] = frozenset()

    def reliable_shares(self, enough: float) -> dict[int, float]:
        """Return the shares that are reliable, by host NUMA node.

        :param enough: a share measured in part counts only from this value on,
            because the true share is at least that high.
        """
        return {node: share for node, share in self.share.items()
                if node not in self.parts or share >= enough}


def to_stats(snapshot: 'view.Snapshot', now: float) -> dict[str, str]:
    """Return the stats with the bandwidth report; empty if nothing was
    measured.

    :param now: seconds since 1970.
    """
    nodes, parts = {}, []
    for node in snapshot.nodes:
        if node.nodes and node.used.rate is not None:
            name = cpulist.render(node.nodes)
            nodes[name] = [round(node.used.rate), node.capacity]
            if node.used.state is not rates.State.OK:
                parts.append(name)
    if not nodes:
        return {}
    return {KEY: json.dumps({'time': round(now, 1), 'nodes': nodes,
                             **({'parts': parts} if parts else {})})}


def from_stats(stats: Mapping[str, str | None], now: float) -> Measured | None:
    """Return the bandwidth report of a host; None if it is missing or
    malformed.

    :param now: seconds since 1970.
    """
    try:
        document = json.loads(stats.get(KEY) or 'null')
        if not isinstance(document, dict):
            return None
        age = now - float(document['time'])
        share = {}
        for names, (used, capacity) in document['nodes'].items():
            part = _share(used, capacity)
            if part is not None:
                share.update(dict.fromkeys(cpulist.parse(names), part))
        parts = {node for names in document.get('parts', ())
                 for node in cpulist.parse(names)}
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError,
            RecursionError):
        return None
    return (Measured(age, share, frozenset(parts)) if math.isfinite(age)
            else None)


def _share(used: Any, capacity: Any) -> float | None:
    if not capacity or used is None:
        return None
    share = float(used) / float(capacity)
    return share if math.isfinite(share) and share >= 0 else None
