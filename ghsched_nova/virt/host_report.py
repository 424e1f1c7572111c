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

"""Reports of a compute host to Placement and to Nova."""

from collections.abc import Iterable
import dataclasses
import math
import time
from typing import Any

from oslo_log import log as logging
from oslo_serialization import jsonutils

from ghsched_nova import conf
from ghsched_nova.host import bandwidth_use
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import engine
from ghsched_nova.host import pci_providers
from ghsched_nova.host import uncounted_guests
from ghsched_nova.nova_seams import compute
from ghsched_nova.nova_seams import shared
from ghsched_nova.virt import libvirt_reader
from ghsched_nova.virt import providers
from ghsched_placement.fit import node_capacity
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import names
from ghsched_placement.providers.placement_client import PlacementClient
from ghsched_placement.providers import tree

LOG = logging.getLogger(__name__)


class HostReport:
    """Devices, NUMA nodes and providers of this host, as last reported.

    :param host: engine that enforces policies on this host.
    :param guests: reader of this host's guests.
    :param virtapi: VirtAPI of Nova's driver.
    """

    def __init__(self, host: engine.HostEngine,
                 guests: libvirt_reader.GuestReader, virtapi: Any) -> None:
        self._host = host
        self._guests = guests
        self._virtapi = virtapi
        #: PCI devices as reported to Nova.
        self.pci_devices: list[dict[str, Any]] = []
        #: Shared CPUs as reported to Nova, by NUMA node.
        self.shared_cpus: dict[int, frozenset[int]] = {}
        #: Maximum number of vCPUs per shared CPU.
        self.cpu_ratio = math.inf
        self._numa_nodes: tuple[int, ...] = ()
        self._nearest: dict[int, int] = {}
        self._offered: tuple[tree.WantedProvider, ...] = ()
        #: Whether a report of resources precedes update_provider_tree, which
        #: Nova calls for claims, too.
        self.is_periodic = False
        self._pci_placer = pci_providers.PciProviderMover(get_placement)
        self._bandwidth_use = bandwidth_use.BandwidthMeter(host.section)

    # -- topology and devices ------------------------------------------------

    def store_pci_devices(self, devices: str, topology: Any) -> str:
        """Store the PCI devices of this host, with their NUMA nodes.

        :param devices: PCI devices that the libvirt driver has found, as JSON.
        :param topology: Nova's NUMA topology of the host, or None.
        :returns: the devices with their NUMA nodes, as JSON.
        """
        self.pci_devices = jsonutils.loads(devices)
        pci_providers.assign_to_only_node(self.pci_devices, [
            cell.id for cell in (topology.cells if topology else ())])
        return str(jsonutils.dumps(self.pci_devices))

    def add_node_networks(self, topology: Any) -> Any:
        """Add a pseudo network for each node to the host's NUMA topology.

        One more for each L3 cache names the CPUs that share it.

        A pseudo network is a physical network without hardware. A claim that
        asks for the pseudo network of a host NUMA node is restricted to this
        node.

        :param topology: Nova's NUMA topology of the host, or None; changed in
            place.
        :returns: the topology.
        """
        cells = topology.cells if topology is not None else ()
        for cell in cells:
            for physnet in (
                    names.make_node_physnet(cell.id),
                    *map(names.make_cache_physnet,
                         self._host.list_caches(frozenset(
                             cell.cpuset | cell.pcpuset)))):
                compute.add_physnet(cell, physnet)
        self._nearest = self._offer_devices_at_nearest_nodes(cells)
        self._numa_nodes = tuple(sorted(cell.id for cell in cells))
        self.shared_cpus = {cell.id: frozenset(cell.cpuset) for cell in cells}
        return topology

    def _offer_devices_at_nearest_nodes(
            self, cells: Iterable[Any]) -> dict[int, int]:
        """Offer devices of host nodes without CPUs at the nearest other node.

        The nearest node with CPUs gets a pseudo network for these devices, and
        one that says whether guests see them on a node of their own. A pseudo
        network is a physical network without hardware.

        :param cells: Nova's NUMA cells of the host; changed in place.
        :returns: the nearest node with CPUs, by node without CPUs.
        """
        by_number = {cell.id: cell for cell in cells}
        found = {}
        for node, nearest in self._host.find_nearest_nodes().items():
            if node in by_number and nearest in by_number:
                compute.add_physnet(by_number[nearest],
                                    names.make_cpuless_node_physnet(node))
                if self._host.domain_xml.libvirt.shows_device_cells:
                    compute.add_physnet(by_number[nearest],
                                        names.DEVICE_CELLS_PHYSNET)
                found[node] = nearest
        return found

    # -- providers ------------------------------------------------------------

    def describe_host(self) -> HostDescription:
        """Return what the core offers on this host."""
        # Stopped guests may share control groups later.
        stopped = (self._guests.list_stopped()
                   if self._host.can_share_groups else ())
        return dataclasses.replace(
            self._host.describe_bandwidth_control(stopped),
            numa_nodes=self._numa_nodes, nearest=self._nearest)

    def write_providers(self, provider_tree: Any, nodename: str,
                        found: HostDescription, groups_before: int) -> None:
        """Write this host's providers into Nova's provider tree.

        :param provider_tree: tree of Nova's libvirt driver; changed in place.
        :param nodename: name of the compute node's provider.
        :param groups_before: number of control groups in the last report.
        """
        client = get_placement()
        self.cpu_ratio = provider_tree.data(nodename).inventory.get(
            'VCPU', {}).get('allocation_ratio', math.inf)
        self._offered = providers.update_inventories(
            provider_tree, nodename, found,
            conf.make_tree_config(self._host.section), groups_before,
            client.get_usages, client.get_usage_by_consumer)
        for provider in self._offered[1:]:
            # A node may have gained or lost its CPUs.
            self._pci_placer.move_provider_below(
                provider_tree.data(provider.uuid), str(provider.parent_uuid))
        if shared.config().pci.report_in_placement:
            self._pci_placer.move_pci_providers(
                provider_tree, nodename, pci_providers.map_provider_nodes(
                    self.pci_devices, compute.make_tag_lookup(), nodename))

    def log_unallocated_guarantees(self, root: str, nodename: str) -> None:
        """Log running guests whose guaranteed bandwidth is not allocated.

        Placement should have an allocation for each guarantee. This is called
        once per periodic report of nova-compute. Errors are logged and not
        raised.

        :param root: UUID of the compute node's resource provider.
        :param nodename: name of the compute node's provider.
        """
        if not self.is_periodic:
            return
        self.is_periodic = False
        try:
            allocations = compute.take_tree_allocations(nodename)
            if allocations is None:
                return
            self._host.uncounted = uncounted_guests.log_unallocated_guests(
                self._guests.running, root,
                self._host.section.bandwidth_accounting,
                allocations,
                self._guests.list_running_ids)
        except Exception as error:
            LOG.warning('ghsched: cannot check the bandwidth allocations of '
                        'guests in Placement; retrying in the next periodic '
                        'task: %s', error)

    def report_sharing_change(self, context: Any, instance: Any) -> None:
        """Report the host's control groups to Placement if sharing changed.

        nova-scheduler can then place further guests that share a group before
        nova-compute's next periodic report. Errors are logged and not raised.
        """
        if not self._host.has_sharing_changed:
            return
        try:
            compute.report_host_resources(self._virtapi, context, instance)
        except Exception as error:
            LOG.warning('ghsched: cannot update the traits of shared control '
                        'groups in Placement; retrying in the next periodic '
                        'task: %s', error,
                        instance=instance)

    # -- features -------------------------------------------------------------

    def take_snapshot(self, provider_tree: Any,
                      nodename: str) -> compute_hooks.HostSnapshot:
        """Return the state of this host for the features that observe it.

        :param provider_tree: tree that was last reported to Placement, or
            None.
        :param nodename: name of the compute node's provider.
        """
        running = self._guests.running
        traits, classes = providers.get_traits_and_classes(provider_tree,
                                                           nodename)
        guests = self._guests.list_all(running)
        bandwidth = self._bandwidth_use.measure_bandwidth(
            bandwidth_use.list_guests_and_policies(running))
        return compute_hooks.HostSnapshot(
            time=time.time(), running=running, guests=guests,
            bandwidth=bandwidth, not_held=self._host.not_held,
            uncounted=self._host.uncounted, offered=self._offered,
            numa_nodes=self._numa_nodes, traits=traits,
            resource_classes=classes)

    def describe_node_capacities(self, nodename: str) -> dict[str, str]:
        """Return CPUs and memory of the host's NUMA nodes for diagnostics.

        The result is empty if they cannot be read.
        """
        try:
            rooms = compute.list_node_capacities(self._virtapi, nodename)
        except Exception as error:
            LOG.warning('ghsched: cannot read free CPUs and memory of host '
                        'NUMA nodes; omitting them from guest diagnostics: '
                        '%r', error)
            return {}
        return node_capacity.to_diagnostics(rooms) if rooms else {}


def get_placement() -> PlacementClient:
    """Return a client of Placement that uses Nova's session."""
    return PlacementClient(shared.get_placement_client())
