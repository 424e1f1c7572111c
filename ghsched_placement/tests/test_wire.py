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

import json

import ddt

from ghsched_placement.base import wire
from ghsched_placement.tests import base


@ddt.ddt
class ParseTest(base.TestCase):

    def parse(self, text):
        return wire.parse_record(text, 2, lambda found: int(found['value']))

    def test_record_of_the_version_is_built(self):
        self.assertEqual(5, self.parse('{"version": 2, "value": 5}'))

    def test_fields_of_other_releases_are_ignored(self):
        self.assertEqual(5, self.parse(
            '{"version": 2, "value": 5, "later": {}}'))

    @ddt.data(None, '', 7, 'null', '[]', '2', '{', '{}', '{"value": 5}',
              '{"version": 3, "value": 5}', '{"version": 2}',
              '{"version": 2, "value": null}',
              '{"version": 2, "value": "x"}',
              '{"version": 2, "value": Infinity}', '[' * 100000)
    def test_anything_else_counts_as_none(self, text):
        self.assertIsNone(self.parse(text))

    def test_error_that_is_no_malformed_record_is_raised(self):
        self.assertRaises(ZeroDivisionError, wire.parse_record, json.dumps(
            {'version': 2}), 2, lambda _found: 1 // 0)
