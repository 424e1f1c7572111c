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

"""PCI devices in Placement, below the NUMA nodes that they are on."""

from unittest import mock

import fixtures
from lxml import etree
from nova import context as nova_context
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt

from ghsched_nova.tests.functional import nova_base

VENDOR, PRODUCT = fakelibvirt.PCI_VEND_ID, fakelibvirt.VF_PROD_ID
VF_CLASS = f'CUSTOM_PCI_{VENDOR}_{PRODUCT}'


class PciProviderTestCase(nova_base.GhschedTestCase):

    def setUp(self):
        self.track_vfs(vf=PRODUCT)
        super().setUp()

    def start(self, pfs=2):
        return self.start_compute(
            'host_a',
            host_info=fakelibvirt.HostInfo(
                cpu_nodes=2, cpu_sockets=1, cpu_cores=4, cpu_threads=1,
                kB_mem=16 * 1024 * 1024),
            pci_info=fakelibvirt.HostPCIDevicesInfo(
                num_pci=0, num_pfs=pfs, num_vfs=2 * pfs))

    def providers(self):
        return self.placement.get(
            '/resource_providers?in_tree='
            + self.compute_rp_uuids['host_a'],
            version='1.29').body['resource_providers']

    def parents(self):
        names = {provider['uuid']: provider['name']
                 for provider in self.providers()}
        return {provider['name']: names.get(provider['parent_provider_uuid'])
                for provider in self.providers()}

    def pfs(self):
        return sorted(name for name in self.parents() if '0000:81' in name)

    def vf_flavor(self, **keys):
        return self.flavor(extra={'pci_passthrough:alias': 'vf:1'}, **keys)


class PciProviderTest(PciProviderTestCase):

    def assert_below_numa_nodes(self):
        parents = self.parents()
        self.assertEqual(['host_a_NUMA0', 'host_a_NUMA1'],
                         [parents[pf] for pf in self.pfs()])

    def device_nodes(self, server):
        return [device.numa_node for device in
                objects.PciDeviceList.get_by_instance_uuid(
                    nova_context.get_admin_context(), server['id'])]

    def test_a_new_host_has_its_pfs_below_their_nodes(self):
        self.start()
        self.assert_below_numa_nodes()
        self._run_periodics()
        self.assert_below_numa_nodes()
        self.restart_compute_service('host_a')
        self.assert_below_numa_nodes()
        uuid = {provider['name']: provider['uuid']
                for provider in self.providers()}
        for pf in self.pfs():
            self.assertEqual(2, self._get_provider_inventory(
                uuid[pf])[VF_CLASS]['total'])

    def test_an_existing_host_has_them_moved_while_in_use(self):
        # As Nova's own driver makes them.
        with mock.patch(
                'ghsched_nova.host.pci_providers.PciProviderMover.'
                'move_pci_providers'):
            self.start()
        self.assertEqual({'host_a'}, {self.parents()[pf]
                                      for pf in self.pfs()})
        server = self.boot(self.vf_flavor())
        before = self.resources(server['id'])
        self._run_periodics()
        self.assert_below_numa_nodes()
        self._run_periodics()
        self.restart_compute_service('host_a')
        self.assert_below_numa_nodes()
        self.assertEqual(before, self.resources(server['id']))
        self._delete_server(server)

    def spy_on_xml(self):
        """The domain XML of every guest, as the driver made it."""
        made = []
        driver = self.computes['host_a'].driver
        get = driver._get_guest_xml

        def noted(*args, **kwargs):
            made.append(get(*args, **kwargs))
            return made[-1]

        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.virt.driver.GhschedLibvirtDriver._get_guest_xml',
            lambda _driver, *args, **kwargs: noted(*args, **kwargs)))
        return made

    def test_a_guest_sees_its_device_behind_its_node(self):
        self.flags(num_pcie_ports=4, hw_machine_type='x86_64=q35',
                   group='libvirt')
        self.start()
        made = self.spy_on_xml()
        self.boot(self.vf_flavor(nodes=1, device_numa='required',
                                 mem_bw_min=10))
        root = etree.fromstring(made[-1])
        (expander,) = root.findall(
            "devices/controller[@model='pcie-expander-bus']")
        self.assertEqual('0', expander.findtext('target/node'))
        (device,) = root.findall("devices/hostdev[@type='pci']")
        self.assertIsNotNone(device.find('address'))

    def test_preferred_leaves_a_machine_that_can_not_as_nova_made_it(self):
        self.flags(hw_machine_type='x86_64=pc', group='libvirt')
        self.start()
        made = self.spy_on_xml()
        self.boot(self.vf_flavor(device_numa='preferred'))
        self.assertNotIn('expander', made[-1])

    def test_required_refuses_a_machine_that_can_not(self):
        self.flags(hw_machine_type='x86_64=pc', group='libvirt')
        self.start()
        server = self.boot(self.vf_flavor(device_numa='required'),
                           state='ERROR')
        self.assertEqual({}, self.bandwidth(server['id']))

    def test_a_guest_gets_bandwidth_and_device(self):
        self.start()
        server = self.boot(self.vf_flavor(mem_bw_min=60))
        self.assert_agreement(server, 'host_a', [60])
        self.assertEqual(1, len(self.device_nodes(server)))
