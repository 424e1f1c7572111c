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

"""VFs of host NUMA nodes that have no CPUs."""

from pathlib import Path

import fixtures
from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import config as vconfig

from ghsched_nova.guest import libvirt_probes
from ghsched_nova.tests.fixtures import guest_nodes
from ghsched_nova.tests.fixtures import libvirt
from ghsched_nova.tests.functional import test_vfs

#: Distances of nodes 0 and 1 with CPUs and nodes 2 and 3 without: node 2 is
#: nearest to node 1, node 3 to node 0.
DISTANCES = {0: '10 20 40 30', 1: '20 10 30 40', 2: '40 30 10 50',
             3: '30 40 50 10'}


class CpulessTestCase(test_vfs.VfsTestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(libvirt.WholeXml())

    def start_with_cpuless(self, *pfs, name='host_a'):
        self.kernel.nodes = 2
        self.kernel.write()
        nodes = Path(self.kernel.path, 'devices/system/node')
        for node, distances in DISTANCES.items():
            (nodes / f'node{node}').mkdir(exist_ok=True)
            (nodes / f'node{node}/distance').write_text(distances + '\n')
            if node > 1:
                (nodes / f'node{node}/cpulist').write_text('\n')
        info = fakelibvirt.HostInfo(cpu_nodes=2, cpu_sockets=1, cpu_cores=6,
                                    cpu_threads=1, kB_mem=16 * 1024 * 1024)
        for node in (2, 3):
            cell = vconfig.LibvirtConfigCapsNUMACell()
            cell.id, cell.memory = node, 4 * 1024 * 1024
            cell.mempages = fakelibvirt.create_mempages(
                [(4, cell.memory // 4)])
            info.numa_topology.cells.append(cell)
        return self.start_compute(name, host_info=info,
                                  pci_info=test_vfs.devices(*pfs))

    def guest(self, device_numa_mode, state='ACTIVE', **keys):
        return self.boot(self.flavor(
            vfs='nic:2', vfs_locality='node', device_numa=device_numa_mode,
            **keys), state)

    def seen_nodes(self, server):
        return set(guest_nodes.read_guest_nodes(
            self.domain('host_a', server)).values())


class NearestTest(CpulessTestCase):

    def setUp(self):
        super().setUp()
        # libvirt before 11.8 drops the attribute.
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.guest.libvirt_probes.DEVICE_INITIATOR',
            libvirt_probes.LibvirtProbe('', 'none', {})))

    def test_each_guest_node_has_vfs_of_its_nearest_node(self):
        self.start_with_cpuless((2, 2), (3, 2))
        server = self.boot(self.flavor(
            vcpus=4, nodes=2, vfs='nic:4', vfs_locality='node',
            device_numa='preferred'))
        expected = {guest: [{0: 3, 1: 2}[node]] * 2
                    for guest, node in enumerate(self.host_nodes(server))}
        self.assertEqual(expected, self.vf_nodes(server))
        self.assertEqual({0, 1}, self.seen_nodes(server))

    def test_guest_is_refused_where_the_nearest_node_is_full(self):
        self.start_with_cpuless((2, 4))
        self.reserve(n1=90)
        server = self.guest('preferred', 'ERROR', mem_bw_min=20)
        self.assertIn('ghsched', self.fault(server))

    def test_required_nodes_are_refused(self):
        self.start_with_cpuless((2, 4))
        self.assertIn('GhschedNUMATopologyFilter', self.fault(
            self.guest('required', 'ERROR')))

    def test_placement_has_the_node_below_the_nearest(self):
        self.start_with_cpuless((2, 4))
        provider = {one['uuid']: one for one in self.placement.get(
            '/resource_providers', version='1.14').body[
                'resource_providers']}
        self.assertEqual(
            self.provider('host_a', 1),
            provider[self.provider('host_a', 2)]['parent_provider_uuid'])
        pf, = (one for one in provider.values()
               if one['name'] == 'host_a_0000:81:00.0')
        self.assertEqual(self.provider('host_a', 2),
                         pf['parent_provider_uuid'])


class DeviceCellTest(CpulessTestCase):
    """libvirt keeps the ACPI initiators of a domain."""

    def test_required_nodes_of_vfs_are_nodes_of_their_own(self):
        self.start_with_cpuless((2, 4))
        server = self.guest('required')
        self.assertEqual([1], self.host_nodes(server))
        self.assertEqual({0: [2, 2]}, self.vf_nodes(server))
        self.assertEqual({1}, self.seen_nodes(server))
        # The nearest node is full.
        self.reserve(n1=90)
        self.assertIn('ghsched', self.fault(
            self.guest('required', 'ERROR', mem_bw_min=20)))

    def test_guest_has_nodes_of_its_own_for_the_vfs(self):
        self.start_with_cpuless((2, 2), (3, 2))
        server = self.boot(self.flavor(
            vcpus=4, nodes=2, vfs='nic:4', vfs_locality='node',
            device_numa='preferred'))
        self.assertEqual({2, 3}, self.seen_nodes(server))
        root = etree.fromstring(self.domain('host_a', server))
        rows = {cell.get('id'): [one.get('value') for one in cell.iter(
            'sibling')] for cell in root.iterfind('cpu/numa/cell')
            if not cell.get('cpus')}
        hosts = self.host_nodes(server)
        for cell, node in (('2', 2), ('3', 3)):
            expected = DISTANCES[node].split()
            self.assertEqual([expected[one] for one in (*hosts, 2, 3)],
                             rows[cell])
        self._reboot_server(server, hard=True)
        self.assertEqual({2, 3}, self.seen_nodes(server))
        self.assertEqual(4, len(etree.fromstring(self.domain(
            'host_a', server)).findall('cpu/numa/cell')))
