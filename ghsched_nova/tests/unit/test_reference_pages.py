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

"""Pages of the reference, compared with the code that they are made from."""

import argparse
import importlib
from pathlib import Path
import sys
from unittest import mock

from ghsched_placement.flavor import key_names
from ghsched_placement.tests import base

TOP = Path(__file__).parents[3]
with mock.patch('sys.path', [str(TOP / 'tools'), *sys.path]):
    command_pages = importlib.import_module('command_pages')
    reference_pages = importlib.import_module('reference_pages')


class ReferencePagesTest(base.TestCase):

    def test_each_page_is_what_the_code_gives(self):
        """tools/reference_pages.py writes them."""
        self.assertEqual([], [page.name for page in
                              reference_pages.find_stale_pages()])

    def test_part_of_a_page_is_replaced_and_the_rest_stays(self):
        page = 'Title\n\n.. made of keys\n\nstale row\n\n.. end\n\nText\n'
        text = reference_pages.render_page(page)
        self.assertNotIn('stale row', text)
        self.assertTrue(text.startswith('Title\n\n.. made of keys\n\n'))
        self.assertTrue(text.endswith('\n\n.. end\n\nText\n'))
        for key in key_names.KEYS:
            self.assertIn(f'\n{key.extra_spec}\n---', text)
        self.assertEqual(text, reference_pages.render_page(text))

    def test_no_page_needs_a_directive_of_sphinx_for_its_tables(self):
        for page in reference_pages.PAGES:
            text = page.read_text()
            self.assertNotIn('.. ghsched-', text)
            self.assertNotIn('.. show-options', text)


def make_parser():
    parser = argparse.ArgumentParser(description='Move things.')
    below = parser.add_subparsers(required=True).add_parser(
        'one', description='Move one *thing* of a_ place.', epilog='Done.')
    below.add_argument('-n', '--node', metavar='N', required=True,
                       help='where (default: %(default)s)', default=3)
    below.add_argument('--dry-run', action='store_true', help='only ask')
    below.add_argument('--secret', help=argparse.SUPPRESS)
    below.add_argument('thing', nargs='*', help='which')
    return parser


class CommandPagesTest(base.TestCase):

    def test_each_command_has_its_usage_and_its_options(self):
        self.assertEqual([
            'Usage', '=====', '', '``mv COMMAND ...``', '', 'Move things.', '',
            'mv one', '======', '',
            '``mv one [OPTION]... --node N [thing...]``', '',
            'Move one \\*thing\\* of a\\_ place.', '',
            '``-n``, ``--node N``', '    where (default: 3)', '',
            '``--dry-run``', '    only ask', '',
            '``thing...``', '    which', '', 'Done.', ''],
            list(command_pages.describe_command(
                f'{__name__}:make_parser', 'mv')))
