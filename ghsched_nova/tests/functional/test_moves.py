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

"""All operations that move a guest, and moves that fail.

After each step its records agree and nothing else is held of any host.
Messages are cast, as in a cloud.
"""

from unittest import mock

import fixtures
from nova.compute import rpcapi
from nova import context
from nova import exception
from nova import objects

from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import test_lifecycle
from ghsched_placement.providers import names

IMAGE = '155d900f-4e14-4e4c-a73d-069cbf4541e6'


def move_disk(driver, _context, instance, *_args, **_kwargs):
    """Power the guest off; it has no disks to move."""
    driver.power_off(instance)
    return '{}'


class MovesTestCase(nova_base.GhschedTestCase):

    CAST_AS_CALL = False
    #: NUMA nodes of each host.
    NODES = 2

    def setUp(self):
        super().setUp()
        self.flags(shelved_offload_time=0)
        self.start_hosts()
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']
        self.useFixture(fixtures.MonkeyPatch(test_lifecycle.MOVE_DISK,
                                             move_disk))
        self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.driver.LibvirtDriver.snapshot'))

    def start_hosts(self):
        for name in ('host_a', 'host_b'):
            self.start_host(name, nodes=self.NODES)

    def host(self):
        return self.api.get_server(
            self.server['id'])['OS-EXT-SRV-ATTR:host']

    def sum_usages(self):
        """{host: percent} of all NUMA nodes, whoever holds it."""
        found = {}
        for host in self.computes:
            for node in range(self.NODES):
                used = self._get_provider_usages(
                    self.provider(host, node)).get(names.MEM_BW_PCT, 0)
                if used:
                    found[host] = found.get(host, 0) + used
        return found

    def assert_on(self, host, share):
        self.assertEqual(host, self.host())
        self.assert_agreement(self.server, host, [share])
        self.assertEqual({host: share}, self.sum_usages())

    def domains(self):
        return [(host, domain.UUIDString())
                for host, compute in self.computes.items()
                for domain in compute.driver._host.get_connection().
                listAllDomains(3)]

    def assert_nothing_left(self):
        # Other hosts are told to clean up, and nobody waits for them.
        self.wait_until(lambda: not self.domains())
        self.assertEqual({}, self.sum_usages())
        for uuid in self.compute_rp_uuids.values():
            self.assertEqual(0, self._get_provider_usages(uuid)[
                names.RESCTRL_GROUP])


class JourneyTest(MovesTestCase):

    SHARES_GROUPS = False

    def setUp(self):
        super().setUp()
        self.flags(group_sharing=self.SHARES_GROUPS, group='ghsched')

    def test_one_guest_goes_through_all_of_them(self):
        self.server = self.boot(self.flavor(mem_bw_min=30), host='host_a')
        self.assert_on('host_a', 30)
        self._resize_server(self.server, self.flavor(mem_bw_min=60))
        self.assert_agreement(self.server, 'host_b', [60])
        self.assertEqual({'host_a': 30, 'host_b': 60}, self.sum_usages())
        self._revert_resize(self.server)
        self.assert_on('host_a', 30)
        self._live_migrate(self.server)
        self.assert_on('host_b', 30)
        self._migrate_server(self.server)
        self._confirm_resize(self.server)
        self.assert_on('host_a', 30)
        self._shelve_server(self.server)
        self.assert_nothing_left()
        self._unshelve_server(self.server)
        self.assert_on(self.host(), 30)
        self._rebuild_server(self.server, IMAGE)
        self.assert_on(self.host(), 30)
        self._stop_server(self.server)
        self._start_server(self.server)
        self.assert_on(self.host(), 30)
        self._delete_server(self.server)
        self.assert_nothing_left()


class SharingJourneyTest(JourneyTest):

    SHARES_GROUPS = True

    def tuned_nodes(self, host, server):
        """The group is nova-compute's, so libvirt knows nothing of it."""
        self.assertNotIn('memorytune', self.domain(host, server))
        return dict.fromkeys(self.host_nodes(server))


class GoneWrongTest(MovesTestCase):

    def test_a_guest_deleted_before_its_resize_is_confirmed(self):
        # The last host started is CONF.host of all, where Nova would leave
        # the domain of a guest that comes to it.
        self.server = self.boot(self.flavor(mem_bw_min=30), host='host_b')
        self._resize_server(self.server, self.flavor(mem_bw_min=60))
        self._delete_server(self.server)
        self._run_periodics()
        self.assert_nothing_left()

    def test_a_resized_guest_that_does_not_start_has_its_new_flavor(self):
        self.server = self.boot(self.flavor(nodes=2, mem_bw_min=20),
                                host='host_a')
        with fixtures.MockPatch(
                'ghsched_nova.virt.driver.GhschedLibvirtDriver._create_guest',
                side_effect=exception.ComputeResourcesUnavailable(
                    reason='refused')), fixtures.MockPatch(
                        test_lifecycle.MOVE_DISK, move_disk):
            self.api.post_server_action(self.server['id'], {
                'resize': {'flavorRef': self.flavor(mem_bw_min=30)}})
            self._wait_for_state_change(self.server, 'ERROR')
        self._reboot_server(self.server, hard=True)
        self.assert_agreement(self.server, 'host_b', [30])

    def test_a_live_migration_that_fails_leaves_the_guest_where_it_was(self):
        self.boot_one_that_fails_to_migrate()
        self._live_migrate(self.server, 'failed')
        self._run_periodics()
        self.assertEqual([1], self.host_nodes(self.server))
        self.assert_on('host_a', 30)

    def test_a_destination_that_is_late_puts_nothing_back(self):
        self.boot_one_that_fails_to_migrate()
        sent = []
        with mock.patch.object(
                rpcapi.ComputeAPI, 'rollback_live_migration_at_destination',
                side_effect=lambda context, instance, _host, **arguments:
                sent.append((instance.obj_clone(), arguments))):
            self._live_migrate(self.server, 'failed')
        (instance, arguments), = sent
        self.dest.manager.rollback_live_migration_at_destination(
            context.get_admin_context(), instance, **arguments)
        # With it the next rebuild would be taken for an evacuation.
        self.assertIsNone(objects.Instance.get_by_uuid(
            context.get_admin_context(), self.server['id'],
            expected_attrs=['migration_context']).migration_context)
        self.assertEqual([1], self.host_nodes(self.server))

    def boot_one_that_fails_to_migrate(self):
        # Not on the node that it would have on the other host.
        self.reserve('host_a', n0=80)
        self.server = self.boot(self.flavor(mem_bw_min=30), host='host_a')
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Domain.migrateToURI3',
            self.fail_to_migrate))

    def fail_to_migrate(self, domain, *_args, **_kwargs):
        domain.fail_job()
