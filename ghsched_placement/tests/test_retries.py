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

import fcntl
from pathlib import Path
from unittest import mock

import fixtures
import tenacity

from ghsched_placement.base import retries
from ghsched_placement.tests import base


class CallWithRetriesTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.function = mock.Mock(__name__='function')
        self.on_retry = mock.Mock()

    def call(self, condition):
        return retries.call_with_retries(
            self.function, condition, tenacity.stop_after_attempt(3),
            on_retry=self.on_retry)

    def test_error_is_retried_until_the_call_succeeds(self):
        self.function.side_effect = ValueError, 'result'
        self.assertEqual('result', self.call(
            tenacity.retry_if_exception_type(ValueError)))
        self.on_retry.assert_called_once()

    def test_last_error_is_raised_after_the_last_attempt(self):
        self.function.side_effect = [ValueError(number) for number in range(4)]
        error = self.assertRaises(
            ValueError, self.call,
            tenacity.retry_if_exception_type(ValueError))
        self.assertEqual((2,), error.args)
        self.assertEqual(2, self.on_retry.call_count)

    def test_other_error_is_not_retried(self):
        self.function.side_effect = KeyError
        self.assertRaises(KeyError, self.call,
                          tenacity.retry_if_exception_type(ValueError))
        self.function.assert_called_once_with()

    def test_last_result_is_returned_after_the_last_attempt(self):
        self.function.side_effect = range(4)
        self.assertEqual(2, self.call(
            tenacity.retry_if_result(lambda result: result < 4)))


class AcquireFileLockTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.path = Path(self.useFixture(fixtures.TempDir()).path) / 'lock'

    def test_held_lock_raises_timeout_error(self):
        with self.path.open('a') as held, self.path.open('a') as wanted:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.assertRaises(TimeoutError, retries.acquire_file_lock,
                              wanted.fileno(), 0.02)
            fcntl.flock(held, fcntl.LOCK_UN)
            retries.acquire_file_lock(wanted.fileno(), 0)
            self.assertRaises(BlockingIOError, fcntl.flock, held,
                              fcntl.LOCK_SH | fcntl.LOCK_NB)

    def test_shared_locks_do_not_wait_for_each_other(self):
        with self.path.open('a') as held, self.path.open('a') as wanted:
            fcntl.flock(held, fcntl.LOCK_SH)
            retries.acquire_file_lock(wanted.fileno(), 0, fcntl.LOCK_SH)
