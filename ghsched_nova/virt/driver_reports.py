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
from collections.abc import Mapping
import dataclasses
from pathlib import Path
import time
from typing import Any

from oslo_log import log as logging
from oslo_serialization import jsonutils

from ghsched_nova import conf
from ghsched_nova.features.blame import blame_record
from ghsched_nova.features.bursts import burst_use
from ghsched_nova.features.history import history_use
from ghsched_nova.features.index import headroom_report
from ghsched_nova.features.load import load_use
from ghsched_nova.features.rebalance import traffic_report
from ghsched_nova.features.service_level import service_level_use
from ghsched_nova.host import allocation_check
from ghsched_nova.host import bandwidth_use
from ghsched_nova.host import desired
from ghsched_nova.host import pci_providers
from ghsched_nova.host import root_calls
from ghsched_nova.host import uncounted_guests
from ghsched_nova.nova_seams import compute
from ghsched_nova.nova_seams import messaging
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared
from ghsched_nova.virt import driver_base as base
from ghsched_nova.virt import guest_diagnostics
from ghsched_nova.virt import providers
from ghsched_placement.features.index import headroom
from ghsched_placement.features.index import report_delta
from ghsched_placement.features.load import bottleneck
from ghsched_placement.features.metering import metering
from ghsched_placement.features.service_level import service_level
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
        self._headroom: headroom.Headroom | None = None
        # Whether a report of resources precedes update_provider_tree, which
        # Nova calls for claims, too.
        self._reporting = False
        self._pci_placer = pci_providers.PciProviderMover(base.get_placement)
        self._bandwidth_use = bandwidth_use.BandwidthMeter(
            shared.config().ghsched)
        self._load_use = load_use.LoadReporter(
            shared.config().ghsched, self._notify_bottleneck)
        self._burst_use = burst_use.BurstRecorder(
            shared.config().ghsched,
            Path(shared.config().state_path) / burst_use.FILE)
        self._service_levels = service_level_use.ServiceLevelRecorder(
            Path(shared.config().state_path) / service_level_use.FILE,
            self._notify_bandwidth)
        self._blame_record = blame_record.BlameRecord(
            Path(shared.config().state_path) / blame_record.FILE)
        self._history = history_use.HistoryRecorder(
            Path(shared.config().state_path) / history_use.FILE)
        self._diagnostics = guest_diagnostics.GuestDiagnostics(
            bandwidth_use.BandwidthMeter(shared.config().ghsched),
            self._ghsched, lambda: self._load_use.load,
            lambda: self._burst_use.records, lambda: self._history.history)
        self._traffic = traffic_report.GuestTraffic(shared.config().ghsched)

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
                lambda: {(guest.uuid, guest.id) for guest
                         in self._host.list_guests(only_running=True)})
        except Exception as error:
            LOG.warning('ghsched: cannot check the bandwidth allocations of '
                        'guests in Placement; retrying in the next periodic '
                        'task: %s', error)

    def _describe_host(self) -> HostDescription:
        found = self._ghsched.describe_bandwidth_control(
            self._list_stopped_guests())
        return dataclasses.replace(
            found, numa_nodes=self._numa_nodes, nearest=self._nearest,
            rt_permille=self._threads.compute_realtime_capacity(),
            bursts=self._burst_use.reported_burst_percent,
            capabilities=found.capabilities | self._threads.capabilities())

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
        self._threads.shared = {cell.id: frozenset(cell.cpuset)
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
        running = self._last_running
        resources = super().get_available_resource(nodename)
        bandwidth = self._bandwidth_use.measure_bandwidth(
            load_use.list_guests_and_policies(running))
        self._burst_use.record_bursts(bandwidth, time.time())
        resources = self._load_use.add_to_stats(resources, running, bandwidth)
        self._blame_record.record_bandwidth_and_load(
            bandwidth, self._load_use.load, time.time())
        self._service_levels.record_service_levels(
            bandwidth, self._load_use.load, self._ghsched.not_held,
            self._ghsched.uncounted, time.time())
        self._history.record_guest_bandwidth(bandwidth, time.time())
        root_calls.stop_idle_helpers()
        return self._add_free_bandwidth_and_groups(resources, nodename)

    def _notify_bottleneck(self, change: bottleneck.BottleneckChange,
                           payload: dict[str, Any]) -> None:
        messaging.send_notification(
            'ghsched.numa_node.bottleneck.' +
            ('start' if change.begins else 'end'),
            {'host': shared.config().host, **payload})

    def _notify_bandwidth(
        self, seconds: float,
        periods: Mapping[service_level.LevelKey, tuple[service_level.Owner,
                                                       service_level.Period]]
    ) -> None:
        messaging.send_notification(
            metering.EVENT, metering.make_bandwidth_notification(
                shared.config().host, seconds, periods))

    def _add_free_bandwidth_and_groups(self, resources: Any,
                                       nodename: str) -> Any:
        """Add the host's free bandwidth and control groups to a report.

        nova-scheduler's in-memory index of hosts reads them from the compute
        node's stats. Errors are logged and not raised, because the index is
        only a hint.

        :param resources: the report, as Nova's driver makes it.
        """
        try:
            running = self._last_running
            known = {guest.domain.uuid for guest in running}
            self._last_others = self._read_guests(
                self._host.list_guests(only_running=False), self._last_others,
                known)
            guests = [*running, *self._last_others]
            self._traffic.measure_traffic(guests)
            found = headroom_report.compute_headroom(
                self._offered, self._numa_nodes, guests,
                shared.config().ghsched.bandwidth_accounting, time.time())
            if found is not None:
                found = dataclasses.replace(
                    found, shape=providers.hash_compute_node(
                        self.provider_tree, nodename))
                self._headroom = report_delta.choose_headroom_report(
                    self._headroom, found)
                resources['stats'] = {**(resources.get('stats') or {}),
                                      **headroom.to_stats(self._headroom)}
        except Exception as error:
            LOG.warning('ghsched: cannot report free bandwidth and control '
                        'groups to nova-scheduler; retrying in the next '
                        'periodic task: %r',
                        error)
        return resources

    def get_diagnostics(self, instance: Any) -> Any:
        """Return a guest's diagnostics with bandwidth, load and traffic."""
        guest = self._host.get_guest(instance)
        found = self._diagnostics.add_to_diagnostics(
            super().get_diagnostics(instance), guest,
            lambda: allocation_check.describe_missing_devices(
                base.list_devices_by_request(instance)))
        return self._traffic.add_traffic_to_diagnostics(
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
