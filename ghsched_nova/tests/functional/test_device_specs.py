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

"""Options of ``[pci]device_spec`` for devices near their guests."""

import unittest

from lxml import etree
from nova.compute import pci_placement_translator
from nova.tests.fixtures import libvirt as fakelibvirt
from oslo_serialization import jsonutils

from ghsched_nova.tests.fixtures import libvirt
from ghsched_nova.tests.functional import test_vfs

PF_CLASS = f'CUSTOM_PCI_{test_vfs.VENDOR}_{fakelibvirt.PF_PROD_ID}'
HAS_ONE_TIME_USE = hasattr(pci_placement_translator.PciResourceProvider,
                           '_handle_one_time_use')


class DeviceSpecsTest(test_vfs.VfsTestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(libvirt.WholeXml())

    def configure(self, product, kind, **options):
        spec = {'vendor_id': test_vfs.VENDOR, 'product_id': product}
        self.flags(device_spec=[jsonutils.dumps({**spec, **options})],
                   alias=[jsonutils.dumps({**spec, 'name': 'nic',
                                           'device_type': kind})],
                   group='pci')

    def test_unmanaged_vfs_are_near_and_stay_unmanaged(self):
        self.configure(test_vfs.PRODUCT, 'type-VF', managed='no')
        self.start((0, 1), (1, 2), nodes=2, sockets=1)
        server = self.boot(self.flavor(vfs='nic:2', vfs_locality='node',
                                       device_numa='required'))
        self.assertEqual([1], self.host_nodes(server))
        self.assertEqual({0: [1, 1]}, self.vf_nodes(server))
        self.assertEqual(['no', 'no'], [
            device.get('managed') for device in etree.fromstring(
                self.domain('host_a', server)).findall(
                    "devices/hostdev[@type='pci']")])

    @unittest.skipUnless(HAS_ONE_TIME_USE, 'Nova 31 has no one-time use')
    def test_one_time_pf_is_near_and_reserved_after_its_guest(self):
        self.configure(fakelibvirt.PF_PROD_ID, 'type-PF',
                       one_time_use='true')
        self.start((1, 0), nodes=2, sockets=1)
        flavor = self.flavor(device_numa='required',
                             extra={'pci_passthrough:alias': 'nic:1'})
        server = self.boot(flavor)
        self.assertEqual([1], self.host_nodes(server))
        self.assertEqual({None: [1]}, self.vf_nodes(server))
        self.assertEqual({'host_a_0000:81:00.0': 1},
                         self.allocated(server, PF_CLASS))
        self._delete_server(server)
        refused = self.boot(flavor, 'ERROR')
        self.assertIn('No valid host', self.fault(refused))
