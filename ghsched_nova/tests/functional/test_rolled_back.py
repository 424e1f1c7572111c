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

"""Moves after a resize that did not happen.

Messages are cast, as in a cloud: with Nova's default for functional tests an
error of nova-compute reaches the conductor before that has saved anything.
"""


import fixtures
from nova import context as nova_context
from nova import exception
from nova import objects

from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import test_lifecycle
from ghsched_nova.tests.functional import test_vfs


class RolledBackMixin:
    """Mixin: nova-compute cannot reach the other host with a disk."""

    CAST_AS_CALL = False

    def roll_back(self, server, flavor):
        with fixtures.MockPatch(
                test_lifecycle.MOVE_DISK,
                side_effect=exception.InstanceFaultRollback(
                    exception.ResizeError(reason='no ssh'))):
            self.api.post_server_action(
                server['id'], {'resize': {'flavorRef': flavor}})
            # The last of what nova-compute does about it.
            self.notifier.wait_for_versioned_notifications(
                'compute.exception')
        # Nova's conductor saves it when the resize is on its way.
        self.wait_until(lambda: self.request_spec(
            server).flavor.flavorid == flavor)
        # Nova frees the devices that were claimed for it.
        self._run_periodics()

    def request_spec(self, server):
        return objects.RequestSpec.get_by_instance_uuid(
            nova_context.get_admin_context(), server['id'])

    def host(self, server):
        return self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']


class BandwidthTest(RolledBackMixin, nova_base.GhschedTestCase):

    def setUp(self):
        super().setUp()
        self.flags(shelved_offload_time=0)
        for name in ('host_a', 'host_b'):
            self.start_host(name)
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']
        self.server = self.boot(self.flavor(mem_bw_min=30), host='host_a')
        self.roll_back(self.server, self.flavor(mem_bw_min=60))

    def assert_moved(self):
        self.assertEqual('host_b', self.host(self.server))
        self.assert_agreement(self.server, 'host_b', [30])

    def test_live_migration(self):
        self._live_migrate(self.server)
        self.assert_moved()

    def test_cold_migration(self):
        with fixtures.MockPatch(test_lifecycle.MOVE_DISK, return_value='{}'):
            self._migrate_server(self.server)
        self.assert_moved()

    def test_unshelving(self):
        with fixtures.MockPatch(
                'nova.virt.libvirt.driver.LibvirtDriver.snapshot'):
            self._shelve_server(self.server)
        self._unshelve_server(self.server)
        self.assert_agreement(self.server, self.host(self.server), [30])

    def test_evacuation(self):
        self.stop_host('host_a')
        self._evacuate_server(self.server)
        (node,) = self.host_nodes(self.server)
        self.assertEqual(30, self.bandwidth(self.server['id'])[
            self.provider('host_b', node)])


class OtherKeysTest(RolledBackMixin, nova_base.GhschedTestCase):

    def test_a_guest_that_was_to_lose_its_guarantee_keeps_it(self):
        for name in ('host_a', 'host_b'):
            self.start_host(name)
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']
        self.server = self.boot(self.flavor(mem_bw_min=30), host='host_a')
        self.roll_back(self.server, self.flavor())
        self._live_migrate(self.server)
        self.assert_agreement(self.server, 'host_b', [30])


class VfsTest(RolledBackMixin, test_vfs.VfsTestCase):

    def setUp(self):
        super().setUp()
        for name in ('host_a', 'host_b'):
            self.start((0, 4), (1, 4), name=name, nodes=2, sockets=1)
        self.server = self.boot(self.flavor(vfs='nic:2', vfs_locality='node'),
                                host='host_a')
        self.roll_back(self.server, self.flavor(vfs='nic:1',
                                                vfs_locality='node'))

    def test_cold_migration(self):
        with fixtures.MockPatch(test_lifecycle.MOVE_DISK, return_value='{}'):
            self._migrate_server(self.server)
        self.assert_vfs()

    def test_evacuation(self):
        self.stop_host('host_a')
        self._evacuate_server(self.server)
        self.assert_vfs()

    def assert_vfs(self):
        """The guest has its own VFs on the other host.

        Nova keeps those of the failed resize claimed there as well.
        """
        self.assertEqual('host_b', self.host(self.server))
        (node,) = self.host_nodes(self.server)
        self.assertEqual({0: [node] * 2}, self.vf_nodes(self.server))
        self.assertLessEqual(2, self.allocated(self.server)[
            f'host_b_0000:{0x81 + node:x}:00.0'])
