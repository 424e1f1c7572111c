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

import fixtures

from ghsched_nova.features.index import aged_cache
from ghsched_placement.tests import base


class AgedCacheTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.useFixture(fixtures.MonkeyPatch(
            'time.monotonic', lambda: self.now))
        self.cache = aged_cache.AgedCache(60.0, 2)

    def list_known(self):
        return [key for key in 'abc'
                if self.cache.get_fresh_value(key) is not None]

    def test_value_is_kept_until_it_is_old(self):
        self.cache.set_value('a', 0)
        self.now += 60
        self.assertEqual(0, self.cache.get_fresh_value('a'))
        self.now += 1
        self.assertIsNone(self.cache.get_fresh_value('a'))

    def test_value_that_is_set_again_is_new(self):
        self.cache.set_value('a', 1)
        self.now += 50
        self.cache.set_value('a', 2)
        self.now += 50
        self.assertEqual(2, self.cache.get_fresh_value('a'))

    def test_oldest_value_is_dropped_above_the_limit(self):
        for key in 'abac':
            self.cache.set_value(key, 1)
        self.assertEqual(['a', 'c'], self.list_known())
        self.assertEqual(2, len(self.cache))

    def test_clear_drops_all_values(self):
        self.cache.set_value('a', 1)
        self.cache.clear()
        self.assertEqual([], self.list_known())
