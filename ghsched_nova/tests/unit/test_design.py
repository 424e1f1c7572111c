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

import pathlib
import pkgutil
import re

from ghsched_placement.tests import base


DESIGN = (pathlib.Path(__file__).parents[3]
          / 'doc/source/contributor/design.rst')


class WalkTest(base.TestCase):
    """The functions that the design guide names exist under that name."""

    def test_every_step_can_be_imported(self):
        steps = re.findall(r'^#\. ``([\w.]+)``', DESIGN.read_text(), re.M)
        self.assertLess(15, len(steps))
        for step in steps:
            module, _, name = step.rpartition('.')
            self.assertTrue(callable(
                pkgutil.resolve_name(f'{module}:{name}')), step)

    def test_every_room_is_described(self):
        top = DESIGN.parents[3] / 'ghsched_nova'
        rooms = {path.parent.name for path in top.glob('*/__init__.py')}
        described = set(re.findall(r'^``ghsched_nova\.(\w+)``$',
                                   DESIGN.read_text(), re.M))
        self.assertEqual(set(), rooms - described - {'tests'})
