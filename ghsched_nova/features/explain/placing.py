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


"""Choice of the host NUMA nodes of a guest on an empty host (pure).

The ways to place it are put in order by the scheduler's own code.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
import functools

from ghsched_nova.features.planner.hostfile import HostFile
from ghsched_nova.resctrl import resolve
from ghsched_placement.base import cpulist
from ghsched_placement.features.planner.need import FlavorNeed
from ghsched_placement.features.planner import offer
from ghsched_placement.features.planner.state import FilledHost
from ghsched_placement.features.planner.state import GuestPlacement
from ghsched_placement.fit import capacity
from ghsched_placement.fit import fitting
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.fit import lack
from ghsched_placement.fit.lack import Lack
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.query import vfs


class DoesNotFit(Exception):  # noqa: N818
    """Raised if a guest does not fit on a host; has the reason.

    :param subject: beginning of the reason, or the whole reason.
    :param lacks: shortages, which are appended to the reason.
    """

    def __init__(self, subject: str, *lacks: Lack) -> None:
        super().__init__(subject + '; '.join(map(str, lacks)))
        self.lacks = lacks


@dataclass(frozen=True)
class PlacementRequest:
    """Guest and host for which to choose NUMA nodes and VFs.

    :param host: description of the host.
    :param state: the planner's model of the host without guests.
    :param need: resources that the guest needs.
    :param nodes: host NUMA node that the user has requested for each guest
        NUMA node; None for any.
    """

    host: HostFile
    state: FilledHost
    need: FlavorNeed
    nodes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ChosenPlacement:
    """Host NUMA nodes and VFs that a guest gets.

    :param nodes: host NUMA node of each guest NUMA node.
    :param locality: how near the VFs are to the guest's NUMA nodes, one of
        :data:`ghsched_placement.query.request.LOCALITIES`.
    :param sizes: how the VFs are divided among PFs.
    """

    nodes: tuple[int, ...]
    locality: str
    sizes: vfs.Sizes


def choose_placement(request: PlacementRequest) -> ChosenPlacement:
    """Return the host NUMA nodes and VFs that the scheduler would choose.

    :raises DoesNotFit: if the guest does not fit on the host, or not on the
        host NUMA nodes that the user has requested.
    """
    _check_monitoring_support(request)
    if request.nodes is not None:
        _check_requested_host_nodes(request, request.nodes)
    lacks = tuple(_find_refusal_reasons(request))
    if lacks:
        raise DoesNotFit('', *lacks)
    found = _find_nodes_and_vfs(request)
    if found is None:
        raise DoesNotFit(_explain_host_misfit(request))
    return found


def _find_nodes_and_vfs(request: PlacementRequest) -> ChosenPlacement | None:
    """Return the host NUMA nodes and VFs that a guest would get on a host.

    :returns: None if the guest does not fit.
    """
    need = request.need
    for locality, sizes in need.yield_vf_request_variants(
            lambda: offer.list_pfs_by_alias(request.state, need)):
        for nodes in _yield_host_node_choices(request, locality, sizes):
            return ChosenPlacement(nodes, locality, sizes)
    return None


def _yield_host_node_choices(request: PlacementRequest, locality: str,
                             sizes: vfs.Sizes) -> Iterator[tuple[int, ...]]:
    """Yield the choices of host NUMA nodes on which a guest fits, best first.

    A choice is a tuple with the host NUMA node of each guest NUMA node. If
    Placement leaves the choice open, the one of Nova is yielded. If the user
    has requested host NUMA nodes, other choices are left out.

    :param locality: how near the VFs must be to the guest's NUMA nodes.
    :param sizes: how the VFs are divided among PFs.
    """
    @functools.cache
    def can_take(guest_node: int, node: int) -> bool:
        return _explain_node_misfit(request, guest_node, node) is None

    for item in offer.list_host_placements(request.state, request.need,
                                           locality,
                                           sizes, can_take):
        nodes = item.get_host_node_order() or request.state.find_host_nodes(
            request.need, GuestPlacement(request.nodes or (), ()))
        if nodes is not None and request.nodes in (None, nodes):
            yield nodes


# -- refusals -----------------------------------------------------------------


def _find_refusal_reasons(request: PlacementRequest) -> Iterator[Lack]:
    """Yield the reasons why a host or its NUMA nodes refuse a guest.

    Bandwidth limits that a node cannot enforce are a reason. If the host lacks
    a trait for them, they are checked on the first node only.
    """
    host, demand = request.state.fit_host, request.need.demand
    if not any(fitting.find_missing_traits(host, demand)):
        yield from fitting.find_refusal_reasons(
            host, demand, functools.partial(_find_node_shortages, request))
        return
    yield from fitting.find_refusal_reasons(host, demand)
    reason = _explain_unenforceable_limits(request, 0,
                                           request.host.nodes[0].id)
    if reason:
        yield Lack(None, lack.BANDWIDTH, reason=reason)


def _check_monitoring_support(request: PlacementRequest) -> None:
    """Raise DoesNotFit if a host cannot monitor a guest that requests it."""
    held = request.host.resctrl.capabilities()
    if request.need.policy.monitor and 'MEM_BW_MONITOR' not in held:
        raise DoesNotFit('', Lack(
            None, 'MEM_BW_MONITOR', reason='ghsched:monitor=true cannot be '
            'enforced: this host does not report memory bandwidth'))


def _check_requested_host_nodes(request: PlacementRequest,
                                nodes: Sequence[int]) -> None:
    """Raise DoesNotFit if a guest does not fit on the requested host nodes."""
    cells = request.need.guest.cells
    if len(nodes) != len(cells):
        raise DoesNotFit(f'the guest has {len(cells)} NUMA nodes, but host '
                         f'NUMA nodes are given for {len(nodes)}')
    for guest_node, host_node in enumerate(nodes):
        if request.host.node(host_node) is None:
            known = cpulist.render_cpu_list(node.id
                                            for node in request.host.nodes)
            raise DoesNotFit(f'the host has no NUMA node {host_node}, it has '
                             f'{known}')
        if host_node in nodes[:guest_node]:
            raise DoesNotFit(f'host NUMA node {host_node} is given twice; '
                             'each guest NUMA node needs its own')
        reason = _explain_node_misfit(request, guest_node, host_node)
        if reason:
            raise DoesNotFit(f'guest NUMA node {guest_node} does not fit on '
                             f'host NUMA node {host_node}: {reason}')


def _explain_node_misfit(request: PlacementRequest, guest_node: int,
                         host_node: int) -> str | None:
    """Return why a guest NUMA node does not fit on a host NUMA node.

    :returns: None if the guest node fits.
    """
    node = next(node for node in request.state.fit_host.nodes
                if node.number == host_node)
    return ', '.join(one.text for one in _find_node_shortages(
        request, node, request.need.demand, guest_node, False)) or None


def _find_node_shortages(request: PlacementRequest,
                         node: capacity.NodeInventory,
                         demand: GuestDemand, guest_node: int,
                         must_share: bool) -> Iterator[Lack]:
    """Yield the shortages of a host NUMA node for a guest NUMA node.

    Bandwidth limits that the host node cannot enforce are among them.
    """
    found = [*fitting.find_node_shortages(node, demand, guest_node,
                                          must_share)]
    yield from found
    if not found and node.number is not None:
        reason = _explain_unenforceable_limits(request, guest_node,
                                               node.number)
        if reason:
            yield Lack(node.number, lack.BANDWIDTH, reason=reason)


def _explain_unenforceable_limits(
    request: PlacementRequest, guest_node: int, host_node: int
) -> str | None:
    """Return why a host NUMA node cannot enforce a guest's bandwidth limits.

    :returns: None if the host node can enforce the limits.
    """
    try:
        for one in request.need.policy.groups:
            resolve.resolve_settings(
                request.host.resctrl, GuestPolicy((one.nodes[guest_node],)),
                (host_node,))
    except resolve.PolicyRefused as error:
        return error.reason
    return None


def _explain_host_misfit(request: PlacementRequest) -> str:
    """Return why a guest does not fit on a host as a whole.

    The caller has checked that each guest NUMA node alone fits on some host
    NUMA node.
    """
    need = request.need
    for other, reason in _yield_relaxed_needs(request.need):
        if _find_nodes_and_vfs(replace(request, need=other)):
            return reason
    too_many: list[vfs.Sizes] = []
    for _ in request.need.yield_vf_request_variants(
            lambda: offer.list_pfs_by_alias(request.state, request.need),
            too_many.append):
        pass
    if too_many:
        return ('the VFs would have to come from so many PFs that the query '
                'would take Placement too long; the scheduler does not send '
                'such a query')
    return fitting.make_combination_reason(
        request.state.fit_host, need.demand,
        functools.partial(_find_node_shortages, request)).text


def _yield_relaxed_needs(need: FlavorNeed) -> Iterable[tuple[FlavorNeed, str]]:
    """Yield copies of a guest's needs, each with one requirement relaxed.

    If such a copy fits on the host, the requirement is the reason why the
    guest does not. Each copy comes with the text of this reason.
    """
    specs = dict(need.flavor.extra_specs)
    if specs.pop('group_policy', None) == 'isolate':
        yield (replace(need, flavor=replace(need.flavor, extra_specs=specs)),
               'group_policy=isolate: each request group needs a resource '
               'provider of its own, and the host has too few')
    if need.policy.vfs_locality == 'socket':
        yield (replace(need, policy=replace(need.policy,
                                            vfs_locality='any')),
               'the host has too few VFs that are near enough to NUMA nodes '
               f'with room for the guest ({keys.VFS.extra_spec}, '
               f'{keys.VFS_LOCALITY.extra_spec}={need.policy.vfs_locality})')
