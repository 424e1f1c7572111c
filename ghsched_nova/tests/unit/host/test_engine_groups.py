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

"""Control groups that guests share, are measured in, or fall back to."""

import os

from ghsched_nova.host import desired
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import reconcile
from ghsched_nova.tests.fixtures import captured
from ghsched_nova.tests.fixtures.engine_base import EngineTestCase
from ghsched_nova.tests.fixtures.engine_base import running
from ghsched_nova.tests.fixtures.engine_base import UUID
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.providers import names


class SharingTest(EngineTestCase):
    """Guests that share a control group."""

    def test_guests_that_share_start_with_all_others(self):
        others = [running(number, shared=True) for number in (1, 2, 3)]
        self.engine.running = lambda: others
        self.assertFalse(self.engine.reconcile_guest(others[1]))
        wanted = self.call.call_args.args[2]
        self.assertEqual(1, len({guest.group for guest in wanted.guests}))
        self.assertEqual([{0: 60}] * 3, [guest.desired['MBMIN']
                                         for guest in wanted.guests])
        self.assertEqual(128 - 32, wanted.monitors)
        self.assertEqual(3, wanted.monitors_per_group)
        self.call.return_value = reconcile.ReconcileReport(
            problems=(model.PolicyProblem(UUID.format(1), 'g', 'no room'),))
        self.engine.reconcile_guest(others[1])
        error = self.assertRaises(fs.GroupError,
                                  self.engine.reconcile_guest, others[0])
        self.assertIn('no room', str(error))

    def test_one_that_libvirt_does_not_describe_is_not_passed_over(self):
        """The guest is starting; its XML was read before that of the others.
        """
        guest = running(1, shared=True)
        for listed in ([desired.Running(guest.domain)], []):
            self.engine.running = lambda listed=listed: [
                *listed, running(2, shared=True)]
            self.engine.reconcile_guest(guest)
            wanted = self.call.call_args.args[2]
            self.assertEqual({UUID.format(1), UUID.format(2)}, {
                one.domain.uuid for one in wanted.guests})
            self.assertEqual(2, len(wanted.domains))
            self.assertEqual({0: 40}, wanted.guests[0].desired['MBMIN'])

    def test_who_would_share_a_group_is_counted(self):
        self.engine.running = lambda: [
            running(1, shared=True), running(2, shared=True), running(3),
            running(4, shared=True, minimum=30),
            running(5, shared=True, domain_id=-1)]
        for minimum, number, guests in ((20, 1, 2), (20, 3, 3), (20, 9, 3),
                                        (30, 1, 2), (30, 4, 1), (40, 4, 1)):
            self.assertEqual(guests, self.engine.count_group_guests(
                UUID.format(number),
                GuestPolicy(nodes=(NodePolicy(minimum=minimum),)), (0,)))

    def test_a_guest_that_ends_leaves_the_group_that_it_shared(self):
        self.engine.running = lambda: [running(1, shared=True)]
        self.engine.release_group(UUID.format(2))
        self.call.assert_not_called()
        self.group(running(1, shared=True).shared_group)
        self.engine.release_group(UUID.format(2))
        self.call.assert_called_once()
        self.call.side_effect = RuntimeError('privsep is gone')
        self.engine.release_group(UUID.format(2))
        self.assertIn('cannot update shared resctrl groups',
                      self.log.output)

    def test_guests_that_share_are_reported_with_their_groups(self):
        self.reconcile([running(1, shared=True), running(2, shared=True),
                        running(3)])
        told = self.engine.describe_bandwidth_control()
        self.assertEqual({UUID.format(1), UUID.format(2)},
                         told.sharing.keys())
        self.assertEqual(1, len(set(told.sharing.values())))
        told = self.engine.describe_bandwidth_control([
            running(4, shared=True), running(5, shared=True, minimum=30),
            running(6), running(7, policy=False)])
        self.assertEqual((4, 2), (len(told.sharing),
                                  len(set(told.sharing.values()))))

    def test_groups_that_can_be_shared_are_reported_while_they_are_there(self):
        self.option('group_sharing', True)
        policy = GuestPolicy(nodes=(NodePolicy(minimum=20),))
        self.reconcile([running(1, shared=True)])
        self.assertEqual({}, self.engine.describe_bandwidth_control().shares)
        self.assertFalse(self.engine.can_join_shared_group(policy, (0, 1)))
        self.group(running(1, shared=True).shared_group)
        self.assertEqual(
            {0: {names.make_share_trait(policy.fingerprint, 0)}},
            self.engine.describe_bandwidth_control().shares)
        self.assertTrue(self.engine.can_join_shared_group(policy, (0, 1)))
        self.assertFalse(self.engine.can_join_shared_group(policy, (1,)))
        self.assertFalse(self.engine.can_join_shared_group(policy, ()))
        self.option('group_sharing', False)
        self.assertEqual({}, self.engine.describe_bandwidth_control().shares)
        self.assertFalse(self.engine.can_join_shared_group(policy, (0, 1)))

    def test_with_sharing_the_xml_leaves_the_group_to_us(self):
        policy = GuestPolicy(nodes=(NodePolicy(maximum=50),))
        xml = running(policy=False).xml
        self.assertIn('memorytune', self.engine.domain_xml.render_policy(
            xml, policy, (1,)))
        self.option('group_sharing', 'on')
        xml = self.engine.domain_xml.render_policy(xml, policy, (1,))
        self.assertNotIn('memorytune', xml)
        self.assertTrue(desired.parse_running_domain(xml).shared_group)


class MonitoringTest(EngineTestCase):
    """Guests that are measured."""

    def measured(self, number=1):
        """A guest with a monitor alone, as it is started on this host."""
        bare = running(number, policy=False)
        return desired.Running(bare.domain,
                               self.engine.domain_xml.render_policy(
                                   bare.xml, GuestPolicy(monitor=True), ()))

    def old_kernel(self):
        self.hosts.return_value = captured.openeuler(
            dialect=dialects.OPENEULER_510, num_closids=16, num_rmids=16,
            libvirt_reads=False, openeuler_libvirt_reads=False)

    def test_libvirt_makes_the_monitor_where_it_can(self):
        for dialect in dialects.ALL:
            self.hosts.return_value = captured.openeuler(
                dialect=dialect, libvirt_reads=False)
            can = dialect is not dialects.OPENEULER_510
            for option, makes in (('auto', can), ('basic', True),
                                  ('extended', True), ('none', False)):
                self.option('memorytune_attributes', option)
                xml = self.measured().xml
                self.assertEqual(makes, '<monitor' in xml, dialect.name)
                self.assertEqual(makes, '<memorytune' in xml)
                # Once made, libvirt never looks after it.
                self.assertTrue(
                    self.engine.needs_group(desired.parse_running_domain(xml))
                )

    def test_where_it_can_not_the_monitoring_group_is_ours(self):
        self.old_kernel()
        guest = self.measured()
        self.assertFalse(self.engine.reconcile_guest(guest))
        wanted = self.call.call_args.args[2]
        self.assertEqual((['mon_groups/ghsched-' + UUID.format(1)],
                          frozenset()),
                         ([one.group for one in wanted.guests],
                          wanted.removable))
        self.call.return_value = reconcile.ReconcileReport(problems=(
            model.PolicyProblem(UUID.format(1), 'g', 'no monitoring group'),))
        self.assertRaises(fs.GroupError, self.engine.reconcile_guest, guest)
        self.assertEqual(1, len(self.reconcile([guest])))

    def test_a_measured_guest_is_among_the_capped_where_all_are(self):
        self.old_kernel()
        self.option('bandwidth_cap', 'hard')
        self.option('default_bandwidth_max', 40)
        guest = self.measured()
        self.reconcile([guest])
        (one,) = self.call.call_args.args[2].guests
        self.assertEqual((naming.DEFAULT, True), (one.group, one.monitor))
        self.assertFalse(
            self.engine.needs_group(desired.parse_running_domain(guest.xml))
        )

    def test_monitoring_groups_of_guests_that_are_gone_are_removed(self):
        self.old_kernel()
        os.mkdir(os.path.join(self.root, 'mon_groups'))
        for name in ('ghsched-' + UUID.format(1), 'qemu-1-x-vcpus_0', 'pqos'):
            self.group('mon_groups/' + name)
        ours = 'mon_groups/ghsched-' + UUID.format(1)
        self.assertEqual({ours}, self.engine.list_resctrl_groups())
        self.engine.release_group(UUID.format(2))
        self.call.assert_not_called()
        self.engine.release_group(UUID.format(1))
        self.assertEqual({ours}, self.call.call_args.args[2].removable)

    def test_control_groups_taken_by_monitoring_groups(self):
        self.old_kernel()
        self.assertEqual(
            15, self.engine.describe_bandwidth_control().control_groups)
        os.mkdir(os.path.join(self.root, 'mon_groups'))
        for number in (1, 2):
            self.group('mon_groups/ghsched-' + UUID.format(number))
        self.assertEqual(
            13, self.engine.describe_bandwidth_control().control_groups)
        self.hosts.return_value = captured.openeuler()      # ids to spare
        self.assertEqual(
            31, self.engine.describe_bandwidth_control().control_groups)


class CapTest(EngineTestCase):
    """Guests that ask for nothing."""

    def test_guests_without_a_policy_are_held_together(self):
        self.option('default_bandwidth_max', 40)
        tuned = running(3, policy=False)
        tuned = desired.Running(tuned.domain, tuned.xml.replace(
            '<vcpu>', '<cputune><memorytune vcpus="0"><node id="0" '
            'bandwidth="50"/></memorytune></cputune><vcpu>'))
        self.reconcile([running(1), running(2, policy=False), tuned])
        first, second = self.call.call_args.args[2].guests
        self.assertEqual(('', naming.DEFAULT), (first.shared, second.shared))
        self.assertEqual({0: 40, 1: 40}, second.desired['MB'])
        told = self.engine.describe_bandwidth_control()
        self.assertEqual((30, {}), (told.control_groups, told.sharing))
        self.engine.running = lambda: [running(2, policy=False)]
        self.assertFalse(self.engine.reconcile_guest(running(2, policy=False)))
        self.assertEqual(naming.DEFAULT,
                         self.call.call_args.args[2].guests[0].group)

    def test_a_cap_that_can_not_be_held_is_reported_once(self):
        self.option('default_bandwidth_max', 40)
        self.hosts.return_value = captured.openeuler(dialect=dialects.MPAM)
        problem, = self.reconcile([running(number, policy=False)
                                   for number in (1, 2)])
        self.assertEqual(('', naming.DEFAULT), (problem.guest, problem.group))
        self.call.assert_not_called()
