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

"""Placement follows a guest that is stopped, changed or moved."""

import testtools

from tempest import config
from tempest.lib import decorators

from ghsched_placement.providers import names
from tempest_plugin.tests import base

CONF = config.CONF

#: Share of a host NUMA node's memory bandwidth, in percent.
SHARE = 20

#: Skip a test whose operation the cloud lacks.
needs_resize = testtools.skipUnless(
    CONF.compute_feature_enabled.resize,
    '[compute-feature-enabled]resize is off')
needs_shelve = testtools.skipUnless(
    CONF.compute_feature_enabled.shelve,
    '[compute-feature-enabled]shelve is off')
needs_suspend = testtools.skipUnless(
    CONF.compute_feature_enabled.suspend,
    '[compute-feature-enabled]suspend is off')
needs_live_migration = testtools.skipUnless(
    CONF.compute_feature_enabled.live_migration
    and CONF.compute.min_compute_nodes > 1,
    'guests cannot be live migrated here')
needs_cold_migration = testtools.skipUnless(
    CONF.compute_feature_enabled.cold_migration
    and CONF.compute.min_compute_nodes > 1,
    'guests cannot be migrated here')


class MoveTest(base.GhschedTest):
    """A guest with a share, before and after an operation."""

    def _boot(self):
        return self._boot_server(self._create_flavor(mem_bw_min=SHARE))

    def _assert_share(self, server, share=SHARE):
        self.assertEqual([share], self._get_amounts(server, names.MEM_BW_PCT))

    def _assert_moved(self, server):
        """The server has its share on another host alone."""
        self.assertNotEqual(
            server['OS-EXT-SRV-ATTR:host'],
            self._show_server(server)['OS-EXT-SRV-ATTR:host'])
        self._assert_share(server)

    @decorators.idempotent_id('d9c8b7a6-9f3e-4c2b-a1d0-5e4f3c2b1a06')
    @base.needs('MEM_BW_MIN')
    def test_deleted_guest_gives_all_back(self):
        server = self._boot()
        self._assert_share(server)
        self._delete_server(server)
        self.assertEqual({}, self._get_allocations(server))

    @decorators.idempotent_id('4a3b2c1d-0e9f-4b8a-b7c6-d5e4f3a2b107')
    @base.needs('MEM_BW_MIN')
    @needs_resize
    def test_resized_guest_has_its_new_share(self):
        server = self._boot()
        self.servers.resize_server(
            server['id'], self._create_flavor(mem_bw_min=30))
        self._wait_for_status(server, 'VERIFY_RESIZE')
        self.servers.confirm_resize_server(server['id'])
        self._wait_for_status(server, 'ACTIVE')
        self._assert_share(server, 30)

    @decorators.idempotent_id('90d2f4b6-1a3c-4e5f-8071-b2c4d6e8f019')
    @base.needs('MEM_BW_MIN')
    @needs_resize
    def test_reverted_guest_has_its_old_share(self):
        server = self._boot()
        self.servers.resize_server(
            server['id'], self._create_flavor(mem_bw_min=30))
        self._wait_for_status(server, 'VERIFY_RESIZE')
        self.servers.revert_resize_server(server['id'])
        self._wait_for_status(server, 'ACTIVE')
        self._assert_share(server)

    @decorators.attr(type='negative')
    @decorators.idempotent_id('3e7a9c51-8d24-4f6b-b0a3-c1d5e7f9028b')
    @base.needs('MEM_BW_MIN')
    @needs_resize
    def test_refused_resize_leaves_the_share(self):
        """The largest guest that the API takes needs eight whole nodes."""
        server = self._boot()
        self.servers.resize_server(
            server['id'], self._create_flavor(nodes=8, mem_bw_min=100))
        self._wait_for_status(server, 'ACTIVE')
        self._assert_share(server)

    @decorators.idempotent_id('a1b3c5d7-e9f0-4213-8465-768798a9ba20')
    @base.needs('MEM_BW_MIN')
    @base.looks_at_host
    def test_rebooted_guest_is_in_a_group_with_its_share(self):
        server = self._boot()
        before = self._read_threads(server)
        self.servers.reboot_server(server['id'], type='HARD')
        self._wait_for_status(server, 'ACTIVE')
        self.assertFalse(before & self._read_threads(server))
        self._assert_guaranteed(server)

    @decorators.idempotent_id('b2c4d6e8-f0a1-4b32-9576-8798a9bacb21')
    @base.needs('MEM_BW_MIN')
    @base.looks_at_host
    def test_stopped_guest_keeps_its_share_and_has_it_again(self):
        server = self._boot()
        self.servers.stop_server(server['id'])
        self._wait_for_status(server, 'SHUTOFF')
        self._assert_share(server)
        self.servers.start_server(server['id'])
        self._wait_for_status(server, 'ACTIVE')
        self._assert_guaranteed(server)

    @decorators.idempotent_id('c3d5e7f9-01b2-4c43-a687-98a9bacbdc22')
    @base.needs('MEM_BW_MIN')
    @base.looks_at_host
    @needs_suspend
    def test_suspended_guest_has_its_share_again(self):
        server = self._boot()
        self.servers.suspend_server(server['id'])
        self._wait_for_status(server, 'SUSPENDED')
        self._assert_share(server)
        self.servers.resume_server(server['id'])
        self._wait_for_status(server, 'ACTIVE')
        self._assert_guaranteed(server)

    @decorators.idempotent_id('d4e6f80a-12c3-4d54-b798-a9bacbdced23')
    @base.needs('MEM_BW_MIN')
    def test_rebuilt_guest_keeps_its_share(self):
        server = self._boot()
        self.servers.rebuild_server(server['id'], CONF.compute.image_ref)
        self._wait_for_status(server, 'ACTIVE')
        self._assert_share(server)

    @decorators.attr(type='slow')
    @decorators.idempotent_id('e5f7091b-23d4-4e65-8809-bacbdcedfe24')
    @base.needs('MEM_BW_MIN')
    @needs_shelve
    def test_shelved_guest_gives_its_share_back_until_it_returns(self):
        server = self._boot()
        self.servers.shelve_server(server['id'])
        if CONF.compute.shelved_offload_time != 0:
            self._wait_for_status(server, 'SHELVED')
            self.servers.shelve_offload_server(server['id'])
        self._wait_for_status(server, 'SHELVED_OFFLOADED')
        self.assertEqual({}, self._get_allocations(server))
        self.servers.unshelve_server(server['id'])
        self._wait_for_status(server, 'ACTIVE')
        self._assert_share(server)

    @decorators.attr(type=['multinode', 'slow'])
    @decorators.idempotent_id('6c5d4e3f-2a1b-4c0d-9e8f-a7b6c5d4e308')
    @base.needs('MEM_BW_MIN')
    @needs_live_migration
    def test_live_migrated_guest_has_its_share_there(self):
        server = self._boot()
        before = set(self._get_allocations(server))
        self.admin_servers.live_migrate_server(
            server['id'], host=None, block_migration='auto')
        self._wait_for_status(server, 'ACTIVE')
        self._assert_moved(server)
        self.assertFalse(before & set(self._get_allocations(server)))

    @decorators.attr(type=['multinode', 'slow'])
    @decorators.idempotent_id('f6081a2c-34e5-4f76-991a-cbdcedfe0f25')
    @base.needs('MEM_BW_MIN')
    @needs_cold_migration
    def test_migrated_guest_has_its_share_there(self):
        server = self._boot()
        self.admin_servers.migrate_server(server['id'])
        self._wait_for_status(server, 'VERIFY_RESIZE')
        self.servers.confirm_resize_server(server['id'])
        self._wait_for_status(server, 'ACTIVE')
        self._assert_moved(server)

    def _assert_guaranteed(self, server):
        """The group of the server's vCPUs has the share on its node."""
        (node, share), = self._get_host_nodes(server).items()
        self.assertEqual(SHARE, share)
        schemata = self._read_schemata(server)
        if 'MBMIN' in schemata:
            self.assertEqual(SHARE, int(schemata['MBMIN'][node]))
