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


"""How many VFs PFs have left, and how to share a number among them (pure)."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ghsched_placement.request import Devices


@dataclass(frozen=True)
class Pf:
    """A provider of VFs.

    :param root: UUID of the compute node's provider.
    :param parent: UUID of the provider that it is below; its host NUMA node,
        where that is known.
    :param free: VFs that are left.
    """

    root: str
    parent: str
    free: int

    def place(self, locality: str) -> str:
        """UUID of what VFs of one guest node have in common."""
        return self.parent if locality == 'node' else self.root


def query(devices: Devices) -> list[tuple[str, str]]:
    """Parameters of GET /allocation_candidates for PFs with a free VF."""
    asked = [('resources_vf', f'{devices.resource_class}:1')]
    if devices.required:
        asked.append(('required_vf', ','.join(sorted(devices.required))))
    return asked


def read(summaries: Mapping[str, Any], devices: Devices) -> list[Pf]:
    """The PFs in Placement's answer to :func:`query`.

    :param summaries: ``provider_summaries`` of microversion 1.29 or later.
    """
    found = []
    for summary in summaries.values():
        record = summary['resources'].get(devices.resource_class)
        if record and devices.required <= set(summary['traits']):
            found.append(Pf(summary['root_provider_uuid'],
                            summary['parent_provider_uuid'] or '',
                            record['capacity'] - record['used']))
    return found


def by_place(pfs: Iterable[Pf], locality: str) -> dict[str, list[int]]:
    """Free VFs of each PF, the most first, by what they have in common."""
    places: dict[str, list[int]] = {}
    for pf in pfs:
        places.setdefault(pf.place(locality), []).append(pf.free)
    return {place: sorted(free, reverse=True)
            for place, free in places.items()}


def splits(count: int, pools: Iterable[Sequence[int]],
           most: int) -> list[tuple[int, ...]]:
    """Ways to take VFs of several PFs, those of the fewest PFs first.

    :param count: how many VFs.
    :param pools: free VFs of the PFs of each place, the most first.
    :param most: how many ways to return at most.
    :returns: the number of VFs of each PF.
    """
    ways = {tuple(_greedy(count, pool)) for pool in pools
            if sum(pool) >= count}
    return sorted((way for way in ways if len(way) > 1),
                  key=lambda way: (len(way), way))[:most]


def combinations(parts: Mapping[str, int],
                 pfs: Mapping[str, Sequence[Pf]]) -> int:
    """How many ways Placement goes through for one host, at most.

    :param parts: how many groups a request has, by alias; each is of any PF
        of the host.
    """
    found = 1
    for alias, number in parts.items():
        of_a_host = by_place(pfs.get(alias, ()), 'any').values()
        found *= max(map(len, of_a_host), default=0) ** number
    return found


def _greedy(count: int, pool: Sequence[int]) -> Iterator[int]:
    for free in pool:
        if count <= 0:
            return
        yield min(free, count)
        count -= free
