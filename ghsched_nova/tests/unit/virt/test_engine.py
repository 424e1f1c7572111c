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

import fixtures
from oslo_config import cfg
import testtools

from ghsched_nova import conf
from ghsched_nova.guest import metadata
from ghsched_nova.resctrl import apply
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import own
from ghsched_nova.resctrl import reconcile
from ghsched_nova.tests.unit.resctrl import base
from ghsched_nova.virt import desired
from ghsched_nova.virt import engine
from ghsched_placement import names
from ghsched_placement.policy import GuestPolicy
from ghsched_placement.policy import NodePolicy

UUID = '3f0c6a51-16d5-4d5e-8a0c-1f5b2b0d7c1{}'
PRIVILEGED = 'ghsched_nova.virt.engine.privileged.'


def running(number=1, policy=True, minimum=20, domain_id=None,
            shared=False):
    domain = model.Domain(UUID.format(number), number
                          if domain_id is None else domain_id, f'g{number}')
    xml = (f'<domain><name>{domain.name}</name><uuid>{domain.uuid}</uuid>'
           '<vcpu>2</vcpu></domain>')
    if policy:
        xml = metadata.write(xml, metadata.DomainPolicy(
            GuestPolicy(nodes=(NodePolicy(minimum=minimum),)), (0,), shared))
    return desired.Running(domain, xml)


class EngineTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.root = self.useFixture(fixtures.TempDir()).path
        self.log = self.useFixture(fixtures.FakeLogger(
            level=20, format='%(levelname)s %(message)s'))
        options = cfg.ConfigOpts()
        options([], project='nova', default_config_files=[],
                default_config_dirs=[])
        conf.register(options)
        self.options = options
        # The section, and what is set in it, is one for all ConfigOpts.
        for option in conf.OPTS:
            self.addCleanup(options.clear_override, option.name, 'ghsched')
        self.option('resctrl_path', self.root)
        self.engine = engine.HostEngine(options.ghsched)
        self.hosts = self.useFixture(fixtures.MockPatchObject(
            engine.HostEngine, 'host', return_value=base.openeuler())).mock
        self.call = self.useFixture(fixtures.MockPatch(
            PRIVILEGED + 'reconcile',
            return_value=reconcile.Report())).mock

    def option(self, name, value):
        self.options.set_override(name, value, 'ghsched')

    def reconcile(self, domains, groups=()):
        self.engine.running = lambda: domains
        with mock.patch.object(self.engine, 'groups',
                               return_value=frozenset(groups)):
            return self.engine.reconcile()

    def group(self, name):
        os.mkdir(os.path.join(self.root, name))
        with open(os.path.join(self.root, name, 'tasks'), 'w'):
            pass

    def test_all_guests_are_one_call_and_one_look_at_the_host(self):
        guests = [running(number) for number in (1, 2, 3)]
        self.assertEqual((), self.reconcile(
            [*guests, running(4, policy=False)], ['pqos']))
        wanted = self.call.call_args.args[2]
        self.assertEqual(3, len(wanted.guests))
        self.assertEqual(4, len(wanted.domains))
        self.assertEqual(frozenset(), wanted.removable)
        self.assertEqual(1, self.hosts.call_count)

    def test_a_directory_that_anybody_can_lock_is_told(self):
        os.chmod(self.root, 0o750)
        self.engine.warn_of_open_directory()
        self.assertEqual('', self.log.output)
        os.chmod(self.root, 0o555)
        self.engine.warn_of_open_directory()
        self.assertIn(f'any user of this host can lock {self.root}',
                      self.log.output)
        self.option('resctrl_path', '/nowhere')
        self.engine.warn_of_open_directory()

    def test_a_host_without_policies_asks_nobody(self):
        self.reconcile([running(policy=False)], ['pqos'])
        self.call.assert_not_called()
        self.hosts.assert_not_called()

    def test_groups_that_were_left_are_looked_after_all_the_same(self):
        self.reconcile([], ['qemu-1-x-vcpus_0', 'info'])
        self.assertEqual({'qemu-1-x-vcpus_0'},
                         self.call.call_args.args[2].removable)

    def test_what_was_done_is_logged_with_its_reason(self):
        self.call.return_value = reconcile.Report(
            (model.Action('write line', 'g', 'MB is 9', 'u', 'MB:0=1\n'),
             model.Action('move threads', 'g', 'away', 'u',
                          threads=(7, 8))))
        self.reconcile([running()], [])
        self.assertEqual(
            'INFO ghsched: g: write line MB:0=1, because MB is 9\n'
            'INFO ghsched: g: move threads 7, 8, because away\n',
            self.log.output)

    def test_no_guest_is_silently_without_its_policy(self):
        refused = running(2, minimum=20)
        guest = desired.read(base.openeuler(), running(1))
        with mock.patch.object(engine.desired, 'read', side_effect=[
                desired.DomainError('no'), guest]):
            problem, = self.reconcile([refused, running(1)], [])
        self.assertEqual((refused.domain.uuid, 'no'),
                         (problem.guest, problem.reason))
        self.hosts.side_effect = resctrl_host.ResctrlUnavailable('unmounted')
        self.assertEqual(['unmounted'] * 2, [
            problem.reason for problem in
            self.reconcile([refused, running(1)], [])])
        self.hosts.side_effect = None
        self.call.side_effect = apply.EnforcementError('locked')
        self.assertEqual(['locked'] * 2, [
            problem.reason for problem in
            self.reconcile([refused, running(1)], [])])

    def test_a_domain_that_has_just_ended_is_left_out(self):
        self.reconcile([running(1), running(2, domain_id=-1)], [])
        wanted = self.call.call_args.args[2]
        self.assertEqual([UUID.format(1)],
                         [domain.uuid for domain in wanted.domains])

    def test_groups_of_others_are_not_what_guests_may_have(self):
        for name in ('pqos', 'qemu-5-plain-vcpus_0', 'info',
                     'ghsched-' + UUID.format(1)):
            self.group(name)
        self.assertEqual(30, self.engine.describe().control_groups)
        self.call.return_value = reconcile.Report(
            foreign=('pqos', 'qemu-5-plain-vcpus_0'))
        self.reconcile([running()], [])
        self.assertEqual(29, self.engine.describe().control_groups)
        os.unlink(os.path.join(self.root, 'pqos', 'tasks'))
        self.assertEqual(30, self.engine.describe().control_groups)

    def test_others_use_what_is_kept_for_them(self):
        self.group('pqos')
        self.option('reserved_control_groups', 3)
        self.assertEqual(28, self.engine.describe().control_groups)

    def test_a_guest_that_starts_is_looked_after_by_itself(self):
        self.assertFalse(self.engine.enforce(1, running().xml))
        wanted = self.call.call_args.args[2]
        self.assertEqual([running().domain],
                         [guest.domain for guest in wanted.guests])
        self.assertEqual((running().domain,), wanted.domains)
        self.assertEqual(frozenset(), wanted.removable)
        self.assertFalse(wanted.all_threads)
        self.call.reset_mock()
        self.assertFalse(self.engine.enforce(1, running(policy=False).xml))
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
                self.engine.enforce(number, guest.xml)
                self.assertEqual(number, parse.call_count)
            parse.reset_mock()
            self.reconcile([own, shared, tuned, running(4, policy=False)])
            self.assertEqual(3, parse.call_count)

    def devices(self, *numbers):
        """A guest with passthrough devices, and their IOMMU groups."""
        top = os.path.join(self.root, 'bus', 'pci', 'devices')
        os.makedirs(top)
        self.options.set_override('sysfs_path', self.root, 'ghsched')
        hostdevs = ''
        for slot, number in enumerate(numbers):
            device = os.path.join(top, f'0000:81:{slot:02x}.0')
            os.mkdir(device)
            if number is not None:
                os.symlink(f'../../../../kernel/iommu_groups/{number}',
                           os.path.join(device, 'iommu_group'))
            hostdevs += (
                "<hostdev mode='subsystem' type='pci'><source><address "
                f"domain='0x0000' bus='0x81' slot='0x{slot:02x}' "
                "function='0x0'/></source></hostdev>")
        guest = running()
        return desired.Running(guest.domain, guest.xml.replace(
            '</domain>', f'<devices>{hostdevs}</devices></domain>'))

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
        self.engine.enforce(1, guest.xml)
        wanted = self.call.call_args.args[2]
        self.assertFalse(wanted.devices)
        self.assertEqual({17, 4}, wanted.guests[0].devices)

    def test_a_kernel_that_can_not_control_devices_is_not_asked_to(self):
        guest = self.devices(17)
        self.options.set_override('control_devices', True, 'ghsched')
        self.hosts.return_value = base.intel()
        with mock.patch.object(engine.desired, 'read', return_value=(
                desired.read(base.openeuler(), guest))):
            self.reconcile([guest])
        wanted = self.call.call_args.args[2]
        self.assertEqual(frozenset(), wanted.guests[0].devices)

    def test_a_device_without_an_iommu_group_is_told(self):
        guest = self.devices(None)
        self.options.set_override('control_devices', True, 'ghsched')
        problem, = self.reconcile([guest])
        self.assertIn('0000:81:00.0 cannot be controlled', problem.reason)
        self.assertRaises(desired.DomainError, self.engine.enforce, 1,
                          guest.xml)

    def test_guests_that_share_start_with_all_others(self):
        others = [running(number, shared=True) for number in (1, 2, 3)]
        self.engine.running = lambda: others
        self.assertFalse(self.engine.enforce(2, others[1].xml))
        wanted = self.call.call_args.args[2]
        self.assertEqual(1, len({guest.group for guest in wanted.guests}))
        self.assertEqual([{0: 60}] * 3, [guest.desired['MBMIN']
                                         for guest in wanted.guests])
        self.assertEqual(128 - 32, wanted.monitors)
        self.assertEqual(3, wanted.monitors_per_group)
        self.call.return_value = reconcile.Report(
            problems=(model.Problem(UUID.format(1), 'g', 'no room'),))
        self.engine.enforce(2, others[1].xml)
        error = self.assertRaises(apply.EnforcementError,
                                  self.engine.enforce, 1, others[0].xml)
        self.assertIn('no room', str(error))

    def test_one_that_libvirt_does_not_describe_is_not_passed_over(self):
        """It starts, and its XML is known from before the others'."""
        guest = running(1, shared=True)
        for listed in ([desired.Running(guest.domain)], []):
            self.engine.running = lambda listed=listed: [
                *listed, running(2, shared=True)]
            self.engine.enforce(1, guest.xml)
            wanted = self.call.call_args.args[2]
            self.assertEqual({UUID.format(1), UUID.format(2)}, {
                one.domain.uuid for one in wanted.guests})
            self.assertEqual(2, len(wanted.domains))
            self.assertEqual({0: 40}, wanted.guests[0].desired['MBMIN'])

    def test_a_guest_that_has_ended_already_is_told_as_such(self):
        for shared in (False, True):
            error = self.assertRaises(
                apply.EnforcementError, self.engine.enforce, -1,
                running(1, shared=shared).xml)
            self.assertIn('does not run any more', str(error))
        self.call.assert_not_called()

    def test_who_would_share_a_group_is_counted(self):
        self.engine.running = lambda: [
            running(1, shared=True), running(2, shared=True), running(3),
            running(4, shared=True, minimum=30),
            running(5, shared=True, domain_id=-1)]
        for minimum, number, guests in ((20, 1, 2), (20, 3, 3), (20, 9, 3),
                                        (30, 1, 2), (30, 4, 1), (40, 4, 1)):
            self.assertEqual(guests, self.engine.together(
                UUID.format(number),
                GuestPolicy(nodes=(NodePolicy(minimum=minimum),)), (0,)))

    def test_a_guest_that_ends_leaves_the_group_that_it_shared(self):
        self.engine.running = lambda: [running(1, shared=True)]
        self.engine.forget(UUID.format(2))
        self.call.assert_not_called()
        self.group(running(1, shared=True).shared_group)
        self.engine.forget(UUID.format(2))
        self.call.assert_called_once()
        self.call.side_effect = RuntimeError('privsep is gone')
        self.engine.forget(UUID.format(2))
        self.assertIn('stay as they are', self.log.output)

    def test_a_guest_ends_whatever_privsep_raises(self):
        self.group(own.group_name(UUID.format(2)))
        for error in (apply.EnforcementError('busy'), OSError('no daemon'),
                      RuntimeError('privsep is gone')):
            with mock.patch(PRIVILEGED + 'remove_own', side_effect=error):
                self.engine.forget(UUID.format(2))
            self.assertIn(f'stays: {error}', self.log.output)

    def test_guests_that_share_are_told_with_their_groups(self):
        self.reconcile([running(1, shared=True), running(2, shared=True),
                        running(3)])
        told = self.engine.describe()
        self.assertEqual({UUID.format(1), UUID.format(2)},
                         told.sharing.keys())
        self.assertEqual(1, len(set(told.sharing.values())))
        told = self.engine.describe([
            running(4, shared=True), running(5, shared=True, minimum=30),
            running(6), running(7, policy=False)])
        self.assertEqual((4, 2), (len(told.sharing),
                                  len(set(told.sharing.values()))))

    def test_groups_that_can_be_shared_are_told_while_they_are_there(self):
        self.option('group_sharing', True)
        policy = GuestPolicy(nodes=(NodePolicy(minimum=20),))
        self.reconcile([running(1, shared=True)])
        self.assertEqual({}, self.engine.describe().shares)
        self.assertFalse(self.engine.can_join(policy, (0, 1)))
        self.group(running(1, shared=True).shared_group)
        self.assertEqual(
            {0: {names.shares_trait(policy.fingerprint, 0)}},
            self.engine.describe().shares)
        self.assertTrue(self.engine.can_join(policy, (0, 1)))
        self.assertFalse(self.engine.can_join(policy, (1,)))
        self.assertFalse(self.engine.can_join(policy, ()))
        self.option('group_sharing', False)
        self.assertEqual({}, self.engine.describe().shares)
        self.assertFalse(self.engine.can_join(policy, (0, 1)))

    def test_distances_are_read_where_they_matter(self):
        self.option('sysfs_path', self.root)
        self.assertEqual({}, self.engine.distances())
        self.assertEqual('', self.log.output)
        self.option('device_numa_nearest', True)
        self.assertEqual({}, self.engine.distances())
        self.assertIn('distances', self.log.output)
        for node, text in ((0, '10 21 40\n'), (1, '21 10 x\n'),
                           (8, '40 21 10\n')):
            path = os.path.join(self.root, f'devices/system/node/node{node}')
            os.makedirs(path)
            with open(os.path.join(path, 'distance'), 'w') as stream:
                stream.write(text)
        self.assertEqual({0: {0: 10, 1: 21, 8: 40}, 8: {0: 40, 1: 21, 8: 10}},
                         self.engine.distances())

    def measured(self, number=1):
        """A guest with a monitor alone, as it is started on this host."""
        bare = running(number, policy=False)
        return desired.Running(bare.domain, self.engine.render(
            bare.xml, GuestPolicy(monitor=True), ()))

    def old_kernel(self):
        self.hosts.return_value = base.openeuler(
            dialect=dialects.OPENEULER_510, num_closids=16, num_rmids=16,
            libvirt_reads=False, openeuler_libvirt_reads=False)

    def test_libvirt_makes_the_monitor_where_it_can(self):
        for dialect in dialects.ALL:
            self.hosts.return_value = base.openeuler(
                dialect=dialect, libvirt_reads=False)
            can = dialect is not dialects.OPENEULER_510
            for option, makes in (('auto', can), ('basic', True),
                                  ('extended', True), ('none', False)):
                self.option('memorytune_attributes', option)
                xml = self.measured().xml
                self.assertEqual(makes, '<monitor' in xml, dialect.name)
                self.assertEqual(makes, '<memorytune' in xml)
                # Once made, libvirt never looks after it.
                self.assertTrue(self.engine.promises(desired.of(xml)))

    def test_where_it_can_not_the_monitoring_group_is_ours(self):
        self.old_kernel()
        guest = self.measured()
        self.assertFalse(self.engine.enforce(1, guest.xml))
        wanted = self.call.call_args.args[2]
        self.assertEqual((['mon_groups/ghsched-' + UUID.format(1)],
                          frozenset()),
                         ([one.group for one in wanted.guests],
                          wanted.removable))
        self.call.return_value = reconcile.Report(problems=(
            model.Problem(UUID.format(1), 'g', 'no monitoring group'),))
        self.assertRaises(apply.EnforcementError, self.engine.enforce, 1,
                          guest.xml)
        self.assertEqual(1, len(self.reconcile([guest])))

    def test_a_measured_guest_is_among_the_capped_where_all_are(self):
        self.old_kernel()
        self.option('bandwidth_cap', 'hard')
        self.option('default_bandwidth_max', 40)
        guest = self.measured()
        self.reconcile([guest])
        (one,) = self.call.call_args.args[2].guests
        self.assertEqual((own.DEFAULT, True), (one.group, one.monitor))
        self.assertFalse(self.engine.promises(desired.of(guest.xml)))

    def test_monitoring_groups_of_guests_that_are_gone_are_removed(self):
        self.old_kernel()
        os.mkdir(os.path.join(self.root, 'mon_groups'))
        for name in ('ghsched-' + UUID.format(1), 'qemu-1-x-vcpus_0', 'pqos'):
            self.group('mon_groups/' + name)
        ours = 'mon_groups/ghsched-' + UUID.format(1)
        self.assertEqual({ours}, self.engine.groups())
        self.engine.forget(UUID.format(2))
        self.call.assert_not_called()
        self.engine.forget(UUID.format(1))
        self.assertEqual({ours}, self.call.call_args.args[2].removable)

    def test_what_monitoring_groups_take_from_control_groups(self):
        self.old_kernel()
        self.assertEqual(15, self.engine.describe().control_groups)
        os.mkdir(os.path.join(self.root, 'mon_groups'))
        for number in (1, 2):
            self.group('mon_groups/ghsched-' + UUID.format(number))
        self.assertEqual(13, self.engine.describe().control_groups)
        self.hosts.return_value = base.openeuler()      # ids to spare
        self.assertEqual(31, self.engine.describe().control_groups)

    def test_with_sharing_the_xml_leaves_the_group_to_us(self):
        policy = GuestPolicy(nodes=(NodePolicy(maximum=50),))
        xml = running(policy=False).xml
        self.assertIn('memorytune', self.engine.render(xml, policy, (1,)))
        self.option('group_sharing', 'on')
        xml = self.engine.render(xml, policy, (1,))
        self.assertNotIn('memorytune', xml)
        self.assertTrue(desired.of(xml).shared_group)

    def test_a_guest_keeps_the_kind_of_group_it_was_started_with(self):
        for shared in (True, False):
            for option in ('on', 'off'):
                self.option('group_sharing', option)
                self.reconcile([running(shared=shared)])
                guest, = self.call.call_args.args[2].guests
                self.assertEqual(shared, bool(guest.shared))

    def test_guests_without_a_policy_are_held_together(self):
        self.option('default_bandwidth_max', 40)
        tuned = running(3, policy=False)
        tuned = desired.Running(tuned.domain, tuned.xml.replace(
            '<vcpu>', '<cputune><memorytune vcpus="0"><node id="0" '
            'bandwidth="50"/></memorytune></cputune><vcpu>'))
        self.reconcile([running(1), running(2, policy=False), tuned])
        first, second = self.call.call_args.args[2].guests
        self.assertEqual(('', own.DEFAULT), (first.shared, second.shared))
        self.assertEqual({0: 40, 1: 40}, second.desired['MB'])
        told = self.engine.describe()
        self.assertEqual((30, {}), (told.control_groups, told.sharing))
        self.engine.running = lambda: [running(2, policy=False)]
        self.assertFalse(self.engine.enforce(2, running(2, policy=False).xml))
        self.assertEqual(own.DEFAULT,
                         self.call.call_args.args[2].guests[0].group)

    def test_a_cap_that_can_not_be_held_is_told_once(self):
        self.option('default_bandwidth_max', 40)
        self.hosts.return_value = base.openeuler(dialect=dialects.MPAM)
        problem, = self.reconcile([running(number, policy=False)
                                   for number in (1, 2)])
        self.assertEqual(('', own.DEFAULT), (problem.guest, problem.group))
        self.call.assert_not_called()

    def test_libvirt_groups_the_process_where_it_can_and_all_is_wanted(self):
        policy = GuestPolicy(nodes=(NodePolicy(maximum=50),))
        xml = running(policy=False).xml
        self.option('memorytune_attributes', 'basic')
        for threads, can, vcpus in (('all', True, False),
                                    ('all', False, True),
                                    ('vcpus', True, True)):
            self.option('control_threads', threads)
            self.engine.process_groups = can
            rendered = self.engine.render(xml, policy, (1,))
            self.assertEqual(vcpus, '<memorytune vcpus=' in rendered)
            self.assertIn('<memorytune', rendered)

    def test_all_threads_are_moved_when_a_guest_starts(self):
        self.option('control_threads', 'all')
        self.call.return_value = reconcile.Report(
            (model.Action('make group', 'g', 'none'),))
        self.assertTrue(self.engine.enforce(1, running().xml))
        self.assertTrue(self.call.call_args.args[2].all_threads)
        self.call.return_value = reconcile.Report(
            problems=(model.Problem('u', 'g', 'no room'),))
        error = self.assertRaises(apply.EnforcementError,
                                  self.engine.enforce, 1, running().xml)
        self.assertIn('no room', str(error))
