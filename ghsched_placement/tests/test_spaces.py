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

"""Eight samples are the whole, however many items or tests there are."""

import itertools
import unittest

import fixtures

from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces


class SampleTest(base.TestCase):

    def set_sample(self, text):
        self.useFixture(fixtures.EnvironmentVariable('GHSCHED_SAMPLE', text))

    def test_samples_of_few_or_many_items_are_all_items(self):
        for length in (0, 1, 5, 8, 9, 100):
            found = set()
            for number in range(8):
                self.set_sample(str(number))
                part = spaces.choose(range(length))
                self.assertEqual(bool(length), bool(part))
                self.assertLessEqual(len(part), length // 8 + 1)
                found.update(part)
            self.assertEqual(set(range(length)), found)

    def test_sample_of_pairs_has_most_values_of_both_lists(self):
        for inner in (2, 4, 8, 16):
            for number in range(8):
                self.set_sample(str(number))
                part = spaces.choose(itertools.product(range(40),
                                                       range(inner)))
                for values in zip(*part, strict=True):
                    self.assertGreater(len(set(values)), inner // 2)

    def test_sample_all_is_every_item_and_example(self):
        self.set_sample('all')
        self.assertEqual([3, 4], spaces.choose([3, 4]))
        self.assertEqual(300, spaces.count(300))

    def test_tests_of_a_class_run_in_one_of_eight_samples(self):
        ran = []
        for number in range(8):
            self.set_sample(str(number))

            class Whole(unittest.TestCase):
                def setUp(self):
                    ran.append(self.id().rpartition('.')[2])

                def test_one(self):
                    pass

                def test_two(self):
                    pass

                test_three = test_four = test_two

            result = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(
                spaces.run_sample(Whole)).run(result)
            self.assertEqual(4, result.testsRun)
            self.assertEqual([], result.errors)
        self.assertEqual(['test_four', 'test_one', 'test_three', 'test_two'],
                         sorted(ran))
