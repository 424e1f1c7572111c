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
Placement differ only in their free amounts, which the index of hosts has.
Therefore Placement's candidates on one of these hosts show the form of
candidates on the others. A derived candidate is only an offer: Placement
checks the amounts when it is claimed.

As long as hosts report the digest of these traits and classes, candidates of
later requests are derived without a query; Placement is queried again once a
minute (:data:`TEMPLATE_AGE`).

VFs are derived, too. The UUID of a PF's resource provider is in Nova's record
of the host's devices. On the host for which Placement was queried, this record
is compared with Placement's class, traits and NUMA node of the PFs.
"""

from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass
from dataclasses import field
import itertools
import math
from typing import Any
from typing import TypeAlias

from ghsched_nova.features.index.aged_cache import AgedCache
from ghsched_nova.features.index.host_capacity import HostView
from ghsched_nova.features.index.host_capacity import PfCapacity
from ghsched_nova.features.index.host_capacity import ReportedHost
from ghsched_nova.features.index.host_capacity import RequestNodeNeed
from ghsched_placement.base import decimals
from ghsched_placement.features.index import headroom
from ghsched_placement.providers import names

#: Maximum number of combinations of host NUMA nodes that are derived. A host
#: with more is asked for its candidates.
MAX_COMBINATIONS = 256

#: Seconds after which Placement is asked again for candidates like those of a
#: template.
TEMPLATE_AGE = 60.0

#: Maximum number of templates that are kept.
MAX_TEMPLATES = 256

#: Parameters of a query that a derived candidate satisfies. The index of hosts
#: itself compares the aggregates of ``member_of``.
_SUPPORTED = frozenset({'limit', 'group_policy', 'member_of', 'resources',
                        'same_subtree'})

#: Traits that nova-compute gives each PF. A host that differs in the second
#: differs in the traits of its compute node, too.
PF_TRAITS = frozenset({'COMPUTE_MANAGED_PCI_DEVICE', names.OWNER_TRAIT})

#: Host NUMA node of a request group for bandwidth, and the PFs of the groups
#: for VFs that belong to it.
_Choice: TypeAlias = tuple[int, tuple[PfCapacity, ...]]


@dataclass(frozen=True)
class VfGroup:
    """Request group for VFs of one PF.

    :param suffix: suffix of the request group.
    :param resource_class: resource class of the VFs.
    :param count: number of VFs.
    """

    suffix: str
    resource_class: str
    count: int


@dataclass(frozen=True)
class Template:
    """Content that the allocation candidates of similar hosts share.

    :param shape: digest of the traits and resource classes of the compute
        node; hosts with an equal digest are similar. See
        :func:`ghsched_placement.features.index.headroom.hash_provider`.
    :param root: amounts that a candidate takes from the compute node, by
        resource class.
    :param groups: percent of bandwidth that a request group takes from a host
        NUMA node, by suffix of the request group.
    :param isolated: whether each request group needs a host NUMA node or a PF
        of its own.
    :param vfs: request groups for VFs from the same host NUMA node, by suffix
        of the request group for the node's bandwidth.
    """

    shape: str
    root: Mapping[str, int]
    groups: Mapping[str, int]
    isolated: bool
    vfs: Mapping[str, Sequence[VfGroup]] = field(default_factory=dict)


#: Templates by query, and by digest of the compute nodes that they are for.
Templates: TypeAlias = AgedCache[Hashable, Template]


def make_template_cache() -> Templates:
    """Return an empty cache of templates of candidates."""
    return AgedCache(TEMPLATE_AGE, MAX_TEMPLATES)


def find_candidate_template(templates: Templates, query: Hashable,
                            view: HostView) -> Template | None:
    """Return the template from which a host's candidates can be derived.

    Placement has answered the same query for another host, whose providers and
    inventories have the same shape.

    :returns: None if Placement has not, or too long ago.
    """
    left = view.row.placement_headroom
    return templates.get_fresh_value((query, left and left.shape))


def make_candidate_template(parameters: Sequence[tuple[str, str]],
                            candidates: Sequence[Mapping[str, Any]],
                            summaries: Mapping[str, Any],
                            row: ReportedHost) -> Template | None:
    """Return a template from which other hosts' candidates are derived.

    Placement's allocation candidates on one host show what it would return for
    another host with the same traits and resource classes. Only the NUMA nodes
    and PFs differ.

    :param parameters: parameters of the query, without traits and the host.
    :param candidates: Placement's candidates on the host.
    :param summaries: provider summaries of Placement's answer.
    :param row: resource report of the host.
    :returns: None if candidates on other hosts cannot be derived, because they
        may have providers whose UUIDs are not known, such as PFs that Nova's
        record of the host does not have as Placement has them.
    """
    vfs = _parse_vf_groups(parameters)
    groups = _parse_bandwidth_groups(parameters, candidates[0], vfs, row)
    if groups is None or not _has_pfs_as_reported(row, vfs, summaries):
        return None
    summary = summaries[row.uuid]
    return Template(
        headroom.hash_provider(summary['traits'], summary['resources']),
        candidates[0]['allocations'][row.uuid]['resources'], groups,
        ('group_policy', 'isolate') in parameters, vfs)


def _parse_bandwidth_groups(parameters: Sequence[tuple[str, str]],
                            candidate: Mapping[str, Any],
                            vfs: Mapping[str, Sequence[VfGroup]],
                            row: ReportedHost) -> dict[str, int] | None:
    """Return the percent of bandwidth that a query asks for, by request group.

    Each of these groups asks for bandwidth of one host NUMA node.

    :param parameters: the query to Placement.
    :param row: host of the candidate.
    :param candidate: Placement's candidate on a host.
    :param vfs: request groups for VFs.
    :returns: None if the query or the candidate has anything else than
        bandwidth, VFs and resources of the compute node.
    """
    host, groups = row.uuid, dict[str, int]()
    nodes = {names.make_numa_provider_uuid(host, node.number)
             for node in row.nodes}
    pfs = {pf.provider for pf in row.pfs}
    of_pfs = {group.suffix for some in vfs.values() for group in some}
    for suffix, chosen in candidate['mappings'].items():
        known = pfs if suffix in of_pfs else nodes if suffix else {host}
        if len(chosen) != 1 or chosen[0] not in known:
            return None
        if suffix and suffix not in of_pfs:
            groups[suffix] = _get_bandwidth(parameters, suffix)
    expected = {f'resources{suffix}' for suffix in (*groups, *of_pfs)}
    subtrees = [name for name, _value in parameters if name == 'same_subtree']
    if (candidate['allocations'].keys() <= {host, *nodes, *pfs}
            and host in candidate['allocations']
            and 0 not in groups.values() and vfs.keys() <= groups.keys()
            and len(subtrees) == len(vfs)
            and (_SUPPORTED | expected).issuperset(
                name for name, _value in parameters)):
        return groups
    return None


def _parse_vf_groups(parameters: Sequence[tuple[str, str]]
                     ) -> dict[str, list[VfGroup]]:
    """Return the request groups for VFs of a query.

    :returns: the groups by the suffix of the request group for bandwidth whose
        host NUMA node they share. Groups of another kind are left out, with
        all others of their node.
    """
    amounts = dict(parameters)
    found: dict[str, list[VfGroup]] = {}
    for name, value in parameters:
        if name != 'same_subtree':
            continue
        groups, others = [], []
        for suffix in value.split(','):
            kind, _separator, count = amounts.get(
                f'resources{suffix}', '').partition(':')
            number = decimals.parse_decimal(count)
            if kind.startswith('CUSTOM_PCI_') and number is not None:
                groups.append(VfGroup(suffix, kind, number))
            else:
                others.append(suffix)
        if groups and len(others) == 1:
            found[others[0]] = groups
    return found


def _has_pfs_as_reported(row: ReportedHost,
                         vfs: Mapping[str, Sequence[VfGroup]],
                         summaries: Mapping[str, Any]) -> bool:
    """Return whether a host's PFs in Placement agree with Nova's record.

    Only PFs with the resource classes of a request are compared.

    :param row: report of the host, from Nova's record.
    :param vfs: request groups for VFs.
    :param summaries: provider summaries of Placement's answer about the host.
    """
    classes = {group.resource_class
               for groups in vfs.values() for group in groups}
    # Releases of Nova differ in whether there is the owner's trait.
    traits = PF_TRAITS & {'COMPUTE_MANAGED_PCI_DEVICE',
                          *summaries[row.uuid]['traits']}
    reported = {
        pf.provider: (pf.resource_class,
                      names.make_numa_provider_uuid(row.uuid, pf.node))
        for pf in row.pfs if pf.resource_class in classes}
    return all(
        summary is not None and summary['resources'].keys() == {kind}
        and summary['parent_provider_uuid'] == parent
        and traits.issubset(summary['traits'])
        for uuid, (kind, parent) in reported.items()
        for summary in [summaries.get(uuid)])


def _get_bandwidth(parameters: Sequence[tuple[str, str]], suffix: str) -> int:
    """Return the percent of bandwidth that a request group asks for.

    It is 0 if the group asks for any other resource.
    """
    amounts = dict(parameters).get(f'resources{suffix}', '')
    name, _separator, amount = amounts.partition(':')
    return (decimals.parse_decimal(amount) or 0
            if name == names.MEM_BW_PCT else 0)


def derive_candidates(template: Template,
                      view: HostView) -> list[dict[str, Any]]:
    """Return a host's allocation candidates, derived from another host's.

    Each request group for bandwidth has a host NUMA node of its own, as the
    guest NUMA nodes have. The list is empty if the traits and resource classes
    of the two compute nodes differ or are unknown. It is also empty if the
    host has too many combinations of NUMA nodes and PFs.

    :param template: template made from the candidates of the other host.
    :param view: free resources of the host.
    """
    left = view.row.placement_headroom
    if left is None or left.shape != template.shape:
        return []
    pfs = view.list_pfs() if template.vfs else []
    choices = [_list_choices(template, suffix, view, pfs)
               for suffix in template.groups]
    if math.prod(map(len, choices)) > MAX_COMBINATIONS:
        return []
    return [_make_candidate(template, view.row.uuid, chosen)
            for chosen in itertools.product(*choices)
            if len({node for node, _pfs in chosen}) == len(chosen)]


def _list_choices(template: Template, suffix: str, view: HostView,
                  pfs: Sequence[PfCapacity]) -> list[_Choice]:
    """Return host NUMA nodes and PFs that a guest NUMA node may be given.

    :param suffix: suffix of the guest node's request group for bandwidth.
    :param pfs: free VFs of the host's PFs.
    """
    need = RequestNodeNeed(bandwidth=template.groups[suffix]).read_amounts(
        view.row.table)
    groups, known = template.vfs.get(suffix, ()), view.bandwidth
    return [
        (node.number, chosen) for node in view.amounts.nodes
        if node.number in known and node.count_guest_nodes(need)
        for chosen in itertools.product(*(
            [pf for pf in pfs if pf.node == node.number
             and pf.resource_class == group.resource_class]
            for group in groups))
        if _have_enough_vfs(chosen, groups)
        and not (template.isolated and len(set(chosen)) < len(chosen))]


def _have_enough_vfs(pfs: Sequence[PfCapacity],
                     groups: Sequence[VfGroup]) -> bool:
    """Return whether PFs have the VFs of the request groups that choose them.
    """
    needed: Counter[str] = Counter()
    for pf, group in zip(pfs, groups, strict=True):
        needed[pf.provider] += group.count
    return all(needed[pf.provider] <= pf.free for pf in pfs)


def _make_candidate(template: Template, host: str,
                    chosen: Sequence[_Choice]) -> dict[str, Any]:
    """Return the allocation candidate of a host with given NUMA nodes and PFs.

    :param host: UUID of the host.
    :param chosen: host NUMA node and PFs of each request group for bandwidth.
    """
    allocations = {host: {'resources': dict(template.root)}}
    mappings = {'': [host]}

    def take(suffix: str, provider: str, resource: str, amount: int) -> None:
        mappings[suffix] = [provider]
        taken = allocations.setdefault(provider, {'resources': {}})
        taken['resources'][resource] = amount + taken['resources'].get(
            resource, 0)

    for (node, pfs), (suffix, share) in zip(
            chosen, template.groups.items(), strict=True):
        take(suffix, names.make_numa_provider_uuid(host, node),
             names.MEM_BW_PCT, share)
        for pf, group in zip(pfs, template.vfs.get(suffix, ()), strict=True):
            take(group.suffix, pf.provider, group.resource_class, group.count)
    return {'allocations': allocations, 'mappings': mappings}
