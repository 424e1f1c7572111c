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

"""Another policy for a guest that runs, with real Placement and Nova."""

import contextlib
import dataclasses
import errno
import threading
from unittest import mock

import fixtures
from lxml import etree
from nova.compute import task_states
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova import exception
from nova import objects
from nova.scheduler.client import report
from oslo_db import exception as db_exc
import oslo_messaging

from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.live_change import placement
from ghsched_nova.features.live_change import records
from ghsched_nova.features.live_change import rollback
from ghsched_nova.features.live_change import rpc
from ghsched_nova.features.live_change import server_lock
from ghsched_nova.features.live_change import servers
from ghsched_nova.guest import metadata
from ghsched_nova.host import compute_hooks
from ghsched_nova.nova_seams import compute
from ghsched_nova.nova_seams import shared
from ghsched_nova.resctrl import fs
from ghsched_nova.tests.functional import nova_base
from ghsched_placement.flavor import policy as policies
from ghsched_placement.providers import names
from ghsched_placement.tests import base

REFUSED = fs.GroupError(
    'the write was refused', '/sys/fs/resctrl/g/schemata', 'MBMIN:0=40',
    errno.EINVAL, 'MBMIN value out of range')


class LiveChangeTestCase(nova_base.GhschedTestCase):

    MEMORYTUNE = 'basic'
    SHARING = False

    def setUp(self):
        super().setUp()
        self.flags(memorytune_attributes=self.MEMORYTUNE,
                   group_sharing=self.SHARING, group='ghsched')
        self.start_host()
        self.server = self.boot(self.flavor(mem_bw_min=30, mem_bw_max=60))
        self.before = self.state()

    def change(self, dry_run=False, server=None, **keys):
        """change(mem_bw_max=40); None takes a key away."""
        uuid = (server or self.server)['id']
        wish = {f'ghsched:{key.replace("__", ".")}':
                None if value is None else str(value)
                for key, value in keys.items()}
        with records.open_cell_context(uuid) as context:
            return servers.change_server_policy(context, uuid, wish, dry_run)

    def tidy_up(self):
        """Give the server the policy of the flavor again."""
        self.change(mem_bw_min=30, mem_bw_max=60, mem_bw_hardlimit=None,
                    mem_bw_priority=None)
        self.assert_as_before()

    def refused(self, *words, **keys):
        error = self.assertRaises((errors.Refused, policies.PolicyError),
                                  self.change, **keys)
        for word in words:
            self.assertIn(word, str(error))
        return error

    # -- what a test looks at -------------------------------------------------

    def state(self, server=None):
        """All that must be as before when a change is refused."""
        server = server or self.server
        instance = self.instance(server)
        spec = objects.RequestSpec.get_by_instance_uuid(
            nova_context.get_admin_context(), server['id'])
        domain = self.fake_domain(server)
        return {
            'flavor': dict(instance.flavor.extra_specs),
            'task_state': instance.task_state,
            'request': dict(spec.flavor.extra_specs),
            'bandwidth': self.bandwidth(server['id']),
            'live': metadata.read_policy(domain.XMLDesc(0)),
            'stored': self.stored(domain),
        }

    def fake_domain(self, server=None, host='host_a'):
        connection = self.computes[host].driver._host.get_connection()
        return connection.lookupByUUIDString((server or self.server)['id'])

    def stored(self, domain):
        """Policy and caps that a restart of QEMU would use."""
        xml = domain.XMLDesc(2)
        return metadata.read_policy(xml), {
            int(node.get('id')): int(node.get('bandwidth')) for node in
            etree.fromstring(xml).findall('cputune/memorytune/node')}

    def assert_as_before(self):
        self.assertEqual(self.before, self.state())

    def assert_changed(self, minimum, maximum):
        state = self.state()
        node, = self.host_nodes(self.server)
        self.assertEqual({self.provider('host_a', node): minimum},
                         state['bandwidth'])
        for policy in (state['live'], state['stored'][0]):
            asked, = policy.policy.nodes
            self.assertEqual((minimum, maximum),
                             (asked.minimum, asked.maximum))
        for specs in (state['flavor'], state['request']):
            self.assertEqual((str(minimum), str(maximum)), (
                specs['ghsched:mem_bw_min'], specs['ghsched:mem_bw_max']))
        self.assertIsNone(state['task_state'])

    def last(self):
        """Return the values that the engine wrote last, by line."""
        return {line: set(values.values())
                for line, values in self.kernel.enforced[-1][2].items()}


class SuccessTest(LiveChangeTestCase):

    def test_new_policy_is_held_and_recorded_everywhere(self):
        self.take_steps(
            self.the_list_of_actions_has_it_with_its_reason,
            self.all_four_keys,
            self.the_same_values_write_nothing,
            self.a_dry_run_changes_nothing,
            self.the_cap_is_what_is_counted,
            self.a_hard_reboot_keeps_it,
            self.a_stopped_guest_has_it_when_it_starts,
            self.a_restarted_nova_compute_listens_again)

    def all_four_keys(self):
        shown = []
        with mock.patch.object(
                compute_hooks.ComputeHookCaller, 'refresh_guest',
                side_effect=lambda find: shown.append(
                    metadata.read_policy(find().xml))):
            plan = self.change(mem_bw_min=40, mem_bw_max=70,
                               mem_bw_hardlimit='false', mem_bw_priority=5)
        # The other features see the guest with its new policy.
        self.assertEqual([(40, 70)], [
            (one.policy.nodes[0].minimum, one.policy.nodes[0].maximum)
            for one in shown])
        self.assertTrue(plan.needed)
        self.assert_changed(40, 70)
        self.assertEqual({'MB': {70}, 'MBMIN': {40}, 'MBHDL': {0},
                          'MBPRI': {5}}, self.last())
        one, = plan.effective
        self.assertEqual((40, 70, False, 5), (
            one['min'], one['max'], one['hardlimit'], one['priority']))
        self.assertEqual({0: 70}, self.stored(self.fake_domain())[1])

    def the_list_of_actions_has_it_with_its_reason(self):
        self.change(mem_bw_min=40)
        self.refused(mem_bw_min=101)
        self.refused(mem_bw_min=90, mem_bw_max=80)
        found = [action for action in self.api.api_get(
            f'/servers/{self.server["id"]}/os-instance-actions'
        ).body['instanceActions'] if action['action'] == 'ghsched']
        self.assertEqual(3, len(found))
        events = [event for action in found for event in self.api.api_get(
            f'/servers/{self.server["id"]}/os-instance-actions/'
            + action['request_id']).body['instanceAction']['events']]
        self.assertEqual(['Error', 'Error', 'Success'],
                         sorted(event['result'] for event in events))

    def the_same_values_write_nothing(self):
        self.change(mem_bw_min=40, mem_bw_max=70)
        self.kernel.enforced.clear()
        with fixtures.MockPatch(
                'nova.objects.instance.Instance.save') as save:
            with fixtures.MockPatch(
                    'nova.scheduler.client.report.SchedulerReportClient.put'
            ) as put:
                plan = self.change(mem_bw_min=40, mem_bw_max=70)
        self.assertFalse(plan.needed)
        save.mock.assert_not_called()
        put.mock.assert_not_called()
        self.assertEqual([], self.kernel.enforced)

    def a_dry_run_changes_nothing(self):
        plan = self.change(dry_run=True, mem_bw_min=40)
        self.assertTrue(plan.needed)
        self.assert_as_before()
        self.refused('ghsched:mem_bw_min', dry_run=True, mem_bw_min=70)
        self.reserve(n0=50)
        self.refused('has 50 % of its memory bandwidth left',
                     '60 % are requested', dry_run=True, mem_bw_min=60)
        self.reserve(n0=0)

    def a_hard_reboot_keeps_it(self):
        self.change(mem_bw_min=40, mem_bw_max=70)
        self._reboot_server(self.server, hard=True)
        self.assert_changed(40, 70)
        self.assertEqual({0: 70}, self.tuned_nodes('host_a', self.server))

    def a_stopped_guest_has_it_when_it_starts(self):
        self._stop_server(self.server)
        plan = self.change(mem_bw_min=40, mem_bw_max=70)
        self.assertFalse(plan.guest.running)
        self._start_server(self.server)
        self.assert_changed(40, 70)

    def test_moves_are_scheduled_with_it(self):
        self.change(mem_bw_min=40, mem_bw_max=70)
        self.start_host('host_b')
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']
        self.reserve('host_b', n0=70)
        self._live_migrate(self.server, 'completed')
        self.assertEqual([1], self.host_nodes(self.server))
        self.assert_agreement(self.server, 'host_b', [40])
        self.assertEqual({1: 70}, self.tuned_nodes('host_b', self.server))
        with fixtures.MockPatch(
                'nova.virt.libvirt.driver.LibvirtDriver.'
                'migrate_disk_and_power_off', return_value='{}'):
            self._migrate_server(self.server)
        self._confirm_resize(self.server)
        self.assert_agreement(self.server, 'host_a', [40])

    def the_cap_is_what_is_counted(self):
        self.flags(bandwidth_accounting='max', group='ghsched')
        server = self.boot(self.flavor(mem_bw_max=30))
        self.change(server=server, mem_bw_max=40)
        self.assertEqual([40], list(self.bandwidth(server['id']).values()))
        self._delete_server(server)

    def a_restarted_nova_compute_listens_again(self):
        self.restart_compute_service('host_a')
        self.change(mem_bw_min=40, mem_bw_max=70)
        self.assert_changed(40, 70)


class EvacuatedTest(LiveChangeTestCase):

    def test_resources_counted_on_its_old_host_stay_until_it_is_back(self):
        """Nova removes them when that host is back; a change that is on its
        way then does not put them back.
        """
        self.start_host('host_b')
        node, = self.host_nodes(self.server)
        self.stop_host('host_a')
        self._evacuate_server(self.server, expected_state='SHUTOFF',
                              expected_migration_status='done')
        # A call to the host that is down would end after this time.
        self.flags(rpc_response_timeout=60)
        self.change(mem_bw_min=40)
        there, = self.host_nodes(self.server)
        self.assertEqual({self.provider('host_a', node): 30,
                          self.provider('host_b', there): 40},
                         self.bandwidth(self.server['id']))
        self.assertEqual('40', self.instance(
            self.server).flavor.extra_specs['ghsched:mem_bw_min'])

        root = self.compute_rp_uuids['host_a']
        client = report.SchedulerReportClient()
        shares = placement.GuestAllocation(
            client,
            self.server['id'],
            root,
            placement.map_numa_providers_to_nodes(root, [node]),
            {names.MEM_BW_PCT},
            frozenset(self.provider('host_b', number) for number in (0, 1)),
        )
        held = shares.read_allocated_amounts()
        client.remove_provider_tree_from_instance_allocation(
            nova_context.get_admin_context(), self.server['id'], root)
        left = self.bandwidth(self.server['id'])
        self.assertEqual('', rollback.restore_allocated_amounts(
            shares.write_amounts, held))
        self.assertEqual(left, self.bandwidth(self.server['id']))


class OwnGroupTest(LiveChangeTestCase):
    """nova-compute makes the group, and the XML has no memorytune."""

    MEMORYTUNE = 'none'

    def test_it_changes_as_well(self):
        self.change(mem_bw_min=40, mem_bw_max=70)
        self.assert_changed(40, 70)
        self.assertEqual(self.server['id'], self.kernel.enforced[-1][0])
        self.assertEqual({}, self.stored(self.fake_domain())[1])


class SharedGroupTest(LiveChangeTestCase):
    """Two guests of one policy in one group."""

    SHARING = True

    def setUp(self):
        super().setUp()
        self.other = self.boot(self.flavor(mem_bw_min=30, mem_bw_max=60))
        self.group, = self.kernel.own_groups()

    def test_guest_leaves_the_group_with_its_policy_and_comes_back(self):
        self.take_steps(
            self.a_refusal_leaves_it_in_the_group,
            self.it_leaves_the_group_and_comes_back,
            self.a_slow_report_does_not_keep_others_from_the_guest,
            self.placement_knows_at_once_of_the_group_that_it_takes,
            self.it_tells_what_the_group_holds,
            self.a_stopped_one_shares_when_it_starts_if_the_host_shares,
            self.one_that_runs_keeps_its_kind_of_group)

    def values(self):
        """Return (guarantee, cap) of the groups, by UUID of the guest."""
        return {uuid: tuple(min(desired[line].values())
                            for line in ('MBMIN', 'MB'))
                for uuid, _vcpus, desired in self.kernel.enforced[-2:]}

    def it_leaves_the_group_and_comes_back(self):
        self.change(mem_bw_min=20, mem_bw_max=50)
        self.assert_changed(20, 50)
        self.assertEqual({self.server['id']: (20, 50),
                          self.other['id']: (30, 60)}, self.values())
        self.assertEqual(2, len(self.kernel.own_groups()))
        self.change(mem_bw_min=30, mem_bw_max=60)
        self.assertEqual({self.server['id']: (60, 100),
                          self.other['id']: (60, 100)}, self.values())
        self.assertEqual([self.group], self.kernel.own_groups())

    def a_slow_report_does_not_keep_others_from_the_guest(self):
        free = threading.Event()

        def other():
            with compute.lock_instance(self.server['id']):
                free.set()

        def slow(*_args):
            threading.Thread(target=other, daemon=True).start()
            self.assertTrue(free.wait(base.GIVE_UP_S))
        endpoint = next(
            one for one in self.computes['host_a'].driver.rpc_endpoints
            if isinstance(one, rpc.PolicyEndpoint))
        with mock.patch.object(endpoint, '_changed', slow):
            self.change(mem_bw_min=20)
        self.assertTrue(free.is_set())
        self.assert_changed(20, 60)

    def count_free_groups(self):
        """Control groups that Placement offers."""
        root = self.compute_rp_uuids['host_a']
        record = self._get_provider_inventory(root)[names.RESCTRL_GROUP]
        return (record['total'] - record['reserved']
                - self._get_provider_usages(root)[names.RESCTRL_GROUP])

    def placement_knows_at_once_of_the_group_that_it_takes(self):
        before = self.count_free_groups()
        self.change(mem_bw_min=20)
        self.assertEqual(before - 1, self.count_free_groups())
        self.change(mem_bw_min=30)
        self.assertEqual(before, self.count_free_groups())

    def effective_of(self, plan):
        """Return the state of the host that the command shows: (guests,
        guarantee, cap).
        """
        one, = plan.effective
        return plan.guests, one['min'], one['max']

    def it_tells_what_the_group_holds(self):
        """The command shows the same values as ghsched-top, which reads the
        kernel.
        """
        self.assertEqual((1, 20, 50), self.effective_of(
            self.change(mem_bw_min=20, mem_bw_max=50)))
        self.assertEqual((2, 60, 100), self.effective_of(
            self.change(mem_bw_min=30, mem_bw_max=60, dry_run=True)))
        self.assertEqual((2, 60, 100), self.effective_of(
            self.change(mem_bw_min=30, mem_bw_max=60)))
        self.assertEqual((60, 100), self.values()[self.server['id']])
        self.assertEqual((2, 60, 100), self.effective_of(
            self.change(mem_bw_min=30)))    # nothing to do

    def a_stopped_one_shares_when_it_starts_if_the_host_shares(self):
        self._stop_server(self.server)
        self.assertEqual((2, 60, 100), self.effective_of(
            self.change(mem_bw_min=30, dry_run=True)))
        with self.step('where the host does not share'):
            self.flags(group_sharing=False, group='ghsched')
            self.assertEqual((1, 30, 60), self.effective_of(
                self.change(mem_bw_min=30, dry_run=True)))
        self._start_server(self.server)

    def one_that_runs_keeps_its_kind_of_group(self):
        self.flags(group_sharing=False, group='ghsched')
        self.assertEqual((2, 60, 100), self.effective_of(
            self.change(mem_bw_min=30)))
        self._reboot_server(self.server, hard=True)
        self.flags(group_sharing=True, group='ghsched')
        self.assertEqual((1, 30, 60), self.effective_of(
            self.change(mem_bw_min=30)))
        self._reboot_server(self.server, hard=True)

    def a_refusal_leaves_it_in_the_group(self):
        enforce = self.kernel._enforce

        def no_other_group(domain, guest):
            self.kernel.error = None if guest.group == self.group else (
                fs.GroupError('there is no control group left'))
            return enforce(domain, guest)

        self.kernel._enforce = no_other_group
        self.refused('no control group left', mem_bw_min=20)
        self._run_periodics()
        self.assert_as_before()
        self.assertEqual([self.group], self.kernel.own_groups())


class RefusedTest(LiveChangeTestCase):
    """Whoever refuses: all is as it was."""

    def test_change_is_refused_and_all_is_as_before(self):
        self.take_steps(
            self.placement_has_too_little_left,
            self.the_kernel_refuses,
            self.a_host_that_can_not_put_back_says_so,
            self.libvirt_is_not_there,
            self.a_database_is_not_there,
            self.the_record_of_the_instance_can_not_be_written,
            self.records_that_can_not_be_put_back_are_reported,
            self.something_else_happens_with_the_guest,
            self.something_else_begins_meanwhile,
            self.a_guest_in_another_state,
            self.a_guest_that_nobody_knows)

    def placement_has_too_little_left(self):
        self.reserve(n0=50)
        writes = len(self.kernel.enforced)
        self.refused('host NUMA node 0 has 50 %', '60 % are requested',
                     mem_bw_min=60)
        self.assert_as_before()
        self.assertEqual(writes, len(self.kernel.enforced))
        self.reserve(n0=0)

    def the_kernel_refuses(self):
        enforce, asked = self.kernel._enforce, []

        def once(*args):
            asked.append(args)
            self.kernel.error = REFUSED if len(asked) == 1 else None
            return enforce(*args)

        self.kernel._enforce = once
        self.refused('MBMIN value out of range', 'host_a', mem_bw_min=40)
        self.assert_as_before()
        self.assertEqual({'MB': {60}, 'MBMIN': {30}, 'MBHDL': {1},
                          'MBPRI': {3}}, self.last())

    def a_host_that_can_not_put_back_says_so(self):
        self.kernel.error = REFUSED
        error = self.assertRaises(errors.RollbackIncomplete, self.change,
                                  mem_bw_min=40)
        self.assertIn('its control group could not be restored', str(error))
        # It may hold the new values; nobody else is given what they need.
        self.assertEqual([40], list(self.bandwidth(self.server['id'])
                                    .values()))
        self.kernel.error = None
        self.change(mem_bw_min=30, mem_bw_max=60)
        self.assert_as_before()

    def libvirt_is_not_there(self):
        with fixtures.MockPatch(
                'nova.virt.libvirt.host.Host._get_domain',
                side_effect=exception.HypervisorUnavailable(host='host_a')):
            self.refused('Connection to the hypervisor is broken on host',
                         mem_bw_min=40)
        self.assert_as_before()

    def a_database_is_not_there(self):
        for name in ('ComputeNode.get_by_host_and_nodename',
                     'InstanceMapping.get_by_instance_uuid'):
            with fixtures.MockPatch(f'nova.objects.{name}',
                                    side_effect=db_exc.DBConnectionError):
                self.refused('DBConnectionError', mem_bw_min=40)
        self.assert_as_before()

    def refuse_the_flavor(self):
        """The database takes one with a guarantee of 40 % at a second try.
        """
        update = main_db_api.instance_extra_update_by_uuid
        answers = [RuntimeError('no database')]

        def once(context, uuid, values):
            if answers and '"ghsched:mem_bw_min": "40"' in values.get(
                    'flavor', ''):
                raise answers.pop()
            return update(context, uuid, values)

        return fixtures.MonkeyPatch(
            'nova.db.main.api.instance_extra_update_by_uuid', once)

    def the_record_of_the_instance_can_not_be_written(self):
        with self.refuse_the_flavor():
            self.refused('no database', mem_bw_min=40)
        self.assert_as_before()

    def records_that_can_not_be_put_back_are_reported(self):
        save, saved = objects.RequestSpec.save, []

        def once(spec):
            if saved:
                raise RuntimeError('no table')
            saved.append(spec)
            save(spec)

        with (fixtures.MonkeyPatch('nova.objects.RequestSpec.save', once),
              self.refuse_the_flavor()):
            error = self.assertRaises(errors.RollbackIncomplete, self.change,
                                      mem_bw_min=40)
        self.assertEqual('RuntimeError: no database', error.reason)
        left, = error.manual_steps
        self.assertIn("Nova's records", left)
        now = self.state()
        self.assertEqual('40', now['request']['ghsched:mem_bw_min'])
        # What the message says to do.
        self.change(mem_bw_min=40)
        self.change(mem_bw_min=30)
        self.assert_as_before()

    def something_else_happens_with_the_guest(self):
        instance = self.instance(self.server)
        instance.task_state = task_states.MIGRATING
        instance.save()
        self.refused('its task state is migrating', mem_bw_min=40)
        instance.task_state = None
        instance.save()
        self.assert_as_before()

    def something_else_begins_meanwhile(self):
        check = records.NovaRecords.lock_server

        def late(this):
            instance = self.instance(self.server)
            instance.task_state = task_states.MIGRATING
            instance.save()
            check(this)

        with fixtures.MonkeyPatch(
                'ghsched_nova.features.live_change.records.NovaRecords.'
                'lock_server', late):
            self.refused('another operation is in progress', mem_bw_min=40)
        instance = self.instance(self.server)
        self.assertEqual(task_states.MIGRATING, instance.task_state)
        instance.task_state = None
        instance.save()

    def test_a_resize_that_has_begun_keeps_its_task_state(self):
        """nova-compute gives the lock free when it starts."""
        save = records.NovaRecords.save_extra_specs

        def late(this, extra_specs):
            self.take_the_lock()
            save(this, extra_specs)

        with fixtures.MonkeyPatch(
            'ghsched_nova.features.live_change.records.NovaRecords.'
            'save_extra_specs', late
        ):
            error = self.assertRaises(errors.RollbackIncomplete, self.change,
                                      mem_bw_min=40)
        self.assertIn('another request has taken over', str(error))
        instance = self.instance(self.server)
        self.assertEqual(task_states.RESIZE_PREP, instance.task_state)
        # The host does nothing for who has lost the lock, and keeps the new
        # policy, for which there is room.
        self.assertEqual(40, self.state()['live'].policy.nodes[0].minimum)
        self.assertEqual([40], list(self.bandwidth(self.server['id'])
                                    .values()))

    def take_the_lock(self):
        """Set the task state as a restart of nova-compute does, and then
        nova-api for a resize.
        """
        instance = self.instance(self.server)
        instance.task_state = None
        instance.save()
        instance.task_state, instance.progress = task_states.RESIZE_PREP, 0
        instance.save(expected_task_state=[None])

    def a_guest_in_another_state(self):
        self.api.post_server_action(self.server['id'], {'suspend': None})
        self._wait_for_state_change(self.server, 'SUSPENDED')
        self.refused('the server is suspended', mem_bw_min=40)
        self.api.post_server_action(self.server['id'], {'resume': None})
        self._wait_for_state_change(self.server, 'ACTIVE')

    def a_guest_that_nobody_knows(self):
        error = self.assertRaises(
            errors.GuestGone, self.change, mem_bw_min=40,
            server={'id': '8d0a1e5c-9a8e-4f2a-9d5b-6a5c5ad1e9a1'})
        self.assertIn('Nova has no server', str(error))


class AbandonedTest(LiveChangeTestCase):
    """A change was killed, and has left the server locked."""

    def test_lock_is_taken_over_once_it_is_old_and_the_host_answers(self):
        self.take_steps(
            self.lock_of_a_killed_change_is_taken_over_when_it_is_old,
            self.old_lock_is_removed_by_a_change_that_needs_nothing_else,
            self.old_lock_is_not_taken_over_while_the_host_is_silent,
            self.one_of_two_changes_takes_an_old_lock_over)

    def refused(self, *words, **keys):
        error = super().refused(*words, **keys)
        self.assertNotIn('host_a', str(error))

    def die_in(self, *steps):
        """Run a change in a process that dies in one of some steps."""
        class Killed(BaseException):
            pass

        def die(*_args):
            raise Killed
        with contextlib.ExitStack() as dying:
            # A process that has died does not roll back either.
            for path in ('rollback._run_undo_step', *steps):
                dying.enter_context(fixtures.MonkeyPatch(
                    f'ghsched_nova.features.live_change.{path}', die))
            self.assertRaises(Killed, self.change, mem_bw_min=40)

    def lock_of_a_killed_change_is_taken_over_when_it_is_old(self):
        for step in ('placement.GuestAllocation.write_amounts',
                     'records.NovaRecords.save_extra_specs'):
            self.die_in(step)
            self.assertEqual(task_states.RESIZE_PREP,
                             self.instance(self.server).task_state)
            self.refused('in progress for', 'can take over', mem_bw_min=45)
            self.make_the_lock_old()
            self.change(mem_bw_min=45, mem_bw_max=70)
            self.assert_changed(45, 70)
            self.change(mem_bw_min=30, mem_bw_max=60)

    def old_lock_is_removed_by_a_change_that_needs_nothing_else(self):
        self.die_in('placement.GuestAllocation.write_amounts')
        self.make_the_lock_old()
        self.change(mem_bw_min=30, mem_bw_max=60)
        self.assert_as_before()

    def old_lock_is_not_taken_over_while_the_host_is_silent(self):
        self.die_in('placement.GuestAllocation.write_amounts')
        self.make_the_lock_old()
        locked = self.instance(self.server).system_metadata
        with fixtures.MonkeyPatch(
                'ghsched_nova.features.live_change.rpcapi.HostClient.'
                'cancel_call', self.be_silent):
            self.refused('may still carry it out', mem_bw_min=45)
        self.assertEqual(locked, self.instance(self.server).system_metadata)

    def be_silent(self, *_args):
        raise errors.HostSilent('silent')

    def one_of_two_changes_takes_an_old_lock_over(self):
        self.die_in('placement.GuestAllocation.write_amounts')
        self.make_the_lock_old()
        with records.open_cell_context(self.server['id']) as context:
            first, second = (records.NovaRecords(
                context, self.server['id'], 60) for _ in range(2))
            instance = second._instance()
            for one in (first, second):
                self.assertTrue(one.read_guest().abandoned)
            first.lock_server()
            with mock.patch.object(second, '_instance',
                                   return_value=instance):
                self.assertRaises(errors.Refused, second.lock_server)
            self.assertRaises(errors.TakenOver, second.check_lock)
            first.check_lock()
            first.unlock_server()
        self.assertIsNone(self.instance(self.server).task_state)

    def make_the_lock_old(self):
        instance = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), self.server['id'],
            expected_attrs=['system_metadata'])
        lock = server_lock.read_lock(instance)
        instance.system_metadata['ghsched_change'] = dataclasses.replace(
            lock, since=lock.since - lock.duration - 1).text
        instance.save()


class KnownTest(LiveChangeTestCase):

    def test_server_is_known_to_its_project_and_to_admins_alone(self):
        owner = self.instance(self.server).project_id

        def user(project, **more):
            return nova_context.RequestContext('user', project, **more)

        for caller in (user(owner), user('other', is_admin=True)):
            found = records.get_visible_server(self.server['id'], caller)
            self.assertEqual(self.server['id'], found.uuid)
            self.assertTrue(found.flavor.extra_specs)
            self.assertFalse(found.locked)
        self.assertRaises(errors.GuestGone, records.get_visible_server,
                          self.server['id'],
                          user('other'))
        for caller in (user(owner), user(owner, is_admin=True)):
            self.assertRaises(errors.GuestGone, records.get_visible_server,
                              '8d0a1e5c-9a8e-4f2a-9d5b-6a5c5ad1e9a1', caller)


class ConcurrencyTest(LiveChangeTestCase):

    def test_change_meets_writes_of_others(self):
        self.take_steps(self.another_change_of_the_allocation,
                        self.one_that_never_ends)

    def another_change_of_the_allocation(self):
        """Somebody writes it between our reading and writing: once more."""
        put, met = shared.get_placement_client().put, []

        def late(url, data, version=None):
            if '/allocations/' in url and not met:
                met.append(data)
                body = dict(data, allocations=self.placement.get(
                    url).body['allocations'])
                body['allocations'] = {
                    provider: {'resources': one['resources']}
                    for provider, one in body['allocations'].items()}
                self.assertEqual(204, put(url, body, version='1.37')
                                 .status_code)
            return put(url, data, version=version)

        with fixtures.MockPatchObject(shared.get_placement_client(), 'put',
                                      late):
            self.change(mem_bw_min=40, mem_bw_max=70)
        self.assertEqual(1, len(met))
        self.assert_changed(40, 70)

    def one_that_never_ends(self):
        class Conflict:
            status_code = 409

            def json(self):
                return {'errors': [{'code': 'placement.concurrent_update'}]}

        with fixtures.MockPatchObject(shared.get_placement_client(), 'put',
                                      return_value=Conflict()):
            self.refused('changed by other requests 5 times', mem_bw_min=40)
        self.assert_as_before()

    def test_a_guest_that_is_deleted_meanwhile(self):
        check = records.NovaRecords.lock_server

        def late(this):
            check(this)
            self.api.delete_server(self.server['id'])
            self._wait_until_deleted(self.server)

        with fixtures.MonkeyPatch(
                'ghsched_nova.features.live_change.records.NovaRecords.'
                'lock_server', late):
            self.assertRaises(errors.GuestGone, self.change, mem_bw_min=40)
        self.assertEqual({}, self.bandwidth(self.server['id']))


class SilentHostTest(LiveChangeTestCase):
    """The host does not answer in time."""

    def test_silent_host_gets_no_second_policy_and_no_late_one(self):
        self.take_steps(
            self.a_host_without_our_driver_is_asked_for,
            self.a_host_that_is_down_is_not_waited_for,
            self.a_lost_answer,
            self.a_request_that_comes_late_is_not_carried_out,
            self.nobody_knows_what_the_host_did)

    def silence(self, *methods, does=False):
        """Make calls of these methods time out.

        :param does: whether the host does it, and only its answer is lost.
        """
        call = oslo_messaging.rpc.client._CallContext.call

        def silent(this, context, method, **kwargs):
            lost = method in methods
            if not lost or does:
                answer = call(this, context, method, **kwargs)
            if lost:
                self.calls.append((method, kwargs))
                raise oslo_messaging.MessagingTimeout('no answer')
            return answer

        self.calls = []
        return fixtures.MonkeyPatch(
            'oslo_messaging.rpc.client._CallContext.call', silent)

    def a_host_without_our_driver_is_asked_for(self):
        with self.silence('check_policy'):
            self.refused('did not answer in time', 'host_a',
                         'GhschedLibvirtDriver', mem_bw_min=40)
        self.assert_as_before()

    def a_host_that_is_down_is_not_waited_for(self):
        service, = self.admin_api.get_services(binary='nova-compute')
        self.admin_api.put_service(service['id'], {'forced_down': True})
        with self.silence('check_policy'):
            error = self.refused(
                'nova-compute on the host of the server is down',
                mem_bw_min=40)
            self.refused('is down', mem_bw_min=40, dry_run=True)
        self.assertEqual([], self.calls)
        self.assertNotIn('host_a', str(error))
        self.assert_as_before()
        self.admin_api.put_service(service['id'], {'forced_down': False})
        self.change(mem_bw_min=40, mem_bw_max=70)
        self.assert_changed(40, 70)

    def a_lost_answer(self):
        with self.silence('set_policy', does=True):
            self.change(mem_bw_min=40, mem_bw_max=70)
        self.assert_changed(40, 70)

    def a_request_that_comes_late_is_not_carried_out(self):
        with self.silence('set_policy'):
            self.refused('the guest keeps its old policy', mem_bw_min=40)
        self.assert_as_before()
        (_method, request), = self.calls
        endpoint = next(
            one for one in self.computes['host_a'].driver.rpc_endpoints
            if isinstance(one, rpc.PolicyEndpoint))
        context = nova_context.get_admin_context()
        self.assertIn('cancelled the change', endpoint.set_policy(
            context, **request)['refused'])
        self.assertIn('not locked for this change', endpoint.set_policy(
            context, **{**request, 'token': 'another'})['refused'])
        self.assert_as_before()

    def nobody_knows_what_the_host_did(self):
        with self.silence('set_policy', 'policy_of', does=True):
            error = self.assertRaises(errors.RollbackIncomplete, self.change,
                                      mem_bw_min=20, mem_bw_max=70)
        self.assertIn('run this command again', str(error))
        # Less was asked for; what the host may still hold stays counted.
        self.assertEqual([30], list(self.bandwidth(self.server['id'])
                                    .values()))
        self.assertIsNone(self.instance(self.server).task_state)
        self.change(mem_bw_min=20, mem_bw_max=70)
        self.assert_changed(20, 70)
