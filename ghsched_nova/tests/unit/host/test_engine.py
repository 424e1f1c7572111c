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

"""The engine looks after all guests of a host in one call."""

import os
from unittest import mock

from ghsched_nova.host import desired
from ghsched_nova.host import domain_xml
from ghsched_nova.host import engine
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import reconcile
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import sysfs
from ghsched_nova.tests.fixtures import captured
from ghsched_nova.tests.fixtures.engine_base import EngineTestCase
from ghsched_nova.tests.fixtures.engine_base import PRIVILEGED
from ghsched_nova.tests.fixtures.engine_base import running
from ghsched_nova.tests.fixtures.engine_base import UUID
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy


class HostFactsTest(EngineTestCase):
    """Facts of the host that the engine reports."""

    def test_a_directory_that_anybody_can_lock_is_reported(self):
        os.chmod(self.root, 0o750)
        self.engine.warn_if_any_user_can_lock()
        self.assertEqual('', self.log.output)
        os.chmod(self.root, 0o555)
        self.engine.warn_if_any_user_can_lock()
        self.assertIn(f'any user can lock the resctrl directory {self.root}',
                      self.log.output)
        self.option('resctrl_path', '/nowhere')
        self.engine.warn_if_any_user_can_lock()

    def test_groups_of_others_are_not_what_guests_may_have(self):
        for name in ('pqos', 'qemu-5-plain-vcpus_0', 'info',
                     'ghsched-' + UUID.format(1)):
            self.group(name)
        self.assertEqual(
            30, self.engine.describe_bandwidth_control().control_groups)
        self.call.return_value = reconcile.ReconcileReport(
            foreign=('pqos', 'qemu-5-plain-vcpus_0'))
        self.reconcile([running()], [])
        self.assertEqual(
            29, self.engine.describe_bandwidth_control().control_groups)
        os.unlink(os.path.join(self.root, 'pqos', 'tasks'))
        self.assertEqual(
            30, self.engine.describe_bandwidth_control().control_groups)

    def test_others_use_what_is_kept_for_them(self):
        self.group('pqos')
        self.option('reserved_control_groups', 3)
        self.assertEqual(
            28, self.engine.describe_bandwidth_control().control_groups)

    def test_overlap_of_l3_ways_that_lasts_is_logged_once(self):
        overlap = model.PolicyProblem(
            UUID.format(1), 'ghsched-' + UUID.format(1),
            'control group pqos has 3 ways of L3 0 that the guest has to '
            'itself')
        text = 'reserved for this guest (control group pqos'
        for overlaps, times in (((overlap,), 1), ((overlap,), 1), ((), 1),
                                ((overlap,), 2)):
            self.call.return_value = reconcile.ReconcileReport(
                overlaps=overlaps)
            self.assertEqual((), self.reconcile([running()], []))
            self.assertEqual(times, self.log.output.count(text))

    def test_distances_are_read_where_they_matter(self):
        self.option('sysfs_path', self.root)
        self.assertEqual({}, self.engine.read_distances().to_devices)
        self.assertEqual('', self.log.output)
        self.option('device_numa_nearest', True)
        self.assertEqual({}, self.engine.read_distances().to_devices)
        self.assertIn('distances', self.log.output)
        for node, text in ((0, '10 21 30 40\n'), (1, '21 10 x 21\n'),
                           (2, '10 21\n'), (8, '40 21 30 10\n')):
            path = os.path.join(self.root, f'devices/system/node/node{node}')
            os.makedirs(path)
            with open(os.path.join(path, 'distance'), 'w') as stream:
                stream.write(text)
        self.assertEqual({0: {0: 10, 1: 21, 2: 30, 8: 40},
                          8: {0: 40, 1: 21, 2: 30, 8: 10}},
                         self.engine.read_distances().to_devices)

    def test_distances_are_read_once_with_nearest_nodes(self):
        self.option('sysfs_path', self.root)
        for node, cpus, text in ((0, '0-3', '10 21'), (1, '', '21 10')):
            path = os.path.join(self.root, f'devices/system/node/node{node}')
            os.makedirs(path)
            for name, value in (('distance', text), ('cpulist', cpus)):
                with open(os.path.join(path, name), 'w') as stream:
                    stream.write(value + '\n')
        with mock.patch.object(sysfs, 'read_distances',
                               wraps=sysfs.read_distances) as read:
            found = self.engine.read_distances()
        read.assert_called_once()
        self.assertEqual(({1: 0}, {1: {0: 21}}),
                         (found.nearest, found.to_devices))


class GuestsTest(EngineTestCase):
    """Guests with groups of their own."""

    def test_all_guests_are_one_call_and_one_look_at_the_host(self):
        guests = [running(number) for number in (1, 2, 3)]
        self.assertEqual((), self.reconcile(
            [*guests, running(4, policy=False)], ['pqos']))
        wanted = self.call.call_args.args[2]
        self.assertEqual(3, len(wanted.guests))
        self.assertEqual(4, len(wanted.domains))
        self.assertEqual(frozenset(), wanted.removable)
        self.assertEqual(1, self.hosts.call_count)

    def test_a_host_without_policies_asks_nobody(self):
        self.reconcile([running(policy=False)], ['pqos'])
        self.call.assert_not_called()
        self.hosts.assert_not_called()

    def test_groups_that_were_left_are_looked_after_all_the_same(self):
        self.reconcile([], ['qemu-1-x-vcpus_0', 'info'])
        self.assertEqual({'qemu-1-x-vcpus_0'},
                         self.call.call_args.args[2].removable)

    def test_actions_are_logged_with_their_reason(self):
        self.call.return_value = reconcile.ReconcileReport(
            (model.Action('write line', 'g', 'MB is 9', 'u', 'MB:0=1\n'),
             model.Action('move threads', 'g', 'away', 'u',
                          threads=(7, 8))))
        self.reconcile([running()], [])
        self.assertEqual(
            'INFO ghsched: changed the resctrl settings of this host '
            '(g: write line MB:0=1) because MB is 9\n'
            'INFO ghsched: changed the resctrl settings of this host '
            '(g: move threads 7, 8) because away\n',
            self.log.output)

    def test_repairs_of_a_report_are_counted(self):
        self.call.return_value = reconcile.ReconcileReport(
            (model.Action('write line', 'g', 'MB is 9', 'u', 'MB:0=1\n'),))
        repaired = []
        self.engine.running = lambda: [running()]
        self.engine.reconcile_groups(repaired.extend)
        self.assertEqual(['write line'], repaired)

    def test_no_guest_is_silently_without_its_policy(self):
        refused = running(2, minimum=20)
        guest = desired.make_desired_groups(captured.openeuler(), running(1))
        with mock.patch.object(
            engine.desired,
            'make_desired_groups',
            side_effect=[desired.DomainError('no'), guest],
        ):
            problem, = self.reconcile([refused, running(1)], [])
        self.assertEqual((refused.domain.uuid, 'no'),
                         (problem.guest, problem.reason))
        self.hosts.side_effect = resctrl_host.ResctrlUnavailable('unmounted')
        self.assertEqual(['unmounted'] * 2, [
            problem.reason for problem in
            self.reconcile([refused, running(1)], [])])
        self.hosts.side_effect = None
        self.call.side_effect = fs.GroupError('locked')
        self.assertEqual(['locked'] * 2, [
            problem.reason for problem in
            self.reconcile([refused, running(1)], [])])

    def test_a_domain_that_has_just_ended_is_left_out(self):
        self.reconcile([running(1), running(2, domain_id=-1)], [])
        wanted = self.call.call_args.args[2]
        self.assertEqual([UUID.format(1)],
                         [domain.uuid for domain in wanted.domains])

    def test_a_guest_that_starts_is_looked_after_by_itself(self):
        self.assertFalse(self.engine.reconcile_guest(running()))
        wanted = self.call.call_args.args[2]
        self.assertEqual([running().domain],
                         [guest.domain for guest in wanted.guests])
        self.assertEqual((running().domain,), wanted.domains)
        self.assertEqual(frozenset(), wanted.removable)
        self.assertFalse(wanted.all_threads)
        self.call.reset_mock()
        self.assertFalse(self.engine.reconcile_guest(running(policy=False)))
        self.call.assert_not_called()

    def test_the_xml_of_a_guest_is_parsed_once(self):
        own, shared = (desired.Running(guest.domain, guest.xml.replace(
            '</domain>', '<devices/></domain>'))
            for guest in (running(), running(2, shared=True)))
        tuned = self.devices(17)
        self.options.set_override('control_devices', True, 'ghsched')
        with mock.patch.object(desired.etree, 'fromstring',
                               wraps=desired.etree.fromstring) as parse:
            for number, guest in enumerate((own, shared, tuned), 1):
                self.engine.reconcile_guest(guest)
                self.assertEqual(number, parse.call_count)
            parse.reset_mock()
            self.reconcile([*(desired.Running(one.domain, one.xml)
                              for one in (own, shared, tuned)),
                            running(4, policy=False)])
            self.assertEqual(3, parse.call_count)

    def test_a_guest_that_has_ended_already_is_reported_as_such(self):
        for shared in (False, True):
            error = self.assertRaises(
                fs.GroupError, self.engine.reconcile_guest,
                running(1, domain_id=-1, shared=shared))
            self.assertIn('is no longer running', str(error))
        self.call.assert_not_called()

    def test_a_guest_ends_whatever_privsep_raises(self):
        self.group(naming.render_own_group_name(UUID.format(2)))
        for error in (fs.GroupError('busy'), OSError('no daemon'),
                      RuntimeError('privsep is gone')):
            with mock.patch(PRIVILEGED + 'remove_own_group',
                            side_effect=error):
                self.engine.release_group(UUID.format(2))
            self.assertIn(f'control group of stopped guest {UUID.format(2)}; '
                          'retrying in the next periodic task: '
                          f'{error}', self.log.output)

    def test_a_guest_keeps_the_kind_of_group_it_was_started_with(self):
        for shared in (True, False):
            for option in ('on', 'off'):
                self.option('group_sharing', option)
                self.reconcile([running(shared=shared)])
                guest, = self.call.call_args.args[2].guests
                self.assertEqual(shared, bool(guest.shared))

    def test_libvirt_groups_the_process_where_it_can_and_all_is_wanted(self):
        policy = GuestPolicy(nodes=(NodePolicy(maximum=50),))
        xml = running(policy=False).xml
        self.option('memorytune_attributes', 'basic')
        for threads, can, vcpus in (('all', True, False),
                                    ('all', False, True),
                                    ('vcpus', True, True)):
            self.option('control_threads', threads)
            self.engine.domain_xml.libvirt = domain_xml.LibvirtFeatures(
                process_groups=can)
            rendered = self.engine.domain_xml.render_policy(xml, policy, (1,))
            self.assertEqual(vcpus, '<memorytune vcpus=' in rendered)
            self.assertIn('<memorytune', rendered)

    def test_all_threads_are_moved_when_a_guest_starts(self):
        self.option('control_threads', 'all')
        self.call.return_value = reconcile.ReconcileReport(
            (model.Action('make group', 'g', 'none'),))
        self.assertTrue(self.engine.reconcile_guest(running()))
        self.assertTrue(self.call.call_args.args[2].all_threads)
        self.call.return_value = reconcile.ReconcileReport(
            problems=(model.PolicyProblem('u', 'g', 'no room'),))
        error = self.assertRaises(fs.GroupError,
                                  self.engine.reconcile_guest, running())
        self.assertIn('no room', str(error))


class DevicesTest(EngineTestCase):
    """Passthrough devices of guests."""

    def test_devices_are_looked_after_where_that_is_asked_for(self):
        guest = self.devices(17, 4)
        self.reconcile([guest])
        wanted = self.call.call_args.args[2]
        self.assertFalse(wanted.devices)
        self.assertEqual(frozenset(), wanted.guests[0].devices)
        self.options.set_override('control_devices', True, 'ghsched')
        self.reconcile([guest])
        wanted = self.call.call_args.args[2]
        self.assertTrue(wanted.devices)
        self.assertEqual({17, 4}, wanted.guests[0].devices)
        self.engine.reconcile_guest(guest)
        wanted = self.call.call_args.args[2]
        self.assertFalse(wanted.devices)
        self.assertEqual({17, 4}, wanted.guests[0].devices)

    def test_a_kernel_that_can_not_control_devices_is_not_asked_to(self):
        guest = self.devices(17)
        self.options.set_override('control_devices', True, 'ghsched')
        self.hosts.return_value = captured.intel()
        with mock.patch.object(
            engine.desired,
            'make_desired_groups',
            return_value=(
                desired.make_desired_groups(captured.openeuler(), guest)
            ),
        ):
            self.reconcile([guest])
        wanted = self.call.call_args.args[2]
        self.assertEqual(frozenset(), wanted.guests[0].devices)

    def test_a_device_without_an_iommu_group_is_reported(self):
        guest = self.devices(None)
        self.options.set_override('control_devices', True, 'ghsched')
        problem, = self.reconcile([guest])
        self.assertIn('0000:81:00.0 cannot be controlled', problem.reason)
        self.assertRaises(desired.DomainError, self.engine.reconcile_guest,
                          guest)
