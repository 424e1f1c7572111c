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

"""Base class of the parts of the compute driver.

Each part (:mod:`~ghsched_nova.virt.driver_reports`,
:mod:`~ghsched_nova.virt.driver_start`,
:mod:`~ghsched_nova.virt.driver_devices`,
:mod:`~ghsched_nova.virt.driver_migration`) hooks methods of Nova's libvirt
driver; :mod:`~ghsched_nova.virt.driver` joins them.
"""

from collections.abc import Collection
from collections.abc import Sequence
from pathlib import Path
import threading
from typing import Any

from nova.virt.libvirt import driver as libvirt_driver
from oslo_log import log as logging

from ghsched_nova.host import allocation_check
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import compute_parts
from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_nova.host import readings
from ghsched_nova.host import root_calls
from ghsched_nova.nova_seams import compute
from ghsched_nova.nova_seams import messaging
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import shared
from ghsched_nova.resctrl import group_plan
from ghsched_nova.resctrl import model
from ghsched_nova.virt import refusal
from ghsched_placement.flavor import policy as policies
from ghsched_placement.providers import cpuless_nodes
from ghsched_placement.providers.placement_client import PlacementClient

LOG = logging.getLogger(__name__)


class DriverBase(libvirt_driver.LibvirtDriver):
    """Nova's libvirt driver, extended to enforce guests' bandwidth policies.
    """

    #: Features whose parts extend this driver, in the order of calls.
    features: tuple[compute_hooks.Feature, ...] = ()

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        super().__init__(virtapi, read_only)
        self._ghsched = engine.HostEngine(
            shared.config().ghsched, readings.RoundingCache(
                Path(shared.config().ghsched.resctrl_path),
                Path(shared.config().state_path) / readings.FILE,
                root_calls.measure_schemata))
        self._ghsched.running = self._list_running_guests
        self._last_running: list[desired.Running] = []
        self._last_others: list[desired.Running] = []
        # Devices of this host as last reported to Nova.
        self._pci_devices: list[dict[str, Any]] = []
        # Shared CPUs of this host as last reported to Nova, by NUMA node.
        self._shared_cpus: dict[int, frozenset[int]] = {}
        # Held while a policy is read and enforced, and while one is changed.
        self._changing = threading.RLock()
        self._parts = compute_parts.ComputeParts(self.features,
                                                 self._make_services())

    def _make_services(self) -> compute_hooks.ComputeServices:
        return compute_hooks.ComputeServices(
            section=shared.config().ghsched,
            state_path=Path(shared.config().state_path),
            host_name=shared.config().host,
            dedicated_cpus=frozenset(compute.get_dedicated_cpus()),
            list_shared_cpus=lambda: self._shared_cpus, engine=self._ghsched,
            changing=self._changing, list_running=self._list_running_guests,
            find_running=self._find_running_guest,
            notify=messaging.send_notification,
            report_shared_groups=self._report_shared_groups,
            virtapi=self.virtapi, libvirt_host=self._host)

    def _check_allocated_nodes(
            self, instance: Any, topology: Any, allocations: Any,
            vfs: Sequence[tuple[int, int | None]] = ()) -> None:
        """Refuse a guest whose claim and allocation name different NUMA nodes.

        The claim is nova-compute's, the allocation is Placement's.

        :param topology: NUMA topology that the instance has claimed.
        :param allocations: allocation of the guest in Placement.
        :param vfs: guest and host NUMA node of each VF.
        :raises nova.exception.ComputeResourcesUnavailable: if they differ.
            Nova then tries the next host.
        """
        try:
            policy = parse_policy(instance)
            if policy is None:
                return
            cells = numa.list_host_nodes(topology)
            nearest = self._ghsched.find_nearest_nodes() if vfs else {}
            vfs = [(guest_node, cpuless_nodes.get_device_node(
                node, nearest, policy.device_numa))
                for guest_node, node in vfs]
            allocation_check.check_allocation(
                policy, shared.config().ghsched.bandwidth_accounting,
                cells, allocations or {}, self._host.get_node_uuid(), vfs,
                self._ghsched.can_join_shared_group(policy, cells))
        except (policies.PolicyError, allocation_check.ClaimMismatch) as error:
            raise refusal.log_refusal(error, instance) from error

    def _check_claimed_devices(self, instance: Any, allocations: Any) -> None:
        """Refuse a guest whose claimed devices differ from the allocated ones.

        :param allocations: allocation of the guest in Placement.
        :raises nova.exception.ComputeResourcesUnavailable: if they differ.
            Nova then tries the next host.
        """
        if not policies.has_ghsched_keys(instance.flavor.extra_specs):
            return
        try:
            allocation_check.check_devices(
                list_devices_by_request(instance), allocations or {})
        except allocation_check.ClaimMismatch as error:
            raise refusal.log_refusal(error, instance) from error

    # -- guests that run ------------------------------------------------------

    def _reconcile_arrived_guest(self, guest: Any) -> None:
        running = desired.parse_running_domain(guest.get_xml_desc(), guest.id)
        self._ghsched.reconcile_guest(running)
        self._parts.reconcile_guest(running, has_arrived=True)

    def _reconcile(self) -> None:
        """Enforce the bandwidth policy of every running guest of this host.

        This is called at the start of nova-compute, and with each of its
        periodic reports to Placement. A guest whose policy cannot be enforced
        is logged and not stopped.
        """
        with self._changing:
            self._reconcile_resctrl()
        self._parts.reconcile(self._last_running)

    def _reconcile_resctrl(self) -> None:
        try:
            problems = self._ghsched.reconcile(self._parts.count_repairs)
        except Exception:
            # Whatever is wrong with resctrl, the host has to report.
            LOG.exception('ghsched: cannot enforce the bandwidth policies of '
                          'guests on this host; retrying in the next periodic '
                          'task')
            return
        if not problems:
            return
        guests = {guest.uuid: guest for guest
                  in self._host.list_guests(only_running=True)}
        for problem in problems:
            guest = guests.get(problem.guest)
            # libvirt calls a guest running until its process has ended.
            if guest is None or problem.reason.endswith(
                    group_plan.NO_VCPU_THREADS):
                LOG.warning('ghsched: cannot enforce the bandwidth policy of '
                            'a guest; retrying in the next periodic task: %s',
                            problem)
            elif is_running(guest):
                LOG.error('ghsched: cannot enforce the bandwidth policy of '
                          'guest %(name)s; retrying in the next periodic '
                          'task: %(problem)s',
                          {'name': guest.name, 'problem': problem})

    def _report_shared_groups(self, context: Any, instance: Any) -> None:
        """Report the host's control groups to Placement if sharing changed.

        nova-scheduler can then place further guests that share a group before
        nova-compute's next periodic report. Errors are logged and not raised.
        """
        if not self._ghsched.has_sharing_changed:
            return
        try:
            compute.report_host_resources(self.virtapi, context, instance)
        except Exception as error:
            LOG.warning('ghsched: cannot update the traits of shared control '
                        'groups in Placement; retrying in the next periodic '
                        'task: %s', error,
                        instance=instance)

    def _list_running_guests(self) -> list[desired.Running]:
        self._last_running = self._read_guests(
            self._host.list_guests(only_running=True), self._last_running)
        return self._last_running

    def _read_guests(self, guests: Sequence[Any],
                     last: Sequence[desired.Running],
                     skipped: Collection[str] = ()) -> list[desired.Running]:
        """Return guests with their live XML, read in one native thread.

        :param guests: guests of nova.virt.libvirt.guest.
        :param last: result of the last call; a guest with the same XML is not
            parsed again.
        :param skipped: UUIDs of guests to leave out.
        """
        return desired.reuse_parsed_domains(
            compute.call_in_native_thread(lambda: [
                self._read_running_guest(guest) for guest in guests
                if not skipped or guest.uuid not in skipped]), last)

    def _find_running_guest(self, uuid: str) -> desired.Running | None:
        """Return a running guest, with its live XML.

        Returns None if no guest with this UUID runs.
        """
        return next((self._read_running_guest(guest) for guest
                     in self._host.list_guests(only_running=True)
                     if guest.uuid == uuid), None)

    def _read_running_guest(self, guest: Any) -> desired.Running:
        """Return a running guest, with its live XML.

        The XML is left out if libvirt cannot return it.
        """
        domain = model.Domain(guest.uuid, guest.id, guest.name)
        try:
            xml = guest.get_xml_desc()
        except libvirt_driver.libvirt.libvirtError as error:
            if is_running(guest):
                LOG.error('ghsched: cannot read the XML of running guest '
                          '%(name)s from libvirt; its bandwidth policy is '
                          'unknown until the next periodic task: %(error)s',
                          {'name': guest.name, 'error': error})
            return desired.Running(domain)
        return desired.Running(domain, xml)


def get_placement() -> PlacementClient:
    return PlacementClient(shared.get_placement_client())


def is_running(guest: Any) -> bool:
    """Return whether a guest runs.

    The result is False if libvirt no longer has the guest's domain.

    :param guest: guest of nova.virt.libvirt.guest.
    """
    try:
        return bool(guest.is_active())
    except libvirt_driver.libvirt.libvirtError:
        return False


def list_claimed_devices(instance: Any) -> list[Any]:
    """Return the passthrough devices that an instance has claimed."""
    return list(instance.get_pci_devices())


def list_devices_by_request(instance: Any) -> list[allocation_check.Devices]:
    """Return how each PCI request of an instance was satisfied.

    :returns: for each request the number of requested devices, the resource
        providers that Placement allocated, and the devices that nova-compute
        claimed.
    """
    claimed: dict[str, list[str | None]] = {}
    for device in instance.pci_devices or ():
        claimed.setdefault(device.request_id, []).append(
            device.extra_info.get('rp_uuid'))
    requests = instance.pci_requests
    return [
        allocation_check.Devices(
            f'alias {request.alias_name}' if request.alias_name else
            f'port {request.requester_id}', request.count,
            _list_allocated_providers(request),
            claimed.get(request.request_id, ()))
        for request in (requests.requests if requests else ())
    ]


def _list_allocated_providers(request: Any) -> list[str]:
    """Return the resource providers of a PCI request's allocated devices.

    Placement has allocated the devices.
    """
    text = request.spec[0].get('rp_uuids') if request.spec else None
    return text.split(',') if text else []


def get_destination_topology(instance: Any) -> Any:
    """Return the NUMA topology that a migrating guest claimed on this host.

    Returns None for an instance without a migration context.
    """
    context = instance.migration_context
    return context.new_numa_topology if context else None


def parse_policy(instance: Any) -> policies.GuestPolicy | None:
    """Parse the bandwidth policy of an instance's flavor.

    Returns None if the flavor has no policy.

    :raises PolicyError: if the flavor is invalid. nova-api or nova-scheduler
        refuses such a flavor unless the host is forced.
    """
    return policies.parse_policy(instance.flavor.extra_specs,
                                 len(numa.list_host_nodes(
                                     instance.numa_topology)),
                                 instance.flavor.vcpus)
