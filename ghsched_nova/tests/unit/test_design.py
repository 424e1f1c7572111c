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

from pathlib import Path
import pkgutil
import re
import tempfile

from ghsched_nova.tests.fixtures import walk
from ghsched_nova.tests.fixtures import world
from ghsched_placement.tests import base


class WalkTest(base.TestCase):
    """The functions that the design guide names are there, and are called.

    Those of nova-api, nova-scheduler and nova-compute are counted in
    functional/test_walk.py.
    """

    def test_every_step_can_be_imported(self):
        self.assertLess(15, len(walk.steps()))
        for step in walk.steps():
            self.assertTrue(callable(pkgutil.resolve_name(step)), step)

    def test_one_guest_is_planned_and_written_as_often_as_is_said(self):
        top = Path(self.enterContext(tempfile.TemporaryDirectory()))
        host = world.World(top, makers=['ghsched'])
        calls = self.useFixture(walk.Walk()).calls
        self.assertTrue(host.reconcile().actions)
        self.assertEqual(*walk.select_room('.resctrl.reconcile', calls))
        self.assertEqual(*walk.select_room('.resctrl.plan', calls))

    def test_every_room_is_described(self):
        top = walk.DESIGN.parents[3] / 'ghsched_nova'
        rooms = {path.parent.name for path in top.glob('*/__init__.py')}
        described = set(re.findall(r'^``ghsched_nova\.(\w+)``$',
                                   walk.DESIGN.read_text(), re.M))
        self.assertEqual(set(), rooms - described - {'tests'})

    def test_every_feature_is_described(self):
        top = walk.DESIGN.parents[3]
        features = {path.parent.name for path in top.glob(
            'ghsched_*/features/*/__init__.py')}
        described = set(re.findall(r'^    ``(\w+)``  +\S',
                                   walk.DESIGN.read_text(), re.M))
        self.assertEqual(features, described)
