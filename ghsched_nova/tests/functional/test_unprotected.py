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

"""Guests that start again on a host that cannot enforce their policy."""

import fixtures
from nova import context as nova_context
from nova import exception
from oslo_serialization import jsonutils

from ghsched_nova.guest import metadata
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import naming
from ghsched_nova.tests.functional import nova_base
from ghsched_placement.audit import diagnostics

NOTICE = 'ghsched.server.not_protected.'


class UnprotectedTestCase(nova_base.GhschedTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            level=30, format='%(levelname)s %(message)s'))
        self.start_host()
        self.server = self.boot(self.flavor(mem_bw_min=60))
        self.driver = self.computes['host_a'].driver

    def guest(self):
        return self.driver._host.get_guest(self.instance(self.server))

    def boot_host(self):
        """Start the guest by Nova, as nova-compute does after a reboot."""
        for domain in self.active():
            domain.destroy()
        self.driver.resume_state_on_host_boot(
            nova_context.get_admin_context(), self.instance(self.server), [],
            [], {'block_device_mapping': []})

    def active(self):
        """Return domains that run; Nova undefines one that it cannot start."""
        return [domain for domain in self.domains('host_a')
                if domain.isActive()]

    def lose_guarantees(self):
        """Remove the line for guarantees from the kernel."""
        path = f'{self.kernel.path}/schemata'
        with open(path) as stream:
            rows = [row for row in stream if 'MBMIN' not in row]
        with open(path, 'w') as stream:
            stream.writelines(rows)

    def notified(self):
        return [(sent['event_type'].removeprefix(NOTICE), sent['payload'])
                for sent in self.notifier.versioned_notifications
                if sent['event_type'].startswith(NOTICE)]

    def reason(self):
        return diagnostics.parse_guest_diagnostics(self.driver.get_diagnostics(
            self.instance(self.server))).not_held


class RefuseTest(UnprotectedTestCase):
    """The rule by default."""

    def test_guest_stays_off_after_a_boot_without_its_control(self):
        for lose in (self.lose_guarantees, self.kernel.vanish):
            lose()
            self.assertRaises(exception.ComputeResourcesUnavailable,
                              self.boot_host)
            self.assertEqual([], self.active())
        self.assertEqual([], self.notified())


class StartTest(UnprotectedTestCase):
    """[ghsched]unprotected_guests = start."""

    def setUp(self):
        super().setUp()
        self.flags(unprotected_guests='start', group='ghsched')

    def assert_unprotected(self, reason):
        self.assertTrue(self.guest().is_active())
        xml = self.domain('host_a', self.server)
        self.assertNotIn('memorytune', xml)
        self.assertEqual([60], [node.minimum for node in
                                metadata.read_policy(xml).policy.nodes])
        self.assertIn(reason, self.driver._ghsched.not_held[
            self.server['id']])
        self.assertRegex(
            self.log.output, 'ERROR ghsched: cannot enforce the bandwidth '
            r'policy of a guest; starting it unprotected .*' + reason)
        (word, payload), = self.notified()
        self.assertEqual(('start', 'host_a', self.server['id']),
                         (word, payload['host'], payload['server']))
        self.assertIn(reason, payload['reason'])
        jsonutils.dumps(payload)

    def assert_protected_again(self):
        self.kernel.write()
        self.kernel.enforced.clear()
        self._run_periodics()
        self.assertEqual({}, self.driver._ghsched.not_held)
        self.assertEqual(('end', {'host': 'host_a',
                                  'server': self.server['id']}),
                         self.notified()[-1])
        self.assertEqual(
            [(self.server['id'], {0: 60})],
            [(domain, desired['MBMIN']) for domain, _vcpus, desired
             in self.kernel.enforced])
        self.assertEqual([naming.render_own_group_name(self.server['id'])],
                         self.kernel.own_groups())

    def test_boot_without_guarantees_starts_and_a_later_report_protects(self):
        self.lose_guarantees()
        self.boot_host()
        self.assert_unprotected('mem_bw_min')
        self._run_periodics()
        self.assertEqual(1, len(self.notified()))
        self.assert_protected_again()

    def test_boot_without_resctrl_starts_and_a_later_report_protects(self):
        self.kernel.vanish()
        self.boot_host()
        self.assert_unprotected('schemata cannot be read')
        self.assertIn('schemata cannot be read', self.reason())
        self.assert_protected_again()
        self.assertEqual('', self.reason())

    def test_next_start_on_a_host_that_can_has_limits_in_its_xml(self):
        self.lose_guarantees()
        self.boot_host()
        self.kernel.write()
        self._reboot_server(self.server, hard=True)
        self.assert_agreement(self.server, 'host_a', [60])

    def test_start_that_the_kernel_refuses_runs_and_is_reported(self):
        self._stop_server(self.server)
        self.kernel.error = fs.GroupError('refused')
        self._start_server(self.server)
        self.assertTrue(self.guest().is_active())
        self.assertIn('refused', self.reason())
        self.assertEqual(['start'], [word for word, _ in self.notified()])

    def test_error_that_is_not_of_bandwidth_stops_the_guest(self):
        self.kernel.error = RuntimeError('boom')
        self.assertRaises(RuntimeError, self.boot_host)
        self.assertEqual([], self.active())

    def test_new_guest_is_refused(self):
        flavor = self.flavor(mem_bw_min=20)
        self.kernel.error = fs.GroupError('refused')
        self.boot(flavor, state='ERROR')
        self.kernel.vanish()
        self.boot(flavor, state='ERROR')
        self.assertEqual(1, len(self.domains('host_a')))

    def test_resized_guest_that_arrives_is_refused(self):
        self.start_host('host_b')
        self.flags(allow_resize_to_same_host=False)
        with fixtures.MockPatch(
                'nova.virt.libvirt.driver.LibvirtDriver.'
                'migrate_disk_and_power_off', return_value='{}'):
            self.kernel.error = fs.GroupError('refused')
            self.assertRaises(nova_base.ApiException, self._migrate_server,
                              self.server, expected_state='ERROR')
        self.assertFalse([domain for domain in self.domains('host_b')
                          if domain.isActive()])

    def test_guest_without_a_policy_is_not_reported(self):
        self.flags(default_bandwidth_max=50, group='ghsched')
        self.server = self.boot(self.flavor(vcpus=1))
        self.kernel.vanish()
        self.boot_host()
        self.assertTrue(self.guest().is_active())
        self.assertEqual([], self.notified())
