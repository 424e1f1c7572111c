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

"""``openstack ghsched density plan``, with descriptions of hosts."""

import contextlib
import io
from pathlib import Path
from unittest import mock

from osc_lib import exceptions
import testtools

from ghsched_nova.cmd import osc_density
from ghsched_placement.osc import density

HOSTS = Path(__file__).parents[4] / 'etc' / 'ghsched' / 'hosts'


class PlanDensityTest(testtools.TestCase):

    def asked(self, *files):
        self.command = osc_density.PlanDensity(mock.MagicMock(), None)
        parser = self.command.get_parser('openstack ghsched density plan')
        return parser.parse_args(
            ['--flavor', 'a', *(part for file in files
                                for part in ('--machine', str(file)))])

    def test_a_machine_is_read_with_its_vfs(self):
        asked = self.asked(HOSTS / 'kunpeng920.yaml',
                           HOSTS / 'amd-epyc9755.yaml')
        ours, theirs = self.command.targets(asked)
        self.assertEqual(('kunpeng920', 'amd-epyc9755'),
                         (ours.machine.name, theirs.machine.name))
        self.assertEqual({'nic': 'CUSTOM_PCI_19E5_375E'}, ours.aliases)
        self.assertEqual((), ours.counted)
        self.assertEqual((), self.command.targets(self.asked()))

    def test_a_bad_file_is_an_error_before_the_cloud_is_asked(self):
        for name, words in (('absent.yaml', 'No such file'),
                            ('intel-2s.yaml', 'no section "contention"')):
            asked = self.asked(HOSTS / name)
            with contextlib.redirect_stderr(io.StringIO()):
                error = self.assertRaises(exceptions.CommandError,
                                          self.command.take_action, asked)
            self.assertIn(words, str(error))
            self.command.app.client_manager.ghsched.flavor.assert_not_called()

    def test_it_is_the_same_command(self):
        self.assertEqual(density.PlanDensity.__doc__,
                         osc_density.PlanDensity.__doc__)
