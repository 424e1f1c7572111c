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

"""Live migration: the claim takes what Placement gave, on every Nova."""

import time
from unittest import mock

import fixtures
from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import driver
from oslo_serialization import jsonutils
from oslo_utils import versionutils

from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import test_vfs


class TwoHostsTestCase(nova_base.GhschedTestCase):

    def setUp(self):
        super().setUp()
        for name in ('host_a', 'host_b'):
            self.start_host(name, nodes=4, cores=2)
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']


class BandwidthTest(TwoHostsTestCase):

    def test_guest_takes_its_shares_to_nodes_that_have_them(self):
        self.take_steps(
            self.each_guest_node_takes_its_own_share,
            self.equal_shares,
            self.one_guest_node_of_two_is_counted,
            self.a_guest_without_a_policy_is_claimed_as_nova_does)

    def migrate(self, nodes, **keys):
        """Migrate to where only the nodes 1 and 3 have bandwidth."""
        self.server = self.boot(self.flavor(nodes=nodes, **keys),
                                host='host_a')
        self.reserve('host_b', n0=95, n2=95)
        self._live_migrate(self.server, 'completed')
        return self.server

    def tidy_up(self):
        self._delete_server(self.server)

    def each_guest_node_takes_its_own_share(self):
        server = self.migrate(2, mem_bw_min__0=60, mem_bw_min__1=30)
        self.assert_agreement(server, 'host_b', [60, 30])
        self.assertEqual({1, 3}, set(self.host_nodes(server)))

    def equal_shares(self):
        server = self.migrate(2, mem_bw_min=30)
        self.assert_agreement(server, 'host_b', [30, 30])

    def one_guest_node_of_two_is_counted(self):
        server = self.migrate(2, mem_bw_min__1=60)
        other, counted = self.host_nodes(server)
        self.assertIn(counted, (1, 3))
        self.assertEqual({self.provider('host_b', counted): 60},
                         self.bandwidth(server['id']))
        self.assertNotEqual(other, counted)

    def a_guest_without_a_policy_is_claimed_as_nova_does(self):
        server = self.migrate(1)
        self.assertEqual([0], self.host_nodes(server))


class CutOffTest(TwoHostsTestCase):
    """nova-compute of the source ends when libvirt has copied the guest."""

    def setUp(self):
        super().setUp()
        self.server = self.boot(self.flavor(mem_bw_min=30), host='host_a')
        with mock.patch.object(self.src.manager,
                               '_post_live_migration_update_host') as after:
            self.api.post_server_action(self.server['id'], {
                'os-migrateLive': {'host': None, 'block_migration': 'auto'}})
            self._wait_for_migration_status(self.server, ['running'])
            while not after.called:
                time.sleep(0.1)

    def leave(self, host='host_a'):
        """Remove the domains of a host, as libvirt does on the source of a
        migration that has succeeded, and on the destination of another.
        """
        for domain in self.domains(host):
            domain.destroy()
        # One that is copied to a host is gone by then.
        for domain in self.domains(host):
            domain.undefine()

    def assert_on(self, host, other):
        self.server = self._wait_for_state_change(self.server, 'ACTIVE')
        self.assertEqual(host, self.server['OS-EXT-SRV-ATTR:host'])
        self.assert_agreement(self.server, host, [30])
        self.assertEqual([], self.domains(other))
        self._run_periodics()
        root = self.compute_rp_uuids[other]
        self.assertEqual({0}, {
            used for provider in (root, *(
                self.provider(other, node) for node in range(4)))
            for used in self._get_provider_usages(provider).values()})

    def test_the_server_is_where_its_guest_runs(self):
        self.leave()
        self.restart_compute_service('host_a')
        self.assert_on('host_b', 'host_a')

    def test_so_it_is_with_an_unended_record_next_to_it(self):
        context = nova_context.get_admin_context()
        objects.Migration(
            context, source_compute='host_a', instance_uuid=self.server['id'],
            status='accepted', migration_type='live-migration').create()
        self.leave()
        self.restart_compute_service('host_a')
        self.assert_on('host_b', 'host_a')

    def test_it_is_not_started_on_its_old_host_as_well(self):
        self.flags(resume_guests_state_on_host_boot=True)
        self.leave()
        self.restart_compute_service('host_a')
        self.assert_on('host_b', 'host_a')

    def test_one_that_has_not_left_stays(self):
        self.leave('host_b')
        self.restart_compute_service('host_a')
        self.assert_on('host_a', 'host_b')

    def test_so_does_one_that_libvirt_was_not_asked_to_copy(self):
        self.leave('host_b')
        migration, = objects.MigrationList.get_by_filters(
            nova_context.get_admin_context(), {})
        migration.status = 'preparing'
        migration.save()
        self.restart_compute_service('host_a')
        self.assert_on('host_a', 'host_b')
        migration, = objects.MigrationList.get_by_filters(
            nova_context.get_admin_context(), {})
        self.assertEqual('error', migration.status)


class PlacementAwayTest(TwoHostsTestCase):

    def fail(self, domain, *_args, **_kwargs):
        self.useFixture(fixtures.MockPatchObject(
            report.SchedulerReportClient, 'move_allocations',
            side_effect=keystone.ConnectFailure('no answer')))
        domain.fail_job()

    def test_a_live_migration_is_rolled_back(self):
        self.server = self.boot(self.flavor(mem_bw_min=30), host='host_a')
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Domain.migrateToURI3', self.fail))
        self._live_migrate(self.server, 'failed', wait_for_fault_key=False)
        server = self.api.get_server(self.server['id'])
        self.assertEqual(('host_a', None),
                         (server['OS-EXT-SRV-ATTR:host'],
                          server['OS-EXT-STS:task_state']))


class LibvirtdRestartedTest(TwoHostsTestCase):
    """Nova loses libvirt of the source while that copies a guest."""

    def setUp(self):
        super().setUp()
        self.server = self.boot(self.flavor(mem_bw_min=30), host='host_a')
        self.reason = 0
        # Nova's fixture has no state with a reason.
        self.useFixture(fixtures.MockPatchObject(
            fakelibvirt.Domain, 'state', create=True,
            side_effect=lambda: [fakelibvirt.VIR_DOMAIN_PAUSED if self.reason
                                 else fakelibvirt.VIR_DOMAIN_RUNNING,
                                 self.reason]))

    def live_migrate(self, state, copied=True):
        def watched(*args, **kwargs):
            copying = args[-2]
            # An event of eventlet in Nova 31, a future later.
            is_copied = getattr(copying, 'done', None) or copying.ready
            while not is_copied():
                time.sleep(0.1)
            # What libvirt leaves of it, see CutOffTest.
            for domain in self.domains('host_a' if copied else 'host_b'):
                domain.destroy()
                if copied:
                    domain.undefine()
            for domain in self.domains('host_a'):
                domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_NONE
            raise exception.HypervisorUnavailable()
        with mock.patch.object(driver.LibvirtDriver, '_live_migration_monitor',
                               side_effect=watched):
            ended = 'completed' if copied else 'failed'
            self._live_migrate(
                self.server, server_expected_state=state,
                wait_for_fault_key=False,
                migration_expected_state='error' if state == 'ERROR' else
                ended)

    def assert_on(self, host, other):
        self.server = self.api.get_server(self.server['id'])
        self.assertEqual(host, self.server['OS-EXT-SRV-ATTR:host'])
        self.assert_agreement(self.server, host, [30])
        self.assertEqual([], self.domains(other))

    def test_the_server_is_where_its_guest_runs(self):
        self.live_migrate('ACTIVE')
        self.assert_on('host_b', 'host_a')

    def test_one_that_has_not_left_stays(self):
        self.live_migrate('ACTIVE', copied=False)
        self.assert_on('host_a', 'host_b')

    def test_its_disks_are_not_copied_any_more(self):
        job = {'type': 2, 'bandwidth': 0, 'cur': 1, 'end': 1}
        self.useFixture(fixtures.MockPatchObject(
            fakelibvirt.Domain, 'blockJobInfo', return_value=job))
        with mock.patch.object(fakelibvirt.Domain, 'blockJobAbort') as abort:
            self.live_migrate('ACTIVE', copied=False)
        abort.assert_called_once_with('vda', flags=0)
        self.assert_on('host_a', 'host_b')

    def test_one_that_may_run_on_either_host_is_left_to_the_operator(self):
        self.reason = 2
        self.live_migrate('ERROR', copied=False)


class VfsOnlyTest(test_vfs.VfsTestCase):
    """Guests whose host node is known from their VFs alone."""

    def setUp(self):
        super().setUp()
        spec = {'vendor_id': fakelibvirt.PCI_VEND_ID,
                'product_id': test_vfs.PRODUCT}
        self.flags(
            device_spec=[jsonutils.dumps({**spec, 'live_migratable': 'yes'})],
            alias=[jsonutils.dumps({
                **spec, 'name': 'nic', 'device_type': 'type-VF',
                'live_migratable': 'yes'})],
            group='pci')

    def test_the_claim_is_where_the_vfs_are(self):
        for name, node in (('host_a', 1), ('host_b', 3)):
            self.start(
                (node, 2), name=name,
                libvirt_version=versionutils.convert_version_to_int(
                    driver.MIN_VFIO_PCI_VARIANT_LIBVIRT_VERSION),
                qemu_version=versionutils.convert_version_to_int(
                    driver.MIN_VFIO_PCI_VARIANT_QEMU_VERSION))
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']
        server = self.boot(self.flavor(vfs='nic:2', vfs_locality='node'),
                           host='host_a')
        self.server = server
        self.assertEqual([1], self.host_nodes(server))
        self._live_migrate(server, 'completed')
        self.assertEqual([3], self.host_nodes(server))
        self.assertEqual([3, 3], [
            device.numa_node for device in
            objects.PciDeviceList.get_by_instance_uuid(
                nova_context.get_admin_context(), server['id'])])
        self.assertEqual({'host_b_0000:81:00.0': 2}, self.allocated(server))
