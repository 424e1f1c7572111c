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

"""Cost and results of the index, by counts that no load of the machine
changes.
"""

import json
from pathlib import Path
import subprocess
import sys

from ghsched_placement.tests import base


RUN = Path(__file__).resolve().parents[3] / 'tools/bench/run'


def run(name, *arguments):
    """Run a benchmark in a process of its own, with a Nova of its own."""
    return subprocess.run(
        [sys.executable, str(RUN), name, *arguments], text=True,
        capture_output=True, timeout=1200)


class CountsTest(base.TestCase):

    def test_a_request_costs_the_same_in_a_cloud_of_any_size(self):
        done = run('scheduler_bench', '--hosts', '100', '400', '--kinds',
                   'bw1', '--repeat', '1', '--json')
        rows = {(row['hosts'], row['row']): row
                for row in map(json.loads, done.stdout.splitlines())}
        self.assertEqual(6, len(rows), done.stderr)
        small, large = rows[100, 'index'], rows[400, 'index']
        self.assertEqual((1, 1), (small['found'], large['found']))
        # The bench has asked for the flavor's candidates once before.
        self.assertEqual({'PUT': 1}, small['requests'])
        self.assertEqual((2, 2), (small['alternates'], large['alternates']))
        self.assertEqual(small['requests'], large['requests'])
        self.assertLess(abs(large['rows'] - small['rows']),
                        small['rows'] / 10)
        self.assertGreater(rows[400, 'whole']['rows'], 10 * large['rows'])


class SameTest(base.TestCase):

    def test_the_index_finds_what_the_whole_search_finds(self):
        done = run('scheduler_same', '--clouds', '3', '--requests', '6',
                   '--hosts', '8')
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn('18 pairs of cloud and request', done.stdout)
        self.assertIn(' 0 differ', done.stdout)
        self.assertNotIn(' 0 derived', done.stdout)
