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

"""The benchmarks of tools/bench run, and print what they are for."""

import pathlib
import subprocess
import sys

from ghsched_placement.tests import base


ROOT = pathlib.Path(__file__).parents[3]
RUN = ROOT / 'tools/bench/run'


class BenchTest(base.TestCase):

    def setUp(self):
        super().setUp()
        if not RUN.exists():
            self.skipTest('tools/bench is not part of an installed package')

    def run_bench(self, name, *options):
        """Return the output of a benchmark with a process, and a Nova, of its
        own.
        """
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', str(RUN), name, *options],
            cwd='/', capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stderr[-2000:])
        self.assertNotIn('Traceback', done.stderr)
        return done.stdout

    def test_an_unchanged_host_makes_no_write(self):
        out = self.run_bench('provider_tree_bench', '--count', '2',
                             '--cores', '2', '--vfs', '8')
        self.assertIn('Placement, Nova: 6 reads and 0 writes per report', out)
        self.assertIn('Placement, ghsched: 10 reads and 0 writes per report',
                      out)

    def test_wide_hosts(self):
        out = self.run_bench(
            'wide_host_bench', '--hosts', '2', '--nodes', '2',
            '--pfs', '1', '--vfs', '4', '--alone', '2', '--count', '1')
        self.assertNotIn('more than', out)
        self.assertIn('2 simulated hosts of 2 NUMA nodes', out)
        self.assertIn('walked 8  made 8  answer: 8 candidates', out)

    def test_benchmark_without_its_packages_names_what_is_missing(self):
        def run(*arguments):
            return subprocess.run(
                [sys.executable, '-E', '-S', str(RUN), *arguments], cwd='/',
                capture_output=True, text=True, check=False)
        listed = [line.split()[0] for line in run().stdout.splitlines()]
        self.assertEqual(['provider_tree_bench', 'scheduler_bench',
                          'scheduler_same', 'wide_host_bench'], listed)
        for name in listed:
            done = run(name, '--help')
            self.assertEqual(1, done.returncode)
            self.assertRegex(done.stdout, '^[A-Z].*[.?]\n')
            self.assertRegex(
                done.stderr, f'^{name}: the Python module .* is missing; '
                r'install it with\n .* -m pip install .*\n$')
