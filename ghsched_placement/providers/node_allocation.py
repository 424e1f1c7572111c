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

"""Possible host NUMA nodes of a guest, from its allocations (pure)."""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.providers import names


@dataclass(frozen=True)
class NodeAllocation:
    """Bandwidth and PCI devices in a guest's allocation, by host NUMA node.

    :param bandwidth: percent of bandwidth by host NUMA node.
    :param devices: number of PCI devices by host NUMA node. Devices whose node
        is unknown are left out.
    """

    bandwidth: Mapping[int, int] = field(default_factory=dict)
    devices: Mapping[int, int] = field(default_factory=dict)


def parse_allocation_by_node(allocations: Mapping[str, Any], compute_node: str,
                             nodes: Collection[int],
                             node_of_pf: Mapping[str, int | None]
                             ) -> NodeAllocation:
    """Parse a guest's allocation into bandwidth and devices by host NUMA node.

    :param allocations: ``{provider: {'resources': {class: amount}}}``.
    :param compute_node: UUID of the compute node's resource provider.
    :param nodes: NUMA nodes of the host.
    :param node_of_pf: host NUMA node by UUID of a PF's provider.
    """
    bandwidth = {}
    for node in nodes:
        provider = names.make_numa_provider_uuid(compute_node, node)
        share = _get_resources(allocations, provider).get(names.MEM_BW_PCT)
        if share:
            bandwidth[node] = int(share)
    devices: dict[int, int] = {}
    for provider, of_pf in node_of_pf.items():
        count = sum(_get_resources(allocations, provider).values())
        if of_pf is not None and count:
            devices[of_pf] = devices.get(of_pf, 0) + count
    return NodeAllocation(bandwidth, devices)


def yield_possible_host_nodes(policy: GuestPolicy, accounting: Accounting,
                              guest_nodes: int,
                              nodes: Collection[int],
                              allocation: NodeAllocation,
                              node_of_vfs: Mapping[int, int] | None = None
                              ) -> Iterator[tuple[int, ...]]:
    """Yield the host NUMA nodes that a guest's nodes may be on.

    Placement stores the amounts that a guest has allocated from each host NUMA
    node, but not the host node of each guest node. Each result is one
    possibility: the host node of each guest node, in order. For guest nodes
    with VFs, host nodes with most devices are tried first; for others, those
    with fewest devices.

    :param policy: policy of ghsched's extra specs in the guest's flavor.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param guest_nodes: number of guest NUMA nodes.
    :param nodes: NUMA nodes of the host.
    :param allocation: bandwidth and devices of the guest, by host NUMA node.
    :param node_of_vfs: host node of the VFs of each guest node, where known.
        It is tried first; with ``vfs_locality=node`` no other node is tried.
    """
    shares = policy.get_bandwidth_by_node(accounting)
    vfs: dict[int, int] = {}
    for vf in policy.vfs:
        vfs[vf.guest_node] = vfs.get(vf.guest_node, 0) + vf.count
    near = policy.vfs_locality == 'node'
    choices: list[Sequence[int]] = []
    for guest_node in range(guest_nodes):
        count = vfs.get(guest_node, 0)
        fitting = sorted(
            (allocation.devices.get(node, 0), node) for node in nodes
            if allocation.bandwidth.get(node, 0) == shares.get(guest_node, 0)
            and not (near and allocation.devices.get(node, 0) < count))
        choices.append(_put_preferred_node_first(
            [node for _devices, node in (
                reversed(fitting) if count else fitting)],
            (node_of_vfs or {}).get(guest_node), near))
    return _yield_distinct_host_nodes(choices, ())


def _put_preferred_node_first(nodes: Sequence[int], preferred: int | None,
                              only_preferred: bool) -> Sequence[int]:
    """Return NUMA nodes with the preferred one first, or only this one.

    If the preferred node is None or not one of the nodes, they are returned as
    they are.

    :param only_preferred: whether to leave out the other nodes.
    """
    if preferred is None or preferred not in nodes:
        return nodes
    return [preferred, *(() if only_preferred else (
        node for node in nodes if node != preferred))]


def _yield_distinct_host_nodes(choices: Sequence[Sequence[int]],
                               taken: tuple[int, ...]
                               ) -> Iterator[tuple[int, ...]]:
    """Yield each way to choose a different host node for every guest node.

    :param choices: host NUMA nodes that each guest NUMA node may have.
    :param taken: host NUMA nodes already chosen, for the first guest nodes.
    """
    if len(taken) == len(choices):
        yield taken
        return
    for node in choices[len(taken)]:
        if node not in taken:
            yield from _yield_distinct_host_nodes(choices, (*taken, node))


def _get_resources(allocations: Mapping[str, Any],
                   provider: str) -> Mapping[str, int]:
    resources: Mapping[str, int] = allocations.get(provider, {}).get(
        'resources', {})
    return resources
