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

import threading

import fixtures

from ghsched_nova.features.top import shared_work
from ghsched_placement.tests import base


class SharedWorkTest(base.TestCase):

    def test_result_of_work_that_ends_is_given(self):
        work = shared_work.SharedWork(lambda: 3, 60.0)
        self.assertEqual([3, 3], [work.get_result(), work.get_result()])

    def test_result_of_work_that_raises_raises(self):
        def fail():
            raise TimeoutError('its own')

        work = shared_work.SharedWork(fail, 60.0)
        for _call in range(2):
            error = self.assertRaises(TimeoutError, work.get_result)
            self.assertEqual('its own', str(error))

    def test_result_of_work_that_goes_on_raises_for_all_and_runs_once(self):
        ends, began = threading.Event(), []
        self.addCleanup(ends.set)

        def wait():
            began.append(None)
            ends.wait()
            return 'late'

        work = shared_work.SharedWork(wait, 0.05)
        before = threading.active_count()
        waits = self.useFixture(fixtures.MockPatchObject(
            shared_work.futures, 'wait', wraps=shared_work.futures.wait)).mock
        for _call in range(50):
            self.assertRaises(shared_work.NoAnswer, work.get_result)
        left = [call.args[1] for call in waits.call_args_list]
        self.assertEqual(50, len(left))
        # The time-out begins with the work and not with each caller.
        self.assertLess(sum(left), 2 * 0.05)
        self.assertEqual(1, len(began))
        self.assertLessEqual(threading.active_count(), before + 1)
        ends.set()
        self.assertEqual('late', shared_work.SharedWork(
            lambda: 'late', 60.0).get_result())

    def test_result_for_many_threads_is_of_work_after_they_asked_or_of_then(
            self):
        """Native threads: each gets a result, and two works never meet."""
        inside, most, count, found = [], [], [], []

        def work():
            inside.append(None)
            most.append(len(inside))
            count.append(None)
            number = len(count)
            inside.pop()
            return number

        shared = shared_work.SharedWork(work, 60.0)

        def ask():
            for _turn in range(50):
                before = len(count)
                result = shared.get_result()
                found.append(before <= result)

        self._in_threads(ask, 8)
        self.assertEqual([True] * 400, found)
        self.assertEqual({1}, set(most))

    def _in_threads(self, function, number):
        threads = [threading.Thread(target=function)
                   for _thread in range(number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
