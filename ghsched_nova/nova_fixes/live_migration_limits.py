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

"""Fix: give the claim of a live migration the limits that Nova has lost.

Nova 31 to 33 claim on the destination without the limits of the scheduler
(bug 2153425, fixed by f4709ec59f in 34), and so does every release when an
admin forces the host. What Placement holds there names the same host NUMA
nodes. ``_move_claim`` raises before it changes anything when limits do not
fit, so each order of nodes is tried. See
``doc/source/contributor/upstream/live-migration-limits.rst``.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
import functools
import itertools
from typing import Any
from typing import TypeAlias

from nova import exception
from nova import objects
from oslo_log import log as logging

from ghsched_nova.host import allocation_check
from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import pci
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova import pci_requests
from ghsched_placement.flavor import policy as policies
from ghsched_placement.providers import cpuless_nodes
from ghsched_placement.providers import names
from ghsched_placement.providers import node_allocation
from ghsched_placement.query import node_assignment

LOG = logging.getLogger(__name__)

patch = patches.make_patch_decorator(registry.COMPUTE)
seam = registry.make_seam_decorator(registry.COMPUTE)

#: Function that returns whether a guest can share a control group of the
#: destination. It takes the guest's policy and host NUMA nodes.
CanJoin: TypeAlias = Callable[[policies.GuestPolicy, Sequence[int]], bool]


@dataclass(frozen=True)
class Destination:
    """Destination host of a live migration, with the guest's allocation.

    :param uuid: UUID of the compute node and of its root provider.
    :param nodes: host NUMA nodes.
    :param node_of_pf: host NUMA node by UUID of a PF's provider.
    :param allocations: the guest's allocation in Placement, by provider.
    :param nearest: nearest node with CPUs, by host NUMA node without CPUs.
    :param shows_device_cells: whether guests see nodes without CPUs for their
        devices.
    """

    uuid: str
    nodes: tuple[int, ...]
    node_of_pf: Mapping[str, int | None]
    allocations: Mapping[str, Any]
    nearest: Mapping[int, int] = field(default_factory=dict)
    shows_device_cells: bool = False

    def map_pfs_to_nodes(self, device_numa: str) -> dict[str, int | None]:
        """Return the host NUMA node to which the VFs of each PF belong.

        For a PF on a node without CPUs this may be the nearest node with CPUs.

        :param device_numa: value of ``ghsched:device_numa``.
        :returns: host NUMA node by UUID of the PF's resource provider.
        """
        return {pf: cpuless_nodes.get_device_node(
            node, self.nearest, device_numa, self.shows_device_cells)
            for pf, node in self.node_of_pf.items()}


@patch('nova.compute.resource_tracker.ResourceTracker.live_migration_claim',
       ('self', 'context', 'instance', 'nodename', 'migration', 'limits',
        'allocs'))
def _claim_with_limits(original: Callable[..., Any], tracker: Any,
                       context: Any, instance: Any, nodename: str,
                       migration: Any, limits: Any, allocs: Any) -> Any:
    claim = functools.partial(original, tracker, context, instance, nodename,
                              migration, allocs=allocs)
    refused: Exception | None = None
    node = tracker.compute_nodes[nodename]
    if limits is None and instance.numa_topology:
        ways = yield_claimable_nodes(
            instance, _describe_destination(tracker, node, allocs),
            tracker.driver._ghsched.can_join_shared_group)
        for order in itertools.islice(ways, node_assignment.MOST_TRIED):
            try:
                return claim(limits=_make_limits(node, order))
            except exception.ComputeResourcesUnavailable as error:
                refused = error
    if refused is not None:
        raise refused
    return claim(limits=limits)


@seam('nova.compute.resource_tracker.ResourceTracker.pci_tracker')
@seam('nova.compute.resource_tracker.ResourceTracker.driver')
@seam('nova.compute.resource_tracker.ResourceTracker.compute_nodes')
def _describe_destination(tracker: Any, node: Any, allocs: Any) -> Destination:
    topology = (objects.NUMATopology.obj_from_db_obj(node.numa_topology)
                if node.numa_topology else None)
    tracked, host = tracker.pci_tracker, tracker.driver._ghsched
    return Destination(
        node.uuid, tuple(numa.list_host_nodes(topology)),
        pci.map_pools_to_nodes(tracked.stats.pools if tracked else ()),
        allocs or {}, host.find_nearest_nodes(),
        host.domain_xml.libvirt.shows_device_cells)


def _make_limits(node: Any, host_nodes: Sequence[int]) -> Any:
    """Return NUMA limits that name the host node of each guest NUMA node.

    Nova then claims these nodes.

    :param node: Nova's ComputeNode, which has the allocation ratios.
    :param host_nodes: host NUMA node of each guest NUMA node.
    """
    return {'numa_topology': numa.make_limits(
        node, {*map(names.make_node_physnet, host_nodes),
               names.make_host_nodes_physnet(host_nodes)},
        tunneled=False)}


def yield_claimable_nodes(instance: Any, host: Destination,
                          can_join: CanJoin) -> Iterator[tuple[int, ...]]:
    """Yield the sets of host nodes that a live-migrated guest may claim.

    Each of them matches the guest's allocation in Placement. Nothing is
    yielded for a guest without a NUMA restriction, or
    with a flavor that cannot be parsed, which nova-compute refuses later.

    :param host: the destination, with the allocation.
    :param can_join: function that returns whether the guest can share a
        control group of the destination.
    :returns: iterator of tuples; each has the host NUMA node of each guest
        NUMA node, in the order of the guest nodes.
    """
    guest_nodes = len(numa.list_host_nodes(instance.numa_topology))
    try:
        policy = policies.parse_policy(
            instance.flavor.extra_specs, guest_nodes, instance.flavor.vcpus)
    except policies.PolicyError as error:
        LOG.warning('ghsched: cannot parse the extra specs of the flavor; not '
                    'restricting the NUMA nodes of the live migration: %s',
                    error, instance=instance)
        return
    if policy is None or not guest_nodes or not (
            policy.needs_control_group or policy.vfs or policy.rt_permille):
        return
    accounting = shared.config().ghsched.bandwidth_accounting
    node_of_pf = host.map_pfs_to_nodes(policy.device_numa)
    found = node_allocation.parse_allocation_by_node(
        host.allocations, host.uuid, host.nodes, node_of_pf)
    for order in node_allocation.yield_possible_host_nodes(
            policy, accounting, guest_nodes, host.nodes, found,
            _map_guest_nodes_to_vf_nodes(instance, node_of_pf)):
        try:
            allocation_check.check_allocation(
                policy, accounting, order, host.allocations, host.uuid,
                can_share_group=can_join(policy, order))
        except allocation_check.ClaimMismatch:
            continue
        yield order


def _map_guest_nodes_to_vf_nodes(
        instance: Any,
        node_of_pf: Mapping[str, int | None]) -> dict[int, int]:
    """Return the host NUMA node of the VFs that each guest NUMA node gets.

    The PCI requests of the instance name the PF that the scheduler has chosen
    for each guest node. Requests that name a PF of another host are skipped:
    they were made before the migration.

    :param node_of_pf: host NUMA node by UUID of a PF's provider.
    :returns: host NUMA node by guest NUMA node.
    """
    guest_nodes = len(instance.numa_topology)
    found: dict[int, int] = {}
    for request in pci_requests.select_vf_requests(
            instance.pci_requests and instance.pci_requests.requests):
        nodes = {node_of_pf.get(uuid) for spec in request.spec
                 for uuid in spec.get('rp_uuids', '').split(',')}
        guest_node = pci_requests.get_guest_node(request, guest_nodes)
        node = nodes.pop() if len(nodes) == 1 else None
        if node is not None and guest_node is not None:
            found[guest_node] = node
    return found
