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

"""Answers about a cloud that explain refusals without asking Placement.

Why no host fits is asked part by part. Free bandwidth and control groups are
in the index of hosts. What seldom changes, such as traits that some host has,
is asked once a minute. Answers of no are not remembered: a host may have what
is asked for a moment later.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

from ghsched_nova.features.index.aged_cache import AgedCache
from ghsched_nova.features.index.host_index import Index
from ghsched_placement.fit.cloud_lack import Ask
from ghsched_placement.fit.cloud_lack import CloudQueries
from ghsched_placement.fit.cloud_totals import CloudTotals
from ghsched_placement.fit.cloud_totals import HostTotals
from ghsched_placement.fit.cloud_totals import Stock
from ghsched_placement.providers import names
from ghsched_placement.query.vfs import Pf

#: Seconds for which answers of Placement are remembered.
MAX_AGE = 60.0

#: Maximum number of answers that are remembered.
_MAX_ANSWERS = 1024


class CloudMemory:
    """Answers about the hosts of the index; thread-safe."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._answers = AgedCache[Any, Any](MAX_AGE, _MAX_ANSWERS)

    def remember(self, question: Any, ask: Callable[[], Any]) -> Any:
        """Return an answer of Placement, which is asked once a minute at most.

        :param ask: function that asks Placement. An answer that is false or
            empty is not remembered.
        """
        answer = self._answers.get_fresh_value(question)
        if not answer:
            answer = ask()
            if answer:
                self._answers.set_value(question, answer)
        return answer

    def answer_from_index(self, cloud: CloudQueries) -> CloudQueries:
        """Return queries that are answered by the index where it knows enough.

        :param cloud: queries that Placement answers.
        """
        nodes = self._list_bandwidth()
        if nodes is None:
            return cloud
        return dataclasses.replace(
            cloud, ask=self._make_ask(cloud.ask), known_nodes=nodes,
            read_known_totals=lambda: _keep_bandwidth(self.remember(
                'totals', lambda: cloud.totals)))

    def _list_bandwidth(self) -> list[Pf] | None:
        """Return the host NUMA nodes with their free bandwidth.

        :returns: None if a host does not report it.
        """
        found = []
        for view in self._index.list_views():
            row = view.row
            if row.has_driver and row.placement_headroom is None:
                return None
            found += [Pf(row.uuid, names.make_numa_provider_uuid(
                row.uuid, node), free)
                for node, free in view.bandwidth.items()]
        return found

    def _make_ask(self, ask: Ask) -> Ask:
        groups = max((view.groups or 0 for view in self._index.list_views()),
                     default=0)

        def ask_or_know(query: list[tuple[str, str]]) -> bool:
            if len(query) == 1:
                name, _, amount = query[0][1].partition(':')
                if name == names.RESCTRL_GROUP and groups >= int(amount):
                    return True
            return bool(self.remember(tuple(query), lambda: ask(query)))
        return ask_or_know


def _keep_bandwidth(totals: CloudTotals) -> CloudTotals:
    """Return what host NUMA nodes have of bandwidth, all of it in use.

    What is free changes, and the index knows that it is not enough.
    """
    return CloudTotals(tuple(
        HostTotals(nodes=tuple(
            {name: Stock(stock.capacity, stock.capacity)
             for name, stock in node.items() if name == names.MEM_BW_PCT}
            for node in host.nodes)) for host in totals.hosts),
        totals.is_complete)
