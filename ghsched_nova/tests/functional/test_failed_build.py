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

"""Servers whose build fails when their guest runs already."""

import traceback

import fixtures
from nova.compute import task_states
from nova import objects
from oslo_messaging import exceptions as messaging

from ghsched_nova.nova_fixes import servers
from ghsched_nova.tests.functional import nova_base


class LostSaveTest(nova_base.GhschedTestCase):
    """The conductor does not answer one of the requests of a build."""

    def setUp(self):
        super().setUp()
        self.start_host()
        self.lost = None
        self.requests = 0
        save = objects.Instance.save

        def count_and_save(instance, *args, **kwargs):
            if any(frame.filename.endswith('nova/compute/manager.py')
                   for frame in traceback.extract_stack()):
                number, self.requests = self.requests, self.requests + 1
                if number == self.lost:
                    raise messaging.MessagingTimeout('no answer')
            return save(instance, *args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(
            'nova.objects.Instance.save', count_and_save))

    def test_nothing_is_left_whichever_request_is_lost(self):
        domains_of = {}
        # Nova leaves the server in BUILD if the first request is lost.
        for lost in range(1, self.count_requests_of_a_build()):
            self.lost, self.requests = lost, 0
            server = self.boot(self.flavor(mem_bw_min=60), 'ERROR')
            domains_of[lost] = self.domains('host_a')
            self.assertEqual({}, self.resources(server['id']))
        self.assertLess(3, len(domains_of))
        self.assertEqual(dict.fromkeys(domains_of, []), domains_of)

    def count_requests_of_a_build(self):
        self.requests = 0
        server = self.boot(self.flavor(mem_bw_min=60))
        found = self.requests
        self._delete_server(server)
        return found


class ConductorAwayTest(nova_base.GhschedTestCase):
    """The conductor does not answer when the server is to be saved."""

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(level=30))
        self.start_host()
        self.unanswered = 1
        save = objects.Instance.save

        def lost(instance, *args, **kwargs):
            if (kwargs.get('expected_task_state') == task_states.SPAWNING
                    and self.unanswered):
                self.unanswered -= 1
                raise messaging.MessagingTimeout('no answer')
            return save(instance, *args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(
            'nova.objects.Instance.save', lost))

    def list_leftovers(self):
        """Return the domains and the control groups of guests on the host."""
        return (self.domains('host_a'),
                [name for name in self.kernel.own_groups()
                 if name != 'ghsched-default'])

    def test_guest_does_not_run_on(self):
        server = self.boot(self.flavor(mem_bw_min=60), 'ERROR')
        # Nova takes the host away after it has set the server to ERROR.
        self._wait_for_server_parameter(
            server, {'OS-EXT-SRV-ATTR:host': None})
        self.assertEqual(([], []), self.list_leftovers())
        self.assertEqual({}, self.resources(server['id']))
        self.assertIn('destroying the guest', self.log.output)
        self.boot(self.flavor(mem_bw_min=60))

    def test_guest_that_cannot_be_destroyed_is_named(self):
        self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.driver.LibvirtDriver.destroy',
            side_effect=RuntimeError('libvirtd is away')))
        self.boot(self.flavor(mem_bw_min=60), 'ERROR')
        self.assertEqual(1, len(self.domains('host_a')))
        self.assertIn('cannot destroy the guest of this server',
                      self.log.output)
        self.assertIn('libvirtd is away', self.log.output)

    def test_other_servers_are_left_to_nova(self):
        self.boot(self.flavor(), 'ERROR')
        self.assertEqual(1, len(self.domains('host_a')))

    def test_guest_of_a_server_that_is_built_elsewhere_is_not_looked_for(self):
        self.unanswered = 0
        seen = self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.driver.LibvirtDriver.instance_exists')).mock
        self.useFixture(fixtures.MockPatch(
            'nova.virt.libvirt.driver.LibvirtDriver.spawn',
            side_effect=RuntimeError('no space')))
        server = self.boot(self.flavor(mem_bw_min=60), 'ERROR')
        self.assertTrue(servers.has_ghsched_flavor(self.instance(server)))
        seen.assert_not_called()
