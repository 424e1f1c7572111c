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

"""Places of passthrough ports before a live migration."""

from nova.network import model
from nova import objects
from oslo_serialization import jsonutils

from ghsched_nova.guest import pci_topology
from ghsched_nova.virt import migration_checks
from ghsched_placement.tests import base

objects.register_all()

FIRST = migration_checks.MovingPort('0000:81:00.1', '0000:c1:00.1')
SECOND = migration_checks.MovingPort('0000:81:00.2', '0000:c1:00.2')

#: Two ports of the guest behind the expander bus of guest node 0, one free PCI
#: port behind that of guest node 1, one free PCI port behind none.
GUEST = """
<domain><devices>
<controller type='pci' index='0' model='pcie-root'/>
<controller type='pci' index='1' model='pcie-root-port'/>
<controller type='pci' index='2' model='pcie-expander-bus'>
  <target busNr='200'><node>0</node></target></controller>
<controller type='pci' index='3' model='pcie-root-port'>
  <address type='pci' domain='0x0000' bus='0x02' slot='0x00' function='0x0'/>
</controller>
<controller type='pci' index='4' model='pcie-root-port'>
  <address type='pci' domain='0x0000' bus='0x02' slot='0x01' function='0x0'/>
</controller>
<controller type='pci' index='5' model='pcie-expander-bus'>
  <target busNr='220'><node>1</node></target></controller>
<controller type='pci' index='6' model='pcie-root-port'>
  <address type='pci' domain='0x0000' bus='0x05' slot='0x00' function='0x0'/>
</controller>
<interface type='hostdev'>
  <source><address type='pci' domain='0x0000' bus='0x81' slot='0x00'
                   function='0x1'/></source>
  <address type='pci' domain='0x0000' bus='0x03' slot='0x00' function='0x0'/>
</interface>
<interface type='hostdev'>
  <source><address type='pci' domain='0x0000' bus='0x81' slot='0x00'
                   function='0x2'/></source>
  <address type='pci' domain='0x0000' bus='0x04' slot='0x00' function='0x0'/>
</interface>
</devices></domain>
"""


class ListTest(base.TestCase):
    """Ports that Nova attaches after a live migration."""

    def vif(self, vnic_type, source='0000:81:00.1', dest='0000:c1:00.1'):
        return objects.VIFMigrateData(
            port_id='a' * 36, supports_os_vif_delegation=False,
            profile_json=jsonutils.dumps({'pci_slot': dest} if dest else {}),
            source_vif=model.VIF(
                vnic_type=vnic_type,
                profile={'pci_slot': source} if source else None))

    def listed(self, *vifs):
        return migration_checks.list_moving_ports(
            objects.LibvirtLiveMigrateData(vifs=list(vifs)))

    def test_passthrough_ports_with_devices_of_both_hosts(self):
        for vnic_type in ('direct', 'direct-physical'):
            self.assertEqual([FIRST], self.listed(self.vif(vnic_type)))

    def test_other_ports_are_left_out(self):
        self.assertEqual([FIRST], self.listed(
            self.vif('normal'), self.vif('macvtap'), self.vif('direct'),
            self.vif('vdpa')))

    def test_port_without_a_device_on_a_host_is_left_out(self):
        self.assertEqual([], self.listed(self.vif('direct', source=None),
                                         self.vif('direct', dest=None)))

    def test_vif_without_that_of_the_source_is_left_out(self):
        self.assertEqual([], self.listed(objects.VIFMigrateData(
            port_id='a' * 36, profile_json='{"pci_slot": "0000:c1:00.1"}')))

    def test_no_vifs(self):
        self.assertEqual([], self.listed())
        self.assertEqual([], migration_checks.list_moving_ports(
            objects.LibvirtLiveMigrateData()))


class AssignTest(base.TestCase):

    def test_guest_node_is_that_on_the_host_node_of_the_destination(self):
        self.assertEqual(
            {FIRST.dest: 1, SECOND.dest: 0}, migration_checks.assign_ports(
                [FIRST, SECOND], {FIRST.dest: 2, SECOND.dest: 3}, (3, 2)))

    def test_each_port_elsewhere_is_named(self):
        error = self.assertRaises(
            pci_topology.DeviceNumaError, migration_checks.assign_ports,
            [FIRST, SECOND], {FIRST.dest: 1}, (0, 2))
        for address in (FIRST.dest, SECOND.dest):
            self.assertIn(address, str(error))

    def test_node_of_the_source_device_counts_for_nothing(self):
        self.assertRaises(
            pci_topology.DeviceNumaError, migration_checks.assign_ports,
            [FIRST], {FIRST.source: 0}, (0,))


class FreePlacesTest(base.TestCase):

    def check(self, first, second, ports=(FIRST, SECOND)):
        migration_checks.check_free_pci_ports(
            GUEST, ports, {FIRST.dest: first, SECOND.dest: second})

    def refusal(self, *args):
        return str(self.assertRaises(pci_topology.DeviceNumaError, self.check,
                                     *args))

    def test_pci_ports_of_the_moving_ports_become_free(self):
        self.check(0, 0)

    def test_a_free_pci_port_is_used(self):
        for first, second in ((0, 1), (1, 0)):
            self.check(first, second)

    def test_more_ports_than_free_pci_ports_are_refused(self):
        refusal = self.refusal(1, 1)
        self.assertIn('2 passthrough ports', refusal)
        self.assertIn('node 1', refusal)
        self.assertIn('1 PCI ports', refusal)

    def test_pci_port_of_a_device_that_stays_is_not_free(self):
        # The device 81:00.2 stays, and so does its port behind node 0.
        stranger = migration_checks.MovingPort('0000:99:00.0', SECOND.dest)
        self.assertIn('node 0', self.refusal(0, 0, (FIRST, stranger)))

    def test_node_without_an_expander_bus_is_refused(self):
        self.assertIn('0 PCI ports', self.refusal(0, 2))

    def test_port_without_a_guest_node_needs_no_place(self):
        self.check(None, None)
        self.check(None, 1)

    def test_address_in_another_form_is_the_same_device(self):
        port = migration_checks.MovingPort('0:81:00.1', FIRST.dest)
        self.check(0, 0, (port, SECOND))
