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

"""Search for hosts that the index proposes, with one Placement query each.

Placement's work for a query grows with the cloud, because ``limit`` restricts
only its answer. With ``in_tree`` in every request group, Placement examines a
single host. Required traits would still make it examine all hosts, so they are
left out of the query and checked in its answer.

Placement is queried for the best of the proposed hosts. The candidates of
other hosts, also for later requests, are derived from its answer if possible
(:mod:`ghsched_nova.features.index.derived_candidates`); otherwise Placement is
queried for each of them.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
import math
import time
from typing import Any
from urllib import parse

from nova.scheduler.client import report as nova_report
from oslo_log import log as logging

from ghsched_nova.features.index import derived_candidates
from ghsched_nova.features.index.host_capacity import Device
from ghsched_nova.features.index.host_capacity import HostView
from ghsched_nova.features.index.host_capacity import ReportedHost
from ghsched_nova.features.index.host_capacity import RequestNeed
from ghsched_nova.features.index.host_capacity import RequestNodeNeed
from ghsched_nova.features.index.host_index import Index
from ghsched_nova.features.index.host_index import POOL
from ghsched_nova.features.index import nova_seams
from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova import pci_requests
from ghsched_nova.scheduler import host_nodes
from ghsched_nova.scheduler import request_filter
from ghsched_placement.flavor import policy as policies
from ghsched_placement.flavor.topology import parse_cpu_cache
from ghsched_placement.providers import names

LOG = logging.getLogger(__name__)

#: Hosts that are proposed at a time: one, and two alternates.
BATCH = 3

#: Number of times that the index proposes hosts before all are searched.
MAX_BATCHES = 3

#: One of this many hosts that the index finds is read and weighed. The others
#: are left out at random, because concurrent schedulers with the same index
#: would otherwise choose the same host.
WEIGHED_OF = 4

#: Microversion of Placement in which candidates are asked for.
_VERSION = nova_report.SAME_SUBTREE_VERSION

#: Policies of server groups that the index considers itself.
AFFINITY, ANTI_AFFINITY = 'affinity', 'anti-affinity'

#: Policies of server groups by which hosts with members are proposed first.
_PREFER_MEMBERS = frozenset({AFFINITY, 'soft-affinity'})

#: Filters that need Placement's candidates.
_NEED_CANDIDATES = frozenset({'PciPassthroughFilter', 'NUMATopologyFilter',
                              'GhschedNUMATopologyFilter'})


class UnsupportedByIndex(Exception):
    """Raised if a request cannot be scheduled by the index of hosts.

    It is then scheduled by a search of all hosts.
    """


@dataclass
class Search:
    """State of a scheduling request that is served by the index of hosts.

    :ivar need: resources that the request needs on one host.
    :ivar wanted: number of hosts to find for one server: the one to claim, and
        alternates.
    :ivar servers: number of servers in the request, each with this need.
    :ivar tried: UUIDs of hosts that were proposed, or that a filter refused.
    :ivar attempts: number of hosts that were proposed.
    :ivar states: host states of the hosts proposed last, by UUID.
    :ivar asked: whether Nova has asked for allocation candidates.
    """

    spec: Any
    need: RequestNeed
    wanted: int = BATCH
    tried: set[str] = field(default_factory=set)
    attempts: int = 0
    states: dict[str, Any] = field(default_factory=dict)
    asked: bool = False
    servers: int = 1

    @property
    def batch(self) -> int:
        """Number of hosts that Nova's filters are given at a time."""
        return min(POOL, BATCH + self.servers - 1)

    @property
    def wanted_hosts(self) -> int:
        """Number of hosts to find: those to claim, and alternates."""
        return min(self.wanted, BATCH) + self.servers - 1

    @property
    def may_propose(self) -> bool:
        """Whether more hosts are proposed before all hosts are searched."""
        return self.attempts < MAX_BATCHES * self.batch

    def count_servers(self, view: HostView) -> int:
        """Return how many servers of the request a host may hold."""
        if self.servers == 1 or get_group_policy(self.spec) == ANTI_AFFINITY:
            return 1
        return view.count_guests(self.need, self.servers)

    def withdraw_host(self, uuid: str) -> None:
        """Withdraw a proposed host for which Placement was not queried.

        Enough other hosts have candidates. The withdrawn host does not count
        as tried, and may be proposed again.

        :param uuid: UUID of the host.
        """
        self.tried.discard(uuid)
        self.states.pop(uuid, None)
        self.attempts -= 1


# -- what a request takes -----------------------------------------------------


def compute_request_need(spec: shared.RequestSpec,
                         instance_uuids: Sequence[str] | None,
                         accounting: policies.Accounting
                         ) -> RequestNeed | None:
    """Return the resources that a scheduling request needs on one host.

    Returns None if the scheduler's in-memory index of hosts does not support
    the request.

    :raises PolicyError: if the bandwidth policy of the flavor is invalid.
    """
    if not instance_uuids or _is_unsupported_by_index(spec):
        return None
    topology = spec.numa_topology if 'numa_topology' in spec else None
    cells = topology.cells if topology else ()
    parts = (host_nodes.list_guest_node_requirements(topology, 1)
             if topology else [])
    policy = request_filter.parse_policy(spec)
    demand = policy.get_bandwidth_by_node(accounting) if policy else {}
    devices = _list_required_vfs(spec, policy)
    few_caches = parse_cpu_cache(spec.flavor.extra_specs) == 'require'
    nodes = tuple(
        RequestNodeNeed(pinned=node.pinned, shared=node.shared,
                        memory=node.memory,
                        page=max(0, cell.pagesize or 0),
                        bandwidth=demand.get(number, 0),
                        devices=devices.get(number, ()),
                        few_caches=few_caches and node.pinned > 0,
                        threads=cell.cpu_thread_policy in ('isolate',
                                                           'require'))
        for number, (cell, node) in enumerate(zip(cells, parts, strict=True)))
    return RequestNeed(nodes, len(policy.groups) if policy else 0,
                       needs_driver=policy is not None,
                       other_requirements=_make_other_requirements(spec),
                       vcpus=(sum(node.shared for node in nodes) if topology
                              else spec.flavor.vcpus),
                       memory=spec.flavor.memory_mb)


def _is_unsupported_by_index(spec: shared.RequestSpec) -> bool:
    """Return whether the index of hosts does not support a scheduling request.

    It does not support a request that names hosts or rebuilds a server.
    """
    wanted = (spec.requested_destination
              if 'requested_destination' in spec else None)
    return bool(
        scheduler.is_rebuild(spec) or scheduler.is_host_forced(spec)
        or wanted and any(name in wanted and getattr(wanted, name)
                          for name in ('host', 'node')))


def get_group_policy(spec: shared.RequestSpec) -> str | None:
    """Return the policy of a request's server group; None without a group."""
    group = spec.instance_group if 'instance_group' in spec else None
    return group and group.policy


def _list_group_hosts(spec: shared.RequestSpec) -> frozenset[str]:
    """Return the hosts that have members of a request's server group."""
    group = spec.instance_group if 'instance_group' in spec else None
    return frozenset(group.hosts if group and 'hosts' in group else ())


def _make_other_requirements(spec: shared.RequestSpec) -> Any:
    image = spec.image if 'image' in spec else None
    return (spec.flavor.name, spec.flavor.memory_mb,
            tuple(sorted(spec.flavor.extra_specs.items())),
            spec.project_id, image and 'id' in image and image.id,
            get_group_policy(spec), _list_group_hosts(spec))


def _list_required_vfs(spec: shared.RequestSpec,
                       policy: policies.GuestPolicy | None
                       ) -> dict[int, tuple[tuple[Device, int], ...]]:
    """Return the VFs that each guest NUMA node needs on its host NUMA node.

    VFs of PCI requests that accept several device models are left out.
    """
    found: dict[int, list[tuple[Device, int]]] = {}
    for pci_request in (spec.pci_requests.requests if policy
                        and spec.pci_requests else ()):
        node = pci_requests.get_guest_node(pci_request)
        kinds = {(one.get('vendor_id'), one.get('product_id'))
                 for one in pci_request.spec}
        if node is not None and len(kinds) == 1:
            (kind,) = kinds
            if all(kind):
                found.setdefault(node, []).append((kind, pci_request.count))
    return {node: tuple(sorted(kinds)) for node, kinds in found.items()}


# -- Placement ----------------------------------------------------------------


@dataclass(frozen=True)
class Query:
    """Query for allocation candidates, sent to Placement for each host.

    :param parameters: parameters of the query, without the host and the
        traits.
    :param suffixes: suffixes of the request groups.
    :param traits: pairs of the suffix of a request group and its required
        traits; forbidden traits begin with ``!``. The suffix is None for
        traits of the compute node.
    """

    parameters: tuple[tuple[str, str], ...]
    suffixes: tuple[str, ...]
    traits: tuple[tuple[str | None, tuple[str, ...]], ...]

    @property
    def has_granular_traits(self) -> bool:
        """Whether any granular request group requires or forbids traits.

        Traits that Nova gives each PF do not count.
        """
        of_pfs = derived_candidates.PF_TRAITS
        return any(suffix and not of_pfs.issuperset(traits)
                   for suffix, traits in self.traits)

    def for_host(self, uuid: str) -> str:
        return parse.urlencode([*self.parameters, *(
            (f'in_tree{suffix}', uuid) for suffix in self.suffixes)])


def make_one_host_query(query_string: str) -> Query:
    """Convert Nova's Placement query for all hosts into a query for one host.

    The scheduler sends the result to Placement for each host that its index
    proposes.

    :param query_string: Nova's query for allocation candidates.
    :raises UnsupportedByIndex: if the query has a parameter that the index of
        hosts does not support.
    """
    pairs = parse.parse_qsl(query_string)
    amounts = [name.removeprefix('resources') for name, _value in pairs
               if name.startswith('resources')]
    suffixes = dict.fromkeys(amounts)
    kept: list[tuple[str, str]] = []
    traits: list[tuple[str | None, tuple[str, ...]]] = []
    for name, value in pairs:
        if name.startswith('in_tree') or value.startswith('in:') and (
                name.startswith('required')):
            raise UnsupportedByIndex(name)
        if name == 'root_required':
            traits.append((None, tuple(value.split(','))))
            continue
        if name.startswith('required'):
            suffix = name.removeprefix('required')
            if suffix in amounts:
                traits.append((suffix, tuple(value.split(','))))
                continue
            # Placement knows a group without resources by its traits.
            suffixes[suffix] = None
        kept.append((name, value))
    return Query(tuple(kept), tuple(suffixes), tuple(traits))


def filter_by_traits(query: Query, answer: Mapping[str, Any],
                     host_uuid: str) -> list[Mapping[str, Any]]:
    """Return the allocation candidates that have a query's required traits.

    Candidates with forbidden traits are left out, too.

    :param query: query with required and forbidden traits.
    :param answer: Placement's answer, with candidates and provider summaries.
    """
    summaries = answer['provider_summaries']

    def has_traits(candidate: Mapping[str, Any]) -> bool:
        for suffix, traits in query.traits:
            providers = ([host_uuid] if suffix is None
                         else candidate['mappings'][suffix])
            found = {trait for provider in providers
                     for trait in summaries[provider]['traits']}
            if any(trait[1:] in found if trait.startswith('!')
                   else trait not in found for trait in traits):
                return False
        return True
    return [candidate for candidate in answer['allocation_requests']
            if has_traits(candidate)]


def parse_free_bandwidth_and_groups(
        host: ReportedHost,
        summaries: Mapping[str, Any]) -> tuple[dict[int, int], int | None]:
    """Return a host's free bandwidth and control groups from Placement.

    :param summaries: provider summaries of Placement's answer.
    :returns: percent of free bandwidth by host NUMA node, and number of free
        control groups.
    """
    def get_free_amount(uuid: str, resource: str) -> int | None:
        of = summaries.get(uuid, {}).get('resources', {}).get(resource)
        return of and of['capacity'] - of['used']
    bandwidth = {}
    for room in host.nodes:
        share = get_free_amount(
            names.make_numa_provider_uuid(host.uuid, room.number),
            names.MEM_BW_PCT)
        if share is not None:
            bandwidth[room.number] = share
    return bandwidth, get_free_amount(host.uuid, names.RESCTRL_GROUP)


# -- the search ---------------------------------------------------------------


def get_allocation_candidates(search: Search, index: Index, client: Any,
                              manager: Any, context: Any, resources: Any,
                              templates: derived_candidates.Templates
                              ) -> Any:
    """Return allocation candidates on hosts that the in-memory index proposes.

    Nova's own client would query all hosts. The result has the form of the
    client's ``get_allocation_candidates``.

    :param search: state of the request's search.
    :param manager: ``nova.scheduler.host_manager.HostManager``.
    :param resources: ``nova.scheduler.utils.ResourceRequest``.
    :param templates: templates of candidates for this and later requests.
    """
    if search.asked:
        # Nova's second question, for hosts that report no PCPUs: the whole
        # search asks it.
        return [], {}, _VERSION
    search.asked = True
    query = make_one_host_query(resources.to_querystring())
    collector = _CandidateCollector(search, index, client, context, query,
                                    templates)
    while collector.servers < search.servers and search.may_propose:
        views = _propose_hosts(search, index, manager, context, resources)
        if not views:
            break
        for view in views:
            collector.add_host(view)
    if collector.servers < search.servers:
        return [], {}, _VERSION
    return collector.found, collector.summaries, _VERSION


class _CandidateCollector:
    """Collector of the allocation candidates of proposed hosts.

    :ivar found: the allocation candidates.
    :ivar summaries: provider summaries of Placement's answers. For a host for
        which Placement was not queried, they have its free control groups, the
        free bandwidth of its NUMA nodes and the free VFs of its PFs.
    :ivar servers: number of servers that the hosts may hold.
    """

    def __init__(self, search: Search, index: Index, client: Any, context: Any,
                 query: Query,
                 templates: derived_candidates.Templates) -> None:
        self.found: list[Any] = []
        self.summaries: dict[str, Any] = {}
        self.servers = 0
        self._search, self._index = search, index
        self._client, self._context = client, context
        self._query, self._templates = query, templates
        self._hosts = 0

    def add_host(self, view: HostView) -> None:
        """Add the allocation candidates of a host to those of the search.

        They are derived from those of another host if possible. Otherwise
        Placement is queried for them. Once enough hosts have candidates,
        Placement is not queried any more, and the host is withdrawn.

        :param view: free resources of the host.
        """
        row, search = view.row, self._search
        template = derived_candidates.find_candidate_template(
            self._templates, self._query, view)
        derived = (derived_candidates.derive_candidates(template, view)
                   if template is not None else [])
        if derived:
            self._add_candidates(view, derived, _summarize_free_amounts(view))
        elif self._hosts < search.wanted_hosts:
            found, summaries = _query_and_record_candidates(
                search, self._index, self._client, self._context, self._query,
                row)
            if found:
                self._add_template(found, summaries, row)
                self._add_candidates(view, found, summaries)
        else:
            search.withdraw_host(row.uuid)

    def _add_template(self, found: Sequence[Any], summaries: Mapping[str, Any],
                      row: ReportedHost) -> None:
        template = (None if self._query.has_granular_traits else
                    derived_candidates.make_candidate_template(
                        self._query.parameters, found, summaries, row))
        if template is not None:
            self._templates.set_value((self._query, template.shape), template)

    def _add_candidates(self, view: HostView, found: Sequence[Any],
                        summaries: Mapping[str, Any]) -> None:
        self.found += found
        self.summaries.update(summaries)
        self._hosts += 1
        self.servers += self._search.count_servers(view)


def _summarize_free_amounts(view: HostView) -> dict[str, Any]:
    """Return provider summaries with the free amounts of a host.

    They contain its control groups, the bandwidth of its nodes and its VFs.
    """
    uuid = view.row.uuid
    found: dict[str, Any] = {uuid: {}}
    for provider, name, free in (
            *((uuid, names.RESCTRL_GROUP, free) for free in (view.groups,)
              if free is not None),
            *((names.make_numa_provider_uuid(uuid, node), names.MEM_BW_PCT,
               free) for node, free in view.bandwidth.items()),
            *((pf.provider, pf.resource_class, pf.free)
              for pf in view.list_pfs())):
        found[provider] = {'resources': {name: {'capacity': free, 'used': 0}}}
    return found


def _query_and_record_candidates(
        search: Search, index: Index, client: Any, context: Any, query: Query,
        row: ReportedHost) -> tuple[list[Mapping[str, Any]],
                                    Mapping[str, Any]]:
    """Query Placement for a host's allocation candidates; update the index.

    :returns: the candidates that have the required traits, and Placement's
        provider summaries.
    """
    asked = time.monotonic()
    answer = _query_host_candidates(client, context, query, row, _VERSION)
    summaries = answer['provider_summaries']
    found = filter_by_traits(query, answer, row.uuid)
    if found:
        index.set_free_amounts(
            row.uuid, *parse_free_bandwidth_and_groups(row, summaries),
            queried_at=asked, now=time.monotonic())
    else:
        index.add_refusals([row.uuid], search.need, time.monotonic())
    return found, summaries


def _query_host_candidates(client: Any, context: Any, query: Query,
                           host: ReportedHost,
                           version: str) -> Mapping[str, Any]:
    response = client.get(
        f'/allocation_candidates?{query.for_host(host.uuid)}',
        version=version, global_request_id=context.global_id)
    if response.status_code != 200:
        raise UnsupportedByIndex(f'{response.status_code} {response.text}')
    answer: Mapping[str, Any] = response.json()
    return answer


def _propose_hosts(search: Search, index: Index, manager: Any, context: Any,
                   resources: Any) -> list[HostView]:
    """Return the best hosts that the index proposes for a request.

    Nova's filters and weighers decide which of the proposed hosts are best,
    and in which order.
    """
    allowed = _AllowedHosts(search.spec, manager, resources)
    members = _list_group_hosts(search.spec)
    policy = get_group_policy(search.spec)

    def propose(allows: Callable[[ReportedHost], bool]) -> list[HostView]:
        return index.propose_hosts(
            search.need, allows, search.tried, time.monotonic(),
            search.servers if policy == AFFINITY else 1)
    near = propose(lambda row: row.name in members and allowed.is_allowed(
        row)) if members and policy in _PREFER_MEMBERS else []
    views = {view.row.uuid: view for view in near}
    if not (members and policy == AFFINITY):
        views |= {view.row.uuid: view for view in propose(allowed.is_allowed)}
    states: list[Any] = []
    first = {view.row.uuid for view in near}
    uuids = [*first, *index.shuffle_hosts(views.keys() - first)]
    size = max(search.batch, math.ceil(len(uuids) / WEIGHED_OF))
    for some in (uuids[at:at + size] for at in range(0, len(uuids), size)):
        states += _list_filtered_states(search.spec, manager, context, some)
        # Those that Nova has no use for are not proposed again.
        search.tried.update(set(some) - {state.uuid for state in states})
        if len(states) >= search.batch:
            break
    weighed = manager.get_weighed_hosts(states, search.spec)[:search.batch]
    chosen = {one.obj.uuid: one.obj for one in weighed}
    search.states |= chosen
    search.attempts += len(chosen)
    search.tried.update(chosen)
    return [views[uuid] for uuid in chosen]


def _list_filtered_states(spec: shared.RequestSpec, manager: Any, context: Any,
                          uuids: Sequence[str]) -> Iterable[Any]:
    """Return the states of the hosts that pass the scheduler's filters.

    Filters that need an allocation candidate are not run.

    :param uuids: UUIDs of the hosts.
    """
    states = nova_seams.get_host_states(manager, context, uuids, spec)
    filters = [one for one in manager.enabled_filters
               if type(one).__name__ not in _NEED_CANDIDATES]
    found: Iterable[Any] = manager.filter_handler.get_filtered_objects(
        filters, states, spec, 0) or []
    return found


class _AllowedHosts:
    """Cheap check of whether a request may be placed on a host.

    It covers ignored hosts, cells and host aggregates, whose data
    nova-scheduler has in memory.
    """

    def __init__(self, spec: shared.RequestSpec, manager: Any,
                 resources: Any) -> None:
        self._ignored = {name.lower() for name in spec.ignore_hosts or ()}
        self._cell = nova_seams.get_required_cell(spec)
        self._enabled = {cell.uuid for cell in manager.enabled_cells}
        self._aggregates = manager.aggs_by_id
        self._of_host = manager.host_aggregates_map
        self._wanted, self._forbidden = (
            nova_seams.get_required_and_forbidden_aggregates(resources))

    def is_allowed(self, host: ReportedHost) -> bool:
        if (host.name.lower() in self._ignored
                or host.cell not in self._enabled
                or self._cell not in (None, host.cell)):
            return False
        if not self._wanted and not self._forbidden:
            return True
        mine = {known.uuid
                for number in tuple(self._of_host.get(host.name, ()))
                if (known := self._aggregates.get(number)) is not None}
        return (all(not mine.isdisjoint(some) for some in self._wanted)
                and mine.isdisjoint(self._forbidden))
