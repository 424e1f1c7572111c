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

"""Places the device of a passthrough port that is attached to a running guest.

``LibvirtDriver.attach_interface`` asks the VIF driver for the device's
configuration and passes it to libvirt unchanged. While a port is attached,
this VIF driver returns a configuration whose ``to_xml`` adds the guest
address. The class of the configuration must stay Nova's: a later detach finds
the device by class, and ignores guest addresses.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import functools
import threading
from typing import Any

from nova import exception
from nova.virt.libvirt import vif
from oslo_log import log as logging

from ghsched_nova.guest import device_numa
from ghsched_nova.guest import document
from ghsched_nova.guest import pci_topology

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


def wrap_port_attachment(
        attach: Callable[..., Any],
        list_required_nodes: Callable[[Any],
                                      Iterable[int]]) -> Callable[..., Any]:
    """Wrap Nova's attachment of a port so that users see why it fails.

    The reason is in the HTTP 400 answer and in the fault of the server.

    :param attach: ``ComputeManager._attach_interface``.
    :param list_required_nodes: function that returns the host NUMA nodes on
        which an instance must have its devices.
    :returns: the wrapped function.
    """
    @functools.wraps(attach)
    def attach_with_reason(context: Any, instance: Any, *args: Any) -> Any:
        try:
            return attach(context, instance, *args)
        except exception.InterfaceAttachFailed as error:
            # Nova raises it while handling the driver's exception.
            if not isinstance(error.__context__, PortRefused):
                raise
            reason = str(error.__context__)
        except exception.InterfaceAttachPciClaimFailed as error:
            needed = ', '.join(map(str, list_required_nodes(instance)))
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
    return attach_with_reason


def add_guest_address(device_xml: str, guest_xml: str,
                      host_node_of: Mapping[str, int | None], mode: str,
                      numa_element: bool, distances: Distances) -> str:
    """Add a PCI address on the device's guest NUMA node to a device's XML.

    :param device_xml: hot-plugged device as Nova made it, without address.
    :param guest_xml: live XML of the domain.
    :param host_node_of: host NUMA node by PCI address on the host.
    :param mode: ``required``, or ``preferred``: any other address will do.
    :param numa_element: whether libvirt accepts openEuler's ``<numa>``.
    :param distances: distances of the host's NUMA nodes, if a device of
        another node may be shown on the nearest one; else empty.
    :raises DeviceNumaError: under ``required``, if there is no such address;
        under ``preferred``, if the guest would see a wrong node.
    """
    address, *_ = device_numa.list_passthrough_addresses(
        f'<domain><devices>{device_xml}</devices></domain>')
    decision = device_numa.assign_devices(
        [device_numa.Device(address, host_node_of.get(address))],
        parse_host_nodes(guest_xml), mode, distances, bool(distances))
    guest_node = decision.guest_node_of[address]
    reason = '; '.join(map(str, decision.problems))
    if guest_node is not None:
        if reason:
            LOG.warning('ghsched: no guest NUMA node matches the host NUMA '
                        'node of a hot-plugged passthrough device; attaching '
                        'it to the nearest guest NUMA node: %s', reason)
        placed = _add_address_on_node(
            device_xml, guest_xml, guest_node, numa_element)
        if placed is not None:
            return placed
        reason = (f'{address}: no port is free behind the expander bus of '
                  f'guest NUMA node {guest_node}')
    if mode == device_numa.REQUIRED:
        raise pci_topology.DeviceNumaError(reason)
    LOG.warning('ghsched: cannot hot-plug a passthrough device on a guest '
                'NUMA node; attaching it without a NUMA node: %s', reason)
    plain = device_numa.find_free_address_without_node(guest_xml)
    return (device_numa.set_device_address(device_xml, plain) if plain
            else device_xml)


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
        address = device_numa.find_free_address_without_node(guest_xml)
    except pci_topology.DeviceNumaError:
        return device_xml
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


class AddressingGuest:
    """Wrapper of Nova's guest that adds PCI addresses to attached devices.

    Nova attaches passthrough devices again after a suspension, and after a
    cold snapshot. The address puts a device on its guest NUMA node.

    :param guest: Guest of nova.virt.libvirt.guest.
    :param add_address: function that adds the guest address to a device's XML.
    """

    def __init__(self, guest: Any, add_address: AddressAdder) -> None:
        self._guest = guest
        self._add_address = add_address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guest, name)

    def attach_device(self, config: Any, *args: Any, **kwargs: Any) -> Any:
        _wrap_to_xml(config, self._add_address)
        return self._guest.attach_device(config, *args, **kwargs)


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

    @contextlib.contextmanager
    def adding_guest_addresses(self,
                               add_address: AddressAdder) -> Iterator[None]:
        """Within this context, attached devices get a guest PCI address.

        Only devices that this thread attaches are changed.

        :param add_address: function that adds the guest address to a device's
            XML.
        """
        self._local.where = add_address
        try:
            yield
        finally:
            del self._local.where

    def get_config(self, *args: Any, **kwargs: Any) -> Any:
        config = super().get_config(*args, **kwargs)
        where: AddressAdder | None = getattr(self._local, 'where', None)
        if where is not None:
            _wrap_to_xml(config, where)
        return config
