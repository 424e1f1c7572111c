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


"""Stock libvirt and QEMU with guests whose devices have a NUMA node.

The guests are Nova's (:mod:`nova_guest`), rendered by
:mod:`ghsched_nova.guest.device_numa`. A host with VFs is not needed: libvirt
defines a guest with devices that the host has not. In guests that boot, an
emulated device stands in for each VF at the very address that the VF was
given. Checked with libvirt 9.0.0 and QEMU 7.2 of Debian 12.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest

from lxml import etree

from ghsched_nova.features.guest_topology import host_topology
from ghsched_nova.guest import device_numa
from ghsched_nova.guest import libvirt_probes
from ghsched_nova.guest import pci_topology
from ghsched_nova.lab.emulator import testhost
from ghsched_nova.tests.fixtures import guest_nodes
from ghsched_nova.tests.functional import nova_guest
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base

REASON = testhost.missing()
TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), '../../..'))
HOME = os.environ.get('GHSCHED_HOME', '/var/lib/ghsched')
#: Seconds for a boot, without KVM and on a machine with other work.
BOOT_TIMEOUT = 240
#: Words of a guest's kernel one of whose CPUs does not run for 100 s, or gets
#: no timer interrupt. Now and then QEMU's emulation of several CPUs stands
#: still so; another start does not.
LOCKED_UP = ('stuck for 1', 'Possible timer handling issue')
STARTS = 3

#: Of the Debian package qemu-efi-aarch64.
FIRMWARE = '/usr/share/AAVMF'
ARM_NEEDS = {
    '/usr/bin/qemu-system-aarch64': 'qemu-system-arm',
    f'{FIRMWARE}/AAVMF_CODE.fd': 'qemu-efi-aarch64',
}
ARM_REASON = '; '.join(
    f'there is no {path} (Debian package {package})'
    for path, package in ARM_NEEDS.items() if not os.path.exists(path))
DEVICE = re.compile(
    r'GUEST-PCI (\S+?):([0-9a-f]{2}):(\S+) (\S+) numa_node=(-?\d+)')

#: What the guest does once it has told all, instead of reading its console:
#: it announces each device that comes later.
READY = 'echo "GUEST-READY"\n'
WATCH = """\
cd /sys/bus/pci/devices
known=$(echo *)
while :; do
    for device in *; do
        case " $known " in *" $device "*) continue ;; esac
        known="$known $device"
        echo "GUEST-PCI $device" \\
            "$(cat $device/vendor):$(cat $device/device)" \\
            "numa_node=$(cat $device/numa_node)"
        echo "GUEST-ATTACHED $device"
    done
    sleep 1
done
"""

#: An emulated device with an address and no back end.
STAND_IN = ('<rng model="virtio"><backend model="random">/dev/urandom'
            '</backend></rng>')


#: What the host of the guests is to look like: two sockets, the second one
#: with faster memory.
HOST = host_topology.HostTopology(
    distances={0: {0: 10, 1: 24}, 1: {0: 24, 1: 10}},
    latency={0: 120, 1: 90},
    bandwidth={0: 100 * 10 ** 9, 1: 200 * 10 ** 9},
    cpus={cpu: host_topology.CpuIds(cpu // 2, 0, 0, cpu)
          for cpu in range(4)})

POLICY = policy.parse_policy({'ghsched:guest_topology': 'host',
                              'ghsched:mem_bw_min.0': '20',
                              'ghsched:mem_bw_max.1': '50'}, 2)


def shown(xml, shape):
    """The guest of two nodes sees that host, as if it were pinned to it."""
    if shape.cells != 2 or shape.vcpus != 4:
        return xml
    root = etree.fromstring(xml)
    pins = etree.SubElement(root, 'cputune')
    for cpu in range(4):
        etree.SubElement(pins, 'vcpupin', vcpu=str(cpu), cpuset=str(cpu))
    root = etree.fromstring(host_topology.render_topology(
        etree.tostring(root, encoding='unicode'), POLICY, (0, 1), HOST))
    root.remove(root.find('cputune'))
    return etree.tostring(root, encoding='unicode')


def setUpModule():
    global STATE
    STATE = os.path.join(tempfile.mkdtemp(prefix='device-numa-'), 'state')


def tearDownModule():
    shutil.rmtree(os.path.dirname(STATE), ignore_errors=True)


def image(script, directory):
    """Directory of a tiny guest; a skip with the reason when none is had."""
    target = os.path.join(HOME, 'cache', directory)
    done = subprocess.run(
        ['bash', os.path.join(TOP, 'tools', script), target],
        capture_output=True, text=True)
    if done.returncode:
        raise unittest.SkipTest(f'{script}: {done.stderr.strip()[-200:]}')
    return target


@unittest.skipIf(REASON, REASON)
class LibvirtTestCase(base.TestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.host = testhost.TestHost(STATE)
        cls.addClassCleanup(cls.host.down)
        cls.host.up(testhost.Settings(nodes=1))

    def setUp(self):
        super().setUp()
        self.addCleanup(self.forget_guests)

    def forget_guests(self):
        for name in self.virsh('list', '--name').split():
            self.virsh('destroy', name)
        for name in self.virsh('list', '--all', '--name').split():
            self.virsh('undefine', '--nvram', name)

    def virsh(self, *args):
        done = self.host.run(['virsh', '-q', *args])
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout

    def file(self, name, text):
        path = os.path.join(self.host.state, name)
        with open(path, 'w') as stream:
            stream.write(text)
        return path

    def define(self, xml, *options):
        """The domain as libvirt has it once it is defined."""
        name = etree.fromstring(xml).findtext('name')
        self.virsh('define', *options, self.file(f'{name}.xml', xml))
        return self.virsh('dumpxml', '--inactive', name)

    def guest(self, shape, nodes, name='device-numa', spares=0,
              firmware=FIRMWARE):
        guest = nova_guest.config(shape, name)
        if shape.arch == 'aarch64':
            guest.os_loader = f'{firmware}/AAVMF_CODE.fd'
            guest.os_loader_type, guest.os_loader_readonly = 'pflash', True
            guest.os_nvram_template = f'{firmware}/AAVMF_VARS.fd'
        return device_numa.render_expander_buses(
            shown(guest.to_xml(), shape), nodes, spares)


class DefineTest(LibvirtTestCase):
    """libvirt takes the XML, and adds nothing that spoils it."""

    def check(self, shape, spares=0):
        devices = shape.port_addresses() + shape.vf_addresses()
        each = -(-len(devices) // shape.cells)
        nodes = {address: place // each
                 for place, address in enumerate(devices)}
        xml = self.guest(shape, nodes, spares=spares)
        back = self.define(xml, '--validate')
        self.assertEqual(nodes, guest_nodes.read_guest_nodes(back))
        return xml, back

    def topology(self, xml):
        return pci_topology.read_pci_controllers(
            etree.fromstring(xml).find('devices'))

    def check_ports(self, xml, back, spares=0):
        """Behind the expander buses: our devices and our spare ports."""
        found = self.topology(back)
        self.assertEqual(set(self.topology(xml).bus_of), set(found.bus_of))
        root = etree.fromstring(back)
        strangers = [element.tag for element in root.find('devices')
                     if pci_topology.read_bus_index(element) in found.bus_of
                     and not pci_topology.is_passthrough(element)]
        self.assertEqual([], strangers)
        free = set(found.bus_of) - found.used
        self.assertEqual(spares * len(found.expanders), len(free))
        self.assertEqual(set(range(len(found.controllers))),
                         set(found.controllers))

    def test_q35_with_forty_vfs(self):
        for ports in (0, 1, 28):
            shape = nova_guest.Shape(vfs=36, sriov_ports=4, ports=ports)
            self.check_ports(*self.check(shape))

    def test_q35_with_more_than_32_ports_on_a_bus(self):
        shape = nova_guest.Shape(cells=1, vfs=60, ports=12)
        self.check_ports(*self.check(shape))

    def test_q35_with_as_many_devices_as_there_are_bus_numbers(self):
        shape = nova_guest.Shape(cells=4, vfs=220, ports=12)
        self.check_ports(*self.check(shape))

    def test_spare_ports_stay_free(self):
        for ports in (0, 12):
            shape = nova_guest.Shape(vfs=4, sriov_ports=2, ports=ports)
            self.check_ports(*self.check(shape, spares=2), spares=2)

    def test_no_spare_port_where_libvirt_would_take_it(self):
        shape = nova_guest.Shape(vfs=4, ports=2)
        self.check_ports(*self.check(shape, spares=2))

    def test_one_port_is_free_for_hot_plug_as_libvirt_has_it(self):
        found = self.topology(self.check(nova_guest.Shape(vfs=2))[1])
        stock = self.topology(
            self.define(nova_guest.config(
                nova_guest.Shape(vfs=2), 'stock').to_xml()))
        self.assertEqual(1, len(stock.free_ports_outside_expanders))
        self.assertGreaterEqual(len(found.free_ports_outside_expanders), 1)

    def test_stock_rendering_names_no_node(self):
        xml = nova_guest.config(nova_guest.Shape(vfs=2, ports=8)).to_xml()
        self.assertEqual({'0000:81:00.0': None, '0000:81:00.1': None},
                         guest_nodes.read_guest_nodes(self.define(xml)))

    def test_answers_of_libvirt_can_be_rendered(self):
        shape = nova_guest.Shape(vfs=4, sriov_ports=2, ports=12)
        _xml, back = self.check(shape, spares=1)
        again = device_numa.render_expander_buses(
            back, guest_nodes.read_guest_nodes(back), 1)
        self.assertEqual(guest_nodes.read_guest_nodes(
            back), guest_nodes.read_guest_nodes(again))
        self.define(again, '--validate')

    @unittest.skipIf(ARM_REASON, ARM_REASON)
    def test_virt_of_aarch64(self):
        for ports, spares in ((0, 0), (1, 0), (12, 1)):
            shape = nova_guest.Shape(vfs=36, sriov_ports=4, ports=ports,
                                     arch='aarch64', machine='virt')
            xml, back = self.check(shape, spares)
            self.check_ports(xml, back, spares)

    def test_stock_libvirt_drops_the_element_of_openeuler(self):
        probe = libvirt_probes.DEVICE_NODE
        back = self.define(probe.xml.replace('"kvm"', '"qemu"'))
        self.assertIn('<hostdev', back)
        self.assertFalse(probe.is_kept(back))

    def test_libvirt_keeps_initiators_from_a_version_on(self):
        probe = libvirt_probes.DEVICE_INITIATOR
        back = self.define(probe.xml.replace('"kvm"', '"qemu"'))
        version = subprocess.run(['virsh', '--version'], capture_output=True,
                                 text=True, check=True).stdout.split('.')
        self.assertEqual([*map(int, version)] >= [11, 8],
                         probe.is_kept(back))


class BootTest(LibvirtTestCase):
    """The guest itself says which node its devices are on."""

    def stand_in(self, xml, boot):
        """Emulated devices for VFs and disks, a console, a kernel."""
        root = etree.fromstring(xml)
        devices = root.find('devices')
        for element in list(devices):
            if pci_topology.is_passthrough(element):
                emulated = etree.fromstring(STAND_IN)
                place = element.find('address')
                if place is not None:
                    emulated.append(place)
                devices.replace(element, emulated)
            elif element.tag in ('disk', 'interface', 'serial'):
                devices.remove(element)
        serial = etree.SubElement(devices, 'serial', type='file')
        etree.SubElement(serial, 'source', path=self.console)
        for tag, value in boot.items():
            etree.SubElement(root.find('os'), tag).text = value
        return etree.tostring(root, encoding='unicode')

    def watching(self, directory):
        """The guest's initrd with another init after its own."""
        with open(os.path.join(TOP, 'tools/cloud.d/guest-init')) as stream:
            init = stream.read()
        self.assertIn(READY, init)
        path = self.file('init', init.replace(READY, READY + WATCH))
        os.chmod(path, 0o700)
        archive = subprocess.run(
            ['cpio', '-o', '-H', 'newc', '--quiet'], input=b'init',
            cwd=self.host.state, capture_output=True, check=True).stdout
        initrd = os.path.join(self.host.state, 'initrd.img')
        with open(initrd, 'wb') as target:
            with open(f'{directory}/initrd.img', 'rb') as stream:
                first = stream.read()
            # The kernel wants the second archive on a 4-byte boundary.
            target.write(first + bytes(-len(first) % 4) + archive)
        return initrd

    def boot(self, shape, nodes, directory, console='ttyS0', spares=0,
             **firmware):
        self.console = os.path.join(self.host.state, f'{shape.arch}.console')
        xml = self.guest(shape, nodes, f'boot-{shape.arch}', spares,
                         **firmware)
        xml = self.stand_in(xml, {
            'kernel': f'{directory}/vmlinuz',
            'initrd': self.watching(directory),
            'cmdline': f'console={console} quiet'})
        self.name = f'boot-{shape.arch}'
        self.define(xml)
        for _ in range(STARTS - 1):
            console = self.start('GUEST-READY', *LOCKED_UP)
            if 'GUEST-READY' in console:
                return xml, console
            self.virsh('destroy', self.name)
        return xml, self.start('GUEST-READY')

    def start(self, *words):
        if os.path.exists(self.console):
            os.unlink(self.console)
        self.virsh('start', self.name)
        return self.wait_for(*words)

    def wait_for(self, *words, count=1):
        """Return the guest's console output once it has one of the words.

        :param count: how often it must have the word.
        """
        deadline = time.monotonic() + BOOT_TIMEOUT
        while time.monotonic() < deadline:
            with open(self.console, errors='replace') as stream:
                text = stream.read()
            if any(text.count(word) >= count for word in words):
                return text
            time.sleep(1)
        self.fail(f'the guest did not say {words}: ...{text[-500:]}')

    def check_nodes(self, xml, console):
        """Node by PCI bus, for each bus number of each expander bus.

        :returns: how many endpoints the guest has on each node.
        """
        found = pci_topology.read_pci_controllers(
            etree.fromstring(xml).find('devices'))
        node_of_bus = {}
        for index, node in found.expanders.items():
            target = found.controllers[index].find('target')
            first = int(target.get('busNr'))
            ports = list(found.bus_of.values()).count(index)
            node_of_bus |= dict.fromkeys(
                range(first, first + ports + 1), node)
        endpoints = {}
        seen = DEVICE.findall(console)
        for domain, bus, rest, kind, node in seen:
            wanted = node_of_bus.get(int(bus, 16), -1)
            self.assertEqual(wanted, int(node),
                             f'{domain}:{bus}:{rest} {kind}')
            if kind in ('0x1af4:0x1044', '0x1af4:0x1005'):
                endpoints[wanted] = endpoints.get(wanted, 0) + 1
        return endpoints

    def test_q35(self):
        directory = image('guest-image.sh', 'guest')
        shape = nova_guest.Shape(vfs=4, sriov_ports=1, ports=8)
        vfs = shape.vf_addresses()
        nodes = {vfs[0]: 1, vfs[1]: 0, vfs[2]: 1, vfs[3]: None,
                 shape.port_addresses()[0]: 1}
        xml, console = self.boot(shape, nodes, directory, spares=1)
        self.check_host(console)
        self.assertRegex(console,
                         'GUEST-CPU cpu3 socket=1 .*core=1 .*L3=2-3')
        # On no node: Nova's own generator, and the VF without a node.
        self.assertEqual({0: 1, 1: 3, -1: 2},
                         self.check_nodes(xml, console))
        for node in (0, 1):
            self.attach(node)
            console = self.wait_for('GUEST-ATTACHED', count=node + 1)
        self.assertEqual({0: 2, 1: 4, -1: 2},
                         self.check_nodes(xml, console))

    def check_host(self, console, memory=True):
        """The guest has the distances, HMAT figures and policy of its host.

        :param memory: whether its kernel reads HMAT.
        """
        for text in ('distance=10 24', 'distance=24 10',
                     'GUEST-POLICY '
                     + host_topology.render_policy_for_guest(POLICY)):
            self.assertIn(text, console)
        for node, nanoseconds, mib in (0, 120, 19073), (1, 90, 95367):
            if memory:
                self.assertRegex(
                    console, f'GUEST-MEMORY node{node} read_latency='
                             f'{nanoseconds} read_bandwidth={mib // 2 * 2}')

    def attach(self, node):
        """A device goes behind the bus of the node, which is then full."""
        running = self.virsh('dumpxml', self.name)
        place = device_numa.find_free_address(running, node)
        self.assertIsNotNone(place)
        device = STAND_IN.replace('</rng>', f'{place}</rng>')
        self.virsh('attach-device', self.name, '--live',
                   self.file('device.xml', device))
        self.assertIsNone(device_numa.find_free_address(
            self.virsh('dumpxml', self.name), node))

    def test_q35_with_forty_devices(self):
        directory = image('guest-image.sh', 'guest')
        shape = nova_guest.Shape(vfs=40, ports=8)
        nodes = {address: place // 20
                 for place, address in enumerate(shape.vf_addresses())}
        xml, console = self.boot(shape, nodes, directory)
        self.assertEqual({0: 20, 1: 20, -1: 1},
                         self.check_nodes(xml, console))

    @unittest.skipIf(ARM_REASON, ARM_REASON)
    def test_virt_of_aarch64(self):
        directory = image('guest-image-arm64.sh', 'guest-arm64')
        shape = nova_guest.Shape(vfs=3, sriov_ports=1, ports=8,
                                 arch='aarch64', machine='virt',
                                 memory_mib=768)
        vfs = shape.vf_addresses()
        nodes = {vfs[0]: 1, vfs[1]: 0, vfs[2]: None,
                 shape.port_addresses()[0]: 1}
        xml, console = self.boot(shape, nodes, directory, 'ttyAMA0',
                                 firmware=directory)
        self.assertIn('GUEST-NUMA online=0-1', console)
        self.check_host(console)
        self.assertEqual({0: 1, 1: 2, -1: 2},
                         self.check_nodes(xml, console))
