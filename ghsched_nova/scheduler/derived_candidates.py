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
"""Allocation candidates of a host, derived from those of another host (pure).

Hosts whose compute nodes have the same traits and resource classes in
Placement differ in what they have left, which the index of hosts knows well
enough to propose them. Placement's answer about one of them therefore says
what a candidate on the others looks like. What is derived is only an offer:
Placement checks the amounts when it is claimed.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import itertools
from typing import Any

from ghsched_nova.scheduler.host_capacity import HostReport
from ghsched_nova.scheduler.host_capacity import HostView
from ghsched_nova.scheduler.host_capacity import NodeCapacity
from ghsched_placement import headroom
from ghsched_placement import names

#: Maximum number of combinations of host NUMA nodes that are derived. A host
#: with more is asked for its candidates.
MAX_COMBINATIONS = 256

#: Parameters of a query that a derived candidate satisfies. The index of hosts
#: itself compares the aggregates of ``member_of``.
_SUPPORTED = frozenset({'limit', 'group_policy', 'member_of', 'resources'})


@dataclass(frozen=True)
class Template:
    """Content that the allocation candidates of similar hosts share.

    :param shape: digest of the traits and resource classes of the compute
        node; hosts with an equal digest are similar. See
        :func:`ghsched_placement.headroom.hash_provider`.
    :param root: amounts that a candidate takes from the compute node, by
        resource class.
    :param groups: percent of bandwidth that a request group takes from a host
        NUMA node, by suffix of the request group.
    :param isolated: whether each request group needs a host NUMA node of its
        own.
    """

    shape: str
    root: Mapping[str, int]
    groups: Mapping[str, int]
    isolated: bool


def make_candidate_template(parameters: Sequence[tuple[str, str]],
                            candidates: Sequence[Mapping[str, Any]],
                            summaries: Mapping[str, Any],
                            row: HostReport) -> Template | None:
    """Return a template from which other hosts' candidates are derived.

    Placement's allocation candidates on one host show what it would return for
    another host with the same traits and resource classes. Only the NUMA nodes
    differ.

    :param parameters: parameters of the query, without traits and the host.
    :param candidates: Placement's candidates on the host.
    :param summaries: provider summaries of Placement's answer.
    :param row: resource report of the host.
    :returns: None if candidates on other hosts cannot be derived, because they
        may have providers whose UUIDs are not known, such as PFs.
    """
    host = row.uuid
    providers = {names.make_numa_provider_uuid(host, node.number)
                 for node in row.nodes}
    first = candidates[0]
    groups: dict[str, int] = {}
    for suffix, chosen in first['mappings'].items():
        if suffix and len(chosen) == 1 and chosen[0] in providers:
            groups[suffix] = _get_bandwidth(parameters, suffix)
        elif suffix or chosen != [host]:
            return None
    known = _SUPPORTED | {f'resources{suffix}' for suffix in groups}
    if (not first['allocations'].keys() <= {host, *providers}
            or host not in first['allocations']
            or 0 in groups.values()
            or not known.issuperset(name for name, _value in parameters)):
        return None
    summary = summaries[host]
    return Template(
        headroom.hash_provider(summary['traits'], summary['resources']),
        first['allocations'][host]['resources'], groups,
        ('group_policy', 'isolate') in parameters)


def _get_bandwidth(parameters: Sequence[tuple[str, str]], suffix: str) -> int:
    """Return the percent of bandwidth that a request group asks for.

    It is 0 if the group asks for any other resource.
    """
    amounts = dict(parameters).get(f'resources{suffix}', '')
    name, _separator, amount = amounts.partition(':')
    return int(amount) if name == names.MEM_BW_PCT and amount.isdigit() else 0


def derive_candidates(template: Template,
                      view: HostView) -> list[dict[str, Any]]:
    """Return a host's allocation candidates, derived from another host's.

    The list is empty if the traits and resource classes of the two compute
    nodes differ or are unknown. It is also empty if the host has too many
    combinations of NUMA nodes.

    :param template: template made from the candidates of the other host.
    :param view: free resources of the host.
    """
    left = view.row.placement_headroom
    if left is None or left.shape != template.shape:
        return []
    rooms = [room for room in view.nodes if room.bandwidth is not None]
    if len(rooms) ** len(template.groups) > MAX_COMBINATIONS:
        return []
    return [_make_candidate(template, view.row.uuid, chosen)
            for chosen in _iterate_fitting_nodes(template, rooms)]


def _iterate_fitting_nodes(template: Template, rooms: Sequence[NodeCapacity]
                           ) -> Iterator[tuple[int, ...]]:
    """Iterate over choices of a host NUMA node for each request group.

    Each choice has the numbers of the nodes in the order of the groups. Only
    choices for which all nodes have enough free bandwidth are returned.

    :param template: names the groups and the bandwidth that each one needs.
    :param rooms: free resources of the host's NUMA nodes.
    """
    free = {room.number: room.bandwidth or 0 for room in rooms}
    for chosen in itertools.product(free, repeat=len(template.groups)):
        used = dict.fromkeys(chosen, 0)
        for node, share in zip(chosen, template.groups.values(), strict=True):
            used[node] += share
        if (all(share <= free[node] for node, share in used.items())
                and not (template.isolated and len(used) < len(chosen))):
            yield chosen


def _make_candidate(template: Template, host: str,
                    chosen: Sequence[int]) -> dict[str, Any]:
    """Return the allocation candidate of a host with given NUMA nodes.

    :param host: UUID of the host.
    :param chosen: host NUMA node of each request group.
    """
    allocations = {host: {'resources': dict(template.root)}}
    mappings = {'': [host]}
    for node, (suffix, share) in zip(chosen, template.groups.items(),
                                     strict=True):
        provider = names.make_numa_provider_uuid(host, node)
        mappings[suffix] = [provider]
        taken = allocations.setdefault(provider, {'resources': {}})
        taken['resources'][names.MEM_BW_PCT] = share + taken[
            'resources'].get(names.MEM_BW_PCT, 0)
    return {'allocations': allocations, 'mappings': mappings}
