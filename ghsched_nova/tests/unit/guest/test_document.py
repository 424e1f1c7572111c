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

from pathlib import Path
import tempfile

from lxml import etree

from ghsched_nova.guest import document
from ghsched_placement.tests import base


class ParseElementTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.secret = Path(self.enterContext(
            tempfile.TemporaryDirectory()), 'secret')
        self.secret.write_text('root only')

    def text_of(self, doctype, content='<name>&x;</name>'):
        """All text of a document, empty where it is refused."""
        try:
            root = document.parse_element(
                f'<!DOCTYPE d [{doctype}]><domain>{content}</domain>')
        except document.DocumentError:
            return ''
        return ''.join(root.itertext(tag=etree.Element))

    def test_parse_element_of_text_and_bytes_gives_the_root(self):
        for xml in ('<domain a="&lt;&#65;"/>', b'<domain a="&lt;A"/>'):
            self.assertEqual('<A', document.parse_element(xml).get('a'))

    def test_parse_element_replaces_no_entity(self):
        for doctype in (f'<!ENTITY x SYSTEM "file://{self.secret}">',
                        '<!ENTITY x "root only">',
                        f'<!ENTITY % p SYSTEM "file://{self.secret}"> %p;'):
            self.assertNotIn('root only', self.text_of(doctype))

    def test_parse_element_of_entities_in_entities_stays_small(self):
        many = ''.join(
            f'<!ENTITY {chr(98 + number)} "{10 * f"&{chr(97 + number)};"}">'
            for number in range(9))
        self.assertLess(len(self.text_of(
            f'<!ENTITY a "{100 * "a"}">{many}', '<name>&j;</name>')), 1000)

    def test_parse_element_of_a_deep_tree_is_refused(self):
        for text in ('<domain>' * 100000, '', '<', '<a></b>', 'x', '\0',
                     '<?xml version="1.0" encoding="UTF-8"?><domain/>'):
            self.assertRaises(document.DocumentError,
                              document.parse_element, text)
