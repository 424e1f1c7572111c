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

"""Random live migrations of guests with VFs, each with a fault or without.

Real Placement and Nova, a fake libvirt with devices.
GHSCHED_RANDOM_MIGRATIONS=N draws N migrations, with the seed
GHSCHED_RANDOM_MIGRATIONS_SEED. What must be true after each is read from
Nova's table of devices, Placement's allocations and the XML of the hosts.
"""

import collections
import contextlib
import os
import random
import threading
from unittest import mock

from nova import context as nova_context
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt
from testtools import content

from ghsched_nova.resctrl import fs
from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import openstack_base
from ghsched_nova.tests.functional import test_vfs_live_migration
from ghsched_placement.osc import audit
from ghsched_placement.tests import base

MIGRATIONS = int(os.environ.get('GHSCHED_RANDOM_MIGRATIONS', '10'))

SEED = int(os.environ.get('GHSCHED_RANDOM_MIGRATIONS_SEED', '11'))

#: Where a live migration fails, and in which state it ends.
FAULTS = {'': 'completed', 'check': 'error', 'preparation': 'failed',
          'operation': 'failed', 'copy': 'failed', 'policy': 'failed',
          'claim': 'error', 'source after the copy': 'completed',
          'rollback': 'failed', 'destination after the copy': 'error'}

#: Faults that the API reports.
REFUSED = ('check', 'claim')

#: Faults after which the guest is on the destination.
MOVED = ('', 'source after the copy', 'destination after the copy')

#: VFs of each guest NUMA node.
GUESTS = ((2, 2), (1, 1), (2, 1), (1, 0), (0, 2))


class RandomLiveMigrationsTest(
        openstack_base.CommandTestCase,
        test_vfs_live_migration.VfsLiveMigrationTestCase):

    def boot_random_guest(self, chance):
        self.vfs = chance.choice(GUESTS)
        return self.boot_guest(mem_bw_min=20, **{
            f'vfs__{node}': f'nic:{count}'
            for node, count in enumerate(self.vfs) if count})

    @contextlib.contextmanager
    def failing(self, fault):
        """Within this context live migrations fail at a step."""
        dest, source = self.dest.driver, self.src.driver
        check = dest.check_source_migrate_data_at_dest

        def lose_resctrl(*args, **kwargs):
            try:
                return check(*args, **kwargs)
            finally:
                self.kernel.unable = fs.GroupError('lost since')

        def fail_job(domain, *_args, **_kwargs):
            domain.fail_job()
        error = mock.Mock(side_effect=RuntimeError(fault))
        patches = {
            'check': (dest, check.__name__, error),
            'claim': (self.dest.manager.rt, 'live_migration_claim', error),
            'policy': (dest, check.__name__, lose_resctrl),
            'preparation': (dest, 'pre_live_migration', error),
            'operation': (source, '_live_migration_operation', error),
            'copy': (fakelibvirt.Domain, 'migrateToURI3', fail_job),
            'source after the copy': (source, 'unplug_vifs', error),
            # The cast to the destination is lost.
            'rollback': (
                self.src.manager.compute_rpcapi,
                'rollback_live_migration_at_destination', mock.Mock()),
            'destination after the copy': (
                dest, 'post_live_migration_at_destination', error)}
        with contextlib.ExitStack() as faults:
            if fault:
                faults.enter_context(mock.patch.object(*patches[fault]))
            if fault == 'rollback':
                faults.enter_context(mock.patch.object(*patches['copy']))
            if fault == 'destination after the copy':
                faults.enter_context(self.waiting_for_error(self.src.manager))
            yield
        self.kernel.unable = None

    @contextlib.contextmanager
    def waiting_for_error(self, manager):
        """Wait at the end until nova-compute has set the server to ERROR.

        The destination does so before, and the migration is in error before.
        """
        name = '_set_instance_obj_error_state'
        done, original = threading.Event(), getattr(manager, name)

        def set_error(*args, **kwargs):
            original(*args, **kwargs)
            done.set()

        with mock.patch.object(manager, name, set_error):
            yield
            self.assertTrue(done.wait(base.GIVE_UP_S))

    def migrate(self, fault):
        """Migrate the guest to the other host; return its host afterwards."""
        domain = self.src.driver._host.get_connection().lookupByUUIDString(
            self.server['id'])
        domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_NONE
        with self.failing(fault):
            if fault in REFUSED:
                self.assertRaises(nova_base.ApiException, self._live_migrate,
                                  self.server, 'error')
            else:
                self._live_migrate(
                    self.server, FAULTS[fault],
                    'ERROR' if FAULTS[fault] == 'error' else 'ACTIVE')
        if FAULTS[fault] == 'error':
            # Nova sets the server to error; an admin resets it.
            self.api.post_server_action(
                self.server['id'], {'os-resetState': {'state': 'active'}})
        if fault in MOVED:
            self.src, self.dest = self.dest, self.src
        return self.src.host

    def list_devices(self):
        """{(host, address): device} of all VFs in Nova's table."""
        context = nova_context.get_admin_context()
        found = {}
        for name in self.computes:
            node = objects.ComputeNode.get_first_node_by_host_for_old_compat(
                context, name)
            for device in objects.PciDeviceList.get_by_compute_node(
                    context, node.id):
                if device.dev_type == 'type-VF':
                    found[name, device.address] = device
        return found

    def assert_guest_is_on(self, host):
        """The guest has its VFs on the host, and nobody has any other."""
        self._run_periodics()
        self.assertEqual(host, self.api.get_server(
            self.server['id'])['OS-EXT-SRV-ATTR:host'])
        devices = self.list_devices()
        taken = {key: device for key, device in devices.items()
                 if device.status != 'available'}
        self.assertEqual({(host, 'allocated', self.server['id'])}, {
            (name, device.status, device.instance_uuid)
            for (name, _address), device in taken.items()})
        # The XML has these and no others, the other host has no such guest.
        self.assertEqual(sorted(address for _host, address in taken),
                         self.xml_addresses(self.server, host))
        other, = set(self.computes) - {host}
        self.assertEqual([], self.computes[other].driver.list_instance_uuids())
        # As many on the host node of each guest node as the flavor says.
        nodes = self.host_nodes(self.server)
        self.assertEqual(
            {node: count for node, count in zip(nodes, self.vfs, strict=True)
             if count},
            dict(collections.Counter(
                device.numa_node for device in taken.values())))
        self.assert_agreement(self.server, host, [20, 20])
        self.assert_placement_holds(host, taken.values())

    def assert_placement_holds(self, host, devices):
        """Placement holds the devices, by PF, and nothing for migrations."""
        self.assertEqual(
            {f'{host}_{address}': count for address, count
             in collections.Counter(device.parent_addr for device
                                    in devices).items()},
            self.allocated(self.server))
        root = self.compute_rp_uuids
        other, = set(self.computes) - {host}
        self.assertNotIn(root[other], self.resources(self.server['id']))
        for migration in objects.MigrationList.get_by_filters(
                nova_context.get_admin_context(),
                {'instance_uuid': self.server['id']}):
            self.assertEqual({}, self.resources(migration.uuid))

    @contextlib.contextmanager
    def naming(self, number, fault):
        """Name the migration in the details of a failure."""
        try:
            yield
        except Exception:
            self.addDetail('migration', content.text_content(
                f'{number}, fault {fault!r}, VFs {self.vfs}'))
            raise

    def test_no_vf_is_lost_or_doubled_or_on_a_wrong_node(self):
        chance = random.Random(SEED)  # noqa: S311
        # Each fault comes before any comes again.
        faults = []
        for number in range(MIGRATIONS):
            if number % 10 == 0:
                if number:
                    self._delete_server(self.server)
                    self.assertEqual(set(), {
                        device.status for device in
                        self.list_devices().values()} - {'available'})
                self.src, self.dest = (self.computes['host_a'],
                                       self.computes['host_b'])
                self.boot_random_guest(chance)
            faults = faults or chance.sample(sorted(FAULTS), len(FAULTS))
            fault = faults.pop()
            with self.naming(number, fault):
                self.assert_guest_is_on(self.migrate(fault))
        self.assertEqual((0, []), self.outcome(audit.Audit, '--no-effective'))
