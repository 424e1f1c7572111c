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

"""Task state of a server whose deletion confirms a resize."""

import types

from nova import exception

from ghsched_nova.nova_fixes import deleted_while_resized
from ghsched_placement.tests import base

OURS = {'ghsched:mem_bw_min': '10'}


class Instance:
    """A server as nova-api has it, and its record.

    :param stored: task state in the record once the resize is confirmed.
    :param taken: task state that another request saves before we do.
    """

    def __init__(self, task_state, specs, stored=None, taken=None):
        self.task_state, self.stored, self.taken = task_state, stored, taken
        self.flavor = types.SimpleNamespace(extra_specs=specs)
        self.saved = []

    def refresh(self):
        self.task_state = self.stored

    def save(self, expected_task_state):
        if self.taken is not None:
            self.stored = self.taken
        if self.stored not in expected_task_state:
            raise exception.UnexpectedTaskStateError(
                instance_uuid='u', expected={}, actual={})
        self.stored = self.task_state
        self.saved.append(self.task_state)


class ConfirmTest(base.TestCase):

    def confirm(self, *args, **kwargs):
        instance = Instance(*args, **kwargs)
        self.assertEqual('done', deleted_while_resized._confirm_resize(
            lambda *_args: 'done', None, None, instance))
        return instance

    def test_task_state_of_a_deletion_is_saved_again(self):
        for state in ('deleting', 'soft-deleting'):
            self.assertEqual([state], self.confirm(state, OURS).saved)

    def test_server_without_our_keys_is_left_alone(self):
        self.assertEqual([], self.confirm('deleting', {'hw:x': '1'}).saved)

    def test_other_task_states_are_left_alone(self):
        for state in (None, 'resize_prep'):
            self.assertEqual([], self.confirm(state, OURS).saved)
        self.assertEqual([], self.confirm('deleting', OURS,
                                          stored='deleting').saved)

    def test_task_state_that_somebody_else_saved_stays(self):
        instance = self.confirm('deleting', OURS, taken='rebooting')
        self.assertEqual(([], 'rebooting', 'rebooting'), (
            instance.saved, instance.stored, instance.task_state))
