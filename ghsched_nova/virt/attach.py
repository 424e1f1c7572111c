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

"""Attaches passthrough devices where a running guest sees their NUMA node.

``LibvirtDriver.attach_interface`` asks the VIF driver for the device's
configuration and passes it to libvirt unchanged. While a port is attached,
this VIF driver returns a configuration whose ``to_xml`` adds the guest
address. The class of the configuration must stay Nova's: a later detach finds
the device by class, and ignores guest addresses.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from contextlib import AbstractContextManager
import threading
from typing import Any

from nova import exception
from nova.virt.libvirt import vif
from oslo_log import log as logging

from ghsched_nova.base import wrappers
from ghsched_nova.guest import device_cells
from ghsched_nova.guest import device_numa
from ghsched_nova.guest import document
from ghsched_nova.guest import metadata
from ghsched_nova.guest import pci_topology
from ghsched_nova.host import engine
from ghsched_nova.virt import instance_claims

LOG = logging.getLogger(__name__)

#: Function that adds a guest PCI address to a device's XML and returns it.
AddressAdder = Callable[[str], str]

#: Distances (ACPI SLIT) of a host by NUMA node and other node.
Distances = Mapping[int, Mapping[int, int]]

#: Ports whose device is passed through: nova.network.model.VNIC_TYPE_*.
PASSTHROUGH = ('direct', 'direct-physical')


class PortRefused(exception.InterfaceAttachFailed):
    """Refusal to attach a port whose device's NUMA node a guest cannot see."""

    msg_fmt = ('ghsched:device_numa=required: the guest would not see the '
               "NUMA node of the port's device, because the device is on "
               'another NUMA node or the guest has no free PCI port for it')


def attach_with_reason(attach: Callable[..., Any], context: Any,
                       instance: Any, *args: Any) -> Any:
    """Attach a port to a guest as Nova does, and let users see why it fails.

    The reason is in the HTTP 400 answer and in the fault of the server.

    :param attach: ``ComputeManager._attach_interface``.
    """
    try:
        return attach(context, instance, *args)
    except exception.InterfaceAttachFailed as error:
        # Nova raises it while handling the driver's exception.
        if not isinstance(error.__context__, PortRefused):
            raise
        reason = str(error.__context__)
    except exception.InterfaceAttachPciClaimFailed as error:
        needed = ', '.join(map(
            str, instance_claims.list_required_device_nodes(instance)))
        if not needed:
            raise
        LOG.error("ghsched: cannot attach a passthrough port because its "
                  "physical network has no free device on the guest's "
                  "host NUMA node %s", needed,
                  instance=instance)
        reason = (f'{error}; with ghsched:device_numa=required it needs '
                  "a free device of its physical network on the guest's "
                  'own NUMA nodes')
    raise exception.InterfaceAttachPciClaimFailed(
        reason, instance_uuid=instance.uuid)


def add_guest_address(device_xml: str, guest_xml: str,
                      host_node_of: Mapping[str, int | None], mode: str,
                      numa_element: bool, distances: Distances,
                      without_cpus: Collection[int] = ()) -> str:
    """Add a PCI address on the device's guest NUMA node to a device's XML.

    :param device_xml: hot-plugged device as Nova made it, without address.
    :param guest_xml: live XML of the domain.
    :param host_node_of: host NUMA node by PCI address on the host.
    :param mode: ``required``, or ``preferred``: any other address will do.
    :param numa_element: whether libvirt accepts openEuler's ``<numa>``.
    :param distances: distances of the host's NUMA nodes, if a device of
        another node may be shown on the nearest one; else empty.
    :param without_cpus: host NUMA nodes without CPUs.
    :raises DeviceNumaError: under ``required``, if there is no such address;
        under ``preferred``, if the guest would see a wrong node.
    """
    address, *_ = device_numa.list_passthrough_addresses(
        f'<domain><devices>{device_xml}</devices></domain>')
    decision = device_numa.assign_devices(
        [device_numa.Device(address, host_node_of.get(address))],
        _list_backing_nodes(guest_xml, host_node_of, without_cpus),
        mode, distances, bool(distances))
    guest_node = decision.guest_node_of[address]
    reason = '; '.join(map(str, decision.problems))
    if guest_node is not None:
        if reason:
            LOG.warning('ghsched: no guest NUMA node matches the host NUMA '
                        'node of a hot-plugged passthrough device; attaching '
                        'it to the nearest guest NUMA node: %s', reason)
        if placed := _add_address_on_node(device_xml, guest_xml, guest_node,
                                          numa_element):
            return placed
        reason = (f'{address}: no port is free behind the expander bus of '
                  f'guest NUMA node {guest_node}')
    if mode == device_numa.REQUIRED:
        raise pci_topology.DeviceNumaError(reason)
    LOG.warning('ghsched: cannot hot-plug a passthrough device on a guest '
                'NUMA node; attaching it without a NUMA node: %s', reason)
    return _add_address_outside_nodes(device_xml, guest_xml)


def has_port_device(guest_xml: str, vif: Any) -> bool:
    """Whether a guest has the passthrough device of a port.

    :param guest_xml: live XML of the domain.
    :param vif: the port, of nova.network.model.
    """
    address = (vif['profile'] or {}).get('pci_slot')
    return address is not None and pci_topology.normalize_address(
        address) in device_numa.list_passthrough_addresses(guest_xml)


def add_address_without_node(device_xml: str, guest_xml: str) -> str:
    """Add a guest PCI address outside all guest NUMA nodes to a device's XML.

    The XML is returned unchanged if the guest has no such address; libvirt
    then chooses one.

    :param device_xml: hot-plugged device as Nova made it, without address.
    :param guest_xml: live XML of the domain.
    """
    try:
        return _add_address_outside_nodes(device_xml, guest_xml)
    except pci_topology.DeviceNumaError:
        return device_xml


def _add_address_outside_nodes(device_xml: str, guest_xml: str) -> str:
    address = device_numa.find_free_address_without_node(guest_xml)
    return (device_numa.set_device_address(device_xml, address) if address
            else device_xml)


def _add_address_on_node(device_xml: str, guest_xml: str, guest_node: int,
                         numa_element: bool) -> str | None:
    """Add a PCI address on a given guest NUMA node to a device's XML.

    :param numa_element: whether libvirt accepts openEuler's ``<numa>``. The
        XML then gets this element instead of an address.
    :returns: the XML; None if no PCI port of that node is free.
    """
    if numa_element:
        return device_numa.set_device_node(device_xml, guest_node)
    free = device_numa.find_free_address(guest_xml, guest_node)
    return (None if free is None
            else device_numa.set_device_address(device_xml, free))


def parse_host_nodes(guest_xml: str) -> list[int]:
    """Return the host NUMA node of each guest NUMA node of a domain."""
    memnodes = document.parse_element(guest_xml).findall('numatune/memnode')
    return [int(memnode.attrib['nodeset']) for memnode in sorted(
        memnodes, key=lambda one: int(one.attrib['cellid']))]


def _list_backing_nodes(guest_xml: str, host_node_of: Mapping[str, int | None],
                        without_cpus: Collection[int]) -> list[int]:
    """Return the host NUMA node of each guest NUMA node, with or without CPUs.

    A guest node that has devices only is not in ``<numatune>``. It was made
    for the devices that the guest has.

    :param host_node_of: host NUMA node of each of these devices.
    """
    found = parse_host_nodes(guest_xml)
    added = device_cells.select_host_nodes(
        [device_numa.Device(*one) for one in host_node_of.items()], found,
        without_cpus)
    cells = pci_topology.list_cell_numbers(document.parse_element(guest_xml))
    return [*found, *added] if len(cells) == len(found) + len(added) else found


class AddressingGuest(wrappers.ObjectWrapper):
    """Wrapper of Nova's guest that adds PCI addresses to attached devices.

    Nova attaches passthrough devices again after a suspension, and after a
    cold snapshot. The address puts a device on its guest NUMA node.

    :param guest: Guest of nova.virt.libvirt.guest.
    :param add_address: function that adds the guest address to a device's XML.
    """

    def __init__(self, guest: Any, add_address: AddressAdder) -> None:
        super().__init__(guest)
        self._add_address = add_address

    def attach_device(self, config: Any, *args: Any, **kwargs: Any) -> Any:
        _wrap_to_xml(config, self._add_address)
        return self._wrapped.attach_device(config, *args, **kwargs)


def _wrap_to_xml(config: Any, add_address: AddressAdder) -> None:
    """Replace a device's ``to_xml`` so that the XML has a guest PCI address.

    :param config: device configuration of nova.virt.libvirt.config; its method
        ``to_xml`` is replaced by one that calls ``add_address``.
    :param add_address: function that adds the guest PCI address to a device's
        XML.
    """
    to_xml = config.to_xml
    config.to_xml = lambda *args, **kwargs: add_address(to_xml(
        *args, **kwargs))


class PlacingVIFDriver(vif.LibvirtGenericVIFDriver):
    """Nova's VIF driver, which can add guest addresses to devices."""

    def __init__(self, host: Any) -> None:
        super().__init__(host)
        self._local = threading.local()

    def adding_guest_addresses(
            self, add_address: AddressAdder) -> AbstractContextManager[None]:
        """Within this context, attached devices get a guest PCI address.

        Only devices that this thread attaches are changed.

        :param add_address: function that adds the guest address to a device's
            XML.
        """
        return wrappers.setting_attribute(self._local, 'add_address',
                                          add_address)

    def get_config(self, *args: Any, **kwargs: Any) -> Any:
        config = super().get_config(*args, **kwargs)
        add_address: AddressAdder | None = getattr(
            self._local, 'add_address', None)
        if add_address is not None:
            _wrap_to_xml(config, add_address)
        return config


class DeviceAttacher:
    """Attachment of devices where guests see their NUMA node.

    :param host: engine of this host, which knows its NUMA nodes and libvirt.
    :param libvirt_host: nova.virt.libvirt.host.Host of the driver.
    """

    def __init__(self, host: engine.HostEngine, libvirt_host: Any) -> None:
        self._host = host
        self.vif_driver = PlacingVIFDriver(libvirt_host)
        self._attaching = threading.local()

    def never_refusing_ports(self) -> AbstractContextManager[None]:
        """Within this context, do not refuse ports for their NUMA node.

        If a port's device cannot be attached to its guest NUMA node, it is
        attached without a node. This applies to the current thread only, and
        is used in live migrations.
        """
        return wrappers.setting_attribute(self._attaching, 'must_not_fail',
                                          True)

    def attach_port(self, attach: Callable[[], Any], guest: Any,
                    instance: Any, vif: Any) -> Any:
        """Attach a port to a guest.

        The guest sees the NUMA node of a passthrough device if its flavor asks
        for that.

        :param attach: Nova's method, without its arguments.
        :param guest: guest of nova.virt.libvirt.guest.
        :param vif: the port, of nova.network.model.
        :raises PortRefused: under ``device_numa=required``, if the guest has
            no free PCI address on that node.
        """
        add_address = self._make_address_adder(
            guest, list(instance.get_pci_devices()))
        if add_address is None or vif['vnic_type'] not in PASSTHROUGH:
            return attach()
        is_live_migration = getattr(self._attaching, 'must_not_fail', False)
        if is_live_migration and has_port_device(guest.get_xml_desc(), vif):
            # Nova counts interfaces with a <target>, which these have not.
            LOG.info('ghsched: not attaching port %s again after a failed '
                     'live migration because the guest still has its device',
                     vif['id'], instance=instance)
            return None
        try:
            with self.vif_driver.adding_guest_addresses(add_address):
                return attach()
        except pci_topology.DeviceNumaError as error:
            self.vif_driver.unplug(instance, vif)
            if is_live_migration:
                return self._attach_without_node(attach, guest, instance,
                                                 error)
            LOG.error('ghsched: cannot attach the passthrough device of a '
                      'port to the guest NUMA node required by the flavor: '
                      '%s', error,
                      instance=instance)
            raise PortRefused from error

    def _attach_without_node(self, attach: Callable[[], Any], guest: Any,
                             instance: Any,
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
        with self.vif_driver.adding_guest_addresses(
                lambda device_xml: add_address_without_node(
                    device_xml, guest.get_xml_desc())):
            return attach()

    def wrap_guest(self, guest: Any, pci_devices: Iterable[Any]) -> Any:
        """Wrap a guest so that attached devices get an address on their node.

        The address shows the guest the NUMA node of the device. The guest
        itself is returned if its policy does not ask for that.

        :param pci_devices: devices that the instance has claimed.
        """
        add_address = self._make_address_adder(guest, pci_devices)
        return (guest if add_address is None
                else AddressingGuest(guest, add_address))

    def _make_address_adder(self, guest: Any, pci_devices: Iterable[Any],
                            ) -> AddressAdder | None:
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
        distances = self._host.read_distances()
        # The guest's ports fill up with each device.
        return lambda device_xml: add_guest_address(
            device_xml, guest.get_xml_desc(), nodes, mode,
            self._host.domain_xml.libvirt.numa_element, distances.to_devices,
            distances.nearest.keys())
