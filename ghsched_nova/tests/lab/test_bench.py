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
BENCH = ROOT / 'tools' / 'bench'


class BenchTest(base.TestCase):

    def setUp(self):
        super().setUp()
        if not BENCH.is_dir():
            self.skipTest('tools/bench is not part of an installed package')

    def run_bench(self, name, *options, statuses=(0,)):
        """Return the output of a benchmark with a process, and a Nova, of its
        own.

        :param statuses: exit statuses that are no failure.
        """
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', str(BENCH / name), *options],
            cwd='/', capture_output=True, text=True, check=False)
        self.assertIn(done.returncode, statuses, done.stderr[-2000:])
        self.assertNotIn('Traceback', done.stderr)
        return done.stdout

    def test_rendering(self):
        self.assertIn('render_expander_buses()',
                      self.run_bench('render_bench.py', '--count', '2'))

    def test_an_unchanged_host_makes_no_write(self):
        out = self.run_bench('provider_tree_bench.py', '--count', '2',
                             '--cores', '2', '--vfs', '8')
        self.assertIn('Placement, Nova: 6 reads and 0 writes per report', out)
        self.assertIn('Placement, ghsched: 10 reads and 0 writes per report',
                      out)

    def test_wide_hosts(self):
        out = self.run_bench(
            'wide_host_bench.py', '--hosts', '2', '--nodes', '2',
            '--pfs', '1', '--vfs', '4', '--alone', '2', '--count', '1')
        self.assertNotIn('more than', out)
        self.assertIn('2 simulated hosts of 2 NUMA nodes', out)
        self.assertIn('walked 8  made 8  answer: 8 candidates', out)

    def test_a_plan(self):
        # Its verdict is about seconds, of which a busy machine has others.
        out = self.run_bench('plan_bench.py', '--hosts', '3', '--plain', '1',
                             statuses=(0, 1))
        self.assertIn('3 simulated hosts as kunpeng920-2nic', out)
        for fleet in ('all alike', 'no two alike'):
            self.assertRegex(out, f'{fleet}: .* x; (pass|fail) ')

    def test_top(self):
        out = self.run_bench('top_bench.py', '--count', '2', '--guests', '3',
                             '--domains', '2')
        self.assertIn('simulated host: 3 guests x 2 domains', out)

    def test_reconcile(self):
        out = self.run_bench('reconcile_bench.py', '--guests', '20',
                             '--domains', '2', '--count', '2')
        unchanged, = (line for line in out.splitlines()
                      if line.startswith('nothing changed'))
        self.assertTrue(unchanged.endswith('  writes 0'), out)
        self.assertIn('memory: ', out)

    def test_changed_hosts(self):
        out = self.run_bench('feed_bench.py', '--hosts', '120', '--seconds',
                             '2', '--noise', '3')
        self.assertRegex(out, '120 simulated hosts, noise 3 %, delta: 0[.]00')
        self.assertRegex(out, r'ratio: \d+[.]\d of bytes')

    def test_blame(self):
        out = self.run_bench('blame_bench.py', '--guests', '3')
        self.assertRegex(out, r'3 guests: a report 0[.]\d+ % of a CPU, an '
                         r'answer with [1-9]\d* trials \d')
        self.assertRegex(out, r'ratio: \d+[.]\d of reading')

    def test_packing(self):
        out = self.run_bench(
            'packing_bench.py', '--mixes', '1', '--clouds', '1', '--hosts',
            '1', '--kinds', '2', '--fill', '0.7', '--ceilings', '1',
            '--churn', '20')
        for name in ('first fit', 'Tetris', 'FGD, learned', 'clairvoyant'):
            self.assertIn(f'  {name}', out)
        self.assertIn('1 simulated hosts', out)
        ours, = (line.split() for line in out.splitlines()
                 if line.startswith('  ghsched '))
        self.assertEqual(['run,', 'count,'], ours[2::2][:2])
        # Nothing runs that does not have what it was promised.
        self.assertEqual(ours[1], ours[3])
        self.assertRegex(out, r'ghsched +value +median [01][.]\d+  least')
