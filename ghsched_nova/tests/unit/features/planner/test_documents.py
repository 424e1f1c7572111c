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


"""YAML that is meant to hurt."""

import tempfile

from hypothesis import given
from hypothesis import strategies as st
import yaml

from ghsched_nova.features.planner import hostfile
from ghsched_nova.features.planner import planner_inputs
from ghsched_placement.features.density import documents
from ghsched_placement.features.planner.client import PlannerError
from ghsched_placement.tests import base

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-10 ** 20, 10 ** 20)
    | st.text('abc 01:-', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.text('abc', min_size=1, max_size=3), inner, max_size=4))


def bomb(levels):
    """Ten times as many nodes with each level."""
    return ('name: x\nnodes:\n  - id:\n'
            '      - &a0 [x,x,x,x,x,x,x,x,x,x]\n' + ''.join(
                f'      - &a{n} [{",".join([f"*a{n - 1}"] * 10)}]\n'
                for n in range(1, levels)))


HURTS = [bomb(9), '[' * 5000 + ']' * 5000, 'a: ' + '9' * 5000,
         'a: 0x' + 'f' * 5000, 'a: ' + '1:' * 3000 + '1', 'a: &a [*a]',
         'a: &a {b: *a}', 'a: 2001-99-99', 'a: 1\na: 2', 'x' * 1_000_001]


class DocumentTest(base.TestCase):

    def setUp(self):
        super().setUp()
        file = self.enterContext(
            tempfile.NamedTemporaryFile('wb', suffix='.yaml'))
        self.path = file.name

    def put(self, text):
        with open(self.path, 'w', encoding='utf-8') as stream:
            stream.write(text)

    def test_document_that_would_expand_without_end_is_refused(self):
        for text in HURTS:
            self.put(text)
            error = self.assertRaises(documents.DensityFileError,
                                      documents.load_yaml, self.path)
            self.assertLess(len(str(error)), 500)
            self.assertRaises(hostfile.HostFileError, hostfile.load_host_file,
                              self.path)
            self.assertRaises(
                PlannerError, planner_inputs._load_flavor_file, self.path
            )

    def test_the_message_about_what_is_allowed_is_short(self):
        self.put(bomb(4))
        error = self.assertRaises(
            hostfile.HostFileError, hostfile.load_host_file, self.path
        )
        self.assertLess(len(str(error)), 500)

    @given(VALUES)
    def test_yaml_output_is_read_back(self, value):
        self.put(yaml.safe_dump(value))
        self.assertEqual(value, documents.load_yaml(self.path))

    @given(st.text(st.sampled_from('[]{}&*a:,-?|>"\'\n 0x9~!<'),
                   max_size=200))
    def test_any_text_is_read_or_refused(self, text):
        self.put(text)
        try:
            documents.load_yaml(self.path)
        except documents.DensityFileError:
            return
