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

"""What a host tells of a guest that an admin asks for."""

import types

import fixtures
import testtools

from ghsched_nova.guest import metadata
from ghsched_nova.tests.unit.monitor import trees
from ghsched_nova.tests.unit.virt import test_bandwidth_use
from ghsched_nova.virt import bandwidth_use
from ghsched_nova.virt import guest_diagnostics
from ghsched_placement import diagnostics
from ghsched_placement.policy import GuestPolicy
from ghsched_placement.policy import NodePolicy

GROUP = 'ghsched-' + trees.UUID


class GuestDiagnosticsTest(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(level=10))
        self.xml = metadata.write('<domain/>', metadata.DomainPolicy(
            GuestPolicy((NodePolicy(30, 50, True, 5),)), (1,)))

    def told(self, dialect, lines=(), **told):
        self.host = trees.Host(dialect)
        self.addCleanup(self.host.remove)
        self.host.group(GROUP, 100)
        for line in lines:
            self.host.model.write(f'/{GROUP}/schemata', line + '\n')
        self.host.sync()
        use = bandwidth_use.BandwidthUse(test_bandwidth_use.Section(
            resctrl_path=str(self.host.root),
            sysfs_path=str(self.host.top / 'sysfs'), node_bandwidth=told))
        return diagnostics.read(guest_diagnostics.GuestDiagnostics(
            use).added_to({'cpu0_time': 1}, types.SimpleNamespace(
                name='instance-1', uuid=trees.UUID, id=7,
                get_xml_desc=lambda: self.xml)))

    def test_what_the_control_group_holds(self):
        found = self.told('openeuler66', ['MB:1=50', 'MBMIN:1=20',
                                          'MBHDL:1=1', 'MBPRI:1=5'])
        self.assertEqual(
            diagnostics.GuestNode(1, 20, 50, True, 5, 0), found.by_node()[1])
        self.assertEqual([0, 1], [node.host_node for node in found.host])
        self.assertEqual(trees.CAPACITY, found.host[1].capacity)

    def test_a_guest_without_a_policy(self):
        self.xml = '<domain/>'
        self.assertIsNone(self.told('openeuler66'))

    def test_a_host_that_reports_no_bandwidth(self):
        self.assertIn('no memory bandwidth', self.told('mpam71').problem)

    def test_diagnostics_of_nova_come_through_whatever_is_wrong(self):
        self.xml = 'no XML'
        self.assertIsNone(self.told('openeuler66'))
        self.assertIn('can not be read', self.log.output)
