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

import fixtures
from nova.compute import power_state
from nova.objects import fields

from ghsched_nova.nova_fixes import cut_off_live_migration as cut_off
from ghsched_nova.nova_fixes import failed_live_migration
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
        return cut_off.make_live_migration_reset(
            self.reset, lambda context, instance: self.migrations,
            lambda instance: here,
            lambda instance: here if stays is None else stays,
            self.finish, self.take_back)(CONTEXT, self.instance)

    def test_a_guest_that_has_gone_is_finished(self):
        self.ended(here=False)
        self.finish.assert_called_once_with(CONTEXT, self.instance,
                                            self.migration)
        self.reset.assert_not_called()

    def test_a_failure_does_not_stop_nova_compute(self):
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

    def test_one_that_libvirt_was_not_asked_to_copy_has_not_gone(self):
        self.migration.status = 'preparing'
        self.ended(here=False, stays=True)
        self.finish.assert_not_called()
        self.take_back.assert_called_once_with(CONTEXT, self.instance,
                                               self.migration)

    def test_a_failed_release_does_not_stop_nova_compute(self):
        self.take_back.side_effect = RuntimeError('no answer')
        self.ended(here=True)

    def test_one_without_a_migration_is_reset_by_nova(self):
        self.migrations = []
        self.ended(here=False)
        self.reset.assert_called_once_with(CONTEXT, self.instance)


class RollingBackTest(base.TestCase):

    def revert(self, live, error=None):
        revert = mock.Mock(side_effect=error, return_value='held')
        kind = fields.MigrationType
        return failed_live_migration.revert_allocation(
            revert, 'manager', CONTEXT, 'instance', mock.Mock(
                migration_type=kind.LIVE_MIGRATION if live else kind.RESIZE))

    def test_a_guest_that_is_migrated_live_stays_without_placement(self):
        self.assertIs(False, self.revert(True, RuntimeError()))

    def test_nova_hears_of_all_else(self):
        self.assertEqual('held', self.revert(True))
        self.assertRaises(RuntimeError, self.revert, False, RuntimeError())


class SeenToItsEndTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.post, self.recover = mock.Mock(), mock.Mock()

    def migrate(self, copied, tells=None):
        def migrating(*args):
            if tells is not None:
                args[tells]()
            raise RuntimeError('no libvirt')

        cut_off.live_migrate_and_verify(migrating, lambda instance: copied,
                                        CONTEXT, 'instance', 'host_b',
                                        self.post, self.recover, False, 'data')

    def test_a_guest_that_was_copied_is_handed_over(self):
        self.migrate(copied=True)
        self.post.assert_called_once_with(CONTEXT, 'instance', 'host_b', False,
                                          'data')
        self.recover.assert_not_called()

    def test_one_that_was_not_stays(self):
        self.migrate(copied=False)
        self.recover.assert_called_once_with(CONTEXT, 'instance', 'host_b',
                                             'data')
        self.post.assert_not_called()

    def test_unknown_words_are_errors(self):
        self.assertRaises(RuntimeError, self.migrate, copied=None)
        self.post.assert_not_called()
        self.recover.assert_not_called()

    def test_failures_after_the_copy_are_not_retried(self):
        self.post.side_effect = KeyError('after the copy')
        self.assertRaises(KeyError, self.migrate, copied=True, tells=3)
        self.post.assert_called_once_with()

    def test_neither_is_what_fails_when_it_is_rolled_back(self):
        self.recover.side_effect = KeyError('after the copy')
        self.assertRaises(KeyError, self.migrate, copied=False, tells=4)
        self.recover.assert_called_once_with()

    def test_answers_of_libvirt_to_a_rolled_back_guest_are_no_errors(
            self):
        self.migrate(copied=None, tells=4)
        self.recover.assert_called_once_with()
        self.post.assert_not_called()


class OutcomeTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.sleep = self.useFixture(fixtures.MockPatch('time.sleep')).mock

    def outcome(self, *answers):
        return cut_off.wait_for_migration_result(
            mock.Mock(side_effect=answers))

    def test_libvirt_is_asked_until_it_answers(self):
        away = RuntimeError('no connection')
        self.assertIs(True, self.outcome(away, away, True))
        self.assertIs(False, self.outcome(away, None, None, False))

    def test_it_takes_as_long_as_libvirt_copies(self):
        self.assertIs(True, self.outcome(*[None] * 500, True))

    def test_one_that_does_not_answer_is_not_asked_for_ever(self):
        self.assertIsNone(self.outcome(*[RuntimeError()] * 60))

    def test_unknowable_values_are_not_requested_again(self):
        self.assertIsNone(self.outcome(cut_off.ResultUnknown()))
        self.sleep.assert_not_called()
