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

"""``openstack ghsched audit`` against Nova and Placement."""

import os

import fixtures
from nova.cmd import manage
from nova import context as nova_context
from nova import objects
from nova.scheduler.client import report

from ghsched_nova.resctrl import naming
from ghsched_nova.tests.functional import emptied_hosts
from ghsched_nova.tests.functional import openstack_base
from ghsched_placement.osc import audit
from ghsched_placement.providers import names

GONE = '11111111-2222-3333-4444-555555555555'


class AuditTest(emptied_hosts.EmptiedHosts, openstack_base.CommandTestCase):

    def audit(self, *arguments):
        """(exit status, rows)"""
        return self.outcome(audit.Audit, '--no-effective', *arguments)

    def nova_audit(self):
        return manage.PlacementCommands().audit()

    def failed_migration(self, server, status='error'):
        """UUID of a live migration that has failed."""
        migration = objects.Migration(
            nova_context.get_admin_context(), status=status,
            instance_uuid=server['id'], source_compute='host_a',
            dest_compute='host_b', source_node='host_a', project_id='p',
            user_id='u', migration_type='live-migration')
        migration.create()
        return migration.uuid

    def left_by_migration(self, server):
        """Make the allocations of a failed live migration: the source is held
        twice.
        """
        uuid = self.failed_migration(server)
        self.placement.put(f'/allocations/{uuid}', {
            'allocations': {
                self.compute_rp_uuids['host_a']: {'resources': {
                    'MEMORY_MB': 512, names.RESCTRL_GROUP: 1}},
                self.provider('host_a', 1): {
                    'resources': {names.MEM_BW_PCT: 10}}},
            'project_id': 'p', 'user_id': 'u',
            'consumer_generation': None}, version='1.28')
        return uuid

    def test_records_of_an_unasked_cloud_are_compared_and_fixed(self):
        self.take_steps(self.cloud_without_our_hosts_is_said_to_be_so)
        self.start_host('host_a')
        self.take_steps(
            self.active_server_without_a_domain_is_found,
            self.it_agrees_with_nova_about_what_a_failed_migration_holds,
            self.a_consumer_without_anything_of_ours_is_named_alone,
            self.resources_dropped_by_heal_allocations_are_healed,
            self.a_server_gets_back_what_its_migration_still_holds,
            self.nothing_is_done_when_nobody_agrees,
            self.no_room_for_what_is_to_be_healed)
        self.start_host('host_b')
        self.take_steps(
            self.a_cloud_that_agrees,
            self.it_does_so_instead_of_what_it_would_have_had_elsewhere)

    def a_cloud_that_agrees(self):
        self.boot(self.flavor(mem_bw_min=70))
        self.assertEqual((0, []), self.audit())
        self.assertEqual(0, self.nova_audit())
        self.assertEqual(
            (0, 'All records agree: 2 hosts, 1 server.\n'),
            self.command(audit.Audit, '--no-effective'))

    def active_server_without_a_domain_is_found(self):
        lost = self.boot(self.flavor(mem_bw_min=60))
        other = self.boot(self.flavor(mem_bw_min=30))
        self.assertEqual([], self.missing())
        connection = self.computes['host_a'].driver._host.get_connection()
        domain = connection.lookupByUUIDString(lost['id'])
        domain.destroy()
        domain.undefine()
        # What Nova makes of it with its next look.
        for power_state in (1, 0):
            self.set_power_state(lost, power_state)
            (subject, text), = self.missing()
            self.assertEqual(lost['id'], subject)
            self.assertIn('is ACTIVE, but its domain does not run on its host',
                          text)
        # Nobody asks the host.
        self.assertEqual((0, []), self.audit())
        self._delete_server(lost)
        self._delete_server(other)

    def missing(self):
        """Subject and text of each finding of a domain that is missing.

        The kernel here is no real one, and the host finds that as well.
        """
        return [(row['Subject'], row['Finding'])
                for row in self.outcome(audit.Audit)[1]
                if row['Kind'] == 'domain-missing']

    def set_power_state(self, server, state):
        instance = self.instance(server)
        instance.power_state = state
        instance.save()

    def cloud_without_our_hosts_is_said_to_be_so(self):
        status, text = self.command(audit.Audit)
        self.assertEqual(0, status)
        self.assertIn('No compute host in Placement has the driver', text)

    def it_agrees_with_nova_about_what_a_failed_migration_holds(self):
        uuid = self.left_by_migration(self.boot(self.flavor(mem_bw_min=30)))
        self.assertEqual(3, self.nova_audit())
        status, rows = self.audit()
        self.assertEqual((1, [('allocation-without-server', uuid, True)]), (
            status, [(row['Kind'], row['Subject'], row['Fixable'])
                     for row in rows]))
        self.assertNotEqual({}, self.resources(uuid))
        self.assertEqual((0, []), self.audit('--fix', '--yes'))
        self.assertEqual({}, self.resources(uuid))
        self.assertEqual(0, self.nova_audit())

    def a_consumer_without_anything_of_ours_is_named_alone(self):
        self.placement.put(f'/allocations/{GONE}', {
            'allocations': {self.compute_rp_uuids['host_a']: {
                'resources': {'MEMORY_MB': 512}}},
            'project_id': 'p', 'user_id': 'u',
            'consumer_generation': None}, version='1.28')
        self.assertEqual(3, self.nova_audit())
        for arguments in ((), ('--fix', '--yes')):
            status, (row,) = self.audit(*arguments)
            self.assertEqual((1, GONE, False),
                             (status, row['Subject'], row['Fixable']))
        self.assertEqual(1, len(self.resources(GONE)))
        self.placement.delete(f'/allocations/{GONE}')

    def resources_dropped_by_heal_allocations_are_healed(self):
        server = self.boot(self.flavor(nodes=2, mem_bw_min=30,
                                       mem_bw_min__1=20))
        before = self.resources(server['id'])
        manage.PlacementCommands().heal_allocations(
            instance_uuid=server['id'], force=True)
        self.assertEqual({}, self.bandwidth(server['id']))
        status, rows = self.audit()
        self.assertEqual((1, {'allocation-differs'}), (
            status, {row['Kind'] for row in rows}))
        self.assertEqual((0, []), self.audit('--fix', '--yes'))
        self.assertEqual(before, self.resources(server['id']))

    def a_server_gets_back_what_its_migration_still_holds(self):
        server = self.boot(self.flavor(mem_bw_min=30))
        before = self.resources(server['id'])
        migration = self.failed_migration(server)
        report.SchedulerReportClient().move_allocations(
            nova_context.get_admin_context(), server['id'], migration)
        status, rows = self.audit()
        self.assertEqual((1, True), (status, {
            row['Kind']: row['Fixable'] for row in rows}['allocation-kept']))
        self.assertEqual((0, []), self.audit('--fix', '--yes'))
        self.assertEqual((before, {}), (self.resources(server['id']),
                                        self.resources(migration)))

    def it_does_so_instead_of_what_it_would_have_had_elsewhere(self):
        """Placement, or nova-compute, was away during the migration."""
        server = self.boot(self.flavor(mem_bw_min=30), host='host_a')
        before = self.resources(server['id'])
        client = report.SchedulerReportClient()
        context = nova_context.get_admin_context()
        for status in ('error', 'preparing'):
            migration = self.failed_migration(server, status)
            client.move_allocations(context, server['id'], migration)
            client.claim_resources(context, server['id'], {'allocations': {
                self.compute_rp_uuids['host_b']: {
                    'resources': {'MEMORY_MB': 512, names.RESCTRL_GROUP: 1}},
                self.provider('host_b', 1): {
                    'resources': {names.MEM_BW_PCT: 30}}}}, 'p', 'u', '1.36')
            status, rows = self.audit()
            self.assertEqual({
                'allocation-kept': migration,
                'allocation-elsewhere': server['id'],
                'allocation-differs': server['id']}, {
                    row['Kind']: row['Subject'] for row in rows})
            self.assertEqual((0, []), self.audit('--fix', '--yes'))
            self.assertEqual((before, {}), (self.resources(server['id']),
                                            self.resources(migration)))

    def nothing_is_done_when_nobody_agrees(self):
        uuid = self.left_by_migration(self.boot(self.flavor()))
        status, _text = self.command(audit.Audit, '--no-effective', '--fix')
        self.assertEqual(2, status)
        self.assertNotEqual({}, self.resources(uuid))
        self.placement.delete(f'/allocations/{uuid}')

    def no_room_for_what_is_to_be_healed(self):
        server = self.boot(self.flavor(mem_bw_min=70))
        node, = self.host_nodes(server)
        manage.PlacementCommands().heal_allocations(
            instance_uuid=server['id'], force=True)
        self.reserve(**{f'n{node}': 60})
        log = self.use_in_step(fixtures.FakeLogger())
        status, rows = self.audit('--fix', '--yes')
        self.assertEqual(1, status)
        self.assertIn(f'{server["id"]}: HTTP 409', log.output)
        self.assertEqual({}, self.bandwidth(server['id']))


class HostsTest(emptied_hosts.EmptiedHosts, openstack_base.CommandTestCase):
    """Hosts that are asked."""

    def test_records_of_a_host_are_compared_while_it_is_up(self):
        self.start_host('host_a')
        self.take_steps(
            self.missing_settings_and_leftovers_of_the_host,
            self.a_host_that_is_down_is_not_checked)

    def missing_settings_and_leftovers_of_the_host(self):
        server = self.boot(self.flavor(mem_bw_min=70))
        group = os.path.join(self.kernel.path,
                             naming.render_own_group_name(GONE))
        os.mkdir(group)
        status, rows = self.outcome(audit.Audit)
        self.assertEqual(1, status)
        self.assertEqual(
            [('group-without-guest', naming.render_own_group_name(GONE)),
             ('host-differs', server['id'])],
            sorted((row['Kind'], row['Subject']) for row in rows))
        os.rmdir(group)

    def a_host_that_is_down_is_not_checked(self):
        self.boot(self.flavor(mem_bw_min=70))
        self.api.put_service(
            self.api.get_services(binary='nova-compute')[0]['id'],
            {'forced_down': True})
        status, (row,) = self.outcome(audit.Audit)
        self.assertEqual((2, 'not-checked', 'nova-compute is down'),
                         (status, row['Kind'], row['Finding']))
