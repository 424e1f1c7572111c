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


"""The use of bandwidth as a compute host reports it to the scheduler (pure).

Nova keeps a text for each key in the stats of a compute node. Ours is JSON:
when it was measured, and for each host NUMA node what was used and what the
node can deliver, in bytes per second, or null. ``parts`` names the nodes of
which not all that is used is known.
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
    """What a host has reported.

    :param age: seconds since then; less than 0 where its clock is ahead.
    :param share: how much of what a host NUMA node can deliver was used,
        from 0 on; only nodes of which both are known.
    :param parts: nodes of which that is not all, but the sum of what could
        be measured.
    """

    age: float
    share: Mapping[int, float]
    parts: frozenset[int] = frozenset()

    def known(self, enough: float) -> dict[int, float]:
        """The shares that can be relied on.

        :param enough: a part counts from here on, because all is no less.
        """
        return {node: share for node, share in self.share.items()
                if node not in self.parts or share >= enough}


def write(snapshot: 'view.Snapshot', now: float) -> dict[str, str]:
    """The stats to report; none as long as nothing is known.

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


def read(stats: Mapping[str, str | None], now: float) -> Measured | None:
    """What a host has reported; None where that makes no sense.

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
