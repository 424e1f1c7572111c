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

"""Every way a guest moves or starts again, with real Placement."""

import os
import re
from unittest import mock

import fixtures
from nova.compute import power_state
from nova import context as nova_context
from nova import exception
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api import client

from ghsched_nova.guest import document
from ghsched_nova.guest import metadata
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import naming
from ghsched_nova.tests.functional import nova_base
from ghsched_placement.audit import diagnostics
from ghsched_placement.providers import names
from ghsched_placement.providers import placement_client

MOVE_DISK = ('nova.virt.libvirt.driver.LibvirtDriver.'
             'migrate_disk_and_power_off')


class FailureTest(nova_base.GhschedTestCase):
    """A guest whose policy cannot be held does not run."""

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            level=20, format='%(message)s'))
        self.start_host()

    def assert_nothing_left(self, server):
        self.assertEqual([], self.domains('host_a'))
        self.assertEqual({}, self.bandwidth(server['id']))
        usages = self._get_provider_usages(self.compute_rp_uuids['host_a'])
        self.assertEqual(0, usages[names.RESCTRL_GROUP])

    def test_guest_whose_policy_the_host_cannot_hold_is_not_left_behind(self):
        self.take_steps(
            self.a_write_that_the_kernel_refuses_ends_the_spawn,
            self.the_reason_is_reported_for_a_guest_that_has_died_already,
            self.an_error_that_nobody_foresaw_ends_it_as_well,
            self.a_resctrl_that_vanished_after_scheduling_is_reported,
            self.the_next_host_is_tried)

    def a_write_that_the_kernel_refuses_ends_the_spawn(self):
        self.kernel.error = fs.GroupError(
            'the kernel refused the value', '/sys/fs/resctrl/qemu-1/schemata',
            'MBMIN:0=60', 22, 'MBMIN value out of range')
        server = self.boot(self.flavor(mem_bw_min=60), state='ERROR')
        self.assert_nothing_left(server)
        self.assertIn('MBMIN value out of range', self.log.output)

    def the_reason_is_reported_for_a_guest_that_has_died_already(self):
        """libvirt does not stop what does not run."""
        self.kernel.error = fs.GroupError('its threads have ended')
        stop, stopped = fakelibvirt.Domain.destroy, []

        def once(domain):
            stop(domain)
            if not stopped:
                stopped.append(domain)
                raise fakelibvirt.make_libvirtError(
                    fakelibvirt.libvirtError, 'domain is not running',
                    error_code=fakelibvirt.VIR_ERR_OPERATION_INVALID)

        self.use_in_step(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Domain.destroy', once))
        server = self.boot(self.flavor(mem_bw_min=60), state='ERROR')
        self.assert_nothing_left(server)
        self.assertIn('ComputeResourcesUnavailable: Insufficient compute '
                      'resources: ghsched: ', self.log.output)

    def an_error_that_nobody_foresaw_ends_it_as_well(self):
        self.kernel.error = RuntimeError('boom')
        server = self.boot(self.flavor(mem_bw_min=60), state='ERROR')
        self.assert_nothing_left(server)

    def a_resctrl_that_vanished_after_scheduling_is_reported(self):
        flavor = self.flavor(mem_bw_min=60)
        self.kernel.vanish()
        server = self.boot(flavor, state='ERROR')
        self.assert_nothing_left(server)
        self.assertIn('resctrl', self.log.output)
        self.kernel.write()
        self._run_periodics()

    def the_next_host_is_tried(self):
        self.start_host('host_b')
        self.kernel.error = fs.GroupError('refused')
        reconcile = self.kernel._reconcile

        def once(*args):
            try:
                return reconcile(*args)
            finally:
                self.kernel.error = None

        self.use_in_step(fixtures.MockPatch(
            'ghsched_nova.resctrl.privileged.reconcile_groups', once))
        server = self.boot(self.flavor(mem_bw_min=60))
        host = self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']
        self.assert_agreement(server, host, [60])


class SameHostTest(nova_base.GhschedTestCase):

    def setUp(self):
        super().setUp()
        self.start_host()
        self.reserve(n0=60)
        self.server = self.boot(self.flavor(mem_bw_min=60))
        self.kernel.enforced.clear()

    def tidy_up(self):
        self.assert_still()

    def test_guest_keeps_its_place_and_policy_until_it_is_deleted(self):
        self.take_steps(
            self.hard_reboot,
            self.stop_and_start,
            self.rebuild_in_place,
            self.a_hard_reboot_that_can_not_be_protected_leaves_it_stopped,
            self.a_rebuild_that_fails_gives_nothing_of_the_server_away,
            self.a_live_snapshot_stops_no_guest)
        self.take_steps(
            self.resize_on_the_same_host,
            self.delete_gives_everything_back, tidy=False)

    def count_work_of_a_report(self):
        """Return questions to Placement and parsed documents of a report.

        Questions that Nova itself asks are not counted.
        """
        with (mock.patch.object(placement_client.PlacementClient, 'get',
                                autospec=True) as asked,
              mock.patch.object(document, 'parse_element',
                                wraps=document.parse_element) as parsed):
            self._run_periodics()
        return asked.call_count, parsed.call_count

    def test_a_report_does_no_more_work_with_more_guests(self):
        for _number in range(2):
            self.boot(self.flavor(vcpus=1, mem_bw_min=10))
            self._run_periodics()
            self.assertEqual((0, 0), self.count_work_of_a_report())

    def test_each_report_enforces_all_policies(self):
        self.take_steps(
            self.each_report_of_resources_reasserts_as_well,
            self.one_guest_that_can_not_be_helped_stops_no_report,
            self.a_report_is_one_call_for_all_guests,
            self.a_report_asks_for_the_xml_of_a_guest_once,
            self.a_privileged_helper_that_is_gone_stops_no_report,
            self.a_resctrl_that_is_gone_is_reported_for_each_guest,
            self.groups_of_others_are_not_offered_to_guests,
            self.restart_of_nova_compute_reasserts_every_running_guest)
        self.take_steps(
            self.nova_compute_does_not_start_with_an_option_that_is_wrong,
            tidy=False)

    def assert_still(self):
        self.assertEqual([1], self.host_nodes(self.server))
        self.assert_agreement(self.server, 'host_a', [60])

    def hard_reboot(self):
        self._reboot_server(self.server, hard=True)
        self.assertTrue(self.kernel.enforced)

    def a_hard_reboot_that_can_not_be_protected_leaves_it_stopped(self):
        self.kernel.error = fs.GroupError('refused')
        # The error reaches the API only because this test runs casts as
        # calls.
        self.assertRaises(client.OpenStackApiException,
                          self.api.post_server_action, self.server['id'],
                          {'reboot': {'type': 'HARD'}})
        self._wait_for_state_change(self.server, 'ERROR')
        self.assert_stopped_until_rebooted()

    def stop_and_start(self):
        self._stop_server(self.server)
        self._start_server(self.server)
        self.assertTrue(self.kernel.enforced)

    def restart_of_nova_compute_reasserts_every_running_guest(self):
        self.restart_compute_service('host_a')
        self.assertIn([0, 1], [vcpus for _domain, vcpus, _desired
                               in self.kernel.enforced])

    def nova_compute_does_not_start_with_an_option_that_is_wrong(self):
        self.flags(reserved_bandwidth={'node0': 10}, group='ghsched')
        error = self.assertRaises(exception.InvalidConfiguration,
                                  self.restart_compute_service, 'host_a')
        self.assertIn('[ghsched]reserved_bandwidth', str(error))

    def each_report_of_resources_reasserts_as_well(self):
        self._run_periodics()
        self.assertTrue(self.kernel.enforced)

    def one_guest_that_can_not_be_helped_stops_no_report(self):
        self.kernel.error = fs.GroupError('gone')
        self._run_periodics()

    def rebuild_in_place(self):
        self._rebuild_server(self.server,
                             '155d900f-4e14-4e4c-a73d-069cbf4541e6')

    def a_rebuild_that_fails_gives_nothing_of_the_server_away(self):
        held = self.resources(self.server['id'])
        self.kernel.error = fs.GroupError('refused')
        self.assertRaises(
            client.OpenStackApiException, self._rebuild_server, self.server,
            '155d900f-4e14-4e4c-a73d-069cbf4541e6')
        self._wait_for_state_change(self.server, 'ERROR')
        self.assert_stopped_until_rebooted()
        self.assertEqual(held, self.resources(self.server['id']))

    def assert_stopped_until_rebooted(self):
        self.assertEqual([], [domain for domain in self.domains('host_a')
                              if domain.isActive()])
        self.kernel.error = None
        self._reboot_server(self.server, hard=True)

    def a_live_snapshot_stops_no_guest(self):
        self.kernel.error = fs.GroupError('refused')
        driver = self.computes['host_a'].driver
        guest = driver._host.get_guest(self.instance(self.server))
        driver._resume_guest_after_snapshot(
            None, True, power_state.RUNNING, self.instance(self.server),
            guest)
        self.assertTrue(guest.is_active())
        self.assertEqual([], self.kernel.enforced)

    def a_report_is_one_call_for_all_guests(self):
        driver = self.computes['host_a'].driver
        others = [self.boot(self.flavor(vcpus=1, mem_bw_min=30)),
                  self.boot(self.flavor(vcpus=1))]
        self.kernel.enforced.clear()
        before = self.kernel.reconciled
        driver._enforcer.reconcile_all_guests()
        self.assertEqual(before + 1, self.kernel.reconciled)
        self.assertEqual(2, len(self.kernel.enforced))
        for other in others:
            self._delete_server(other)

    def a_report_asks_for_the_xml_of_a_guest_once(self):
        self.boot(self.flavor(vcpus=1))
        driver = self.computes['host_a'].driver
        running = self.use_in_step(
            fixtures.MockPatchObject(
                driver._guests,
                'read_guest',
                side_effect=driver._guests.read_guest)).mock
        self._run_periodics()
        self.assertEqual(2, running.call_count)
        self.boot(self.flavor(vcpus=1))
        # Placement is told with each claim, too.
        self.assertEqual(2, running.call_count)

    def a_privileged_helper_that_is_gone_stops_no_report(self):
        with fixtures.MockPatch(
                'ghsched_nova.resctrl.privileged.reconcile_groups',
                side_effect=RuntimeError('privsep is gone')):
            self._run_periodics()

    def a_resctrl_that_is_gone_is_reported_for_each_guest(self):
        log = self.use_in_step(fixtures.FakeLogger(
            level=20, format='%(message)s'))
        self.kernel.vanish()
        self.computes['host_a'].driver._enforcer.reconcile_all_guests()
        self.assertIn('cannot enforce the bandwidth policy', log.output)
        self.assertIn('schemata cannot be read', log.output)
        self.kernel.write()

    def groups_of_others_are_not_offered_to_guests(self):
        before = self.offered_groups()
        for name in ('pqos-1', 'low_prio'):
            os.mkdir(os.path.join(self.kernel.path, name))
            with open(os.path.join(self.kernel.path, name, 'tasks'), 'w'):
                pass
        self._run_periodics()
        self.assertEqual(before - 2, self.offered_groups())
        # What others use comes out of what is kept for them.
        self.flags(reserved_control_groups=1, group='ghsched')
        self._run_periodics()
        self.assertEqual(before - 2, self.offered_groups())
        self.flags(reserved_control_groups=3, group='ghsched')
        self._run_periodics()
        self.assertEqual(before - 3, self.offered_groups())

    def offered_groups(self):
        record = self._get_provider_inventory(
            self.compute_rp_uuids['host_a'])[names.RESCTRL_GROUP]
        return record['total'] - record['reserved']

    def resize_on_the_same_host(self):
        self.flags(allow_resize_to_same_host=True)
        self.reserve(n0=0)
        with fixtures.MockPatch(MOVE_DISK, return_value='{}'):
            self._resize_server(self.server, self.flavor(mem_bw_min=70))
        self.assertEqual([0], self.host_nodes(self.server))
        self._confirm_resize(self.server)
        self.assert_agreement(self.server, 'host_a', [70])

    def delete_gives_everything_back(self):
        self.assertEqual([self.server['id']], [
            domain.UUIDString() for domain in self.domains('host_a')])
        self._delete_server(self.server)
        self.assertEqual([], self.domains('host_a'))
        self.assertEqual({}, self.bandwidth(self.server['id']))


class ToldTest(nova_base.GhschedTestCase):
    """Reasons that a tenant reads, who knows the flavor and not the host."""

    # As in a cloud; otherwise the API fails with the error.
    CAST_AS_CALL = False
    HOST_WORDS = re.compile(
        r'host_a|instance-0|sys/fs|schemata|MBMIN|NUMA node \d|'
        r'[0-9a-f]{4}:[0-9a-f]{2}:')

    def setUp(self):
        super().setUp()
        self.start_host()
        self.server = self.boot(self.flavor(mem_bw_min=30))

    def test_refused_operation_says_why_in_terms_of_the_flavor(self):
        self.take_steps(self.a_refused_resize_and_migration_say_why,
                        self.a_reboot_that_the_host_refuses_says_so,
                        self.a_start_that_all_hosts_refuse_says_why)

    def details(self, action):
        """Return the details of the failed events of a server's action, by
        event.
        """
        found, = (one for one in self.api.get_instance_actions(
            self.server['id']) if one['action'] == action)
        events = self.api.api_get(
            f'/servers/{self.server["id"]}/os-instance-actions/'
            f'{found["request_id"]}').body['instanceAction']['events']
        return {event['event']: event['details'] for event in events
                if event['result'] == 'Error'}

    def a_refused_resize_and_migration_say_why(self):
        # There is no other host to go to.
        for action, body in (
                ('resize', {'flavorRef': self.flavor(mem_bw_min=100)}),
                ('migrate', None)):
            self.api.post_server_action(self.server['id'], {action: body})
            self._wait_for_action_fail_completion(
                self.server, action, 'cold_migrate')
            reason = self.details(action)['ghsched_select_destinations']
            self.assertIn('which the request excludes', reason)
            self.assertNotRegex(reason, self.HOST_WORDS)
        self.assert_agreement(self.server, 'host_a', [30])

    def refuse_values(self):
        self.kernel.error = fs.GroupError(
            'the kernel refused the value', '/sys/fs/resctrl/qemu-1/schemata',
            'MBMIN:0=60', 22, 'MBMIN value out of range')

    def a_reboot_that_the_host_refuses_says_so(self):
        self.refuse_values()
        self.api.post_server_action(self.server['id'],
                                    {'reboot': {'type': 'HARD'}})
        self._wait_for_state_change(self.server, 'ERROR')
        fault = self.fault(self.server)
        self.assertIn('the host cannot hold the memory bandwidth of the '
                      'flavor (ghsched:mem_bw_*)', fault)
        self.assertNotRegex(fault, self.HOST_WORDS)
        self.assertIn('MBMIN value out of range', self.stdlog.logger.output)

    def a_start_that_all_hosts_refuse_says_why(self):
        self.start_host('host_b')
        self.refuse_values()
        log = self.useFixture(fixtures.FakeLogger(level=40))
        server = self.boot(self.flavor(mem_bw_min=30), 'ERROR')
        self.assertEqual(2, log.output.count('refusing to start a guest'))
        self.assertIn('the host cannot hold the memory bandwidth of the '
                      'flavor (ghsched:mem_bw_*)', self.fault(server))
        self.assertEqual({}, self.resources(server['id']))


class UncountedTest(nova_base.GhschedTestCase):
    """A guest that runs while Placement holds nothing for it."""

    def test_it_is_logged_and_reported_after_a_reboot_until_counted(self):
        log = self.useFixture(fixtures.FakeLogger(level=40,
                                                  format='%(message)s'))
        self.start_host()
        server = self.boot(self.flavor(mem_bw_min=60))
        self._run_periodics()
        self.assertEqual('', self.uncounted_reason(server))
        held = self.placement.get(f'/allocations/{server["id"]}',
                                  version='1.28').body
        self.placement.delete(f'/allocations/{server["id"]}')
        self._reboot_server(server, hard=True)
        self._run_periodics()
        reason = ('Placement has allocated 0 % memory bandwidth for it '
                  'instead of 60 %')
        self.assertIn(reason, self.uncounted_reason(server))
        self.assertIn(server['id'], log.output)
        self.assertIn(reason, log.output)
        self.placement.put(f'/allocations/{server["id"]}', {
            'allocations': held['allocations'], 'consumer_generation': None,
            'project_id': held['project_id'], 'user_id': held['user_id']},
            version='1.28')
        self._run_periodics()
        self.assertEqual('', self.uncounted_reason(server))

    def uncounted_reason(self, server):
        driver = self.computes['host_a'].driver
        found = driver._diagnostics.add_to_diagnostics(
            {}, driver._host.get_guest(self.instance(server)))
        return diagnostics.parse_guest_diagnostics(found).uncounted


class OwnGroupTest(nova_base.GhschedTestCase):
    """The libvirt of the host cannot use its resctrl."""

    def setUp(self):
        super().setUp()
        self.flags(memorytune_attributes='none', group='ghsched')
        self.start_host()
        self.server = self.boot(self.flavor(mem_bw_min=60))
        self.name = naming.render_own_group_name(self.server['id'])

    def test_group_comes_and_goes_with_the_guest(self):
        self.take_steps(
            self.the_group_is_made_here_and_the_xml_has_no_memorytune,
            self.it_goes_when_the_guest_stops_and_comes_when_it_starts,
            self.it_goes_with_a_suspended_guest_and_comes_with_a_resumed_one,
            self.it_goes_when_the_start_fails,
            self.one_that_was_left_behind_goes_with_the_next_report,
            self.it_goes_with_the_guest)

    def the_group_is_made_here_and_the_xml_has_no_memorytune(self):
        self.assertEqual([self.name], self.kernel.own_groups())
        self.assertNotIn('memorytune', self.domain('host_a', self.server))
        (uuid, vcpus, desired), *_ = self.kernel.enforced
        self.assertEqual((self.server['id'], [0, 1], {0: 60}),
                         (uuid, vcpus, desired['MBMIN']))

    def it_goes_with_the_guest(self):
        self._delete_server(self.server)
        self.assertEqual([], self.kernel.own_groups())

    def it_goes_when_the_guest_stops_and_comes_when_it_starts(self):
        self._stop_server(self.server)
        self.assertEqual([], self.kernel.own_groups())
        self._start_server(self.server)
        self.assertEqual([self.name], self.kernel.own_groups())

    def it_goes_with_a_suspended_guest_and_comes_with_a_resumed_one(self):
        self.api.post_server_action(self.server['id'], {'suspend': None})
        self._wait_for_state_change(self.server, 'SUSPENDED')
        self.assertEqual([], self.kernel.own_groups())
        self.api.post_server_action(self.server['id'], {'resume': None})
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.assertEqual([self.name], self.kernel.own_groups())

    def it_goes_when_the_start_fails(self):
        self.kernel.error = fs.GroupError('refused')
        self.boot(self.flavor(mem_bw_min=60), state='ERROR')
        self.assertEqual([self.name], self.kernel.own_groups())

    def one_that_was_left_behind_goes_with_the_next_report(self):
        left = naming.render_own_group_name(
            '8d0a1e5c-9a8e-4f2a-9d5b-6a5c5ad1e9a1'
        )
        os.mkdir(os.path.join(self.kernel.path, left))
        self._run_periodics()
        self.assertEqual([self.name], self.kernel.own_groups())


class NeverUnprotectedTest(nova_base.GhschedTestCase):
    """Starts of guests that Nova makes by ``guest.launch()``."""

    def setUp(self):
        super().setUp()
        self.flags(memorytune_attributes='none', group='ghsched')
        self.start_host()
        self.server = self.boot(self.flavor(mem_bw_min=60))
        self.driver = self.computes['host_a'].driver
        self.seen = []
        for name in ('createWithFlags', 'resume'):
            self.useFixture(fixtures.MonkeyPatch(
                f'nova.tests.fixtures.libvirt.Domain.{name}',
                self.noting(name, getattr(fakelibvirt.Domain, name))))
        self.kernel._enforce = self.noting('enforce', self.kernel._enforce)

    def noting(self, name, function):
        def noted(*args):
            self.seen.append((name, *args[1:]) if name == 'createWithFlags'
                             else name)
            return function(*args)
        return noted

    def guest(self):
        return self.driver._host.get_guest(self.instance(self.server))

    def snapshot(self):
        guest = self.guest()
        guest.poweroff()
        # Nova suspends it first, and then starts it in this.
        self.driver._resume_guest_after_snapshot(
            nova_context.get_admin_context(), False, power_state.RUNNING,
            self.instance(self.server), guest)

    def assert_in_order(self):
        self.assertEqual(
            [('createWithFlags', fakelibvirt.VIR_DOMAIN_START_PAUSED),
             'enforce', 'resume'], self.seen[:3])
        self.assertTrue(self.guest().is_active())

    def test_guest_is_started_paused_until_its_policy_is_enforced(self):
        self.take_steps(
            self.a_soft_reboot,
            self.a_cold_snapshot,
            self.one_that_cannot_be_protected_does_not_run,
            self.a_guest_without_a_policy_is_started_as_ever)

    def a_soft_reboot(self):
        self._reboot_server(self.server, hard=False)
        self.assert_in_order()
        self.seen.clear()

    def a_cold_snapshot(self):
        self.snapshot()
        self.assert_in_order()
        self.seen.clear()

    def one_that_cannot_be_protected_does_not_run(self):
        self.kernel.error = fs.GroupError('refused')
        self.assertRaises(exception.ComputeResourcesUnavailable,
                          self.snapshot)
        self.assertNotIn('resume', self.seen)
        self.assertFalse(self.guest().is_active())

    def a_guest_without_a_policy_is_started_as_ever(self):
        self.server = self.boot(self.flavor(vcpus=1))
        self.seen.clear()
        self.snapshot()
        self.assertEqual([('createWithFlags', 0)], self.seen)


class MeasuredTest(nova_base.GhschedTestCase):
    """A guest with ghsched:monitor alone, where libvirt has no resctrl."""

    def setUp(self):
        super().setUp()
        self.flags(memorytune_attributes='none', group='ghsched')
        self.start_host()
        self.server = self.boot(self.flavor(monitor='true'))
        self.name = naming.render_monitor_path(self.server['id'])

    def test_monitoring_group_comes_and_goes_with_the_guest(self):
        self.take_steps(
            self.one_that_can_not_be_measured_is_refused_with_the_reason,
            self.it_comes_and_goes_with_the_guest)

    def it_comes_and_goes_with_the_guest(self):
        self.assertNotIn('memorytune', self.domain('host_a', self.server))
        self.assertEqual([self.name], self.kernel.own_monitors())
        self.assertEqual([], self.kernel.own_groups())
        self._stop_server(self.server)
        self.assertEqual([], self.kernel.own_monitors())
        self._start_server(self.server)
        self.assertEqual([self.name], self.kernel.own_monitors())
        self._delete_server(self.server)
        self.assertEqual([], self.kernel.own_monitors())

    def one_that_can_not_be_measured_is_refused_with_the_reason(self):
        self.kernel.error = fs.GroupError(
            'there is no monitoring group left')
        self.boot(self.flavor(monitor='true'), state='ERROR')
        self.assertIn('there is no monitoring group left',
                      self.stdlog.logger.output)
        domains = self.computes['host_a'].driver._host.list_instance_domains
        self.assertEqual(1, len(domains()))


class MoveTest(nova_base.GhschedTestCase):
    """Moves from host_a node 0 to host_b, where only node 1 has bandwidth."""

    def setUp(self):
        super().setUp()
        self.start_host('host_a')
        self.start_host('host_b')
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']

    def boot_here(self, share=60):
        self.server = self.boot(self.flavor(mem_bw_min=share), host='host_a')
        self.assertEqual([0], self.host_nodes(self.server))
        self.reserve('host_b', n0=60)

    def assert_moved(self, share=60, host='host_b', node=1):
        self.assertEqual([node], self.host_nodes(self.server))
        self.assert_agreement(self.server, host, [share])

    def disk_moves(self):
        return fixtures.MockPatch(MOVE_DISK, return_value='{}')

    def test_server_has_its_bandwidth_wherever_it_goes(self):
        self.boot_here()
        self.take_steps(
            self.live_migration_renumbers_the_nodes,
            self.cold_migration_confirmed,
            self.cold_migration_reverted,
            self.resize_to_more_bandwidth,
            self.shelved_and_unshelved,
            self.evacuation)

    def live_migration_renumbers_the_nodes(self):
        self.kernel.enforced.clear()
        self._live_migrate(self.server, 'completed')
        self.assert_moved()
        self.assertIn({1: 60}, [desired['MBMIN'] for _domain, _vcpus, desired
                                in self.kernel.enforced])

    def cold_migration_confirmed(self):
        with self.disk_moves():
            self._migrate_server(self.server)
        self._confirm_resize(self.server)
        self._run_periodics()
        self.assert_moved(host='host_a', node=0)

    def cold_migration_reverted(self):
        with self.disk_moves():
            self._migrate_server(self.server)
        self.assert_moved()
        self._revert_resize(self.server)
        self.assert_moved(host='host_a', node=0)

    def resize_to_more_bandwidth(self):
        with self.disk_moves():
            self._resize_server(self.server, self.flavor(mem_bw_min=70))
        self.assert_moved(70)
        self._confirm_resize(self.server)

    def shelved_and_unshelved(self):
        self.flags(shelved_offload_time=0)
        with fixtures.MockPatch(
                'nova.virt.libvirt.driver.LibvirtDriver.snapshot'):
            self._shelve_server(self.server)
        self.reserve('host_a', n0=60)
        self._unshelve_server(self.server)
        self.assert_moved(70, host=self.host_of_server())

    def host_of_server(self):
        return self.api.get_server(
            self.server['id'])['OS-EXT-SRV-ATTR:host']

    def evacuation(self):
        old = self.host_of_server()
        new, = {'host_a', 'host_b'} - {old}
        self.stop_host(old)
        self._evacuate_server(self.server, expected_state='SHUTOFF',
                              expected_migration_status='done')
        self.assertEqual([1], self.host_nodes(self.server))
        self.assertEqual(70, self.bandwidth(self.server['id'])[
            self.provider(new, 1)])

    def test_an_evacuation_that_fails_holds_nothing_on_the_new_host(self):
        self.boot_here()
        self.stop_host('host_a')
        held = self.bandwidth(self.server['id'])
        nodes = self.host_nodes(self.server)
        self.kernel.error = fs.GroupError('refused')
        # The error reaches the API because this test runs casts as calls.
        self.assertRaises(client.OpenStackApiException,
                          self.api.post_server_action, self.server['id'],
                          {'evacuate': {}})
        self.assertEqual(held, self.bandwidth(self.server['id']))
        self.assertEqual(nodes, self.host_nodes(self.server))
        usages = self._get_provider_usages(self.compute_rp_uuids['host_b'])
        self.assertEqual(0, usages[names.RESCTRL_GROUP])

    def test_live_migration_where_libvirt_makes_no_groups(self):
        self.flags(memorytune_attributes='none', group='ghsched')
        self.boot_here()
        self._live_migrate(self.server, 'completed')
        self.assertEqual([1], self.host_nodes(self.server))
        domain = metadata.read_policy(self.domain('host_b', self.server))
        self.assertEqual((1,), domain.host_nodes)

    def test_cpus_lost_between_choice_and_claim_lead_to_the_next_host(self):
        self.reserve('host_a', n0=60)
        self.reserve('host_b', n0=60)
        claim = 'nova.compute.claims.Claim._test_numa_topology'
        from nova.compute import claims
        test, tried = claims.Claim._test_numa_topology, []

        def lost_once(this, *args, **kwargs):
            tried.append(this.nodename)
            if len(tried) == 1:
                return 'the CPUs are gone'
            return test(this, *args, **kwargs)

        with fixtures.MonkeyPatch(claim, lost_once):
            self.server = self.boot(self.flavor(mem_bw_min=60))
        self.assertEqual(2, len(set(tried)))
        self.assert_moved(host=self.host_of_server())
