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

"""VFs of ghsched:numa=auto follow the guest NUMA nodes through every move."""

import collections
import os
import unittest

from ghsched_nova.tests.functional import test_vfs
from ghsched_nova.tests.functional import test_vfs_live_migration


#: In the nightly part all operations are tried.
nightly = unittest.skipUnless(
    os.environ.get('GHSCHED_KEY_JOURNEYS') == 'all',
    'operations of the nightly part')


class AutoVfsTestCase(test_vfs.MovesTestCase):

    def auto(self, **keys):
        return self.flavor(**{'nodes': 0, 'numa': 'auto',
                              'vfs_locality': 'node', **keys})

    def assert_vfs(self, server, host, *counts):
        """The claim, Placement and the XML have so many VFs by guest node."""
        self.assertEqual(host, self.api.get_server(server['id'])[
            'OS-EXT-SRV-ATTR:host'])
        nodes = self.host_nodes(server)
        self.assert_vfs_by_node(server, counts)
        held = collections.Counter()
        for name, amount in self.allocated(server).items():
            if name.startswith(host):
                held[name] += amount
        self.assertEqual({f'{host}_0000:{0x81 + node:x}:00.0': count
                          for node, count in zip(nodes, counts, strict=True)},
                         held)

    def assert_vfs_by_node(self, server, counts):
        nodes = self.host_nodes(server)
        self.assertEqual({guest: [nodes[guest]] * count
                          for guest, count in enumerate(counts)},
                         self.vf_nodes(server))


class BootTest(AutoVfsTestCase):

    def setUp(self):
        super().setUp()
        self.start((0, 4), (1, 4), nodes=2, sockets=1)

    @nightly
    def test_guest_whose_vfs_are_on_one_node_gets_one_node(self):
        server = self.boot(self.auto(vfs='nic:3'))
        self.assert_vfs(server, 'host_a', 3)
        self.assertEqual(self.claimed_addresses(server),
                         self.xml_addresses(server))

    def test_guest_with_more_vfs_than_a_node_has_gets_two_nodes(self):
        server = self.boot(self.auto(vfs='nic:5', mem_bw_min=20))
        self.assert_vfs(server, 'host_a', 3, 2)
        self.assert_agreement(server, 'host_a', [20, 20])
        self.assertEqual(self.claimed_addresses(server),
                         self.xml_addresses(server))
        self._delete_server(server)
        self.assertEqual({}, self.allocated(server))

    @nightly
    def test_guest_with_far_vfs_keeps_one_node(self):
        server = self.boot(self.auto(vfs='nic:5', vfs_locality='any'))
        self.assertEqual([0], list(self.vf_nodes(server)))
        self.assertEqual([4, 1], sorted(self.allocated(server).values(),
                                        reverse=True))

    @nightly
    def test_guest_whose_vfs_fit_with_no_number_is_refused(self):
        server = self.boot(self.auto(vfs='nic:9'), state='ERROR')
        self.assertIn('VFs of nic', self.fault(server))
        self.assertEqual({}, self.allocated(server))

    @nightly
    def test_guest_on_a_forced_host_gets_its_vfs(self):
        server = self.boot(self.auto(vfs='nic:5'), az='nova:host_a')
        self.assert_vfs(server, 'host_a', 3, 2)

    @nightly
    def test_devices_of_nova_alias_are_left_to_nova(self):
        server = self.boot(self.auto(
            vfs='nic:2', extra={'pci_passthrough:alias': 'nic:1'}))
        self.assertEqual({0, None}, set(self.vf_nodes(server)))
        self.assertEqual(3, sum(self.allocated(server).values()))

    @nightly
    def test_rebuild_and_hard_reboot_keep_the_vfs(self):
        server = self.boot(self.auto(vfs='nic:5'))
        before = self.claimed_addresses(server)
        self._rebuild_server(server, 'a2459075-d96c-40d5-893e-577ff92e721c')
        self._reboot_server(server, hard=True)
        self.assert_vfs(server, 'host_a', 3, 2)
        self.assertEqual(before, self.claimed_addresses(server))

    @nightly
    def test_servers_of_one_request_have_their_vfs_on_their_nodes(self):
        body = self._build_server(flavor_id=self.auto(vfs='nic:3'),
                                  networks='none')
        body['min_count'] = body['max_count'] = 2
        self.api.post_server({'server': body})
        for server in self.api.get_servers():
            self._wait_for_state_change(server, 'ACTIVE')
            self.assert_vfs(server, 'host_a', 3)


class MoveTest(AutoVfsTestCase):
    """A guest that needs two nodes for its VFs on host_a, one on host_b."""

    def setUp(self):
        super().setUp()
        self.flags(shelved_offload_time=0)
        self.start((0, 2), (1, 2), name='host_a', nodes=2, sockets=1)
        self.start((0, 4), (1, 4), name='host_b', nodes=2, sockets=1)
        self.move_disk()

    def boot_on_two_nodes(self, **keys):
        server = self.boot(self.auto(vfs='nic:4', **keys), host='host_a')
        self.assert_vfs(server, 'host_a', 2, 2)
        return server

    def test_cold_migration_and_revert(self):
        server = self.boot_on_two_nodes()
        self._migrate_server(server)
        self.assert_vfs(server, 'host_b', 4)
        self._revert_resize(server)
        self.assert_vfs(server, 'host_a', 2, 2)
        self._confirm_resize(self._migrate_server(server))
        self.assert_vfs(server, 'host_b', 4)
        self.assertEqual({}, self.taken('host_a'))

    @nightly
    def test_cold_migration_that_keeps_the_number(self):
        server = self.boot_on_two_nodes(numa_keep=True)
        self._confirm_resize(self._migrate_server(server))
        self.assert_vfs(server, 'host_b', 2, 2)

    @nightly
    def test_resize_between_one_node_and_two(self):
        server = self.boot(self.auto(vfs='nic:2'), host='host_b')
        self.assert_vfs(server, 'host_b', 2)
        self._confirm_resize(self._resize_server(
            server, self.auto(vfs='nic:3')))
        self.assert_vfs(server, 'host_a', 2, 1)
        self._confirm_resize(self._resize_server(
            server, self.flavor(vfs='nic:3', vfs_locality='node')))
        self.assert_vfs(server, 'host_b', 3)

    @nightly
    def test_evacuation(self):
        server = self.boot_on_two_nodes()
        self.stop_host('host_a')
        self._evacuate_server(server, expected_host='host_b')
        self.assertEqual(1, len(self.host_nodes(server)))
        self.assertEqual(4, self.allocated(server)[
            f'host_b_0000:{0x81 + self.host_nodes(server)[0]:x}:00.0'])

    @nightly
    def test_unshelve(self):
        server = self.boot_on_two_nodes()
        server = self._shelve_server(server)
        self.api.put_service(self.computes['host_a'].service_ref.uuid,
                             {'status': 'disabled'})
        server = self._unshelve_server(server)
        self.assert_vfs(server, 'host_b', 4)


class LiveMigrationTest(test_vfs_live_migration.VfsLiveMigrationTestCase,
                        AutoVfsTestCase):

    def assert_kept(self, vfs, *counts):
        self.server = server = self.boot(self.auto(vfs=vfs), host='host_a')
        self.assert_vfs(server, 'host_a', *counts)
        self._live_migrate(server, 'completed')
        self.assertEqual(len(counts), len(self.host_nodes(server)))
        self.assert_vfs_by_node(server, counts)
        self.assertEqual(sum(counts), sum(self.allocated(server).values()))

    def test_live_migration_keeps_two_nodes_with_their_vfs(self):
        self.assert_kept('nic:3', 2, 1)

    @nightly
    def test_live_migration_keeps_one_node_with_its_vfs(self):
        self.assert_kept('nic:2', 2)
