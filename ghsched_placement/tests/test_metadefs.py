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


"""The metadata definitions that are shipped."""

import json
import os
import pathlib

from ghsched_placement import keys
from ghsched_placement import metadefs
from ghsched_placement.tests import base

FILE = (pathlib.Path(__file__).parents[2] / 'etc' / 'ghsched' / 'metadefs'
        / 'compute-ghsched.json')

#: Set it to write the file again; then read the difference.
UPDATE = 'GHSCHED_UPDATE_GOLDEN'


class MetadefsTest(base.TestCase):

    def test_the_file_is_what_the_keys_say(self):
        text = json.dumps(metadefs.document(), indent=2) + '\n'
        if os.environ.get(UPDATE):
            FILE.write_text(text)
        self.assertEqual(FILE.read_text(), text)

    def test_each_key_is_a_property_of_flavors(self):
        document = metadefs.document()
        association, = document['resource_type_associations']
        self.assertEqual('ghsched:', association['prefix'])
        self.assertEqual([key.name for key in keys.KEYS],
                         list(document['properties']))
        for prop in document['properties'].values():
            self.assertIn(prop['type'], ('integer', 'boolean', 'string'))
