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


"""The candidates of one described host, without Placement (pure).

A second telling of what Placement does with the part of a query that is
ghsched's, for the dry run that must work without it. A test compares it with
Placement.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools

from ghsched_placement import candidates
from ghsched_placement.planner.need import Need
from ghsched_placement.planner.state import State
from ghsched_placement import request as requests
from ghsched_placement import vfs


def placed(state: State, need: Need, locality: str, sizes: vfs.Sizes,
           has_room: candidates.HasRoom) -> list[candidates.Placed]:
    """Ways to place a guest on a host, in the scheduler's order.

    What is not counted by NUMA node is not looked at, see
    :func:`ghsched_placement.planner.limits.of_root`.

    :param has_room: whether CPUs and memory of a host node suffice.
    """
    wanted = need.wanted(locality)
    asked = need.asked(locality, sizes)
    host = state.host
    if not asked.root_required <= host.root.traits:
        return []
    found = _Offers(state, asked, frozenset(wanted.suffixes.values()),
                    dict(need.query(locality, sizes)).get(
                        'group_policy') == 'isolate')
    answer = [{'allocations': {}, 'mappings': {
        suffix: [host.providers[place].uuid]
        for suffix, place in places.items()}}
        for places in itertools.islice(found.all(), candidates.MAX_PLACED)]
    candidates.fan_out(answer, wanted.vfs)
    ways, _refusal = candidates.place(
        answer, wanted,
        host.for_candidates(lambda place: host.providers[place].uuid),
        has_room)
    return ways


def pfs(state: State, need: Need) -> dict[str, list[vfs.Pf]]:
    """The PFs of each alias that a flavor has VFs of."""
    host = state.host
    return {alias: [
        vfs.Pf(host.root.uuid, host.providers[place].parent or '',
               state.free((place, need.aliases[alias])))
        for place in host.node_below
        if need.aliases[alias] in host.providers[place].inventories]
        for alias in {one.alias for one in need.policy.vfs}}


class _Offers:
    """Ways to give each group of a request a provider.

    :param apart: suffixes of groups that are on different NUMA nodes;
        Placement does not see to that, the scheduler does.
    :param isolate: whether every group has a provider of its own.
    """

    def __init__(self, state: State, asked: requests.Request,
                 apart: frozenset[str], isolate: bool) -> None:
        self._state, self._apart, self._isolate = state, apart, isolate
        #: The group that another one is below.
        self._above = {suffix: subtree[0] for subtree in asked.same_subtree
                       for suffix in subtree[1:]}
        self._groups = sorted(asked.groups,
                              key=lambda group: group.suffix in self._above)
        self._parent = self._parents()

    def all(self) -> Iterator[dict[str, int]]:
        """Place of the provider by suffix, for each way."""
        return self._choose(self._groups, {})

    def _choose(self, groups: Sequence[requests.Group],
                chosen: Mapping[str, int]) -> Iterator[dict[str, int]]:
        if not groups:
            yield dict(chosen)
            return
        group, *rest = groups
        for place in range(len(self._state.host.providers)):
            if self._may_be(group, place, chosen) and self._has(
                    group, place, chosen):
                yield from self._choose(rest, {**chosen, group.suffix: place})

    def _may_be(self, group: requests.Group, place: int,
                chosen: Mapping[str, int]) -> bool:
        """Whether a provider is where a group may be."""
        taken = [suffix for suffix, other in chosen.items() if other == place]
        if taken and (self._isolate or (
                group.suffix in self._apart
                and not self._apart.isdisjoint(taken))):
            return False
        above = self._above.get(group.suffix)
        return above is None or chosen[above] in self._ancestors(place)

    def _has(self, group: requests.Group, place: int,
             chosen: Mapping[str, int]) -> bool:
        """Whether a provider has what a group asks for, with the others."""
        provider = self._state.host.providers[place]
        if not group.required <= provider.traits:
            return False
        for name, amount in group.resources.items():
            taken = sum(other.resources.get(name, 0)
                        for other in self._groups
                        if chosen.get(other.suffix) == place)
            if name not in provider.inventories or (
                    taken + amount > self._state.free((place, name))
                    or amount > self._state.record((place, name))[
                        'max_unit']):
                return False
        return True

    def _parents(self) -> dict[int, int]:
        providers = self._state.host.providers
        places = {provider.uuid: place
                  for place, provider in enumerate(providers)}
        return {place: places[provider.parent]
                for place, provider in enumerate(providers)
                if provider.parent}

    def _ancestors(self, place: int) -> Iterator[int]:
        """A provider and those that it is below."""
        found: int | None = place
        while found is not None:
            yield found
            found = self._parent.get(found)
