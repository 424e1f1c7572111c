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

"""Questions that nova-scheduler no longer asks with each request."""

import types

import fixtures
import nova.conf
from nova.scheduler import request_filter

from ghsched_nova.features.index import nova_seams
from ghsched_nova.nova_seams import scheduler
from ghsched_placement.tests import base

_NAME = '_should_filter_by_owner'


class ServiceVersionTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.answers = []

        def ask(_context):
            return self.answers.pop(0)
        self.useFixture(fixtures.MonkeyPatch(
            f'{request_filter.__name__}.{_NAME}', ask))
        nova_seams.cache_service_versions(60)

    def ask(self):
        return getattr(request_filter, _NAME)(None)

    def test_version_of_upgraded_hosts_is_read_once(self):
        self.answers = [True]
        self.assertEqual([True, True], [self.ask(), self.ask()])

    def test_version_of_older_hosts_is_read_again(self):
        self.answers = [False, True]
        self.assertEqual([False, True, True],
                         [self.ask() for _time in range(3)])


class NotifierTest(base.TestCase):

    def replace_notifier(self, *drivers):
        """Return whether a service with some drivers has another notifier."""
        section = types.SimpleNamespace(driver=list(drivers))
        self.patch(nova.conf, 'CONF', types.SimpleNamespace(
            oslo_messaging_notifications=section))
        manager = types.SimpleNamespace(notifier=None)
        scheduler.skip_unsent_notifications(manager)
        if manager.notifier is not None:
            manager.notifier.info(None, 'scheduler.event', {})
        return manager.notifier is not None

    def test_notifier_without_a_driver_renders_nothing(self):
        self.assertTrue(self.replace_notifier())
        self.assertTrue(self.replace_notifier('noop'))

    def test_notifier_with_a_driver_stays(self):
        self.assertFalse(self.replace_notifier('messagingv2'))
        self.assertFalse(self.replace_notifier('noop', 'log'))
