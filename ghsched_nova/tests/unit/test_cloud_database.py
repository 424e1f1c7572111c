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

"""The copy of the schemas of the demo's cloud."""

from unittest import mock

from ghsched_nova.tests.fixtures import cloud_tools


class CopyTest(cloud_tools.CloudToolsTestCase):

    def test_cells_name_nothing_of_one_cloud(self):
        """A cloud of another home would use that cloud's database."""
        from aio import database
        with mock.patch.object(database, 'nova_manage', return_value=[]):
            commands = database._nova(self.settings)
        self.assertNotIn(str(self.home), str(commands))
