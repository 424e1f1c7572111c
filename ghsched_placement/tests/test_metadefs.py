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


"""The metadata definitions that are shipped: made of the keys.

Format: ``metadefs/v2`` schemas of the Image API.
"""

import json
import os
import pathlib
import re

from ghsched_placement.flavor import key_names
from ghsched_placement.flavor import keys
from ghsched_placement.providers import names
from ghsched_placement.tests import base

FILE = (pathlib.Path(__file__).parents[2] / 'etc' / 'ghsched' / 'metadefs'
        / 'compute-ghsched.json')

#: A role, a literal, emphasis, a link or a substitution of reStructuredText.
MARKUP = re.compile(r':[a-z]+:`|`|\*\w|\w_\s|\|\w+\||\.\. \w+::')

#: Set it to write the file again; then read the difference.
UPDATE = 'GHSCHED_UPDATE_GOLDEN'

_TYPES = {'int': 'integer', 'bool': 'boolean'}


def make_metadata_namespace():
    """Return the Glance metadata definitions of ghsched's extra specs.

    Horizon shows these definitions to an admin who edits the extra specs of a
    flavor.
    """
    return {
        'namespace': names.METADATA_NAMESPACE,
        'display_name': 'Memory bandwidth, VFs and scheduling (ghsched)',
        'description': 'What a guest is given of the memory bandwidth, the '
                       'devices and the CPUs of the host NUMA nodes that it '
                       'runs on.',
        'visibility': 'public',
        'protected': True,
        'resource_type_associations': [{
            'name': 'OS::Nova::Flavor', 'prefix': f'{keys.NAMESPACE}:'}],
        'properties': {key.name: _make_property(key)
                       for key in key_names.KEYS},
    }


def _make_property(key):
    found = {
        'title': key.title,
        'description': f'{key.summary} {key.details}'.strip()
        + f' Default: {key.default_text}.',
        'type': _TYPES.get(key.kind, 'string')}
    if key.choices:
        found['enum'] = list(key.choices)
    if key.minimum is not None:
        found['minimum'] = key.minimum
    if key.maximum is not None:
        found['maximum'] = key.maximum
    return found


class MetadefsTest(base.TestCase):

    def test_the_file_is_what_the_keys_say(self):
        text = json.dumps(make_metadata_namespace(), indent=2) + '\n'
        if os.environ.get(UPDATE):
            FILE.write_text(text)
        self.assertEqual(FILE.read_text(), text)

    def test_each_key_is_a_property_of_flavors(self):
        document = make_metadata_namespace()
        association, = document['resource_type_associations']
        self.assertEqual('ghsched:', association['prefix'])
        self.assertEqual([key.name for key in key_names.KEYS],
                         list(document['properties']))
        for prop in document['properties'].values():
            self.assertIn(prop['type'], ('integer', 'boolean', 'string'))

    def test_texts_of_keys_have_no_markup(self):
        """Horizon and the API show them as they are."""
        for key in key_names.KEYS:
            for text in (key.title, key.summary, key.details,
                         key.default_text):
                self.assertIsNone(MARKUP.search(text), text)

    def test_titles_of_keys_are_words_for_people(self):
        titles = [key.title for key in key_names.KEYS]
        self.assertEqual(len(titles), len(set(titles)))
        for key in key_names.KEYS:
            self.assertNotIn('_', key.title)
            self.assertTrue(key.title[0].isupper() or key.title[:4] == 'vCPU',
                            key.title)
            # Not the name of the key with blanks.
            self.assertNotRegex(key.title, r'\b(Mem|Vcpu|Irq|Vfs|us|bw)\b')
