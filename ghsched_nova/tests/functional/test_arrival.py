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


"""A guest that arrives by live migration, and cannot be protected."""

import fixtures
from nova import context as nova_context
from nova import objects

from ghsched_nova.resctrl import fs
from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import openstack_base
from ghsched_placement.osc import host_commands
from ghsched_placement.providers import names

KIND = 'not-protected'


class ArrivalTest(openstack_base.CommandTestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(
            level=30, format='%(levelname)s %(message)s'))
        self.start_host('host_a')
        self.start_host('host_b')
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']
        self.server = self.boot(self.flavor(mem_bw_min=60), host='host_a')

    def migrate(self, error, expected='completed'):
        self.kernel.error = error
        self._live_migrate(self.server, expected)

    def state(self):
        record = self.api.get_server(self.server['id'])
        return record['status'], record['OS-EXT-SRV-ATTR:host']

    def drift(self):
        return [(found['kind'], found['text']) for found in
                self.json_of(host_commands.ShowHost, 'host_b')['drift']
                if found['kind'] == KIND]

    def notified(self):
        """Last words and payloads, without their constant part."""
        return [(sent['event_type'].rpartition('.')[2], sent['payload'])
                for sent in self.notifier.versioned_notifications
                if sent['event_type'].startswith(
                    'ghsched.server.not_protected.')]

    def assert_source_is_free(self):
        migration, = objects.MigrationList.get_by_filters(
            nova_context.get_admin_context(), {})
        self.assertEqual({}, self.bandwidth(migration.uuid))
        usages = self._get_provider_usages(self.compute_rp_uuids['host_a'])
        self.assertEqual(0, usages[names.RESCTRL_GROUP])

    def test_an_error_that_nobody_foresaw_is_as_any_other(self):
        self.migrate(RuntimeError('boom'))
        self.assertEqual(('ACTIVE', 'host_b'), self.state())
        self.assertIn('after its live migration to this host; retrying in the '
                      'next periodic task: boom', self.log.output)

    def test_it_runs_on_and_is_shown_until_a_report_has_repaired_it(self):
        self.migrate(fs.GroupError('refused there'))
        self.assertEqual(('ACTIVE', 'host_b'), self.state())
        self.assertRegex(self.log.output, 'cannot enforce .*refused there')
        self.assert_source_is_free()
        (kind, text), = self.drift()
        self.assertIn('refused there', text)
        self._run_periodics()
        self.assertEqual(1, len(self.drift()))
        (word, payload), = self.notified()
        self.assertEqual(('start', 'host_b', self.server['id']),
                         (word, payload['host'], payload['server']))
        self.assertIn('refused there', payload['reason'])
        self.kernel.error = None
        self.kernel.enforced.clear()
        self._run_periodics()
        self.assertEqual([], self.drift())
        self.assertEqual(('end', {
            'host': 'host_b', 'server': self.server['id']}),
            self.notified()[-1])
        self.assertIn({0: 60}, [desired['MBMIN'] for _domain, _vcpus, desired
                                in self.kernel.enforced])

    def refused(self):
        """The error reaches the API because this test runs casts as calls."""
        self.assertRaises(nova_base.ApiException, self._live_migrate,
                          self.server, 'error')

    def assert_it_stays(self, reason):
        self.assertEqual(('ACTIVE', 'host_a'), self.state())
        self.assertEqual(0, self._get_provider_usages(
            self.compute_rp_uuids['host_b'])[names.RESCTRL_GROUP])
        self.assertIn(reason, self.log.output)

    def test_a_destination_without_a_free_group_is_refused(self):
        self.kernel.take_groups(self.kernel.closids)
        self.refused()
        self.assert_it_stays('no control group is free')

    def test_a_destination_that_cannot_act_is_refused(self):
        self.kernel.unable = fs.GroupError('privsep is gone')
        self.refused()
        self.assert_it_stays('privsep is gone')
        self.kernel.unable = None
        self._live_migrate(self.server, 'completed')

    def test_it_is_asked_once_more_right_before_the_guest_leaves(self):
        self.lose_resctrl_after_check('host_b')
        self._live_migrate(self.server, 'failed')
        self.assert_it_stays('lost since')
