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

"""A guest with VFs after its host has died, and when that comes back."""

import threading
import time
from unittest import mock

import fixtures
from nova.compute import rpcapi
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.tests.functional.api import client

from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import test_vfs
from ghsched_placement.tests import base


class EvacuatedTest(test_vfs.VfsTestCase):

    def setUp(self):
        super().setUp()
        # What is on node 0 of one host is on node 1 of the other.
        self.start((0, 4), (1, 4), name='host_a', nodes=2, sockets=1)
        self.server = self.boot(self.flavor(
            nodes=2, vfs='nic:4', device_numa='required', mem_bw_min=20))
        self.start((1, 4), (0, 4), name='host_b', nodes=2, sockets=1)
        self.stop_host('host_a')
        self._evacuate_server(self.server)

    def assert_placed(self):
        """The guest runs with the VFs that it has on host_b."""
        self.assertEqual({0: [0, 0], 1: [1, 1]}, self.vf_nodes(self.server))
        own = {device.address for device in self.devices('host_b')}
        self.assertEqual(4, len(own))
        self.assertEqual(sorted(own),
                         self.xml_addresses(self.server, 'host_b'))

    def devices(self, host):
        node = objects.ComputeNode.get_by_host_and_nodename(
            nova_context.get_admin_context(), host, host)
        return [device for device in objects.PciDeviceList.
                get_by_instance_uuid(nova_context.get_admin_context(),
                                     self.server['id'])
                if device.compute_node_id == node.id]

    def test_it_is_started_rebooted_and_rebuilt(self):
        self._start_server(self.server)
        self.assert_placed()
        self._reboot_server(self.server, hard=True)
        self.assert_placed()
        self._rebuild_server(self.server,
                             '155d900f-4e14-4e4c-a73d-069cbf4541e6')
        self.assert_placed()
        self.assert_old_host_gives_everything_back()

    def assert_old_host_gives_everything_back(self):
        self.assertEqual(4, len(self.devices('host_a')))
        self.restart_compute_service('host_a')
        self._run_periodics()
        self.assertEqual([], self.devices('host_a'))
        self.assertEqual(
            {'host_b_0000:81:00.0': 2, 'host_b_0000:82:00.0': 2},
            self.allocated(self.server))
        self.assert_placed()
        connection = self.computes['host_a'].driver._host.get_connection()
        self.assertEqual([], connection.listAllDomains(3))


class MigratingTest(nova_base.GhschedTestCase):
    """The host is lost right after a live migration was asked for."""

    CAST_AS_CALL = False

    def setUp(self):
        super().setUp()
        for name in ('host_a', 'host_b'):
            self.start_host(name)
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']
        self.server = self.boot(self.flavor(mem_bw_min=30), host='host_a')

    def ask(self, *status):
        self.api.post_server_action(self.server['id'], {
            'os-migrateLive': {'host': None, 'block_migration': 'auto'}})
        self._wait_for_migration_status(self.server, status)

    def later(self):
        """nova-conductor is not at work on it any more."""
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.nova_fixes.evacuated_live_migration._TIME_OUTS', -1))

    def assert_ended(self, evacuated):
        self.assertEqual(
            {'live-migration': 'error', 'evacuation': evacuated},
            {one.migration_type: one.status
             for one in objects.MigrationList.get_by_filters(
                 nova_context.get_admin_context(),
                 {'instance_uuid': self.server['id']})})

    def assert_evacuated(self):
        self.server = self.api.get_server(self.server['id'])
        self.assertEqual('host_b', self.server['OS-EXT-SRV-ATTR:host'])
        self.assert_agreement(self.server, 'host_b', [30])

    def test_it_stays_where_it_is_if_no_host_takes_it(self):
        asked, answer = threading.Event(), threading.Event()
        self.addCleanup(answer.set)

        def check(*_args, **_kwargs):
            asked.set()
            answer.wait(base.GIVE_UP_S)
            raise exception.MigrationPreCheckError(reason='no answer')
        with mock.patch.object(self.dest.manager,
                               'check_can_live_migrate_destination', check):
            self.ask('accepted')
            self.assertTrue(asked.wait(base.GIVE_UP_S))
            self.stop_host('host_a')
            self.api.put_service(self.dest.service_ref.uuid,
                                 {'status': 'disabled'})
            refused = self.assertRaises(
                client.OpenStackApiException, self.api.post_server_action,
                self.server['id'], {'evacuate': {}})
            self.assertEqual(409, refused.response.status_code)
            self.later()
            self.api.post_server_action(self.server['id'], {'evacuate': {}})
            self._wait_for_state_change(self.server, 'ERROR')
        self.assert_ended('error')
        self.restart_compute_service('host_a')
        self.assertEqual([self.server['id']], [
            domain.UUIDString() for domain in self.domains('host_a')])
        self.assert_agreement(self.server, 'host_a', [30])

    def test_its_old_host_does_not_migrate_it_when_it_is_back(self):
        with mock.patch.object(rpcapi.ComputeAPI, 'live_migration') as cast:
            self.ask('accepted')
            while not cast.called:
                time.sleep(0.05)
        self.stop_host('host_a')
        self.later()
        self._evacuate_server(self.server)
        self.restart_compute_service('host_a')
        self.assert_ended('completed')
        self._start_server(self.server)
        context = nova_context.get_admin_context()
        message = {**cast.call_args.kwargs, 'dest': 'host_b'}
        message.pop('host')
        self.computes['host_a'].manager.live_migration(context, **message)
        self._run_periodics()
        self.assert_ended('completed')
        self.assert_evacuated()

    def test_late_rollback_leaves_it_alone(self):
        before = self.instance(self.server)
        self.stop_host('host_a')
        self._evacuate_server(self.server)
        self._start_server(self.server)
        self.dest.manager.rollback_live_migration_at_destination(
            nova_context.get_admin_context(), before, destroy_disks=True,
            migrate_data=objects.LibvirtLiveMigrateData(
                is_shared_instance_path=False))
        self.restart_compute_service('host_a')
        self.assert_evacuated()


class RefusedTest(nova_base.GhschedTestCase):
    """The destination refuses; the operator asks for the same one again."""

    CAST_AS_CALL = False

    def setUp(self):
        super().setUp()
        for name in ('host_a', 'host_b'):
            self.start_host(name)
        self.dest = self.computes['host_b']
        self.server = self.boot(self.flavor(mem_bw_min=60), host='host_a')
        self.stop_host('host_a')

    def evacuate(self, host, state):
        """Evacuate to host_b; the server is then on a host, in a state."""
        self.api.post_server_action(self.server['id'],
                                    {'evacuate': {'host': 'host_b'}})
        self._wait_for_instance_action_event(
            self.server, 'evacuate', 'compute_rebuild_instance',
            'success' if host == 'host_b' else 'error')
        self.server = self._wait_for_server_parameter(
            self.server, {'status': state, 'OS-EXT-STS:task_state': None,
                          'OS-EXT-SRV-ATTR:host': host})

    def read_allocated_resources(self):
        """Return the server's allocated resources by provider."""
        found = self.placement.get(f"/allocations/{self.server['id']}").body
        return {provider: one['resources']
                for provider, one in found['allocations'].items()}

    def evacuate_twice(self, target, name, error):
        """Evacuate to a host that refuses with an error at first.

        Nothing of the failed evacuation stays allocated.
        """
        held, method = self.read_allocated_resources(), getattr(target, name)
        answers = iter((mock.Mock(side_effect=error), method))
        with mock.patch.object(
                target, name, lambda *args, **kwargs: next(answers)(
                    *args, **kwargs)):
            kept = isinstance(error, exception.ComputeResourcesUnavailable)
            self.evacuate('host_a', 'ACTIVE' if kept else 'ERROR')
            self.assertEqual(held, self.read_allocated_resources())
            # Nova stops evacuated servers, but none that was in ERROR.
            self.evacuate('host_b', 'SHUTOFF' if kept else 'ACTIVE')

    def test_host_that_could_not_start_the_guest_takes_it_later(self):
        self.evacuate_twice(self.dest.driver, 'spawn',
                            exception.NovaException('a test'))

    def test_host_that_refused_the_claim_takes_the_guest_later(self):
        self.evacuate_twice(
            self.dest.manager.rt, 'rebuild_claim',
            exception.ComputeResourcesUnavailable(reason='a test'))
