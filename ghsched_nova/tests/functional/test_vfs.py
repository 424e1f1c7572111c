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


"""``ghsched:vfs``: Placement, the claim and the XML name the same devices."""

import collections
import re
from unittest import mock

import fixtures
from lxml import etree
from nova.cmd import manage
from nova import context as nova_context
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt

from ghsched_nova import pci_requests
from ghsched_nova.resctrl import fs
from ghsched_nova.tests.functional import emptied_hosts
from ghsched_nova.tests.functional import nova_base

VENDOR, PRODUCT = fakelibvirt.PCI_VEND_ID, fakelibvirt.VF_PROD_ID
VF_CLASS = f'CUSTOM_PCI_{VENDOR}_{PRODUCT}'
OTHER_CLASS = f'CUSTOM_PCI_{VENDOR}_1520'


class VfsTestCase(nova_base.GhschedTestCase):
    """Hosts with PFs on given NUMA nodes.

    The alias ``nic`` is for VFs of one product, ``fast`` for another.
    """

    def setUp(self):
        self.track_vfs(nic=PRODUCT, fast='1520')
        # As many as fakelibvirt lets a host have.
        self.flags(num_pcie_ports=8, hw_machine_type='x86_64=q35',
                   group='libvirt')
        super().setUp()
        self.flags(cpu_dedicated_set='0-11', group='compute')

    def start(self, *pfs, name='host_a', nodes=4, sockets=2, **kwargs):
        """Start a host.

        :param pfs: (NUMA node, number of VFs), or with a product as third.
        """
        self.kernel.nodes = nodes
        self.kernel.write()
        return self.start_compute(
            name, host_info=fakelibvirt.HostInfo(
                cpu_nodes=nodes // sockets, cpu_sockets=sockets,
                cpu_cores=12 // nodes,
                cpu_threads=1, kB_mem=16 * 1024 * 1024),
            pci_info=devices(*pfs), **kwargs)

    def vf_nodes(self, server):
        """{guest node: [host node of each VF]} of the claim.

        Without devices on a host that it has left, which are of no request.
        """
        context = nova_context.get_admin_context()
        instance = objects.Instance.get_by_uuid(
            context, server['id'],
            expected_attrs=['pci_requests', 'pci_devices'])
        guest_node = {
            request.request_id: pci_requests.get_guest_node(
                request, len(instance.numa_topology))
            for request in instance.pci_requests.requests}
        found = collections.defaultdict(list)
        for device in instance.pci_devices:
            if device.request_id in guest_node:
                found[guest_node[device.request_id]].append(device.numa_node)
        return {node: sorted(nodes) for node, nodes in found.items()}

    def allocated(self, server, resource_class=VF_CLASS):
        """{name of the PF's provider: VFs} that Placement holds."""
        names = self.provider_names()
        return {names[uuid]: amount for uuid, amount
                in self.amounts(server['id'], resource_class).items()}

    def provider_names(self):
        return {provider['uuid']: provider['name'] for provider in
                self.placement.get('/resource_providers').body[
                    'resource_providers']}

    def xml_addresses(self, server, host='host_a'):
        root = etree.fromstring(self.domain(host, server))
        return sorted(
            '{domain}:{bus}:{slot}.{function}'.format(
                **{name: value.removeprefix('0x')
                   for name, value in address.attrib.items()})
            for address in root.findall(
                "devices/hostdev[@type='pci']/source/address"))

    def claimed_addresses(self, server):
        return sorted(
            device.address for device in
            objects.PciDeviceList.get_by_instance_uuid(
                nova_context.get_admin_context(), server['id']))


def devices(*pfs):
    """PFs on buses of their own, from 0x81 on."""
    info = fakelibvirt.HostPCIDevicesInfo(num_pci=0, num_pfs=0, num_vfs=0)
    group = 40
    for bus, (node, vfs, *product) in enumerate(pfs, start=0x81):
        info.add_device('PF', bus=bus, slot=0, function=0, iommu_group=group,
                        numa_node=node, vf_ratio=vfs)
        group += 1
        for number in range(1, vfs + 1):
            made = info.add_device(
                'VF', bus=bus, slot=number // 8, function=number % 8,
                iommu_group=group, numa_node=node, vf_ratio=vfs,
                parent=(bus, 0, 0), prod_id=product[0] if product else None)
            # Nova reckons the PF of all VFs from that of the last.
            made.pci_device = re.sub(
                "(phys_function'><address domain='0x0000' bus='[^']*' )"
                "slot='[^']*'", r"\1slot='0x0'", made.pci_device)
            group += 1
    return info


class NodeTest(VfsTestCase):

    def test_each_guest_node_has_its_vfs_from_its_host_node(self):
        self.start((0, 2), (1, 4), (3, 4))
        server = self.boot(self.flavor(vcpus=4, nodes=2, vfs='nic:6',
                                       vfs_locality='node'))
        one, other = self.host_nodes(server)
        self.assertEqual({1, 3}, {one, other})
        self.assertEqual({0: [one] * 3, 1: [other] * 3},
                         self.vf_nodes(server))
        self.assertEqual({'host_a_0000:82:00.0': 3, 'host_a_0000:83:00.0': 3},
                         self.allocated(server))
        self.assertEqual(self.claimed_addresses(server),
                         self.xml_addresses(server))
        self._delete_server(server)
        self.assertEqual({}, self.allocated(server))

    def test_bandwidth_and_vfs_come_from_one_node(self):
        self.start((0, 4), (1, 4))
        self.reserve(n0=50)
        server = self.boot(self.flavor(vfs='nic:2', mem_bw_min=60,
                                       vfs_locality='node'))
        self.assertEqual([1], self.host_nodes(server))
        self.assert_agreement(server, 'host_a', [60])
        self.assertEqual({0: [1, 1]}, self.vf_nodes(server))

    def test_numbers_by_guest_node_and_two_aliases(self):
        self.start((0, 4), (1, 4), (1, 2, '1520'), nodes=2, sockets=1)
        server = self.boot(self.flavor(
            vcpus=2, nodes=2, vfs__0='nic:1', vfs__1='nic:3,fast:2',
            vfs_locality='node'))
        self.assertEqual([0, 1], self.host_nodes(server))
        self.assertEqual({0: [0], 1: [1] * 5}, self.vf_nodes(server))
        self.assertEqual({'host_a_0000:83:00.0': 2},
                         self.allocated(server, OTHER_CLASS))

    def test_devices_of_nova_alias_are_next_to_ours(self):
        self.start((0, 4), (1, 4), (1, 2, '1520'), nodes=2, sockets=1)
        server = self.boot(self.flavor(
            vfs='nic:2', vfs_locality='node',
            extra={'pci_passthrough:alias': 'fast:1'}))
        # Nova's own policy, legacy, wants its device on the guest's node.
        self.assertEqual([1], self.host_nodes(server))
        self.assertEqual({0: [1, 1], None: [1]}, self.vf_nodes(server))

    def test_more_than_one_pf_has_are_taken_of_several(self):
        self.start((0, 3), (1, 3), (1, 2), nodes=2, sockets=1)
        server = self.boot(self.flavor(vfs='nic:5', vfs_locality='node'))
        self.assertEqual([1], self.host_nodes(server))
        self.assertEqual({0: [1] * 5}, self.vf_nodes(server))
        self.assertEqual({'host_a_0000:82:00.0': 3, 'host_a_0000:83:00.0': 2},
                         self.allocated(server))

    def test_guest_nodes_are_shared_among_pfs_each_in_its_own_way(self):
        self.start((0, 2), (0, 2), (1, 3), (1, 1), nodes=2, sockets=1)
        server = self.boot(self.flavor(nodes=2, vfs='nic:8',
                                       vfs_locality='node'))
        self.assertEqual({0: [0] * 4, 1: [1] * 4}, self.vf_nodes(server))

    def test_guest_nodes_share_pfs_where_vfs_may_be_anywhere(self):
        self.start((0, 4), (0, 2), nodes=2, sockets=1)
        server = self.boot(self.flavor(nodes=2, vfs='nic:6'))
        self.assertEqual({0: [0] * 3, 1: [0] * 3}, self.vf_nodes(server))

    def test_server_on_a_forced_host_keeps_its_vfs(self):
        self.start((0, 4), nodes=2, sockets=1)
        server = self.boot(self.flavor(vfs='nic:2'), az='nova:host_a')
        self.assertEqual({0: [0, 0]}, self.vf_nodes(server))
        claimed = self.claimed_addresses(server)
        self._rebuild_server(server, 'a2459075-d96c-40d5-893e-577ff92e721c')
        self.assertEqual(claimed, self.claimed_addresses(server))
        # What heal_allocations drops comes back with the next report.
        allocated = self.allocated(server)
        manage.PlacementCommands().heal_allocations(
            instance_uuid=server['id'], force=True)
        self.assertEqual({}, self.allocated(server))
        self._run_periodics()
        self.assertEqual(allocated, self.allocated(server))

    def test_full_nodes_do_not_hide_the_others(self):
        # 256 candidates, all with the VFs on a node without a free CPU.
        self.start(*[(0, 4)] * 4, *[(0, 4, '1520')] * 4)
        self.boot(self.flavor(vcpus=3, vfs='nic:1', vfs_locality='node'))
        server = self.boot(self.flavor(
            vcpus=3, nodes=3, ram=768, vfs__0='nic:2,fast:2',
            vfs__1='nic:2,fast:2'))
        self.assertEqual({1, 2, 3}, set(self.host_nodes(server)))

    def test_all_instances_of_one_request_find_their_node(self):
        self.start((0, 2), (1, 2), nodes=2, sockets=1)
        body = self._build_server(
            flavor_id=self.flavor(vcpus=1, vfs='nic:2', vfs_locality='node'),
            networks='none')
        body['min_count'] = body['max_count'] = 2
        self.api.post_server({'server': body})
        servers = [self._wait_for_state_change(server, 'ACTIVE')
                   for server in self.api.get_servers()]
        self.assertEqual(
            [[0], [1]], sorted(self.host_nodes(server)
                               for server in servers))
        for server in servers:
            self.assertEqual({0: self.host_nodes(server) * 2},
                             self.vf_nodes(server))

    def test_the_guest_sees_the_node_of_each(self):
        self.start((0, 2), (1, 2), nodes=2, sockets=1)
        server = self.boot(self.flavor(nodes=2, vfs='nic:4',
                                       device_numa='required'))
        self.assertEqual({0: [0, 0], 1: [1, 1]}, self.vf_nodes(server))

    def test_an_old_libvirt_gets_the_memory_that_its_devices_lock(self):
        self.start((0, 4), nodes=2, sockets=1, libvirt_version=8000000)
        driver = self.computes['host_a'].driver
        with mock.patch.object(driver, '_create_guest',
                               side_effect=driver._create_guest) as create:
            self.boot(self.flavor(
                ram=1024, vfs='nic:3',
                extra={'hw:viommu_model': 'intel'}))
        root = etree.fromstring(create.call_args.args[1])
        # 3 devices of 1 GiB, and 1 GiB that libvirt adds.
        self.assertEqual(str(4 * 1024 * 1024),
                         root.findtext('memtune/hard_limit'))

    def test_a_host_without_bandwidth_control_has_nodes_too(self):
        self.kernel.vanish()
        self.kernel.write = lambda: None
        self.start((1, 2), nodes=2, sockets=1)
        server = self.boot(self.flavor(vfs='nic:2', vfs_locality='node'))
        self.assertEqual({0: [1, 1]}, self.vf_nodes(server))


class MovesTestCase(VfsTestCase):
    """Two hosts with two nodes, and a PF on each."""

    def start_two(self):
        for name in ('host_a', 'host_b'):
            self.start((0, 4), (1, 4), name=name, nodes=2, sockets=1)

    def big(self):
        return self.flavor(nodes=2, vfs='nic:4', vfs_locality='node',
                           mem_bw_min=20)

    def assert_placed(self, server, host):
        self.assertEqual({0: [0, 0], 1: [1, 1]}, self.vf_nodes(server))
        self.assertEqual(self.shared(host), self.allocated(server))
        self.assert_agreement(server, host, [20, 20])

    def shared(self, host):
        return {f'{host}_0000:81:00.0': 2, f'{host}_0000:82:00.0': 2}

    def other(self, host):
        return 'host_b' if host == 'host_a' else 'host_a'

    def move_disk(self):
        return self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.driver.LibvirtDriver.'
            'migrate_disk_and_power_off', return_value='{}'))

    def taken(self, host):
        """{address: server} of the devices of a host that Nova has given."""
        return {device.address: device.instance_uuid for device in
                objects.PciDeviceList.get_by_compute_node(
                    nova_context.get_admin_context(), self.node_id(host))
                if device.instance_uuid}

    def node_id(self, host):
        return objects.ComputeNode.get_first_node_by_host_for_old_compat(
            nova_context.get_admin_context(), host).id


class MoveTest(MovesTestCase):
    """A claim of a move follows Placement as that of a new guest does."""

    def test_resize(self):
        self.start_two()
        server = self.boot(self.flavor(vfs='nic:1', vfs_locality='node'))
        host = server['OS-EXT-SRV-ATTR:host']
        self.move_disk()
        server = self._resize_server(server, self.big())
        server = self._confirm_resize(server)
        self.assertEqual(self.other(host), server['OS-EXT-SRV-ATTR:host'])
        self.assert_placed(server, self.other(host))

    def test_cold_migration(self):
        self.start_two()
        server = self.boot(self.big())
        host = server['OS-EXT-SRV-ATTR:host']
        self.assert_placed(server, host)
        self.move_disk()
        server = self._migrate_server(server)
        server = self._confirm_resize(server)
        self.assert_placed(server, self.other(host))

    def test_nova_compute_restarts_before_a_revert(self):
        self.start_two()
        server = self.boot(self.big())
        host = server['OS-EXT-SRV-ATTR:host']
        self.move_disk()
        server = self._migrate_server(server)
        for name in list(self.computes):
            self.restart_compute_service(name)
        self._run_periodics()
        self.assert_placed(server, self.other(host))
        server = self._revert_resize(server)
        self.assert_placed(server, host)
        self.assertEqual({}, self.taken(self.other(host)))

    def test_a_destination_that_refuses_the_policy(self):
        """Nova leaves the guest there, in ERROR, for a hard reboot.

        It takes the devices of the old host for taken as long as the
        migration is in error.
        """
        self.start_two()
        server = self.boot(self.big())
        host = server['OS-EXT-SRV-ATTR:host']
        self.move_disk()
        self.kernel.error = fs.GroupError('refused')
        # The error reaches the API because this test runs casts as calls.
        self.assertRaises(nova_base.ApiException,
                          self.api.post_server_action, server['id'],
                          {'migrate': None})
        self._wait_for_state_change(server, 'ERROR')
        self.assertEqual(self.shared(self.other(host)),
                         self.allocated(server))
        self.kernel.error = None
        server = self._reboot_server(server, hard=True)
        self._run_periodics()
        self.assert_placed(server, self.other(host))

    def test_evacuation_after_a_reverted_resize(self):
        self.start_two()
        server = self.boot(self.flavor(vfs='nic:1', vfs_locality='node'))
        host = server['OS-EXT-SRV-ATTR:host']
        self.move_disk()
        server = self._resize_server(server, self.big())
        server = self._revert_resize(server)
        self.stop_host(host)
        server = self._evacuate_server(
            server, expected_host=self.other(host))
        self.assertEqual([1, 1], list(self.allocated(server).values()))

    def test_unshelving_after_a_cold_migration(self):
        self.flags(shelved_offload_time=0)
        for name in ('host_a', 'host_b'):
            self.start((1, 8), (0, 8), name=name, nodes=2, sockets=1)
        server = self.boot(self.big())
        self.move_disk()
        server = self._confirm_resize(self._migrate_server(server))
        host = server['OS-EXT-SRV-ATTR:host']
        self._shelve_server(server)
        # Nova frees devices of a guest that was migrated so late.
        self._run_periodics()
        self.api.put_service(self.computes[host].service_ref.uuid,
                             {'status': 'disabled'})
        server = self._unshelve_server(server)
        self.assertEqual(self.other(host), server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual({0: [0, 0], 1: [1, 1]}, self.vf_nodes(server))
        self.assertEqual({f'{self.other(host)}_0000:81:00.0': 2,
                          f'{self.other(host)}_0000:82:00.0': 2},
                         self.allocated(server))

    def test_evacuation(self):
        self.start_two()
        server = self.boot(self.big())
        host = server['OS-EXT-SRV-ATTR:host']
        self.stop_host(host)
        server = self._evacuate_server(
            server, expected_host=self.other(host))
        # Nova forgets which request an evacuated device is for.
        self.assertEqual([0, 0, 1, 1], sorted(
            device.numa_node for device in
            objects.PciDeviceList.get_by_instance_uuid(
                nova_context.get_admin_context(), server['id'])
            if device.compute_node_id == self.node_id(self.other(host))))
        # What it had is kept until its old host comes back.
        self.assertEqual({**self.shared('host_a'), **self.shared('host_b')},
                         self.allocated(server))


class LocalityTest(emptied_hosts.EmptiedHosts, VfsTestCase):
    """Two sockets of two nodes each; one NIC, on node 0."""

    def test_vfs_are_as_near_as_the_key_says(self):
        self.start((0, 8))
        self.take_steps(
            self.any_takes_the_nearest,
            self.socket_stops_at_the_socket,
            self.node_stops_at_the_node,
            self.novas_affinity_policy_holds_as_well)

    def any_takes_the_nearest(self):
        server = self.boot(self.flavor(vcpus=3, vfs='nic:2'))
        self.assertEqual([0], self.host_nodes(server))
        # Its node is full now, so the other of its socket has its turn.
        second = self.boot(self.flavor(vcpus=3, vfs='nic:2'))
        self.assertEqual([1], self.host_nodes(second))
        third = self.boot(self.flavor(vcpus=3, vfs='nic:2'))
        self.assertIn(self.host_nodes(third), ([2], [3]))
        self.assertEqual({0: [0, 0]}, self.vf_nodes(third))

    def test_a_near_pair_of_pfs_goes_before_a_far_one(self):
        self.start((1, 9), name='host_b', nodes=2, sockets=1)
        self.boot(self.flavor(vcpus=6, vfs='nic:3', vfs_locality='node'))
        self.start((0, 2), (0, 2), name='host_a', nodes=2, sockets=1)
        server = self.boot(self.flavor(vcpus=6, vfs='nic:4'))
        self.assertEqual('host_a', server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual({0: [0] * 4}, self.vf_nodes(server))

    def socket_stops_at_the_socket(self):
        flavor = self.flavor(vcpus=3, vfs='nic:2', vfs_locality='socket')
        self.assertEqual([[0], [1]], [
            self.host_nodes(self.boot(flavor)) for _ in range(2)])
        server = self.boot(flavor, state='ERROR')
        self.assertIn('No valid host', self.fault(server))
        self.assertEqual({}, self.allocated(server))

    def node_stops_at_the_node(self):
        flavor = self.flavor(vcpus=3, vfs='nic:2', vfs_locality='node')
        self.assertEqual([0], self.host_nodes(self.boot(flavor)))
        self.boot(flavor, state='ERROR')

    def novas_affinity_policy_holds_as_well(self):
        flavor = self.flavor(
            vcpus=3, vfs='nic:2',
            extra={'hw:pci_numa_affinity_policy': 'required'})
        self.assertEqual([0], self.host_nodes(self.boot(flavor)))
        self.boot(flavor, state='ERROR')


class RefusalTest(emptied_hosts.EmptiedHosts, VfsTestCase):

    def refused(self, **keys):
        server = self.boot(self.flavor(**keys), state='ERROR')
        self.assertEqual({}, self.allocated(server))
        return self.fault(server)

    def test_refusal_names_what_is_lacking(self):
        self.start((0, 4), (1, 2), nodes=2, sockets=1)
        self.take_steps(
            self.too_many_for_any_node,
            self.too_many_for_any_host,
            self.bandwidth_and_vfs_on_different_nodes,
            self.without_devices_in_placement,
            self.the_api_refuses_what_it_can)

    def too_many_for_any_node(self):
        self.assertIn(
            'no host NUMA node has 5 VFs of nic free, which guest NUMA node '
            '0 needs (ghsched:vfs)',
            self.refused(vfs='nic:5', vfs_locality='node'))

    def test_too_few_nodes_with_vfs(self):
        self.start((0, 8), (0, 8), nodes=2, sockets=1)
        self.assertIn(
            'no host has 2 NUMA nodes with VFs of nic free, 2 and 2 for the '
            'guest NUMA nodes 0 and 1',
            self.refused(nodes=2, vfs='nic:4', device_numa='required'))

    def too_many_for_any_host(self):
        self.assertIn('no host has 7 VFs of nic free (ghsched:vfs)',
                      self.refused(vfs='nic:7'))

    def bandwidth_and_vfs_on_different_nodes(self):
        self.reserve(n0=60)
        self.assertIn(
            'all that the flavor needs on the right NUMA nodes',
            self.refused(vfs='nic:3', mem_bw_min=50, vfs_locality='node'))

    def test_too_many_servers_are_not_tried_again(self):
        log = self.useFixture(fixtures.FakeLogger('ghsched_nova.scheduler'))
        self.start((0, 4), (1, 4), nodes=2, sockets=1)
        body = self._build_server(
            flavor_id=self.flavor(vcpus=6, vfs='nic:1', vfs_locality='node'),
            networks='none')
        body['min_count'] = body['max_count'] = 3
        self.api.post_server({'server': body})
        for server in self.api.get_servers():
            self._wait_for_state_change(server, 'ERROR')
        self.assertNotIn('others were faster', log.output)
        lines = log.output.splitlines()
        self.assertEqual(len(set(lines)), len(lines))

    def without_devices_in_placement(self):
        self.flags(pci_in_placement=False, group='filter_scheduler')
        self.assertIn('pci_in_placement', self.refused(vfs='nic:1'))

    def the_api_refuses_what_it_can(self):
        for value, reason in (('nic', 'ALIAS:COUNT'),
                              ('none:1', 'not defined')):
            error = self.assertRaises(
                nova_base.ApiException, self.refused, vfs=value)
            self.assertEqual(400, error.response.status_code)
            self.assertIn(reason, error.response.text)
