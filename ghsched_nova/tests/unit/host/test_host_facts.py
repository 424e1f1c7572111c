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

"""Facts of a compute host, made again only when the kernel shows others."""

from pathlib import Path
import shutil
from unittest import mock

import fixtures

from ghsched_nova.host import host_facts
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.tests.fixtures import captured
from ghsched_placement.tests import base


class HostFactsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.top = Path(self.useFixture(fixtures.TempDir()).path) / 'host'
        shutil.copytree(captured.MACHINES / 'intel-xeon-2s', self.top)
        section = mock.MagicMock(
            resctrl_path=str(self.top / 'resctrl'),
            sysfs_path=str(self.top / 'sysfs'),
            bandwidth_cap=None, l3_ways_shared=2)
        section.__getitem__.return_value = {}
        self.section = section
        self.facts = host_facts.HostFacts(section)
        self.made = self.useFixture(fixtures.MockPatchObject(
            resctrl_host, 'make_host', wraps=resctrl_host.make_host)).mock

    def test_unchanged_host_is_made_once(self):
        self.assertIs(self.facts.read_resctrl_host(),
                      self.facts.read_resctrl_host())
        self.assertEqual(1, self.made.call_count)

    def test_host_is_made_again_after_each_change(self):
        self.facts.read_resctrl_host()
        for number, (name, old, new) in enumerate((
                ('resctrl/info/MB/num_closids', '8', '7'),
                ('resctrl/schemata', '0= 100', '0= 90'),
                ('sysfs/devices/system/node/node0/cpulist', '0-1', '1')), 2):
            path = self.top / name
            path.write_text(path.read_text().replace(old, new))
            self.facts.read_resctrl_host()
            self.assertEqual(number, self.made.call_count, name)
        self.section.l3_ways_shared = 3
        self.facts.read_resctrl_host()
        self.assertEqual(5, self.made.call_count)

    def test_host_without_resctrl_is_refused_after_it_was_made(self):
        self.facts.read_resctrl_host()
        shutil.rmtree(self.top / 'resctrl')
        self.assertRaises(resctrl_host.ResctrlUnavailable,
                          self.facts.read_resctrl_host)
