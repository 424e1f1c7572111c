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

"""Cached answers on a cloud that explain why no host fits a request.

The explanation needs several queries. The index of hosts has the bandwidth
and the control groups. For facts that rarely change, such as whether any host
has a trait, Placement is queried at most once a minute. Negative answers are
not cached, because a host may have the resource a moment later.
"""

from collections.abc import Callable
from collections.abc import Iterable
import dataclasses
from typing import Any

from ghsched_nova.features.index.aged_cache import AgedCache
from ghsched_nova.features.index.host_capacity import HostView
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
    """Cache of answers that explain why no host fits; thread-safe."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._answers = AgedCache[Any, Any](MAX_AGE, _MAX_ANSWERS)

    def remember(self, question: Any, ask: Callable[[], Any]) -> Any:
        """Return the cached answer of Placement to a question, or ask again.

        An answer is cached for one minute, unless it is false or empty.

        :param ask: function that asks Placement.
        """
        answer = self._answers.get_fresh_value(question)
        if not answer:
            answer = ask()
            if answer:
                self._answers.set_value(question, answer)
        return answer

    def answer_from_index(self, cloud: CloudQueries) -> CloudQueries:
        """Return queries that the index answers as far as possible.

        :param cloud: queries that Placement answers.
        """
        views = [view for view in self._index.list_views()
                 if view.row.has_driver]
        if any(view.row.placement_headroom is None for view in views):
            return cloud
        has_trait = cloud.has_trait
        return dataclasses.replace(
            cloud, ask=self._make_ask(cloud.ask),
            # Nobody asks which of the host's nodes they are.
            known_nodes=[Pf(view.row.uuid, '', free) for view in views
                         for free in view.bandwidth.values()],
            known_totals=_read_bandwidth_totals(views),
            has_trait=has_trait and (lambda trait: self.remember(
                trait, lambda: has_trait(trait))))

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


def _read_bandwidth_totals(views: Iterable[HostView]) -> CloudTotals | None:
    """Return the bandwidth of NUMA nodes in all, with all of it in use.

    The index shows that too little is free. Equal hosts are listed once.

    :returns: None if a host does not report it.
    """
    found = set[tuple[int, ...]]()
    for view in views:
        left = view.row.placement_headroom
        if left is None or not left.capacity.keys() >= left.bandwidth.keys():
            return None
        found.add(tuple(left.capacity.values()))
    return CloudTotals(tuple(HostTotals(nodes=tuple(
        {names.MEM_BW_PCT: Stock(whole, whole)} for whole in of_host))
        for of_host in found), is_complete=True)
