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

"""Live migration of guests with VFs of ``ghsched:vfs``."""

from unittest import mock

import fixtures
from lxml import etree
from nova import context as nova_context
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import driver
from oslo_serialization import jsonutils
from oslo_utils import versionutils

from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import test_vfs

VERSIONS = {
    'libvirt_version': versionutils.convert_version_to_int(
        driver.MIN_VFIO_PCI_VARIANT_LIBVIRT_VERSION),
    'qemu_version': versionutils.convert_version_to_int(
        driver.MIN_VFIO_PCI_VARIANT_QEMU_VERSION)}


class VfsLiveMigrationTestCase(test_vfs.VfsTestCase):
    """Two hosts whose PFs have the same addresses on other NUMA nodes."""

    migratable = 'yes'

    def setUp(self):
        super().setUp()
        spec = {'vendor_id': fakelibvirt.PCI_VEND_ID,
                'product_id': test_vfs.PRODUCT,
                'live_migratable': self.migratable}
        self.flags(device_spec=[jsonutils.dumps(spec)],
                   alias=[jsonutils.dumps({**spec, 'name': 'nic',
                                           'device_type': 'type-VF'})],
                   group='pci')
        self.start((0, 2), (1, 2), name='host_a', nodes=2, sockets=1,
                   **VERSIONS)
        self.start((1, 2), (0, 2), name='host_b', nodes=2, sockets=1,
                   **VERSIONS)
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']

    def boot_guest(self, **keys):
        if not keys.keys() & {'vfs__0', 'vfs__1'}:
            keys['vfs'] = 'nic:2'
        self.server = self.boot(self.flavor(
            vcpus=2, nodes=2, vfs_locality='node', **keys), host='host_a')
        return self.server

    def _migrate_stub(self, domain, destination, params, flags):
        self.xml = params['destination_xml']
        super()._migrate_stub(domain, destination, params, flags)

    def node_of_address(self, host):
        """{address: NUMA node} of the devices of a host in Nova's records."""
        context = nova_context.get_admin_context()
        node = objects.ComputeNode.get_first_node_by_host_for_old_compat(
            context, host)
        return {device.address: device.numa_node for device in
                objects.PciDeviceList.get_by_compute_node(context, node.id)}

    def nodes_in_xml(self, xml, host):
        """Host NUMA node of each VF, in the order of the XML."""
        nodes = self.node_of_address(host)
        return [nodes['{domain}:{bus}:{slot}.{function}'.format(
            **{name: value.removeprefix('0x')
               for name, value in address.attrib.items()})]
            for address in etree.fromstring(xml).findall(
                "devices/hostdev[@type='pci']/source/address")]

    def free(self, host):
        """Statuses of the devices of a host."""
        context = nova_context.get_admin_context()
        node = objects.ComputeNode.get_first_node_by_host_for_old_compat(
            context, host)
        return {device.status for device in
                objects.PciDeviceList.get_by_compute_node(context, node.id)
                if device.dev_type == 'type-VF'}

    def assert_it_stays(self):
        """The guest, its VFs and its allocation are on the source alone."""
        self._run_periodics()
        self.assertEqual('host_a', self.api.get_server(
            self.server['id'])['OS-EXT-SRV-ATTR:host'])
        nodes = self.host_nodes(self.server)
        self.assertEqual({guest: [node] for guest, node in enumerate(nodes)},
                         self.vf_nodes(self.server))
        self.assertEqual(self.claimed_addresses(self.server),
                         self.xml_addresses(self.server))
        self.assertEqual({'available'}, self.free('host_b'))
        self.assertEqual({'host_a'}, {
            name.partition('_0000')[0]
            for name in self.allocated(self.server)})


class MovesTest(VfsLiveMigrationTestCase):

    def test_vfs_follow_their_guest_nodes(self):
        server = self.boot_guest(mem_bw_min=20)
        before = self.nodes_in_xml(self.domain('host_a', server), 'host_a')
        guest_nodes = [self.host_nodes(server).index(node) for node in before]
        self._live_migrate(server, 'completed')
        nodes = self.host_nodes(server)
        self.assert_agreement(server, 'host_b', [20, 20])
        self.assertEqual({0: [nodes[0]], 1: [nodes[1]]},
                         self.vf_nodes(server))
        self.assertEqual([nodes[guest] for guest in guest_nodes],
                         self.nodes_in_xml(self.xml, 'host_b'))
        self._run_periodics()
        self.assertEqual({'available'}, self.free('host_a'))
        self.assertEqual({'host_b_0000:81:00.0': 1, 'host_b_0000:82:00.0': 1},
                         self.allocated(server))

    def test_guest_nodes_with_unequal_numbers_of_vfs(self):
        server = self.boot_guest(vfs__0='nic:2', vfs__1='nic:1')
        self._live_migrate(server, 'completed')
        nodes = self.host_nodes(server)
        self.assertEqual({0: [nodes[0]] * 2, 1: [nodes[1]]},
                         self.vf_nodes(server))

    def test_hard_reboot_keeps_the_vfs_of_a_moved_guest(self):
        server = self.boot_guest()
        self._live_migrate(server, 'completed')
        self._reboot_server(server, hard=True)
        self.assertEqual(self.claimed_addresses(server),
                         self.xml_addresses(server, 'host_b'))

    def test_guest_returns_to_its_first_host(self):
        server = self.boot_guest()
        self._live_migrate(server, 'completed')
        self.src, self.dest = self.dest, self.src
        self._live_migrate(server, 'completed')
        nodes = self.host_nodes(server)
        self.assertEqual({0: [nodes[0]], 1: [nodes[1]]},
                         self.vf_nodes(server))
        self.assertEqual({'host_a_0000:81:00.0': 1, 'host_a_0000:82:00.0': 1},
                         self.allocated(server))


class RollbackTest(VfsLiveMigrationTestCase):
    """Live migrations that fail, each at another step."""

    def setUp(self):
        super().setUp()
        self.boot_guest(mem_bw_min=20)

    def fail_in(self, target, name):
        with mock.patch.object(target, name, side_effect=RuntimeError(name)):
            self._live_migrate(self.server, 'failed')
        self.assert_it_stays()

    def test_source_check(self):
        with mock.patch.object(self.dest.driver,
                               'check_source_migrate_data_at_dest',
                               side_effect=RuntimeError('no')):
            self.assertRaises(nova_base.ApiException, self._live_migrate,
                              self.server, 'error')
        self.assert_it_stays()

    def test_preparation(self):
        self.fail_in(self.dest.driver, 'pre_live_migration')

    def test_operation(self):
        self.fail_in(self.src.driver, '_live_migration_operation')

    def test_copy(self):
        def fail(domain, *_args, **_kwargs):
            domain.fail_job()
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Domain.migrateToURI3', fail))
        self._live_migrate(self.server, 'failed')
        self.assert_it_stays()

    def test_policy_is_not_enforced_on_the_destination(self):
        self.lose_resctrl_after_check('host_b')
        self._live_migrate(self.server, 'failed')
        self.kernel.unable = None
        self.assert_it_stays()


class SourceFailureTest(VfsLiveMigrationTestCase):
    """Failures of the source after the guest has been copied."""

    def test_vfs_are_on_the_destination_only(self):
        server = self.boot_guest(mem_bw_min=20)
        with mock.patch.object(self.src.driver, 'unplug_vifs',
                               side_effect=RuntimeError('no')):
            self._live_migrate(server, 'completed')
        self.assertIn('cannot clean up this source host after a live',
                      self.stdlog.logger.output)
        self.assert_agreement(server, 'host_b', [20, 20])
        nodes = self.host_nodes(server)
        self.assertEqual({0: [nodes[0]], 1: [nodes[1]]},
                         self.vf_nodes(server))
        self._run_periodics()
        self.assertEqual({'available'}, self.free('host_a'))
        self.assertEqual({'allocated', 'available'}, self.free('host_b'))
        self.assertEqual({'host_b_0000:81:00.0': 1, 'host_b_0000:82:00.0': 1},
                         self.allocated(server))


class NotMigratableTest(VfsLiveMigrationTestCase):

    migratable = 'no'

    def test_pool_that_cannot_migrate_is_refused(self):
        """nova-conductor logs the reason, from Nova 32 on."""
        server = self.boot_guest()
        self.assertRaises(nova_base.ApiException, self._live_migrate, server)
        if nova_base.RELEASE > 31:
            self.assertIn('explicitly request live-migratable devices',
                          self.stdlog.logger.output)
        self.assert_it_stays()
