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

"""The finder that gives Nova our driver, and the file that starts it."""

import importlib.util
import pathlib
import subprocess
import sys

import fixtures

import ghsched_import_hook
from ghsched_placement.tests import base

TOP = pathlib.Path(__file__).parents[3]
PTH = TOP / 'ghsched.pth'


def bare_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code without site directories and without our environment."""
    return subprocess.run(
        [sys.executable, '-I', '-S', '-c', code],
        capture_output=True, text=True, check=False)


class FinderTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch('sys.meta_path',
                                             list(sys.meta_path)))
        while ghsched_import_hook.GhschedFinder in sys.meta_path:
            sys.meta_path.remove(ghsched_import_hook.GhschedFinder)

    def test_answers_for_the_driver_module(self):
        ghsched_import_hook.install()
        spec = importlib.util.find_spec('nova.virt.ghsched')
        self.assertIsNotNone(spec)
        self.assertTrue(spec.origin.endswith('ghsched_nova/shim/virt.py'))

    def test_answers_for_nothing_else(self):
        for name in ('nova', 'nova.virt', 'nova.virt.libvirt', 'ghsched'):
            self.assertIsNone(
                ghsched_import_hook.GhschedFinder.find_spec(name))

    def test_is_installed_once_and_last(self):
        ghsched_import_hook.install()
        ghsched_import_hook.install()
        self.assertEqual(
            1, sys.meta_path.count(ghsched_import_hook.GhschedFinder))
        self.assertIs(ghsched_import_hook.GhschedFinder, sys.meta_path[-1])

    def test_a_package_that_is_gone_is_no_error(self):
        self.useFixture(fixtures.MonkeyPatch(
            'importlib.util.find_spec', lambda name: None))
        self.assertIsNone(
            ghsched_import_hook.GhschedFinder.find_spec('nova.virt.ghsched'))

    def test_a_removed_shim_is_a_module_that_does_not_exist(self):
        directory = self.useFixture(fixtures.TempDir()).path
        spec = importlib.util.spec_from_file_location(
            'ghsched_nova', f'{directory}/__init__.py')
        self.useFixture(fixtures.MonkeyPatch(
            'importlib.util.find_spec', lambda name: spec))
        self.assertIsNone(
            ghsched_import_hook.GhschedFinder.find_spec('nova.virt.ghsched'))


class PthTest(base.TestCase):

    def test_is_one_import_line(self):
        # The site module runs lines that start with "import " and takes
        # every other line for a directory.
        lines = PTH.read_text().splitlines()
        self.assertEqual(1, len(lines))
        self.assertTrue(lines[0].startswith('import '))

    def test_installs_the_finder(self):
        done = bare_python(
            f'import sys; sys.path.insert(0, {str(TOP)!r})\n'
            f'{PTH.read_text()}\n'
            'print(sys.meta_path[-1].__name__)')
        self.assertEqual(('GhschedFinder\n', ''), (done.stdout, done.stderr))

    def test_brings_no_module_from_outside_the_standard_library(self):
        done = bare_python(
            f'import sys; sys.path.insert(0, {str(TOP)!r})\n'
            f'{PTH.read_text()}\n'
            'print(*sorted({name.partition(".")[0] for name in sys.modules}\n'
            '              - sys.stdlib_module_names - {"__main__"}))')
        self.assertEqual(('ghsched_import_hook\n', ''),
                         (done.stdout, done.stderr))

    def test_leaves_the_choice_of_our_package_to_the_program(self):
        # A program in a source tree must get the tree's ghsched_nova and not
        # an installed one.
        done = bare_python(
            f'import sys; sys.path.insert(0, {str(TOP)!r})\n'
            f'{PTH.read_text()}\n'
            'print("ghsched_nova" in sys.modules)')
        self.assertEqual(('False\n', ''), (done.stdout, done.stderr))

    def test_is_silent_when_the_package_is_gone(self):
        done = bare_python(PTH.read_text() + 'print("alive")')
        self.assertEqual(('alive\n', ''), (done.stdout, done.stderr))
