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


import re

from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from ghsched_nova.guest import device_numa as dn
from ghsched_nova.guest import libvirt_probes
from ghsched_nova.guest import pci_topology as pci
from ghsched_nova.tests.fixtures.device_guests import domain
from ghsched_nova.tests.fixtures.device_guests import hostdev
from ghsched_nova.tests.fixtures.device_guests import ON_A_PORT
from ghsched_nova.tests.fixtures import guest_nodes
from ghsched_placement.tests import base

#: And those that it does not.
ELSEWHERE = (
    '<disk type="file" device="cdrom"><target dev="sda" bus="sata"/></disk>',
    '<controller type="sata" index="0"/>',
    '<serial type="pty"/>',
    '<graphics type="vnc"/>',
    '<video><model type="none"/></video>',
    '<input type="tablet" bus="usb"/>',
    '<hostdev mode="subsystem" type="usb"/>',
    '<!-- by hand -->',
)
BALLOON = '<memballoon model="virtio"/>'
NO_USB = '<controller type="usb" index="0" model="none"/>'


def interface(number):
    return (
        '<interface type="hostdev" managed="yes"><mac '
        f'address="52:54:00:00:00:{number:02x}"/><source><address type="pci" '
        f'domain="0x0000" bus="0x81" slot="0x{number // 8:02x}" '
        f'function="0x{number % 8}"/></source></interface>')


def address(number):
    return f'0000:81:{number // 8:02x}.{number % 8}'


def others(xml):
    """The domain without what the renderer may change."""
    root = etree.fromstring(xml)
    for element in root.findall("devices/controller[@type='pci']"):
        element.getparent().remove(element)
    for element in root.findall('devices/*'):
        if pci.is_passthrough(element) and element.find('address') is not None:
            element.remove(element.find('address'))
    for element in root.iter():
        element.tail = None
        element.text = (element.text or '').strip()
    return etree.tostring(root)


@st.composite
def guests(draw):
    """A domain, and the guest node of each of its passthrough devices."""
    cells = draw(st.integers(1, 8))
    numbers = draw(st.lists(st.integers(0, 255), max_size=60, unique=True))
    maker = st.sampled_from((hostdev, interface))
    devices = [draw(maker)(number) for number in numbers]
    devices += draw(st.lists(st.sampled_from(ON_A_PORT + ELSEWHERE),
                             max_size=12))
    devices += draw(st.sampled_from(([], [BALLOON], [BALLOON, NO_USB])))
    nodes = {address(number): draw(st.none() | st.integers(0, cells - 1))
             for number in numbers}
    xml = domain(draw(st.permutations(devices)),
                 ports=draw(st.none() | st.integers(1, 40)), cells=cells,
                 indent=draw(st.booleans()),
                 machine=draw(st.sampled_from(('q35', 'pc-q35-7.2'))))
    return xml, nodes


def topology(xml):
    return pci.read_pci_controllers(etree.fromstring(xml).find('devices'))


def place_as_libvirt(found, count):
    """Root ports that libvirt takes for devices without an address."""
    ports = sorted(index for index, element in found.controllers.items()
                   if element.get('model') == pci.PORT
                   and index not in found.used)
    return ports[:count]


class DecideTest(base.TestCase):
    DEVICE = dn.Device('0000:81:00.1', 3)

    def test_a_device_is_on_the_guest_node_of_its_host_node(self):
        for mode in (dn.REQUIRED, dn.PREFERRED):
            decision = dn.assign_devices(
                (self.DEVICE, dn.Device('0000:01:00.0', 1)), (1, 3), mode
            )
            self.assertEqual({'0000:81:00.1': 1, '0000:01:00.0': 0},
                             decision.guest_node_of)
            self.assertEqual((), decision.problems)

    def test_a_host_node_twice_is_its_lowest_guest_node(self):
        self.assertEqual(
            {'0000:81:00.1': 1},
            dn.assign_devices(
                (self.DEVICE,), (0, 3, 3), dn.REQUIRED
            ).guest_node_of,
        )

    def test_required_refuses_and_names_each_device_and_its_node(self):
        with self.assertRaises(dn.DeviceNumaError) as caught:
            dn.assign_devices(
                (
                    self.DEVICE,
                    dn.Device('0000:82:00.0', None),
                    dn.Device('0000:83:00.0', -1),
                ),
                (0, 1),
                dn.REQUIRED,
            )
        for part in ('0000:81:00.1: it is on host node 3',
                     'the guest on host node(s) 0, 1',
                     '0000:82:00.0: the host does not know',
                     '0000:83:00.0: the host does not know'):
            self.assertIn(part, str(caught.exception))

    def test_required_refuses_a_guest_without_nodes(self):
        with self.assertRaisesRegex(dn.DeviceNumaError, 'hw:numa_nodes'):
            dn.assign_devices((self.DEVICE,), (), dn.REQUIRED)
        self.assertEqual(
            dn.DeviceAssignment({}), dn.assign_devices((), (), dn.REQUIRED)
        )

    def test_preferred_leaves_a_device_without_a_node_and_says_why(self):
        for device in (self.DEVICE, dn.Device('0000:81:00.1', -1),
                       dn.Device('0000:81:00.1', None)):
            decision = dn.assign_devices((device,), (0, 1), dn.PREFERRED,
                                         {3: {0: 20, 1: 30}})
            self.assertEqual({'0000:81:00.1': None}, decision.guest_node_of)
            self.assertEqual('0000:81:00.1', decision.problems[0].address)

    def test_the_nearest_node_is_by_distance_then_by_number(self):
        for row, node in (({0: 30, 1: 20}, 1), ({0: 20, 1: 20}, 0),
                          ({1: 40}, 1), ({5: 10}, None), ({}, None)):
            decision = dn.assign_devices((self.DEVICE,), (0, 1), dn.PREFERRED,
                                         {3: row}, nearest=True)
            self.assertEqual({'0000:81:00.1': node}, decision.guest_node_of)
            self.assertEqual(1, len(decision.problems))

    def test_the_nearest_of_an_unknown_node_is_not_guessed(self):
        for node in (None, -1):
            decision = dn.assign_devices(
                (dn.Device('0000:81:00.1', node),),
                (0, 1),
                dn.PREFERRED,
                {-1: {0: 10}},
                nearest=True,
            )
            self.assertEqual({'0000:81:00.1': None}, decision.guest_node_of)

    def test_required_takes_no_nearest_node(self):
        with self.assertRaises(dn.DeviceNumaError):
            dn.assign_devices((self.DEVICE,), (0, 1), dn.REQUIRED,
                              {3: {0: 10, 1: 20}}, nearest=True)

    def test_none_touches_nothing(self):
        self.assertEqual(dn.DeviceAssignment({}),
                         dn.assign_devices((self.DEVICE,), (0, 1), dn.NONE))

    def test_a_mode_or_an_address_that_makes_no_sense(self):
        with self.assertRaisesRegex(dn.DeviceNumaError, 'sometimes'):
            dn.assign_devices((self.DEVICE,), (0,), 'sometimes')
        with self.assertRaisesRegex(dn.DeviceNumaError, '81:00'):
            dn.assign_devices((dn.Device('81:00', 0),), (0,), dn.PREFERRED)

    @given(st.lists(st.none() | st.integers(-1, 9), max_size=8),
           st.lists(st.integers(0, 9), max_size=4, unique=True),
           st.booleans())
    def test_no_node_is_ever_made_up(self, nodes, host_nodes, nearest):
        devices = [dn.Device(address(number), node)
                   for number, node in enumerate(nodes)]
        slit = {a: {b: 10 + abs(a - b) for b in range(10)} for a in range(10)}
        decision = dn.assign_devices(
            devices, host_nodes, dn.PREFERRED, slit, nearest
        )
        told = {problem.address for problem in decision.problems}
        for device in devices:
            node = decision.guest_node_of[device.address]
            if device.address not in told:
                self.assertEqual(device.host_node, host_nodes[node])
            elif node is not None:
                self.assertTrue(nearest)


class ExpanderTest(base.TestCase):

    def test_two_nodes_with_a_device_each(self):
        xml = domain([hostdev(1), interface(2), BALLOON, NO_USB], ports=3)
        found = dn.render_expander_buses(xml, {address(1): 1, address(2): 0})
        root = etree.fromstring(found)
        self.assertEqual(
            [(None, 'pcie-root')] + [(None, 'pcie-root-port')] * 3
            + [('4', 'pcie-expander-bus'), ('5', 'pcie-root-port'),
               ('6', 'pcie-expander-bus'), ('7', 'pcie-root-port')],
            [(element.get('index'), element.get('model')) for element
             in root.findall("devices/controller[@type='pci']")])
        self.assertEqual(
            [('252', '0'), ('254', '1')],
            [(element.get('busNr'), element.findtext('node'))
             for element in root.findall('devices/controller/target')])
        self.assertEqual(
            '0x07', root.find('devices/hostdev/address').get('bus'))
        self.assertEqual(
            '0x05', root.find('devices/interface/address').get('bus'))
        self.assertEqual({address(1): 1, address(2): 0},
                         guest_nodes.read_guest_nodes(found))

    def test_indentation_is_kept(self):
        for indent in (True, False):
            xml = domain([hostdev(1)], ports=1, indent=indent)
            found = dn.render_expander_buses(xml, {address(1): 0})
            root = etree.fromstring(found)
            if indent:
                etree.indent(root)
            self.assertEqual(etree.tostring(root, encoding='unicode'), found)

    def test_forty_vfs_on_two_nodes(self):
        nodes = {address(number): number // 20 for number in range(40)}
        xml = domain(map(hostdev, range(40)), ports=24)
        found = topology(dn.render_expander_buses(xml, nodes))
        self.assertEqual({25: 0, 46: 1}, found.expanders)
        self.assertEqual(40, len(found.bus_of))
        slots = {element.find('address').get('slot') for index, element
                 in found.controllers.items() if found.bus_of.get(index) == 25}
        self.assertEqual({f'0x{slot:02x}' for slot in range(20)}, slots)
        numbers = [element.find('target').get('busNr') for index, element
                   in found.controllers.items() if index in found.expanders]
        self.assertEqual(['214', '235'], numbers)

    def test_more_than_32_ports_share_slots(self):
        nodes = {address(number): 0 for number in range(33)}
        found = etree.fromstring(dn.render_expander_buses(
            domain(map(hostdev, range(33)), ports=2), nodes))
        places = [element.attrib for element
                  in found.findall('devices/controller/address')]
        self.assertEqual(
            [(number // 8, number % 8) for number in range(33)],
            [(int(one['slot'], 16), int(one['function'], 16))
             for one in places])
        self.assertEqual(
            ['on' if number % 8 == 0 else None for number in range(33)],
            [one.get('multifunction') for one in places])

    def test_the_bus_numbers_end_somewhere(self):
        nodes = {address(number): number % 2 for number in range(240)}
        xml = domain([*map(hostdev, range(240)), BALLOON, NO_USB], ports=1)
        self.assertEqual(
            240, len(topology(dn.render_expander_buses(xml, nodes)).bus_of))
        xml = domain([*map(hostdev, range(240)), BALLOON, NO_USB], ports=14)
        with self.assertRaisesRegex(dn.DeviceNumaError, '242 PCI bus.* 16 '):
            dn.render_expander_buses(xml, nodes)

    def test_a_device_without_a_node_is_left_to_libvirt(self):
        xml = domain([hostdev(1), hostdev(2)], ports=4)
        found = dn.render_expander_buses(
            xml, {address(1): 0, address(2): None})
        self.assertEqual({address(1): 0, address(2): None},
                         guest_nodes.read_guest_nodes(found))
        self.assertEqual(
            xml, dn.render_expander_buses(xml, {address(1): None}))

    def test_a_guest_of_libvirts_own_ports_keeps_one_for_hot_plug(self):
        # Balloon, and the USB controller that libvirt adds.
        found = topology(dn.render_expander_buses(
            domain([hostdev(1), BALLOON]), {address(1): 0}))
        self.assertEqual([1, 2, 3], found.ports_outside_expanders)
        self.assertEqual({4: 0}, found.expanders)

    def test_unrenderable_input_is_refused_with_the_reason(self):
        good, node = hostdev(1), {address(1): 0}
        placed = good.replace(
            '</hostdev>', '<address type="pci" bus="0x01"/></hostdev>')
        for reason, xml, nodes in (
                ('i440fx', domain([good], machine='pc'), node),
                ('i440fx', domain([good], machine='pc-i440fx-7.2'), node),
                ('s390', domain([good], machine='s390-ccw-virtio'), node),
                ('ACPI', domain([good], features=''), node),
                ('no NUMA node 0', domain([good], cells=0), node),
                ('no NUMA node 2', domain([good]), {address(1): 2}),
                ('no PCI device 0000:81:00.2', domain([good]),
                 {address(2): 0}),
                ('guest address already', domain([placed]), node),
                ('twice', domain([good, interface(1)]), node),
                ('not a domain', '<volume/>', node),
                ('not XML', '<domain', node),
                ('no <devices>', '<domain/>', node),
                ('not a PCI address', domain([good]), {'81:0': 0})):
            with self.assertRaisesRegex(dn.DeviceNumaError, reason):
                dn.render_expander_buses(xml, nodes)
        with self.assertRaisesRegex(dn.DeviceNumaError, 'hw:numa_nodes'):
            dn.render_expander_buses(domain(cells=0), {}, 1)

    @given(guests(), st.integers(0, 3))
    def test_every_device_has_a_port_of_its_own_and_its_node(self, guest,
                                                             spares):
        xml, nodes = guest
        found = dn.render_expander_buses(xml, nodes, spares)
        after = topology(found)
        self.assertEqual(nodes, guest_nodes.read_guest_nodes(found))
        self.assertEqual(others(xml), others(found))
        # Contiguous, and each once.
        if nodes and any(node is not None for node in nodes.values()):
            self.assertEqual(set(range(1, max(after.controllers) + 1)),
                             set(after.controllers) - {0})
        buses = [
            pci.read_bus_index(element)
            for element in pci.map_passthrough_devices(
                etree.fromstring(found)
            ).values()
        ]
        buses = [bus for bus in buses if bus is not None]
        self.assertEqual(len(set(buses)), len(buses))
        places = [tuple(element.find('address').attrib.get(name)
                        for name in ('bus', 'slot', 'function'))
                  for index, element in after.controllers.items()
                  if index in after.bus_of]
        self.assertEqual(len(set(places)), len(places))

    @given(guests(), st.integers(0, 3))
    def test_no_bus_number_is_used_twice(self, guest, spares):
        after = topology(dn.render_expander_buses(*guest, spares))
        used = list(range(len(after.ports_outside_expanders) + 1))
        for index in after.expanders:
            first = int(after.controllers[index].find('target').get('busNr'))
            ports = list(after.bus_of.values()).count(index)
            used += range(first, first + 1 + ports)
        self.assertEqual(len(set(used)), len(used))
        self.assertLess(max(used), 256)

    @given(guests(), st.integers(0, 3))
    def test_libvirt_finds_no_free_port_behind_an_expander_bus(self, guest,
                                                               spares):
        xml, nodes = guest
        found = dn.render_expander_buses(xml, nodes, spares)
        after = topology(found)
        free = [index for index in after.bus_of if index not in after.used]
        cells = len(etree.fromstring(xml).findall('cpu/numa/cell'))
        self.assertIn(len(free), {0, spares * cells})
        needed = pci.count_needed_ports(
            etree.fromstring(found).find('devices'))
        self.assertFalse(
            set(place_as_libvirt(after, needed)) & set(after.bus_of))

    @given(guests(), st.integers(0, 3))
    def test_rendering_again_changes_nothing(self, guest, spares):
        xml, nodes = guest
        once = dn.render_expander_buses(xml, nodes, spares)
        self.assertEqual(once, dn.render_expander_buses(once, nodes, spares))


class SparePortsTest(base.TestCase):
    DEVICES = (hostdev(1), BALLOON, NO_USB, ON_A_PORT[0], ON_A_PORT[1])

    def test_not_while_libvirt_would_take_them(self):
        node = {address(1): 1}
        for ports, fits in ((2, False), (3, True), (None, True)):
            xml = domain(self.DEVICES, ports=ports)
            found = topology(dn.render_expander_buses(xml, node, 2))
            self.assertEqual(5 if fits else 1, len(found.bus_of))

    def test_every_node_gets_them(self):
        xml = domain([BALLOON, NO_USB], ports=2)
        found = dn.render_expander_buses(xml, {}, 1)
        self.assertEqual({3: 0, 5: 1}, topology(found).expanders)
        self.assertIn('bus="0x04"', dn.find_free_address(found, 0))
        self.assertIn('bus="0x06"', dn.find_free_address(found, 1))

    def test_attach_fills_one_port_after_the_other(self):
        xml = dn.render_expander_buses(domain(self.DEVICES, ports=3),
                                       {address(1): 1}, 2)
        for bus in ('0x09', '0x0a'):
            place = dn.find_free_address(xml, 1)
            self.assertIn(f'bus="{bus}"', place)
            device = dn.set_device_address(interface(9), place)
            xml = xml.replace('</devices>', device + '</devices>')
        self.assertIsNone(dn.find_free_address(xml, 1))
        self.assertIsNone(dn.find_free_address(xml, 7))
        self.assertIsNone(dn.find_free_address(domain(self.DEVICES), 0))

    def test_only_a_passthrough_device_without_address_is_placed(self):
        place = '<address type="pci" bus="0x09"/>'
        self.assertIn(place, dn.set_device_address(hostdev(1), place))
        for reason, xml in (
                ('not a PCI device', '<interface type="bridge"/>'),
                ('not a PCI device', '<hostdev mode="subsystem" type="usb"/>'),
                ('not a hostdev', '<disk/>'),
                ('already', dn.set_device_address(hostdev(1), place))):
            with self.assertRaisesRegex(dn.DeviceNumaError, reason):
                dn.set_device_address(xml, place)


class PortsNeededTest(base.TestCase):

    def needed(self, *devices):
        return pci.count_needed_ports(
            etree.fromstring(domain(devices)).find('devices'))

    def test_devices_with_and_without_a_port(self):
        for device in ON_A_PORT:
            self.assertEqual(2, self.needed(device, BALLOON, NO_USB), device)
        for device in ELSEWHERE:
            self.assertEqual(1, self.needed(device, BALLOON, NO_USB), device)

    def test_additions_of_libvirt_count(self):
        # A balloon and a USB controller.
        self.assertEqual(2, self.needed())
        self.assertEqual(2, self.needed(BALLOON))
        self.assertEqual(1, self.needed(BALLOON, NO_USB))
        self.assertEqual(0, self.needed(NO_USB,
                                        '<memballoon model="none"/>'))
        for device in (
                '<channel type="unix"><target type="virtio"/></channel>',
                '<disk type="file"><target dev="sda" bus="scsi"/></disk>'):
            self.assertEqual(2, self.needed(BALLOON, NO_USB, device))

    def test_a_device_with_an_address_needs_none(self):
        self.assertEqual(1, self.needed(BALLOON, NO_USB, (
            '<vsock><address type="pci" bus="0x01"/></vsock>')))


class NumaElementTest(base.TestCase):

    def test_each_device_names_its_node(self):
        xml = domain([hostdev(1), interface(2), hostdev(3)])
        nodes = {address(1): 1, address(2): 0, address(3): None}
        found = dn.render_numa_element(xml, nodes)
        root = etree.fromstring(found)
        self.assertEqual(
            [('hostdev', '1'), ('interface', '0')],
            [(element.getparent().tag, element.get('node'))
             for element in root.findall('devices/*/numa')])
        self.assertEqual(nodes, guest_nodes.read_guest_nodes(found))
        self.assertEqual(found, dn.render_numa_element(found, nodes))

    def test_a_machine_without_expander_bus_can_have_it(self):
        self.assertIn('<numa node="0"/>', dn.render_numa_element(
            domain([hostdev(1)], machine='pc'), {address(1): 0}))

    def test_bad_input_is_refused(self):
        xml = domain([hostdev(1)])
        for nodes in ({address(1): 2}, {address(2): 0}):
            with self.assertRaises(dn.DeviceNumaError):
                dn.render_numa_element(xml, nodes)

    @given(guests())
    def test_it_comes_and_goes_without_a_trace(self, guest):
        xml, nodes = guest
        found = dn.render_numa_element(xml, nodes)
        self.assertEqual(nodes, guest_nodes.read_guest_nodes(found))
        self.assertEqual(xml, dn.render_numa_element(found, {}))

    def test_the_probe_tells_who_keeps_the_element(self):
        probe = libvirt_probes.DEVICE_NODE
        self.assertTrue(probe.is_kept(probe.xml))
        self.assertFalse(probe.is_kept(
            re.sub('<numa [^>]*/>', '', probe.xml)))
        self.assertFalse(probe.is_kept('<domain/>'))
        with self.assertRaises(ValueError):
            probe.is_kept('<error/>')

    def test_a_device_to_attach(self):
        for device in (hostdev(1), interface(1)):
            once = dn.set_device_node(device, 1)
            self.assertIn('<numa node="1"/>', once)
            self.assertEqual(1, dn.set_device_node(once, 0).count('<numa'))


class MachineTest(base.TestCase):

    def test_names(self):
        for name, arch, kind in (
                ('q35', 'x86_64', 'q35'), ('pc-q35-rhel9.4.0', 'x86_64',
                                           'q35'),
                ('pc', 'x86_64', 'i440fx'), ('', 'x86_64', 'i440fx'),
                ('virt', 'aarch64', 'virt'), ('virt-8.2', 'aarch64', 'virt'),
                ('', 'aarch64', 'virt'), ('virt', 'riscv64', 'riscv64 virt'),
                ('pseries', 'ppc64', 'pseries')):
            self.assertEqual(kind, pci.get_machine_type(
                pci.parse_document(domain(machine=name, arch=arch))), name)

    def test_passthrough_devices_in_their_order(self):
        xml = domain([interface(9), ON_A_PORT[1], hostdev(2)])
        self.assertEqual((address(9), address(2)),
                         dn.list_passthrough_addresses(xml))


class LayOutTest(base.TestCase):

    @given(st.lists(st.integers(0, 60), max_size=8),
           st.frozensets(st.integers(0, 40), max_size=20),
           st.integers(0, 60))
    def test_fits_or_is_refused(self, ports, taken, reserved):
        counts = list(enumerate(ports))
        wanted = sum(ports) + len(ports)
        if wanted > 256 - max(reserved, 1):
            with self.assertRaises(dn.DeviceNumaError):
                pci.place_expanders(counts, taken, reserved)
            return
        found = pci.place_expanders(counts, taken, reserved)
        indexes = [one.index for one in found]
        indexes += [slot.index for one in found for slot in one.ports]
        self.assertEqual(wanted, len(set(indexes) - taken))
        self.assertEqual(counts, [(one.node, len(one.ports))
                                  for one in found])
        numbers = [number for one in found for number in
                   range(one.bus_nr, one.bus_nr + 1 + len(one.ports))]
        self.assertEqual(list(range(256 - wanted, 256)), numbers)
        for one in found:
            places = {(slot.slot, slot.function) for slot in one.ports}
            self.assertEqual(len(one.ports), len(places))
            self.assertTrue(all(slot < 32 and function < 8
                                for slot, function in places))
