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

"""NUMA nodes of hosts and guests, as Nova records and fits them."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import AbstractContextManager
import functools
import itertools
import threading
from typing import Any

from nova import exception
from nova import objects
from nova.virt import hardware

from ghsched_nova.base import wrappers
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams.shared import InstanceNUMATopology
from ghsched_nova.nova_seams.shared import NUMATopology
from ghsched_placement.features import declared_cpus
from ghsched_placement.fit.cells import CpuChoice
from ghsched_placement.fit.cells import HostCell
from ghsched_placement.fit.node_capacity import make_cache_cpus
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit.node_capacity import Pages
from ghsched_placement.flavor import auto_nodes
from ghsched_placement.providers import names

seam = registry.make_seam_decorator(registry.SCHEDULER, registry.COMPUTE)

#: Guest topologies that the claim of this thread may take, see
#: :func:`claiming_best_topology`.
_claim = threading.local()

#: Fields of a guest NUMA node, besides its CPUs, on which Nova's fit depends.
_OF_FIT = ('memory', 'pagesize', 'cpu_policy', 'cpu_thread_policy',
           'cpu_topology')

#: Maximum number of ways to place a guest with chosen CPUs on host NUMA nodes.
_MOST_WAYS = 64


def list_host_nodes(topology: InstanceNUMATopology | None) -> Sequence[int]:
    """Return the host NUMA node that each NUMA node of an instance claimed.

    After the claim, ``InstanceNUMACell.id`` is the number of the host NUMA
    node.
    """
    if topology is None:
        return ()
    return [cell.id for cell in topology.cells]


def make_host_cell(cell: Any) -> HostCell:
    """Return the free CPUs and memory of a host NUMA node (NUMACell)."""
    return HostCell(
        frozenset(cell.free_pcpus), _list_cores(cell), frozenset(cell.cpuset),
        max(0, cell.avail_memory),
        {pages.size_kb: max(0, pages.total - pages.used - pages.reserved)
         for pages in cell.mempages},
        _list_caches(cell))


def _list_caches(cell: Any) -> tuple[frozenset[int], ...]:
    """Return the CPUs of each L3 cache of a host NUMA node."""
    return names.parse_cache_physnets(get_physnets(cell))


def _list_cores(cell: Any) -> tuple[frozenset[int], ...]:
    """Return the dedicated CPUs of a host NUMA node, grouped by core.

    On a host without SMT, for which Nova lists no siblings, each CPU is a
    core.
    """
    cores = [frozenset(core & cell.pcpuset) for core in cell.siblings]
    alone = cell.pcpuset.difference(*cores)
    return (*filter(None, cores), *(frozenset((cpu,)) for cpu in alone))


@seam('nova.virt.hardware.numa_fit_instance_to_host',
      ('host_topology', 'instance_topology', 'provider_mapping', 'limits',
       'pci_requests', 'pci_stats'),
      replaced='Guest nodes are fitted on host nodes in the order that was '
               'chosen, and on CPUs of few L3 caches; limits of Nova name '
               'neither.')
def patch_numa_fit() -> None:
    """Patch Nova's NUMA fit to use the host NUMA nodes that ghsched chose.

    ghsched's NUMA limits name the host NUMA node of each guest NUMA node, and
    the number of guest NUMA nodes of a flavor with ``ghsched:numa=auto``.
    ``nova.compute.claims`` and ``nova.scheduler.host_manager`` look
    ``nova.virt.hardware.numa_fit_instance_to_host`` up in its module. If
    Nova's function gets as many host nodes as guest nodes, it assigns them in
    order. The patch gives it the nodes that the limits name, in their order.
    """
    def steered(original: Callable[..., Any], host_topology: Any,
                instance_topology: Any, provider_mapping: Any,
                limits: Any = None, **of_devices: Any) -> Any:
        def fit(topology: Any) -> Any:
            return _fit_on_limited_nodes(original, host_topology, topology,
                                         provider_mapping, limits,
                                         **of_devices)
        shapes: Sequence[Any] | None = getattr(_claim, 'shapes', None)
        if shapes is None:
            return fit(instance_topology)
        return _fit_first_topology(fit, shapes,
                                   _get_guest_node_count_of_limits(limits))

    registry.replace_function('nova.virt.hardware.numa_fit_instance_to_host',
                              steered)


def _fit_on_limited_nodes(original: Callable[..., Any], host_topology: Any,
                          instance_topology: Any, provider_mapping: Any,
                          limits: Any, **pci_arguments: Any) -> Any:
    """Fit a guest on the host NUMA nodes that its claim's limits name.

    :param original: Nova's ``numa_fit_instance_to_host``, to which the other
        arguments are passed on.
    :param provider_mapping: resource providers of each request group.
    :param pci_arguments: PCI requests and free devices, by Nova's argument
        names.
    :returns: the fitted guest NUMA topology; None if the guest does not fit on
        these nodes in their order.
    """
    order = parse_chosen_host_nodes(limits)
    if order is not None and host_topology and instance_topology:
        host_topology = copy_with_nodes_in_order(host_topology, order)
    limits = _remove_pseudo_networks(limits)

    def fit(host: Any, guest: Any) -> Any:
        return original(host, guest, provider_mapping, limits=limits,
                        **pci_arguments)
    choose: CpuChoice | None = getattr(_claim, 'choose_cpus', None)
    if choose and host_topology and _has_dedicated_cpus(instance_topology):
        fit_node = functools.partial(
            original, provider_mapping={},
            limits=limits and _copy_without_networks(limits))
        fitted = _fit_on_chosen_cpus(fit, fit_node, host_topology,
                                     instance_topology, choose,
                                     order is not None)
    else:
        fitted = fit(host_topology, instance_topology)
    # With the first order failing Nova tries the others.
    follows = order is None or tuple(list_host_nodes(fitted)) == order
    return fitted if follows else None


def _fit_first_topology(fit: Callable[[Any], Any], topologies: Sequence[Any],
                        count: int | None) -> Any:
    """Fit the first of several guest NUMA topologies that fits on a host.

    :param fit: function that fits one topology on the host, or returns None.
    :param topologies: guest NUMA topologies, the best first.
    :param count: number of guest NUMA nodes that the scheduler chose; None if
        there was no choice.
    :returns: the fitted topology.
    :raises nova.exception.ComputeResourcesUnavailable: if none fits. Without
        this error Nova would start the guest without a topology.
    """
    for topology in topologies:
        if count in (None, len(topology)):
            fitted = fit(topology.obj_clone())
            if fitted is not None:
                return fitted
    raise exception.ComputeResourcesUnavailable(
        reason='the guest fits on no NUMA nodes of the host with '
        + ' or '.join(str(len(topology)) for topology in topologies
                      ) + ' guest NUMA nodes')


def _copy_without_networks(limits: Any) -> Any:
    limits = limits.obj_clone()
    limits.network_metadata = objects.NetworkMetadata(physnets=set(),
                                                      tunneled=False)
    return limits


def _fit_on_chosen_cpus(fit: Callable[[Any, Any], Any],
                        fit_node: Callable[[Any, Any], Any],
                        host_topology: Any, topology: Any, choose: CpuChoice,
                        in_order: bool) -> Any:
    """Fit a guest on host NUMA nodes with the CPUs that a feature chooses.

    Nova chooses among all host nodes, but sees only the chosen dedicated CPUs
    of each.

    :param fit: function that fits a guest topology on a host topology.
    :param fit_node: the same for CPUs and memory only.
    :param topology: guest NUMA topology.
    :param in_order: whether each guest node goes to the host node with the
        same index.
    :returns: the fitted guest topology; None if the guest does not fit.
    """
    cells = host_topology.cells

    @functools.cache
    def find_part(number: int, place: int) -> Any:
        return _find_fitting_part(fit_node, cells[place], topology, number,
                                  choose)

    places = range(len(cells))
    if not any(map_to_first_equal_guest_node(topology)):
        return fit(_make_topology(cells, {
            place: find_part(0, place) for place in places}),
            topology.obj_clone())
    allowed = [[place for place in ([number] if in_order else places)
                if find_part(number, place)]
               for number in range(len(topology))]
    ways = (way for way in itertools.product(*allowed)
            if len(set(way)) == len(way))
    for way in itertools.islice(ways, _MOST_WAYS):
        fitted = fit(_make_topology(cells, {
            place: find_part(number, place)
            for number, place in enumerate(way)}), topology.obj_clone())
        if list_host_nodes(fitted) == [cells[place].id for place in way]:
            return fitted
    return None


def _make_topology(cells: Sequence[Any], parts: Mapping[int, Any]) -> Any:
    """Return a host topology with parts of some NUMA nodes.

    The other nodes have no dedicated CPUs.

    :param cells: all NUMA nodes of the host.
    :param parts: parts by position of the node; None for none.
    """
    return objects.NUMATopology(cells=[
        parts.get(place) or _copy_with_dedicated_cpus(cell, frozenset())
        for place, cell in enumerate(cells)])


def map_to_first_equal_guest_node(
        topology: InstanceNUMATopology | None) -> tuple[int, ...]:
    """Return for each guest NUMA node the first node with equal requirements.

    Nodes with equal requirements need to be checked only once.
    """
    first = dict[Any, int]()
    # Nova reserves the CPU of isolated emulator threads for the first.
    isolates = bool(topology and 'emulator_threads_policy' in topology
                    and topology.emulator_threads_policy)
    return tuple(first.setdefault((
        isolates and not number,
        len(cell.cpuset), len(cell.pcpuset), *(
            str(getattr(cell, name)) if name in cell else None
            for name in _OF_FIT)), number)
        for number, cell in enumerate(topology.cells if topology else ()))


def copy_with_one_guest_node(topology: InstanceNUMATopology,
                             guest_node: int) -> InstanceNUMATopology:
    """Return a copy of a guest NUMA topology with one of its nodes."""
    copied = topology.obj_clone()
    copied.cells = copied.cells[guest_node:guest_node + 1]
    if guest_node:
        # Nova reserves the CPU of isolated emulator threads for the first.
        copied.emulator_threads_policy = None
    return copied


def _find_fitting_part(fit_node: Callable[[Any, Any], Any],
                       host_cell: Any, topology: Any, guest_node: int,
                       choose: CpuChoice) -> Any:
    """Return a host NUMA node with the chosen CPUs for a guest NUMA node.

    :param fit_node: function that fits a topology of one guest node on one of
        one host node.
    :param topology: NUMA topology of the guest.
    :param guest_node: index of the guest NUMA node.
    :returns: None if the guest node does not fit.
    """
    guest = copy_with_one_guest_node(topology, guest_node)
    cell = guest.cells[0]
    needed = len(cell.pcpuset)
    if not needed:
        return host_cell    # its CPUs are shared
    needed += bool(guest.emulator_threads_isolated)
    if not fit_node(objects.NUMATopology(cells=[host_cell]),
                    guest.obj_clone()):
        return None
    for cpus in choose(make_host_cell(host_cell), needed,
                       cell.cpu_thread_policy or 'prefer'):
        part = _copy_with_dedicated_cpus(host_cell, cpus)
        if fit_node(objects.NUMATopology(cells=[part]), guest.obj_clone()):
            return part
    return None


def _copy_with_dedicated_cpus(cell: Any, cpus: frozenset[int]) -> Any:
    """Return a copy of a host NUMA node with some of its dedicated CPUs."""
    copied = cell.obj_clone()
    copied.pcpuset = set(cell.pcpuset) & cpus
    copied.pinned_cpus = set(cell.pinned_cpus) & cpus
    copied.siblings = [set(core) & cpus for core in cell.siblings]
    return copied


def chooses_cpus(spec: Any) -> bool:
    """Return whether a feature chooses the dedicated CPUs of a request.

    :param spec: Nova's request, with the flavor.
    """
    return _has_dedicated_cpus(_get_topology(spec)) and bool(
        declared_cpus.find_cpu_choice(_get_extra_specs(spec.flavor)))


def _has_dedicated_cpus(topology: InstanceNUMATopology | None) -> bool:
    return any(cell.pcpuset for cell in topology.cells) if topology else False


def _get_topology(spec: Any) -> Any:
    return spec.numa_topology if 'numa_topology' in spec else None


def _get_extra_specs(flavor: Any) -> Mapping[str, str]:
    return flavor.extra_specs if 'extra_specs' in flavor else {}


def choosing_cpus(flavor: Any) -> AbstractContextManager[None]:
    """Within this context, Nova takes dedicated CPUs that features choose.

    :param flavor: flavor of the guest, whose extra specs say which CPUs.
    """
    return wrappers.setting_attribute(
        _claim, 'choose_cpus',
        declared_cpus.find_cpu_choice(_get_extra_specs(flavor)))


def claiming_best_topology(topologies: Sequence[InstanceNUMATopology] | None,
                           ) -> AbstractContextManager[None]:
    """Within this context, Nova claims the first NUMA topology that fits.

    :param topologies: guest NUMA topologies to try, the best first; None for
        the topology that the flavor asks for.
    """
    return wrappers.setting_attribute(_claim, 'shapes', topologies)


def copy_flavor_with_numa_count(flavor: Any, count: int) -> Any:
    """Return a copy of a flavor that asks for a number of guest NUMA nodes."""
    copied = flavor.obj_clone()
    copied.extra_specs = auto_nodes.copy_with_node_count(
        flavor.extra_specs, count)
    return copied


def make_guest_topology(flavor: Any,
                        image: Any) -> InstanceNUMATopology | None:
    """Return the guest NUMA topology that a flavor and an image ask for.

    :param image: ImageMeta; None for a server without an image.
    :raises nova.exception.NovaException: if the flavor contradicts the image.
    """
    return hardware.numa_get_constraints(
        flavor, image or objects.ImageMeta.from_dict({}))


def _get_guest_node_count_of_limits(limits: Any) -> int | None:
    """Return the number of guest NUMA nodes that a claim's limits require.

    nova-scheduler has chosen the number for a flavor with
    ``ghsched:numa=auto``. Returns None if the limits require no number.
    """
    order = parse_chosen_host_nodes(limits)
    if order is not None:
        return len(order)
    counts = map(names.parse_node_count_physnet, get_physnets(limits))
    return next((count for count in counts if count is not None), None)


def parse_chosen_host_nodes(limits: Any) -> tuple[int, ...] | None:
    """Return the host NUMA nodes that ghsched chose for a claim.

    ghsched's scheduler filter names them in the NUMA limits of the claim.

    :param limits: Nova's NUMA limits of a claim.
    :returns: host NUMA node of each guest NUMA node, in the order of the guest
        nodes; None if the limits name no nodes.
    """
    for physnet in get_physnets(limits):
        order = names.parse_host_nodes_physnet(physnet)
        if order is not None:
            return order
    return None


def get_physnets(limits_or_cell: Any) -> frozenset[str]:
    """Return the physical networks named by NUMA limits or a host NUMA node.

    :param limits_or_cell: limits of a claim, or Nova's cell of a host NUMA
        node.
    """
    if not limits_or_cell or 'network_metadata' not in limits_or_cell:
        return frozenset()
    metadata = limits_or_cell.network_metadata
    return frozenset(metadata.physnets if 'physnets' in metadata else ())


def list_node_capacities(topology: NUMATopology,
                         node: Any) -> list[NodeCapacity]:
    """Return used and free CPUs and memory of each NUMA node of a host.

    :param node: Nova's compute node or host state, with the allocation ratios
        of the host.
    """
    return [NodeCapacity(
        node=cell.id, cpus=len(cell.cpuset), vcpus_used=cell.cpu_usage,
        cpu_ratio=node.cpu_allocation_ratio, dedicated=len(cell.pcpuset),
        dedicated_used=len(cell.pinned_cpus), memory=cell.memory,
        memory_used=cell.memory_usage, ram_ratio=node.ram_allocation_ratio,
        pages=tuple(Pages(pages.size_kb, pages.total, pages.used,
                          pages.reserved)
                    for pages in sorted(cell.mempages,
                                        key=lambda pages: pages.size_kb)),
        socket=cell.socket if 'socket' in cell else None,
        caches=make_cache_cpus(cell.pcpuset, cell.pinned_cpus,
                               _list_caches(cell)),
    ) for cell in topology.cells]


def copy_with_nodes_in_order(topology: NUMATopology,
                             order: Sequence[int]) -> NUMATopology:
    cells = {cell.id: cell for cell in topology.cells}
    return objects.NUMATopology(
        cells=[cells[node] for node in order if node in cells])


def _remove_pseudo_networks(limits: Any) -> Any:
    """Return NUMA limits without pseudo networks that no host offers.

    A pseudo network is a physical network without hardware. By these networks
    ghsched passes to the claim the order of host NUMA nodes and the number of
    guest NUMA nodes.
    """
    known = get_physnets(limits)
    kept = {physnet for physnet in known
            if names.parse_host_nodes_physnet(physnet) is None
            and names.parse_node_count_physnet(physnet) is None}
    if kept == known:
        return limits
    return make_limits(limits, kept, limits.network_metadata.tunneled)


def make_limits(node: Any, physnets: set[str], tunneled: bool) -> Any:
    return objects.NUMATopologyLimits(
        cpu_allocation_ratio=node.cpu_allocation_ratio,
        ram_allocation_ratio=node.ram_allocation_ratio,
        network_metadata=objects.NetworkMetadata(
            physnets=physnets, tunneled=tunneled))
