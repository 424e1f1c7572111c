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

"""Tests of Nova's API with ghsched keys. Most of them run on any cloud."""

from tempest.common import waiters
from tempest import config
from tempest.lib import decorators
from tempest.lib import exceptions

from ghsched_placement.providers import names
from tempest_plugin.tests.scenario import base

CONF = config.CONF

#: More than a NUMA node has.
TOO_MUCH = 101
#: What nova-api answers to a live change, as tempest's schemas say it.
CHANGED = {'status_code': [200], 'response_body': {
    'type': 'object', 'required': ['server', 'changed', 'nodes'],
    'properties': {'changed': {'const': True}}}}


class FlavorTest(base.GhschedTest):
    """The keys of a flavor are checked when they are set."""

    @decorators.idempotent_id('5e0c2d1b-7f52-4a0e-9d0f-3a1c1c2f6b01')
    def test_a_value_out_of_range_is_refused(self):
        refused = self.assertRaises(exceptions.BadRequest, self._create_flavor,
                                    mem_bw_min=TOO_MUCH)
        self.assertIn('ghsched:mem_bw_min', str(refused))

    @decorators.idempotent_id('0c1d7a52-3d5e-4c6b-8a0c-6f7d1f0a5b02')
    def test_an_unknown_key_is_refused(self):
        refused = self.assertRaises(exceptions.BadRequest, self._create_flavor,
                                    mem_bw_mim=10)
        self.assertIn('mem_bw_mim', str(refused))

    @decorators.idempotent_id('8a7b6f0e-1b8f-4a0a-9c58-2b9c4f1d7c03')
    def test_keys_are_kept_as_they_were_set(self):
        flavor = self._create_flavor(mem_bw_min=10, mem_bw_max=40)
        specs = self.admin_flavors_client.list_flavor_extra_specs(
            flavor)['extra_specs']
        self.assertEqual(
            ('10', '40'),
            (specs['ghsched:mem_bw_min'], specs['ghsched:mem_bw_max']))


class GuestTest(base.GhschedTest):

    def _sum_allocated(self, server):
        """Bandwidth and control groups that a server holds."""
        amounts = [resources.get(name, 0)
                   for resources in self._get_allocations(server).values()
                   for name in (names.MEM_BW_PCT, names.RESCTRL_GROUP)]
        return sum(amounts)

    @decorators.idempotent_id('2f1b8d7c-6f0e-4d1e-8f57-91a6a4c5de04')
    def test_a_plain_guest_holds_nothing_of_ours(self):
        self.assertEqual(
            0, self._sum_allocated(self._boot_server(self._create_flavor())))

    @decorators.idempotent_id('b3a4c9de-52e6-4b7f-8e19-7a6d5c4b3a05')
    def test_a_guest_that_fits_nowhere_is_refused(self):
        """The largest guest that the API takes needs eight whole nodes."""
        self._need('MEM_BW_MIN')
        refused = self._boot_server(
            self._create_flavor(nodes=8, mem_bw_min=100), status='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])
        self.assertEqual(0, self._sum_allocated(refused))

    @decorators.idempotent_id('d9c8b7a6-9f3e-4c2b-a1d0-5e4f3c2b1a06')
    def test_a_deleted_guest_gives_all_back(self):
        self._need('MEM_BW_MIN')
        server = self._boot_server(self._create_flavor(mem_bw_min=20))
        self.assertNotEqual(0, self._sum_allocated(server))
        self.servers_client.delete_server(server['id'])
        waiters.wait_for_server_termination(self.servers_client, server['id'])
        self.assertEqual(0, self._sum_allocated(server))


class SharesTest(base.GhschedTest):

    def _shares(self, server):
        return [resources[names.MEM_BW_PCT]
                for resources in self._get_allocations(server).values()
                if names.MEM_BW_PCT in resources]


class MoveTest(SharesTest):
    """Placement follows a guest that changes its flavor or its host."""

    def _host(self, server):
        return self.admin_servers_client.show_server(
            server['id'])['server']['OS-EXT-SRV-ATTR:host']

    @decorators.idempotent_id('4a3b2c1d-0e9f-4b8a-b7c6-d5e4f3a2b107')
    def test_a_resized_guest_has_its_new_share(self):
        if not CONF.compute_feature_enabled.resize:
            raise self.skipException('[compute-feature-enabled]resize is off')
        self._need('MEM_BW_MIN')
        server = self._boot_server(self._create_flavor(mem_bw_min=20))
        self.servers_client.resize_server(server['id'],
                                          self._create_flavor(mem_bw_min=30))
        waiters.wait_for_server_status(self.servers_client, server['id'],
                                       'VERIFY_RESIZE')
        self.servers_client.confirm_resize_server(server['id'])
        waiters.wait_for_server_status(self.servers_client, server['id'],
                                       'ACTIVE')
        self.assertEqual([30], self._shares(server))

    @decorators.idempotent_id('3e7a9c51-8d24-4f6b-b0a3-c1d5e7f9028b')
    def test_a_resize_that_is_refused_leaves_the_share(self):
        """The largest guest that the API takes needs eight whole nodes."""
        if not CONF.compute_feature_enabled.resize:
            raise self.skipException('[compute-feature-enabled]resize is off')
        self._need('MEM_BW_MIN')
        server = self._boot_server(self._create_flavor(mem_bw_min=20))
        self.servers_client.resize_server(
            server['id'], self._create_flavor(nodes=8, mem_bw_min=100))
        waiters.wait_for_server_status(self.servers_client, server['id'],
                                       'ACTIVE')
        self.assertEqual([20], self._shares(server))

    @decorators.idempotent_id('6c5d4e3f-2a1b-4c0d-9e8f-a7b6c5d4e308')
    def test_a_live_migrated_guest_has_its_share_there(self):
        if (not CONF.compute_feature_enabled.live_migration
                or CONF.compute.min_compute_nodes < 2):
            raise self.skipException('guests cannot be live migrated here')
        self._need('MEM_BW_MIN')
        server = self._boot_server(self._create_flavor(mem_bw_min=20))
        before = self._host(server), set(self._get_allocations(server))
        self.admin_servers_client.live_migrate_server(
            server['id'], host=None, block_migration='auto')
        waiters.wait_for_server_status(self.servers_client, server['id'],
                                       'ACTIVE')
        self.assertNotEqual(before[0], self._host(server))
        self.assertEqual([20], self._shares(server))
        self.assertFalse(before[1] & set(self._get_allocations(server)))


class LiveChangeTest(SharesTest):
    """A server gets another share while it runs."""

    def setUp(self):
        super().setUp()
        if not CONF.ghsched.live_change:
            raise self.skipException('[ghsched]live_change is off')
        self._need('MEM_BW_MIN')
        self.server = self._boot_server(self._create_flavor(mem_bw_min=20))

    def _change(self, value, client=None):
        (client or self.admin_servers_client).action(
            self.server['id'], 'ghsched', schema=CHANGED,
            extra_specs={'ghsched:mem_bw_min': str(value)})

    @decorators.idempotent_id('91f0b3d7-5a6e-4c28-9e17-2b4d6f8a0c35')
    def test_placement_and_flavor_have_the_new_share(self):
        self._change(30)
        self.assertEqual([30], self._shares(self.server))
        shown = self.admin_servers_client.show_server(
            self.server['id'])['server']
        self.assertEqual('ACTIVE', shown['status'])
        self.assertEqual(
            '30', shown['flavor']['extra_specs']['ghsched:mem_bw_min'])

    @decorators.idempotent_id('c82d4e6f-1b3a-4957-8c0e-7f5a3b1d9e42')
    def test_impossible_values_of_a_node_are_refused_and_change_nothing(self):
        self.assertRaises(exceptions.BadRequest, self._change, TOO_MUCH)
        self.assertRaises(exceptions.Forbidden, self._change, 30,
                          self.servers_client)
        self.assertEqual([20], self._shares(self.server))


class QuotaTest(base.GhschedTest):

    @decorators.idempotent_id('f1e2d3c4-b5a6-4978-8a9b-0c1d2e3f4a09')
    def test_a_guest_beyond_the_quota_is_refused_before_it_is_scheduled(self):
        quotas = self.os_admin.quotas_client
        project = self.servers_client.tenant_id
        old = quotas.show_quota_set(project)['quota_set']['cores']
        self.addCleanup(quotas.update_quota_set, project, cores=old)
        quotas.update_quota_set(project, cores=0)
        self.assertRaises(
            (exceptions.Forbidden, exceptions.OverLimit),
            self.create_test_server, flavor=self._create_flavor(mem_bw_min=10))
