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

"""Commands and sample output of the tutorial, and what types them."""

import importlib
from pathlib import Path
import sys
from unittest import mock

from ghsched_placement.tests import base

TOP = Path(__file__).parents[3]
with mock.patch('sys.path', [str(TOP / 'tools/cloud.d'), *sys.path]):
    console_blocks = importlib.import_module('console_blocks')

PAGE = '''Text, and a block that is no console::

    # not typed

.. code-block:: console

   # first \\
         --option
   # second
   +----+
   ... ready in ... s

Text.

.. code-block:: ini

   # a comment
'''


class BlocksTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.first, self.second = console_blocks.read_steps(PAGE)

    def test_command_has_all_its_lines_and_its_sample(self):
        self.assertEqual((7, 'first \\\n--option', ()),
                         (self.first.line, self.first.command,
                          self.first.sample))
        self.assertEqual((9, 'second', ('+----+', '... ready in ... s')),
                         (self.second.line, self.second.command,
                          self.second.sample))

    def test_command_without_sample_has_to_succeed(self):
        self.assertEqual('', self.first.find_difference(0, 'anything'))
        self.assertEqual('exit status 3', self.first.find_difference(3, ''))

    def test_output_that_the_sample_stands_for_is_accepted(self):
        for output in ('+----+\n| 1 | ready in 3 s\n',
                       ' +----+\n\nready  in\n3.4   s'):
            self.assertEqual('', self.second.find_difference(1, output))

    def test_output_that_differs_from_the_sample_is_named(self):
        for output in ('', '+----+\n| 1 | ready in 3 min\n',
                       '+---+\n ready in 3 s', 'x +----+ ready in 3 s',
                       '+----+ ready in 3 s x'):
            self.assertIn('other output',
                          self.second.find_difference(0, output))


class PagesTest(base.TestCase):

    def find_commands(self, page):
        return [step.command.partition('    #')[0].rstrip()
                for step in console_blocks.read_steps(
                    (TOP / page).read_text())]

    def test_readme_shows_what_other_stages_of_ci_type(self):
        ci = ''.join((TOP / name).read_text()
                     for name in ('.ci/run', 'tools/stages.sh'))
        commands = self.find_commands('README.rst')
        self.assertTrue(commands)
        self.assertEqual([], [one for one in commands if one not in ci])

    def test_tutorial_is_typed_by_ci(self):
        self.assertIn('tools/tutorial.sh', (TOP / '.ci/run').read_text())
        self.assertIn('openstack ghsched host list',
                      self.find_commands('doc/source/start/tutorial.rst'))
