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

"""The part of the compute driver that attaches passthrough devices."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import threading
from typing import Any

from oslo_log import log as logging

from ghsched_nova.guest import device_numa
from ghsched_nova.guest import metadata
from ghsched_nova.guest import pci_topology
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import registry
from ghsched_nova.virt import attach
from ghsched_nova.virt import driver_base as base

LOG = logging.getLogger(__name__)

seam = registry.make_seam_decorator(registry.COMPUTE)


class AttachingDriver(base.DriverBase):
    """Driver that attaches devices where the guest sees their NUMA node."""

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        super().__init__(virtapi, read_only)
        # Replaces Nova's VIF driver, see nova.virt.libvirt.driver.
        self.vif_driver = attach.PlacingVIFDriver(self._host)
        self._attaching = threading.local()

    def attach_interface(self, context: Any, instance: Any, image_meta: Any,
                         vif: Any) -> Any:
        """Attach a port to a guest.

        The guest sees the NUMA node of a passthrough device if its flavor asks
        for that.

        :raises PortRefused: under ``device_numa=required``, if the guest has
            no free PCI address on that node.
        """
        guest = self._host.get_guest(instance)
        where = self._make_address_adder(guest,
                                         base.list_claimed_devices(instance))
        if where is None or vif['vnic_type'] not in attach.PASSTHROUGH:
            return super().attach_interface(context, instance, image_meta,
                                            vif)
        is_live_migration = getattr(self._attaching, 'must_not_fail', False)
        if is_live_migration and attach.has_port_device(
                guest.get_xml_desc(), vif):
            # Nova counts interfaces with a <target>, which these have not.
            LOG.info('ghsched: not attaching port %s again after a failed '
                     'live migration because the guest still has its device',
                     vif['id'], instance=instance)
            return None
        try:
            with self.vif_driver.adding_guest_addresses(where):
                return super().attach_interface(context, instance, image_meta,
                                                vif)
        except pci_topology.DeviceNumaError as error:
            self.vif_driver.unplug(instance, vif)
            if is_live_migration:
                return self._attach_without_node(guest, context, instance,
                                                 image_meta, vif, error)
            LOG.error('ghsched: cannot attach the passthrough device of a '
                      'port to the guest NUMA node required by the flavor: '
                      '%s', error,
                      instance=instance)
            raise attach.PortRefused from error

    def _attach_without_node(self, guest: Any, context: Any, instance: Any,
                             image_meta: Any, vif: Any,
                             error: pci_topology.DeviceNumaError) -> Any:
        """Attach a port's device outside all guest NUMA nodes; log the reason.

        This is done in a live migration, although the flavor requires a guest
        NUMA node, because the guest runs on this host already.

        :param error: reason why the device cannot be on a guest NUMA node.
        """
        LOG.error('ghsched: live migration: attaching the passthrough device '
                  'of a port without a guest NUMA node, although the flavor '
                  'requires one: %s; hard-reboot the server to attach the '
                  'device to its node', error, instance=instance)

        def add_address(device_xml: str) -> str:
            return attach.add_address_without_node(device_xml,
                                                   guest.get_xml_desc())
        with self.vif_driver.adding_guest_addresses(add_address):
            return super().attach_interface(context, instance, image_meta,
                                            vif)

    @contextlib.contextmanager
    def _never_refusing_ports(self) -> Iterator[None]:
        """Within this context, do not refuse ports for their NUMA node.

        If a port's device cannot be attached to its guest NUMA node, it is
        attached without a node. This applies to the current thread only, and
        is used in live migrations.
        """
        self._attaching.must_not_fail = True
        try:
            yield
        finally:
            del self._attaching.must_not_fail

    def post_live_migration_at_destination(self, *args: Any,
                                           **kwargs: Any) -> Any:
        with self._never_refusing_ports():
            return super().post_live_migration_at_destination(*args, **kwargs)

    def rollback_live_migration_at_source(self, *args: Any,
                                          **kwargs: Any) -> Any:
        with self._never_refusing_ports():
            return super().rollback_live_migration_at_source(*args, **kwargs)

    @seam('nova.virt.libvirt.driver.LibvirtDriver.vif_driver')
    @seam('nova.virt.libvirt.driver.LibvirtDriver._attach_pci_devices',
          ('self', 'guest', 'pci_devs'))
    def _attach_pci_devices(self, guest: Any, pci_devs: Any) -> Any:
        """Attach a guest's PCI devices again after it was suspended.

        A cold snapshot suspends a guest, too. The guest sees the NUMA nodes of
        the devices as before if its policy asks for that.
        """
        return super()._attach_pci_devices(
            self._wrap_guest(guest, pci_devs), pci_devs)

    @seam('nova.virt.libvirt.driver.LibvirtDriver.'
          '_attach_direct_passthrough_ports',
          ('self', 'context', 'instance', 'guest', 'network_info'))
    def _attach_direct_passthrough_ports(
            self, context: Any, instance: Any, guest: Any,
            network_info: Any = None) -> Any:
        return super()._attach_direct_passthrough_ports(
            context, instance,
            self._wrap_guest(guest,
                             base.list_claimed_devices(instance)),
            network_info)

    def _wrap_guest(self, guest: Any,
                    pci_devices: Iterable[Any]) -> Any:
        """Wrap a guest so that attached devices get an address on their node.

        The address shows the guest the NUMA node of the device. The guest
        itself is returned if its policy does not ask for that.

        :param pci_devices: devices that the instance has claimed.
        """
        where = self._make_address_adder(guest, pci_devices)
        return guest if where is None else attach.AddressingGuest(guest, where)

    def _make_address_adder(self, guest: Any, pci_devices: Iterable[Any],
                            ) -> attach.AddressAdder | None:
        """Return a function that adds a guest PCI address to a device's XML.

        The function is called when a device is hot-plugged. Returns None if
        the guest's policy does not ask for the NUMA nodes of devices. Nova
        then attaches devices without an address.
        """
        domain = metadata.read_policy(guest.get_xml_desc())
        if domain is None or domain.policy.device_numa == device_numa.NONE:
            return None
        mode = domain.policy.device_numa
        nodes = {device.address: device.numa_node for device in pci_devices}
        distances = self._ghsched.read_distances()

        def where(device_xml: str) -> str:
            # The guest's ports fill up with each device.
            return attach.add_guest_address(
                device_xml, guest.get_xml_desc(), nodes, mode,
                self._ghsched.domain_xml.libvirt.numa_element, distances)
        return where


def attach_with_reason(attach_interface: Callable[..., Any], *args: Any,
                       **kwargs: Any) -> Any:
    """Attach a port to a guest as Nova does, with a better error.

    If ghsched's driver refused the port, the error says why.

    :param attach_interface: Nova's method.
    """
    return attach.wrap_port_attachment(attach_interface,
                                       _list_required_device_nodes)(*args,
                                                                    **kwargs)


def _list_required_device_nodes(instance: Any) -> list[int]:
    """Return the host NUMA nodes on which an instance's devices must be.

    The result is empty unless the instance's flavor requires devices on the
    guest's nodes (``device_numa=required``).
    """
    policy = base.parse_policy(instance)
    if policy is None or policy.device_numa != device_numa.REQUIRED:
        return []
    return sorted(numa.list_host_nodes(instance.numa_topology))
