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


"""SR-IOV ports of Neutron: near the guest, and visible to it as such."""

import copy
import os

import fixtures
from nova import context as nova_context
from nova import objects
from nova.tests import fixtures as nova_fixtures
from nova.virt.libvirt import host
from oslo_serialization import jsonutils
from oslo_utils import uuidutils

from ghsched_nova.guest import device_numa
from ghsched_nova.tests.fixtures import guest_nodes
from ghsched_nova.tests.fixtures import libvirt
from ghsched_nova.tests.functional import emptied_hosts
from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import test_vfs

#: Product of the VFs that ports get.
PORT_VF = '1520'
NETWORK = 'physnet2'

#: Let Nova's claim take a far VF when there is no near one.
FAR_IS_ALLOWED = {'hw:pci_numa_affinity_policy': 'preferred'}


class PortsTestCase(test_vfs.VfsTestCase):
    """Hosts with VFs for ports and others for flavors, on given NUMA nodes.
    """

    def setUp(self):
        super().setUp()
        self.useFixture(libvirt.WholeXml())
        nic = {'vendor_id': test_vfs.VENDOR, 'product_id': test_vfs.PRODUCT}
        port = {'vendor_id': test_vfs.VENDOR, 'product_id': PORT_VF,
                'physical_network': NETWORK}
        self.flags(
            device_spec=[jsonutils.dumps(nic), jsonutils.dumps(port)],
            alias=[jsonutils.dumps({**nic, 'device_type': 'type-VF',
                                    'name': 'nic'})], group='pci')
        self.flags(num_pcie_ports=0, group='libvirt')
        self.neutron = self.useFixture(nova_fixtures.NeutronFixture(self))
        network, subnet = self.neutron.network_2, self.neutron.subnet_2
        self.neutron._networks[network['id']] = network
        self.neutron._subnets[subnet['id']] = subnet

    def port(self, **values):
        """A new port of vnic_type direct."""
        port = copy.deepcopy(self.neutron.sriov_port)
        number = len(self.neutron._ports)
        port.update(id=uuidutils.generate_uuid(),
                    mac_address=f'52:54:00:1e:59:{number:02x}', **values)
        self.neutron._ports[port['id']] = port
        return port['id']

    def boot_with(self, flavor, *ports, **kwargs):
        kwargs.setdefault('expected_state', 'ACTIVE')
        return self._create_server(
            flavor_id=flavor, networks=[{'port': port} for port in ports],
            **kwargs)

    def attach(self, server, port):
        self.api.attach_interface(
            server['id'], {'interfaceAttachment': {'port_id': port}})

    def port_nodes(self, server):
        """Host NUMA node of the device of each port."""
        return self.vf_nodes(server).get(None, [])

    def seen_nodes(self, server, host='host_a'):
        """Host NUMA node that each device of the guest has in its eyes."""
        nodes = self.host_nodes(server)
        seen = guest_nodes.read_guest_nodes(self.domain(host, server))
        return sorted(-1 if node is None else nodes[node]
                      for node in seen.values())

    def free_vfs(self):
        devices = objects.PciDeviceList.get_by_compute_node(
            nova_context.get_admin_context(),
            self.computes['host_a'].manager.rt.compute_nodes['host_a'].id)
        return sum(device.is_available() for device in devices
                   if device.product_id == PORT_VF)


class BootTest(emptied_hosts.EmptiedHosts, PortsTestCase):
    """Node 0 has more VFs, so Nova begins there."""

    def flavor_with(self, extra=None, **keys):
        return self.flavor(extra={**FAR_IS_ALLOWED, **(extra or {})}, **keys)

    def start_with_port_vfs(self, *nodes, **kwargs):
        self.start((0, 8), *((node, 2, PORT_VF) for node in nodes), **kwargs)

    def test_port_whose_vfs_are_far_from_a_full_node(self):
        self.start_with_port_vfs(1)
        self.take_steps(
            self.nova_alone_takes_a_far_one,
            self.required_is_refused_where_the_vfs_are_far,
            self.preferred_takes_a_far_one_and_says_so,
            self.preferred_goes_to_the_host_where_it_is_near)

    def nova_alone_takes_a_far_one(self):
        server = self.boot_with(self.flavor_with(), self.port())
        self.assertEqual([0], self.host_nodes(server))
        self.assertEqual([1], self.port_nodes(server))

    def test_guest_goes_to_the_vf_of_its_port(self):
        self.flags(allow_resize_to_same_host=True)
        self.start_with_port_vfs(3)
        self.take_steps(
            self.the_guest_is_where_the_vf_of_its_port_is,
            self.a_resized_guest_moves_to_its_vf)

    def the_guest_is_where_the_vf_of_its_port_is(self):
        for mode in ('required', 'preferred'):
            server = self.boot_with(
                self.flavor_with(vcpus=1, device_numa=mode), self.port())
            self.assertEqual([3], self.host_nodes(server))
            self.assertEqual([3], self.port_nodes(server))
            self.assertEqual([3], self.seen_nodes(server))
        # Nova has ports outside Placement.
        self.assertEqual({}, self.allocated(server, test_vfs.OTHER_CLASS))

    def test_each_guest_node_has_a_port(self):
        self.start((0, 8), (1, 1, PORT_VF), (2, 1, PORT_VF))
        server = self.boot_with(
            self.flavor_with(vcpus=4, nodes=2, device_numa='required'),
            self.port(), self.port())
        self.assertEqual([1, 2], sorted(self.host_nodes(server)))
        self.assertEqual([1, 2], self.port_nodes(server))
        self.assertEqual([1, 2], self.seen_nodes(server))

    def test_bandwidth_vfs_and_a_port_come_from_one_node(self):
        self.start((0, 8), (1, 8), (1, 2, PORT_VF), (2, 2, PORT_VF))
        server = self.boot_with(
            self.flavor_with(vfs='nic:2', mem_bw_min=40,
                             device_numa='required'), self.port())
        self.assertEqual({0: [1, 1], None: [1]}, self.vf_nodes(server))
        self.assertEqual([1, 1, 1], self.seen_nodes(server))
        self.assert_agreement(server, 'host_a', [40])

    def required_is_refused_where_the_vfs_are_far(self):
        self.boot(self.flavor(vcpus=3, vfs='nic:1'))    # node 0
        full = self.boot_with(
            self.flavor_with(vcpus=3, device_numa='required'), self.port())
        self.assertEqual([1], self.host_nodes(full))
        server = self.boot_with(
            self.flavor_with(device_numa='required'), self.port(),
            expected_state='ERROR')
        self.assertIn('No valid host', self.fault(server))
        self.assertIn(f'1 of physical network {NETWORK} needed, available: 1 '
                      'on host NUMA node 1', self.stdlog.logger.output)
        self.assertEqual(1, self.free_vfs())

    def preferred_takes_a_far_one_and_says_so(self):
        self.boot_with(self.flavor_with(vcpus=3, device_numa='required'),
                       self.port())
        server = self.boot_with(
            self.flavor_with(device_numa='preferred'), self.port())
        self.assertEqual([1], self.port_nodes(server))
        self.assertNotEqual([1], self.host_nodes(server))
        self.assertEqual([-1], self.seen_nodes(server))
        self.assertIn('would not have its devices near on 1 host (host_a)',
                      self.stdlog.logger.output)
        self.assertIn('no guest NUMA node matches the host NUMA node of a '
                      'passthrough device',
                      self.stdlog.logger.output)

    def preferred_goes_to_the_host_where_it_is_near(self):
        self.boot_with(self.flavor_with(vcpus=3, device_numa='required'),
                       self.port())
        self.start_with_port_vfs(1, name='host_b')
        server = self.boot_with(
            self.flavor_with(device_numa='preferred'), self.port())
        self.assertEqual('host_b', self.instance(server).host)
        self.assertEqual([1], self.seen_nodes(server, 'host_b'))

    def test_preferred_takes_a_host_that_can_not_be_steered(self):
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.nova_seams.compute.add_physnet',
            lambda cell, physnet: None))
        self.start_with_port_vfs(1)
        server = self.boot_with(
            self.flavor_with(device_numa='preferred'), self.port())
        self.assertEqual([0], self.host_nodes(server))
        self.assertIn('does not use the driver of ghsched',
                      self.stdlog.logger.output)

    def a_resized_guest_moves_to_its_vf(self):
        server = self.boot_with(self.flavor_with(vcpus=1), self.port())
        self.assertEqual([0], self.host_nodes(server))
        with fixtures.MockPatch(
                'nova.virt.libvirt.driver.LibvirtDriver.'
                'migrate_disk_and_power_off', return_value='{}'):
            self._resize_server(
                server, self.flavor_with(vcpus=1, device_numa='required'))
        self._confirm_resize(server)
        self.assertEqual([3], self.host_nodes(server))
        self.assertEqual([3], self.seen_nodes(server))

    def test_devices_of_an_alias_are_near_as_well(self):
        self.start((0, 8), (3, 1))
        self.boot(self.flavor(vcpus=3, vfs='nic:1'))    # node 0
        server = self.boot(self.flavor_with(
            {'pci_passthrough:alias': 'nic:1'}, device_numa='required'))
        self.assertEqual([3], self.host_nodes(server))
        self.assertEqual([3], self.port_nodes(server))


class GuaranteedBandwidthTest(PortsTestCase):
    """Ports with minimum bandwidth, whose PF Placement chooses."""

    CLASSES = ('NET_BW_EGR_KILOBIT_PER_SEC', 'NET_BW_IGR_KILOBIT_PER_SEC')
    TRAITS = ('CUSTOM_PHYSNET_PHYSNET2', 'CUSTOM_VNIC_TYPE_DIRECT')

    def setUp(self):
        super().setUp()
        ask = host.Host._get_pcidev_info

        def named(*args):
            device = ask(*args)
            if 'parent_addr' in device:
                device['parent_ifname'] = f'ens{device["parent_addr"][5:7]}'
            return device
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.host.Host._get_pcidev_info', named))

    def tell_neutron_pf(self, interface, kilobits):
        """Create the provider of a PF as Neutron's SR-IOV agent reports it."""
        agent = 'host_a:NIC Switch agent'
        known = {name: uuid for uuid, name in self.provider_names().items()}
        if agent not in known:
            known[agent] = self._create_provider(
                agent, self.compute_rp_uuids['host_a'])
        pf = self._create_provider(f'{agent}:{interface}', known[agent])
        for name in self.CLASSES:
            self._set_inventory(pf, {'resource_class': name,
                                     'total': kilobits})
        for trait in self.TRAITS:
            self._create_trait(trait)
        self._set_provider_traits(pf, list(self.TRAITS))

    def _create_provider(self, name, parent):
        return self.placement.post(
            '/resource_providers',
            {'name': name, 'parent_provider_uuid': parent},
            version='1.20').body['uuid']

    def test_the_guest_is_where_placement_found_the_bandwidth(self):
        self.start((0, 8), (1, 2, PORT_VF), (3, 2, PORT_VF))
        self.tell_neutron_pf('ens82', 1000)
        self.tell_neutron_pf('ens83', 9000)
        port = self.port(resource_request={
            'resources': dict.fromkeys(self.CLASSES, 5000),
            'required': list(self.TRAITS)})
        server = self.boot_with(
            self.flavor(extra=FAR_IS_ALLOWED, device_numa='required'), port)
        self.assertEqual([3], self.host_nodes(server))
        self.assertEqual([3], self.port_nodes(server))


class AttachTest(emptied_hosts.EmptiedHosts, PortsTestCase):

    def setUp(self):
        super().setUp()
        self.flags(device_numa_spare_ports=1, group='ghsched')

    def guest(self, mode, nodes=1, **extra):
        return self.boot(self.flavor(
            vcpus=2, nodes=nodes, device_numa=mode,
            extra={**FAR_IS_ALLOWED, **extra}))

    def assert_refused(self, server, port, *reasons):
        free = self.free_vfs()
        error = self.assertRaises(nova_base.ApiException, self.attach,
                                  server, port)
        self.assertEqual(400, error.response.status_code)
        for reason in reasons:
            self.assertIn(reason, error.response.text)
        self.assertEqual(free, self.free_vfs())
        self.assertFalse(self.neutron._ports[port].get('binding:host_id'))
        self.assertEqual([], self.seen_nodes(server))

    def test_a_port_comes_behind_the_right_node_and_goes(self):
        self.start((0, 4, PORT_VF), (1, 4, PORT_VF), nodes=2, sockets=1)
        server = self.guest('required', nodes=2)
        for _again in range(2):
            port = self.port()
            self.attach(server, port)
            self.assertEqual(self.port_nodes(server),
                             self.seen_nodes(server))
            self.assertEqual(self.claimed_addresses(server), sorted(
                device_numa.list_passthrough_addresses(self.domain('host_a',
                                                                   server))))
            self.assertEqual(7, self.free_vfs())
            self.api.detach_interface(server['id'], port)
            self._wait_for_notification_detach()
            self.assertEqual([], self.seen_nodes(server))

    def _wait_for_notification_detach(self):
        self.notifier.wait_for_versioned_notifications(
            'instance.interface_detach.end')
        self.notifier.reset()

    def test_a_near_vf_comes_first(self):
        self.start((0, 2, PORT_VF), (1, 1, PORT_VF), nodes=2, sockets=1)
        self.boot(self.flavor(vcpus=4))
        server = self.guest('required')
        (node,) = self.host_nodes(server)
        self.attach(server, self.port())
        self.assertEqual([node], self.seen_nodes(server))

    def test_far_port_is_attached_only_where_it_may_be_far(self):
        self.start((1, 2, PORT_VF), nodes=2, sockets=1)
        self.take_steps(
            self.required_refuses_a_far_vf,
            self.required_says_which_vf_nova_did_not_find,
            self.preferred_attaches_without_a_node_and_warns)

    def required_refuses_a_far_vf(self):
        server = self.guest('required')
        self.assertEqual([0], self.host_nodes(server))
        self.assert_refused(
            server, self.port(), 'ghsched:device_numa=required: the guest '
                                 'would not see the NUMA node')
        self.assertIn('it is on host node 1, the guest on host node(s) 0',
                      self.stdlog.logger.output)

    def required_says_which_vf_nova_did_not_find(self):
        server = self.guest(
            'required', **{'hw:pci_numa_affinity_policy': 'required'})
        self.assert_refused(
            server, self.port(), 'Failed to claim PCI device',
            "on the guest's own NUMA nodes")
        self.assertIn('host NUMA node 0', self.stdlog.logger.output)

    def test_required_refuses_without_a_spare_port(self):
        self.flags(device_numa_spare_ports=0, group='ghsched')
        self.start((0, 2, PORT_VF), (1, 2, PORT_VF), nodes=2, sockets=1)
        server = self.guest('required')
        self.assert_refused(server, self.port(), 'no free PCI port for it')
        self.assertIn('no port is free behind the expander bus',
                      self.stdlog.logger.output)

    def preferred_attaches_without_a_node_and_warns(self):
        server = self.guest('preferred')
        self.attach(server, self.port())
        self.assertEqual([1], self.port_nodes(server))
        self.assertEqual([-1], self.seen_nodes(server))
        self.assertIn('attaching it without a NUMA node',
                      self.stdlog.logger.output)

    def show_on_nearest(self):
        self.flags(device_numa_nearest=True, group='ghsched')
        for node, distances in enumerate(('10 21', '21 10')):
            with open(os.path.join(self.kernel.path, 'devices/system/node',
                                   f'node{node}', 'distance'), 'w') as stream:
                stream.write(distances)

    def test_preferred_shows_a_far_vf_on_the_nearest_node(self):
        self.show_on_nearest()
        self.start((1, 2, PORT_VF), nodes=2, sockets=1)
        server = self.guest('preferred')
        self.attach(server, self.port())
        self.assertEqual([1], self.port_nodes(server))
        self.assertEqual([0], self.seen_nodes(server))

    def test_preferred_attaches_on_a_machine_that_can_not_tell(self):
        self.flags(hw_machine_type='x86_64=pc', group='libvirt')
        self.start((0, 2, PORT_VF), nodes=2, sockets=1)
        server = self.guest('preferred')
        self.attach(server, self.port())
        self.assertEqual([-1], self.seen_nodes(server))
