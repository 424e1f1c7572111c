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

"""Benchmarks of tools/bench where nothing is installed."""

import ast
from pathlib import Path
import subprocess
import sys

import fixtures

from ghsched_placement.tests import base

BENCH = Path(__file__).parents[4] / 'tools' / 'bench'


def programs():
    """Scripts that are run, in order; the other files are parts of them."""
    return [path for path in sorted(BENCH.glob('*.py'))
            if "__name__ == '__main__'" in path.read_text()]


class WithoutPackagesTest(base.TestCase):

    def setUp(self):
        super().setUp()
        if not BENCH.is_dir():
            self.skipTest('tools/bench is not part of an installed package')

    def run_without_packages(self, path, *options):
        """Run a script from another directory, without site-packages."""
        return subprocess.run(
            [sys.executable, '-E', '-S', str(path), *options], cwd='/',
            capture_output=True, text=True, check=False)

    def test_help_is_printed_and_what_is_missing_is_named(self):
        found = programs()
        self.assertIn('reconcile_bench.py', [path.name for path in found])
        for path in found:
            done = self.run_without_packages(path, '--help')
            said = ' '.join(done.stdout.split())
            first = ast.get_docstring(ast.parse(path.read_text()))
            self.assertIn(first.splitlines()[0], said, path.name)
            self.assertNotIn('Traceback', done.stderr)
            if done.returncode:
                self.assertRegex(
                    done.stderr, f'^{path.name}: the Python module .* is '
                    r'missing; install it with\n .* -m pip install .*\n$')

    def test_missing_module_is_named_with_what_has_it(self):
        done = self.run_without_packages(BENCH / 'wide_host_bench.py')
        self.assertEqual(1, done.returncode)
        self.assertIn('placement', done.stderr)
        self.assertIn(f"'{BENCH.parents[1]}[plan]'", done.stderr)

    def test_another_error_keeps_its_traceback(self):
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        program = folder / 'broken.py'
        program.write_text(
            f'import sys; sys.path.insert(0, {str(BENCH)!r}); sys.argv[0] = '
            f'{str(BENCH / "broken.py")!r}; import bench_path; int("none")')
        done = self.run_without_packages(program)
        self.assertEqual(1, done.returncode)
        self.assertIn('Traceback', done.stderr)
        self.assertIn('ValueError', done.stderr)
