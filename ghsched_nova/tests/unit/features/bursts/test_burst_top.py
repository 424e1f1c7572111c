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

import json

from ghsched_nova.tests.fixtures import top_case
from ghsched_nova.tests.fixtures import trees
from ghsched_placement.features.bursts import burst_record


class BurstTopTest(top_case.TopTestCase):
    """Column of ghsched-top. All figures are simulated."""

    def test_how_likely_bursts_are_short(self):
        tree = self.host('openeuler66')
        tree.group(f'ghsched-{trees.UUID}', tid=101, cpu=0)
        tree.run(1.0, busy=0.0)
        tree.run(1.0)
        path = tree.top / 'bursts.json'
        path.write_text(burst_record.FORMAT.render({
            0: burst_record.Record(promised=40, chance=0.0042),
            1: burst_record.Record(promised=0, chance=0.5)}))
        _status, text, _errors = self.run_top(
            tree, '-b', '-n', '1', '--bursts', str(path))
        rows = [line.split() for line in text.splitlines()]
        self.assertIn(['0', '4000.0', '2.0', '0.0', '4000.0', '0.0', '0',
                       '0.42'], rows)
        self.assertIn(['all', '4000.0', '1.0', '0.0', '4000.0', '0.0', '-',
                       '-'], rows)
        title = next(line for line in text.splitlines() if 'SHORT %' in line)
        self.assertLessEqual(len(title), 80)
        _status, text, _errors = self.run_top(
            tree, '--json', '-n', '1', '--bursts', str(path))
        self.assertEqual([0.0042, None], [
            node['short_chance'] for node in json.loads(text)['nodes']])
