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


import re

from ghsched_placement.flavor import key_names
from ghsched_placement.flavor import keys
from ghsched_placement.tests import base


class KeysTest(base.TestCase):

    def test_names_are_words_and_unique(self):
        for key in key_names.KEYS:
            self.assertTrue(re.fullmatch('[a-z]+[0-9]?(_[a-z]+)*', key.name))
        self.assertEqual(len(key_names.KEYS), len(key_names.BY_NAME))

    def test_spelling_of_the_extra_spec(self):
        self.assertEqual('ghsched:mem_bw_min', keys.MEM_BW_MIN.extra_spec)
        self.assertEqual('ghsched:mem_bw_min.3',
                         keys.MEM_BW_MIN.get_node_extra_spec(3))

    def test_whole_numbers_have_a_range_and_truths_have_none(self):
        for key in key_names.KEYS:
            if key.kind == 'int':
                assert key.minimum is not None and key.maximum is not None
                self.assertLess(key.minimum, key.maximum)
            else:
                self.assertEqual((None, None), (key.minimum, key.maximum))

    def test_texts_are_whole_sentences(self):
        for key in key_names.KEYS:
            for text in filter(None, (key.summary, key.details)):
                self.assertTrue(text[0].isupper(), text)
                self.assertTrue(text.endswith('.'), text)
            self.assertTrue(key.default_text)

    def test_a_word_is_chosen_from_a_list(self):
        for key in key_names.KEYS:
            self.assertEqual(key.kind == 'enum', bool(key.choices))

    def test_which_keys_are_for_the_whole_guest(self):
        self.assertEqual(
            {keys.MEM_BW_MIN, keys.MEM_BW_MAX, keys.MEM_BW_HARDLIMIT,
             keys.MEM_BW_PRIORITY, keys.MEM_BW_BURST, keys.L3_WAYS,
             keys.VFS},
            {key for key in key_names.KEYS if key.per_node})
