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
import tempfile
from unittest import mock


from ghsched_nova.features.live_change import move_checks
from ghsched_nova.features.live_change.move_messages import MoveRequest
from ghsched_placement.features.live_change.node_move import NodeMove
from ghsched_placement.fit.cells import GuestCell
from ghsched_placement.tests import base

XML = """<domain><vcpu>2</vcpu>
 <cputune><vcpupin vcpu="0" cpuset="4"/><vcpupin vcpu="1" cpuset="1-2"/>
 </cputune><numatune><memory mode="strict" nodeset="0"/>
  <memnode cellid="0" mode="strict" nodeset="0"/></numatune>
 <devices><interface type="bridge"/></devices></domain>"""
MEMINFO = """Node 1 MemTotal:       4194304 kB
Node 1 MemFree:         {} kB
Node 1 Active(file):    999999 kB
Node 1 Inactive(file):  {} kB
"""


def _cell(node, cpu, page_size=None):
    return GuestCell(node, frozenset({1}), {0: cpu}, memory=512,
                     page_size=page_size)


def _request(page_size=None):
    return MoveRequest(
        NodeMove((_cell(0, 4, page_size),), (_cell(1, 8, page_size),)),
        {0: frozenset({1, 2}), 1: frozenset({5, 6})})


class RefusalsTest(base.TestCase):

    refusal, allowed = '', None

    def setUp(self):
        super().setUp()
        self.sysfs = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.node = self.sysfs / 'devices/system/node/node1'
        pages = self.node / 'hugepages/hugepages-2048kB'
        pages.mkdir(parents=True)
        self.free_pages = pages / 'free_hugepages'
        self.memory(400, 112)
        self.free_pages.write_text('256\n')

    def memory(self, free, inactive):
        """MiB of the node."""
        (self.node / 'meminfo').write_text(MEMINFO.format(
            free * 1024, inactive * 1024))

    def refusals(self, old='', new='', request=None):
        own_memory = mock.Mock(
            explain_unmovable_memory=lambda name: self.refusal,
            read_allowed_nodes=lambda name: self.allowed)
        return move_checks.list_node_move_refusals(
            XML.replace(old, new) if old else XML, request or _request(),
            own_memory, self.sysfs)

    def test_a_domain_as_nova_has_it_can_be_moved(self):
        self.assertEqual([], self.refusals())
        self.assertEqual([], self.refusals(request=_request(2048)))

    def test_pinned_memory_stays(self):
        for element, text in (
                ('<hostdev type="pci"/>', 'a passthrough device'),
                ('<interface type="hostdev"/>', 'a passthrough port'),
                ('<interface type="vdpa"/>', 'a vDPA port')):
            found, = self.refusals('<interface type="bridge"/>', element)
            self.assertIn(text, found)
        found, = self.refusals('<devices>', '<launchSecurity/><devices>')
        self.assertIn('encrypted memory', found)

    def test_a_domain_that_is_not_as_nova_has_it_stays(self):
        found, = self.refusals('cpuset="4"', 'cpuset="5"')
        self.assertIn('vCPUs 0 ', found)
        found, = self.refusals('cellid="0" mode="strict" nodeset="0"',
                               'cellid="0" mode="strict" nodeset="1"')
        self.assertIn('host NUMA nodes 1, Nova has 0', found)
        found, = self.refusals('<memnode', '<other')
        self.assertIn('host NUMA nodes -,', found)

    def test_shared_vcpus_that_are_bound_to_some_cpus_can_be_moved(self):
        self.assertEqual([], self.refusals('cpuset="1-2"', 'cpuset="2"'))
        for cpus in ('', '2-3'):
            found, = self.refusals('cpuset="1-2"', f'cpuset="{cpus}"')
            self.assertIn('vCPUs 1 ', found)

    def test_memory_that_was_moved_is_where_its_control_group_says(self):
        self.allowed = frozenset({0})
        self.assertEqual([], self.refusals('nodeset="0"', 'nodeset="1"'))
        self.allowed = frozenset({0, 1})
        found, = self.refusals()
        self.assertIn('host NUMA nodes 0-1, Nova has 0 on record', found)

    def test_memory_that_cannot_be_bound_elsewhere_stays(self):
        self.refusal = 'no cpuset'
        self.assertEqual(['no cpuset'], self.refusals())
        self.refusal = ''
        one, other = _cell(0, 4), _cell(1, 8)
        found = self.refusals(request=MoveRequest(
            NodeMove((one, other), (other, one)), {}))
        self.assertIn('keeps the order', found[0])

    def test_there_must_be_memory_as_the_kernel_counts_it(self):
        self.memory(400, 111)
        self.assertEqual(['host NUMA node 1 has 511 MiB, 512 MiB are to be '
                          'moved there'], self.refusals())
        self.free_pages.write_text('255\n')
        found, = self.refusals(request=_request(2048))
        self.assertIn('510 MiB in free pages of 2048 KiB', found)

    def test_memory_that_is_not_known_is_no_reason(self):
        (self.node / 'meminfo').unlink()
        self.assertEqual([], self.refusals())
        self.free_pages.write_text('none')
        self.assertEqual([], self.refusals(request=_request(2048)))
