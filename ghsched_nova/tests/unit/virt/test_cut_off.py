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
        self.migration = SimpleNamespace(dest_compute='host_b')
        self.reset, self.finish = mock.Mock(__name__='reset'), mock.Mock()

    def ended(self, here):
        return cut_off.finishing(
            self.reset, lambda context, instance: self.migration,
            lambda instance: here, self.finish)(CONTEXT, self.instance)

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

    def test_so_is_one_that_was_not_copied_yet(self):
        self.migration = None
        self.ended(here=False)
        self.reset.assert_called_once_with(CONTEXT, self.instance)
