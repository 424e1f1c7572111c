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


from types import SimpleNamespace

from lxml import etree
from nova import exception

from ghsched_nova.guest import device_numa
from ghsched_nova.guest import pci_topology
from ghsched_nova.tests.fixtures import guest_nodes
from ghsched_nova.virt import attach
from ghsched_placement.tests import base

GUEST = """<domain type='kvm'>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <features><acpi/></features>
  <numatune><memnode cellid='1' mode='strict' nodeset='3'/>
    <memnode cellid='0' mode='strict' nodeset='2'/></numatune>
  <cpu><numa><cell id='0' cpus='0' memory='1'/>
    <cell id='1' cpus='1' memory='1'/></numa></cpu>
  <devices/>
</domain>"""

DEVICE = """<interface type='hostdev' managed='yes'>
  <mac address='fa:16:3e:00:00:01'/>
  <source>
    <address type='pci' domain='0x0000' bus='0x81' slot='0x10'
             function='0x0'/>
  </source>
</interface>"""

ADDRESS = '0000:81:10.0'

#: Of a device on host node 5, the guest's second node (3) is nearer.
SLIT = {5: {2: 31, 3: 21, 5: 10}}


def started(devices):
    """The guest as it is started with devices.

    :param devices: host NUMA node by PCI address.
    """
    xml = GUEST.replace('<devices/>', '<devices>' + ''.join(
        DEVICE.replace("function='0x0'", f"function='0x{address[-1]}'")
        for address in devices) + '</devices>')
    decision = device_numa.assign_devices(
        [device_numa.Device(*device) for device in devices.items()],
        attach.parse_host_nodes(GUEST), 'preferred', SLIT, nearest=True)
    xml = device_numa.render_expander_buses(xml, decision.guest_node_of, 1)
    # As many ports as libvirt would have made for the others.
    return with_ports(xml, 4)


def with_ports(xml, count):
    """Further root ports of the first host bridge, at the end."""
    root = etree.fromstring(xml)
    devices = root.find('devices')
    first = 1 + max(int(one.get('index'))
                    for one in devices.findall('controller'))
    for index in range(first, first + count):
        etree.SubElement(devices, 'controller', type='pci', index=str(index),
                         model='pcie-root-port')
    return etree.tostring(root, encoding='unicode')


def resumed(xml, devices):
    """The guest whose devices were all taken out and put back."""
    root = etree.fromstring(xml)
    for interface in root.findall('devices/interface'):
        interface.getparent().remove(interface)
    for address in devices:
        device = attach.add_guest_address(
            DEVICE.replace("function='0x0'", f"function='0x{address[-1]}'"),
            etree.tostring(root, encoding='unicode'), devices, 'preferred',
            False, SLIT)
        root.find('devices').append(etree.fromstring(device))
    return etree.tostring(root, encoding='unicode')


class PlaceTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.guest = device_numa.render_expander_buses(GUEST, {}, 1)

    def add_address(self, node, mode='required', element=False, guest=None,
                    distances=None):
        return attach.add_guest_address(
            DEVICE, guest or self.guest, {ADDRESS: node}, mode, element,
            distances or {})

    def test_the_device_gets_a_free_port_of_its_guest_node(self):
        devices = [etree.fromstring(self.add_address(node)) for node in (2, 3)]
        buses = {device.find('address').get('bus') for device in devices}
        self.assertEqual(2, len(buses))

    def test_openeulers_libvirt_gets_the_node(self):
        root = etree.fromstring(self.add_address(3, element=True))
        self.assertEqual('1', root.find('numa').get('node'))
        self.assertIsNone(root.find('address'))

    def test_without_a_free_port_required_is_refused(self):
        error = self.assertRaises(pci_topology.DeviceNumaError,
                                  self.add_address, 2, guest=GUEST)
        self.assertIn('no port is free', str(error))

    def test_without_any_expander_bus_libvirt_can_do_nothing_wrong(self):
        self.assertEqual(DEVICE, self.add_address(2, 'preferred', guest=GUEST))

    def test_a_device_of_another_node_never_gets_a_wrong_one(self):
        self.assertRaises(pci_topology.DeviceNumaError, self.add_address, 5)
        guest = etree.fromstring(self.guest)
        behind = {address.get('bus') for address in guest.findall(
            "devices/controller[@model='pcie-root-port']/address")}
        self.assertEqual(2, len(behind))
        for node in (5, None):
            root = etree.fromstring(self.add_address(node, 'preferred'))
            index = int(root.find('address').get('bus'), 16)
            (port,) = guest.findall(
                f"devices/controller[@index='{index}']")
            self.assertIsNone(port.find('address'))

    def test_a_far_device_is_on_the_nearest_node_where_that_is_wanted(self):
        for element in (False, True):
            placed = self.add_address(5, 'preferred', element, distances=SLIT)
            self.assertEqual(self.add_address(3, element=element), placed)
            # Not under required, and not where nothing is known of it.
            self.assertRaises(pci_topology.DeviceNumaError, self.add_address,
                              5, element=element, distances=SLIT)
            for node in (None, 7):
                self.assertNotIn('<numa', self.add_address(
                    node, 'preferred', element, distances=SLIT))

    def test_devices_come_back_where_they_were(self):
        # Far devices, near ones, and some of which nothing is known: more
        # than there are spare ports.
        host_node_of = dict(enumerate((5, 5, 2, 5, 7, 5, 3, None)))
        devices = {f'0000:81:10.{number}': node
                   for number, node in host_node_of.items()}
        booted = started(devices)
        seen = guest_nodes.read_guest_nodes(booted)
        self.assertEqual([1, 1, 0, 1, None, 1, 1, None], list(seen.values()))
        self.assertEqual(seen, guest_nodes.read_guest_nodes(
            resumed(booted, devices)))

    def test_device_comes_back_to_a_guest_node_that_has_devices_only(self):
        guest = device_numa.render_expander_buses(GUEST.replace(
            '</numa>', "<cell id='2' memory='0'/></numa>"), {}, 1)

        def add_address(*without_cpus):
            return attach.add_guest_address(
                DEVICE, guest, {ADDRESS: 5}, 'required', False, {},
                without_cpus)
        root = etree.fromstring(guest)
        root.find('devices').append(etree.fromstring(add_address(5, 6)))
        self.assertEqual([2], list(guest_nodes.read_guest_nodes(
            etree.tostring(root, encoding='unicode')).values()))
        self.assertRaises(pci_topology.DeviceNumaError, add_address, 6)

    def test_host_nodes_come_in_the_order_of_the_guest(self):
        self.assertEqual([2, 3], attach.parse_host_nodes(GUEST))


class TellingWhyTest(base.TestCase):

    INSTANCE = SimpleNamespace(uuid='an-instance')

    def attached(self, error, nodes=()):
        """Attach a port, with an error of Nova or none; return the result or
        the error.
        """
        self.patch(attach.instance_claims, 'list_required_device_nodes',
                   lambda instance: nodes)

        def nova(context, instance, *args):
            try:
                if error is not None:
                    raise error
            except attach.PortRefused:
                # As Nova does it, without "from".
                raise exception.InterfaceAttachFailed(  # noqa: B904
                    instance_uuid=instance.uuid)
            return 'a vif'
        try:
            return attach.attach_with_reason(
                nova, None, self.INSTANCE, 'network', 'port', None, None)
        except exception.NovaException as told:
            return told

    def test_a_port_that_was_attached(self):
        self.assertEqual('a vif', self.attached(None))

    def test_our_refusal_has_its_reason(self):
        told = self.attached(attach.PortRefused())
        self.assertIs(exception.InterfaceAttachPciClaimFailed, type(told))
        self.assertIn('would not see the NUMA node', told.format_message())

    def test_a_failed_claim_says_where_nodes_matter(self):
        failed = exception.InterfaceAttachPciClaimFailed(
            instance_uuid='an-instance')
        self.assertIs(failed, self.attached(failed))
        self.assertIn("on the guest's own NUMA nodes",
                      self.attached(failed, [0, 2]).format_message())

    def test_other_errors_stay(self):
        failed = exception.InterfaceAttachFailed(instance_uuid='an-instance')
        self.assertIs(failed, self.attached(failed, [0]))


class PlacedGuestTest(base.TestCase):

    def test_attached_devices_get_a_slot(self):
        attached = []

        class Guest:
            name = 'guest'

            def attach_device(self, config, live):
                attached.append((config.to_xml(), live))

        class Config:
            def to_xml(self):
                return 'xml'

        guest = attach.AddressingGuest(Guest(), lambda xml: xml + ' placed')
        guest.attach_device(Config(), live=True)
        self.assertEqual([('xml placed', True)], attached)
        self.assertEqual('guest', guest.name)


class PlacingVIFDriverTest(base.TestCase):

    def test_a_configuration_is_changed_while_placing_and_not_after(self):
        driver = attach.PlacingVIFDriver(None)

        class Config:
            def to_xml(self):
                return 'xml'

        self.patch(attach.vif.LibvirtGenericVIFDriver, 'get_config',
                   lambda *args, **kwargs: Config())
        with driver.adding_guest_addresses(lambda xml: xml + ' placed'):
            config = driver.get_config()
            self.assertEqual('xml placed', config.to_xml())
            self.assertIs(Config, type(config))
        self.assertEqual('xml', driver.get_config().to_xml())
