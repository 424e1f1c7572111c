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


from types import SimpleNamespace
from unittest import mock

from nova.compute import power_state

from ghsched_nova.virt import cut_off
from ghsched_placement.tests import base

CONTEXT = object()


class FinishingTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.instance = SimpleNamespace(uuid='1',
                                        power_state=power_state.RUNNING)
        self.migration = SimpleNamespace(dest_compute='host_b',
                                         status='running')
        self.migrations = [self.migration]
        self.reset = mock.Mock(__name__='reset')
        self.finish, self.take_back = mock.Mock(), mock.Mock()

    def ended(self, here, stays=None):
        return cut_off.finishing(
            self.reset, lambda context, instance: self.migrations,
            lambda instance: here,
            lambda instance: here if stays is None else stays,
            self.finish, self.take_back)(CONTEXT, self.instance)

    def test_a_guest_that_has_gone_is_finished(self):
        self.ended(here=False)
        self.finish.assert_called_once_with(CONTEXT, self.instance,
                                            self.migration)
        self.reset.assert_not_called()

    def test_what_fails_keeps_nova_compute_from_nothing(self):
        self.finish.side_effect = RuntimeError('no answer')
        self.ended(here=False)
        self.assertEqual(power_state.NOSTATE, self.instance.power_state)

    def test_one_that_is_here_is_reset_by_nova(self):
        self.ended(here=True)
        self.reset.assert_called_once_with(CONTEXT, self.instance)
        self.finish.assert_not_called()
        self.assertEqual(power_state.RUNNING, self.instance.power_state)
        self.take_back.assert_called_once_with(CONTEXT, self.instance,
                                               self.migration)

    def test_one_that_is_copied_in_the_end_has_nothing_back(self):
        self.ended(here=True, stays=False)
        self.reset.assert_called_once_with(CONTEXT, self.instance)
        self.take_back.assert_not_called()

    def test_one_that_libvirt_was_not_told_to_copy_has_not_gone(self):
        self.migration.status = 'preparing'
        self.ended(here=False, stays=True)
        self.finish.assert_not_called()
        self.take_back.assert_called_once_with(CONTEXT, self.instance,
                                               self.migration)

    def test_what_is_not_given_back_keeps_nova_compute_from_nothing(self):
        self.take_back.side_effect = RuntimeError('no answer')
        self.ended(here=True)

    def test_one_without_a_migration_is_reset_by_nova(self):
        self.migrations = []
        self.ended(here=False)
        self.reset.assert_called_once_with(CONTEXT, self.instance)
