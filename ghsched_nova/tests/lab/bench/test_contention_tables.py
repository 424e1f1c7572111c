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

"""Tables of the guide that tools/contention-tables writes."""

from pathlib import Path

from ghsched_nova.features.planner import hostfile
from ghsched_nova.lab.contention import tables
from ghsched_placement.tests import base

TOP = Path(__file__).parents[4]
HOSTS = TOP / 'etc' / 'ghsched' / 'hosts'
GUIDE = TOP / 'doc' / 'source' / 'planning'


class ComparisonTest(base.TestCase):

    def test_figures_of_the_guide_are_those_of_the_model(self):
        machines = [
            hostfile.load_host_file(str(HOSTS / f'{name}.yaml')).contention
            for name in ('kunpeng920', 'amd-epyc9755')
        ]
        self.assertEqual(
            (GUIDE / 'contention-figures.inc').read_text(),
            tables.render_comparison_tables(*machines))
