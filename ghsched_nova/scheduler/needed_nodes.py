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

"""Host NUMA nodes that a guest should take so that most other guests fit.

If guests with several equal NUMA nodes are placed in the order of the host
nodes, capacity stays unused: in the end one host node is free, and no guest
fits on a single node. :mod:`ghsched_placement.fit.counting` finds the nodes
that must be used first.
"""

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from typing import TypeAlias

from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova import pci_requests
from ghsched_nova.scheduler import host_nodes
from ghsched_nova.scheduler import request_filter
from ghsched_nova.scheduler import unread_reports
from ghsched_placement.fit import counting
from ghsched_placement.fit import room as rooms
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor import topology
from ghsched_placement.providers import cpuless_nodes
from ghsched_placement.providers import names

#: Returns the free amounts of a provider, by resource class.
FreeAmounts: TypeAlias = Callable[[str], Mapping[str, int]]

_NONE: Mapping[int, int] = MappingProxyType({})


def get_offered_amounts(spec: shared.RequestSpec,
                        provider_uuid: str) -> dict[str, int]:
    """Return a provider's free amounts in Placement's answer to a request.

    Claims of the request itself since the answer are subtracted.

    :returns: free amount by resource class; empty if the answer does not have
        the provider.
    """
    summary = request_filter.get_provider_summaries(spec).get(
        provider_uuid, {})
    return {name: of['capacity'] - of['used']
            for name, of in summary.get('resources', {}).items()}


def find_needed_nodes(view: Any, spec: shared.RequestSpec,
                      get_free_amounts: FreeAmounts,
                      nearest: Mapping[int, int] = _NONE,
                      shows_device_cells: bool = False) -> frozenset[int]:
    """Return the host nodes that a guest should take so that most others fit.

    This is a preference, so an error is logged and refuses no host.

    :param view: state of the host.
    :param get_free_amounts: returns the free amounts of the provider of a host
        NUMA node, by resource class. Classes that are missing are not counted.
    :param nearest: nearest NUMA node with CPUs, by host node without CPUs.
    :param shows_device_cells: whether guests see NUMA nodes without CPUs for
        their devices.
    :returns: empty if any host nodes will do, or if the NUMA nodes of the
        guest differ.
    """
    try:
        return _find_needed_nodes(view, spec, get_free_amounts, nearest,
                                  shows_device_cells)
    except Exception as error:
        unread_reports.WARNINGS.warn_once(view.host, error,
                                          'not choosing NUMA nodes')
        return frozenset()


def _find_needed_nodes(view: Any, spec: shared.RequestSpec,
                       get_free_amounts: FreeAmounts,
                       nearest: Mapping[int, int],
                       shows_device_cells: bool) -> frozenset[int]:
    guest = spec.numa_topology
    if not guest or not 1 < len(guest.cells) < len(view.numa_topology.cells):
        return frozenset()
    policy = request_filter.parse_policy(spec)
    if not _has_equal_nodes(spec, policy):
        return frozenset()
    amounts = policy.get_resources_by_node(
        shared.config().ghsched.bandwidth_accounting).get(
            0, {}) if policy else {}
    part, page_size = host_nodes.list_sized_guest_nodes(
        guest, host_nodes.count_threads_per_core(view))[0]
    part = replace(
        part, cpu_cache=topology.parse_cpu_cache(spec.flavor.extra_specs))
    counts = {}
    for room in numa.list_node_capacities(view.numa_topology, view):
        free = get_free_amounts(names.make_numa_provider_uuid(
            view.uuid, room.node)) if amounts else {}
        counts[room.node] = max(0, min((
            rooms.count_guest_nodes(room, part, page_size),
            *(free[name] // amount for name, amount in amounts.items()
              if name in free and amount),
            *_count_by_devices(view, spec, policy, room.node, nearest,
                               shows_device_cells))))
    return counting.find_needed_nodes(counts, len(guest.cells),
                                      _count_by_host(view, spec))


def _has_equal_nodes(spec: shared.RequestSpec,
                     policy: GuestPolicy | None) -> bool:
    """Return whether all NUMA nodes of a guest need the same of a host."""
    if any(numa.map_to_first_equal_guest_node(spec.numa_topology)):
        return False
    if policy is None:
        return True
    amounts = policy.get_resources_by_node(
        shared.config().ghsched.bandwidth_accounting)
    nodes = range(len(spec.numa_topology.cells))
    return all(amounts.get(node) == amounts.get(0) for node in nodes) and (
        all({(vf.alias, vf.count) for vf in policy.vfs if vf.guest_node == node
             } == {(vf.alias, vf.count) for vf in policy.vfs
                   if vf.guest_node == 0} for node in nodes))


def _count_by_devices(view: Any, spec: shared.RequestSpec,
                      policy: GuestPolicy | None, node: int,
                      nearest: Mapping[int, int],
                      shows_device_cells: bool) -> list[int]:
    """Return for how many guest nodes a host node has each kind of VF.

    :param node: number of the host NUMA node.
    :returns: empty if the VFs need not be on the host node.
    """
    if policy is None or not policy.vfs or policy.vfs_locality != 'node':
        return []
    # The pools of all PFs: a candidate names only those of its own nodes.
    return [sum(pool['count'] for pool
                in scheduler.list_matching_pools(view, request)
                if cpuless_nodes.get_device_node(
                    pool.get('numa_node'), nearest, policy.device_numa,
                    shows_device_cells) == node) // request.count
            for request in pci_requests.select_vf_requests(
                spec.pci_requests and spec.pci_requests.requests)
            if pci_requests.get_guest_node(request) == 0]


def _count_by_host(view: Any, spec: shared.RequestSpec) -> int:
    """Return how many guests fit by the resources of the host as a whole.

    These are the resources that the guest allocates from the compute node's
    provider. Their free amounts are in Placement's answer.
    """
    free = get_offered_amounts(spec, view.uuid)
    candidates = view.allocation_candidates or [{}]
    taken = candidates[0].get('allocations', {}).get(view.uuid, {}).get(
        'resources', {})
    return min((free[name] // amount for name, amount in taken.items()
                if name in free and amount), default=counting.MAX_GUESTS)
