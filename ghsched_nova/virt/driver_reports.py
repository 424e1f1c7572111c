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

"""The part of the compute driver that reports to Placement and to Nova."""

from collections.abc import Iterable
import dataclasses
import time
from typing import Any

from oslo_log import log as logging
from oslo_serialization import jsonutils

from ghsched_nova import conf
from ghsched_nova.host import allocation_check
from ghsched_nova.host import bandwidth_use
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_nova.host import pci_providers
from ghsched_nova.host import root_calls
from ghsched_nova.host import uncounted_guests
from ghsched_nova.nova_seams import compute
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova.virt import driver_base as base
from ghsched_nova.virt import guest_diagnostics
from ghsched_nova.virt import providers
from ghsched_placement.fit import node_capacity
from ghsched_placement.providers.host import HostDescription
from ghsched_placement.providers import names
from ghsched_placement.providers import tree

LOG = logging.getLogger(__name__)

seam = registry.make_seam_decorator(registry.COMPUTE)


class ReportingDriver(base.DriverBase):
    """Driver that reports providers, stats of the host, and diagnostics."""

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        super().__init__(virtapi, read_only)
        self._numa_nodes: tuple[int, ...] = ()
        self._nearest: dict[int, int] = {}
        self._offered: tuple[tree.WantedProvider, ...] = ()
        # Whether a report of resources precedes update_provider_tree, which
        # Nova calls for claims, too.
        self._reporting = False
        self._pci_placer = pci_providers.PciProviderMover(base.get_placement)
        self._bandwidth_use = bandwidth_use.BandwidthMeter(
            shared.config().ghsched)
        self._diagnostics = guest_diagnostics.GuestDiagnostics(
            bandwidth_use.BandwidthMeter(shared.config().ghsched),
            self._ghsched)

    def update_provider_tree(self, provider_tree: Any, nodename: str,
                             allocations: Any = None) -> None:
        groups_before = providers.count_offered_control_groups(
            provider_tree, nodename)
        client = base.get_placement()
        super().update_provider_tree(provider_tree, nodename,
                                     allocations=allocations)
        self._offered = providers.update_inventories(
            provider_tree, nodename,
            self._describe_host(),
            conf.make_tree_config(shared.config().ghsched), groups_before,
            client.get_usages, client.get_usage_by_consumer)
        for provider in self._offered[1:]:
            # A node may have gained or lost its CPUs.
            self._pci_placer.move_provider_below(
                provider_tree.data(provider.uuid), str(provider.parent_uuid))
        if shared.config().pci.report_in_placement:
            self._pci_placer.move_pci_providers(
                provider_tree, nodename, pci_providers.map_provider_nodes(
                    self._pci_devices, compute.make_tag_lookup(), nodename))
        # Nova's driver stored a copy without the providers added above.
        self.provider_tree = provider_tree
        self._log_unallocated_guarantees(provider_tree.data(nodename).uuid,
                                         nodename)

    def _log_unallocated_guarantees(self, root: str, nodename: str) -> None:
        """Log running guests whose guaranteed bandwidth is not allocated.

        Placement should have an allocation for each guarantee. This is called
        once per periodic report of nova-compute. Errors are logged and not
        raised.

        :param root: UUID of the compute node's resource provider.
        :param nodename: name of the compute node's provider.
        """
        if not self._reporting:
            return
        self._reporting = False
        try:
            allocations = compute.take_tree_allocations(nodename)
            if allocations is None:
                return
            self._ghsched.uncounted = uncounted_guests.log_unallocated_guests(
                self._last_running, root,
                shared.config().ghsched.bandwidth_accounting,
                allocations,
                self._list_running_domains)
        except Exception as error:
            LOG.warning('ghsched: cannot check the bandwidth allocations of '
                        'guests in Placement; retrying in the next periodic '
                        'task: %s', error)

    def _list_running_domains(self) -> set[tuple[str, int]]:
        """Return UUID and ID of running guests, read in one native thread."""
        guests = self._host.list_guests(only_running=True)
        return compute.call_in_native_thread(
            lambda: {(guest.uuid, guest.id) for guest in guests})

    def _describe_host(self) -> HostDescription:
        found = self._ghsched.describe_bandwidth_control(
            self._list_stopped_guests())
        return self._parts.describe_host(dataclasses.replace(
            found, numa_nodes=self._numa_nodes, nearest=self._nearest))

    @seam('nova.virt.libvirt.driver.LibvirtDriver.'
          '_get_pci_passthrough_devices', ('self',))
    def _get_pci_passthrough_devices(self) -> str:
        """Return the host's PCI devices for Nova, and store them.

        ``update_provider_tree`` uses the stored devices.
        """
        self._pci_devices = jsonutils.loads(
            super()._get_pci_passthrough_devices())
        topology = super()._get_host_numa_topology()
        pci_providers.assign_to_only_node(self._pci_devices, [
            cell.id for cell in (topology.cells if topology else ())])
        return str(jsonutils.dumps(self._pci_devices))

    def _list_stopped_guests(self) -> list[desired.Running]:
        """Return the stopped guests, which may share control groups later.

        The result is empty if guests do not share control groups on this host.
        """
        if not self._ghsched.can_share_groups:
            return []
        return [self._read_running_guest(guest) for guest
                in self._host.list_guests(only_running=False)
                if not base.is_running(guest)]

    @seam('nova.virt.libvirt.driver.LibvirtDriver._get_host_numa_topology',
          ('self',))
    def _get_host_numa_topology(self) -> Any:
        """Return the host's NUMA topology with a pseudo network for each node.

        A pseudo network is a physical network without hardware. A claim that
        asks for the pseudo network of a host NUMA node is restricted to this
        node.
        """
        topology = super()._get_host_numa_topology()
        cells = topology.cells if topology is not None else ()
        for cell in cells:
            compute.add_physnet(cell, names.make_node_physnet(cell.id))
        self._nearest = self._offer_devices_at_nearest_nodes(cells)
        self._numa_nodes = tuple(sorted(cell.id for cell in cells))
        self._shared_cpus = {cell.id: frozenset(cell.cpuset)
                             for cell in cells}
        return topology

    def _offer_devices_at_nearest_nodes(
            self, cells: Iterable[Any]) -> dict[int, int]:
        """Offer devices of host nodes without CPUs at the nearest other node.

        The nearest node with CPUs gets a pseudo network for these devices. A
        pseudo network is a physical network without hardware.

        :param cells: Nova's NUMA cells of the host; changed in place.
        :returns: the nearest node with CPUs, by node without CPUs.
        """
        by_number = {cell.id: cell for cell in cells}
        found = {}
        for node, nearest in self._ghsched.find_nearest_nodes().items():
            if node in by_number and nearest in by_number:
                compute.add_physnet(by_number[nearest],
                                    names.make_cpuless_node_physnet(node))
                found[node] = nearest
        return found

    def get_available_resource(self, nodename: str) -> Any:
        self._reconcile()
        self._reporting = True
        resources = super().get_available_resource(nodename)
        self._parts.observe(lambda: self._take_snapshot(nodename))
        root_calls.stop_idle_helpers()
        return self._parts.add_stats(resources)

    def _take_snapshot(self, nodename: str) -> compute_hooks.HostSnapshot:
        """Return the state of this host for the features that observe it."""
        running = self._last_running
        traits, classes = providers.get_traits_and_classes(self.provider_tree,
                                                           nodename)
        guests = self._list_all_guests(running)
        bandwidth = self._bandwidth_use.measure_bandwidth(
            bandwidth_use.list_guests_and_policies(running))
        return compute_hooks.HostSnapshot(
            time=time.time(), running=running, guests=guests,
            bandwidth=bandwidth, not_held=self._ghsched.not_held,
            uncounted=self._ghsched.uncounted, offered=self._offered,
            numa_nodes=self._numa_nodes, traits=traits,
            resource_classes=classes)

    def _list_all_guests(self, running: list[desired.Running]
                         ) -> list[desired.Running] | None:
        """Return all domains of this host, running or not.

        :param running: the running domains.
        :returns: None if the others cannot be read; the error is logged.
        """
        try:
            self._last_others = self._read_guests(
                self._host.list_guests(only_running=False), self._last_others,
                {guest.domain.uuid for guest in running})
        except Exception as error:
            LOG.warning('ghsched: cannot read stopped guests from libvirt; '
                        'not reporting free bandwidth to nova-scheduler until '
                        'the next periodic task: %r', error)
            return None
        return [*running, *self._last_others]

    def get_diagnostics(self, instance: Any) -> Any:
        """Return a guest's diagnostics with bandwidth, load and traffic."""
        guest = self._host.get_guest(instance)
        found = self._diagnostics.add_to_diagnostics(
            super().get_diagnostics(instance), guest,
            lambda: allocation_check.describe_missing_devices(
                base.list_devices_by_request(instance)))
        return self._parts.add_diagnostics(
            found | self._describe_node_capacities(instance.node), guest)

    def _describe_node_capacities(self, nodename: str) -> dict[str, str]:
        """Return CPUs and memory of the host's NUMA nodes for diagnostics.

        The result is empty if they cannot be read.
        """
        try:
            rooms = compute.list_node_capacities(self.virtapi, nodename)
        except Exception as error:
            LOG.warning('ghsched: cannot read free CPUs and memory of host '
                        'NUMA nodes; omitting them from guest diagnostics: '
                        '%r', error)
            return {}
        return node_capacity.to_diagnostics(rooms) if rooms else {}
