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


from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from ghsched_nova.features.live_change import move_messages
from ghsched_nova.features.live_change import move_xml
from ghsched_nova.guest import metadata
from ghsched_placement.features.live_change.node_move import NodeMove
from ghsched_placement.fit.cells import GuestCell
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

XML = '''<domain><name>g</name><vcpu>2</vcpu>
 <cputune><vcpupin vcpu="0" cpuset="0"/><vcpupin vcpu="1" cpuset="8"/>
  <emulatorpin cpuset="0,8"/><iothreadpin iothread="1" cpuset="0,8"/></cputune>
 <numatune><memory mode="strict" nodeset="0-1"/>
  <memnode cellid="0" mode="strict" nodeset="0"/>
  <memnode cellid="1" mode="strict" nodeset="1"/></numatune></domain>'''
POLICY = metadata.DomainPolicy(
    GuestPolicy(nodes=(NodePolicy(10, 50), NodePolicy(20, 60))), (0, 1))
BEFORE = (GuestCell(0, pins={0: 0}), GuestCell(1, pins={1: 8}))
#: Record that an earlier release has written.
MOVE = '''<domain><metadata>
<m:move xmlns:m="https://opendev.org/x/ghsched/move/1.0">[{"before":
{"host_node": 0, "vcpus": [0], "pins": [[0, 2]], "reserved": [3],
 "memory": 64, "page_size": 4, "shared": [1]}, "after":
{"host_node": 1, "vcpus": [0], "pins": [[0, 6]], "reserved": [7],
 "memory": 64, "page_size": 4, "shared": [5]}}]</m:move>
</metadata></domain>'''


def _after(first, second):
    return NodeMove(BEFORE, (GuestCell(first, pins={0: 8 * first}),
                             GuestCell(second, pins={1: 8 * second})))


def _canonical(xml):
    return etree.tostring(etree.fromstring(xml), method='c14n')


class DomainTest(base.TestCase):

    def test_pins_memory_and_policy_move(self):
        xml = move_xml.apply_move_to_xml(metadata.write_policy(
            XML, POLICY), _after(2, 1), {})
        root = etree.fromstring(xml)
        self.assertEqual(['16', '8'], [
            pin.get('cpuset') for pin in root.findall('cputune/vcpupin')])
        self.assertEqual(['8,16'] * 2, [
            root.find(f'cputune/{name}').get('cpuset')
            for name in ('emulatorpin', 'iothreadpin')])
        self.assertEqual(['1-2', '2', '1'], [
            one.get('nodeset') for one in root.find('numatune')])
        self.assertEqual((2, 1), metadata.read_policy(xml).host_nodes)
        self.assertEqual(POLICY.policy, metadata.read_policy(xml).policy)

    def test_reserved_cpus_are_for_the_emulator(self):
        move = NodeMove(BEFORE, (GuestCell(2, pins={0: 16},
                                           reserved=frozenset({17})),
                                 BEFORE[1]))
        root = etree.fromstring(move_xml.apply_move_to_xml(XML, move, {}))
        self.assertEqual('17', root.find('cputune/emulatorpin').get('cpuset'))

    def test_helper_threads_on_cpus_of_the_host_stay_there(self):
        xml = XML.replace('<emulatorpin cpuset="0,8"/>',
                          '<emulatorpin cpuset="30-31"/>')
        root = etree.fromstring(
            move_xml.apply_move_to_xml(xml, _after(2, 1), {}))
        self.assertEqual(['30-31', '8,16'], [
            root.find(f'cputune/{name}').get('cpuset')
            for name in ('emulatorpin', 'iothreadpin')])

    def test_shared_vcpus_float_over_the_node(self):
        before = (GuestCell(0, vcpus=frozenset({0, 1})),)
        move = NodeMove(before, (GuestCell(1, vcpus=frozenset({0, 1})),))
        root = etree.fromstring(move_xml.apply_move_to_xml(
            XML, move, {1: frozenset({8, 9, 10})}))
        self.assertEqual(['8-10'] * 2, [
            pin.get('cpuset') for pin in root.findall('cputune/vcpupin')])

    def test_a_domain_that_is_there_already_stays_as_it_is(self):
        there = move_xml.apply_move_to_xml(
            metadata.write_policy(XML, POLICY), _after(1, 0), {})
        self.assertEqual(_canonical(there), _canonical(
            move_xml.apply_move_to_xml(there, _after(1, 0), {})))

    def test_unchanged_parts_keep_their_text(self):
        self.assertIs(XML,
                      move_xml.apply_move_to_xml(
                          XML, NodeMove(BEFORE, BEFORE), {}))

    @given(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(
        lambda pair: pair[0] != pair[1]))
    def test_there_and_back_is_as_it_was(self, nodes):
        xml = metadata.write_policy(XML, POLICY)
        move = _after(*nodes)
        there = move_xml.apply_move_to_xml(xml, move, {})
        back = move_xml.apply_move_to_xml(there, move.make_reverse_plan(), {})
        self.assertEqual(_canonical(xml), _canonical(back))


class RecordTest(base.TestCase):

    def test_a_move_that_was_begun_is_read(self):
        def cell(node, cpu):
            return GuestCell(
                node, frozenset({0}), {0: cpu}, frozenset({cpu + 1}), 64, 4)
        self.assertEqual(
            move_messages.MoveRequest(
                NodeMove((cell(0, 2),), (cell(1, 6),)),
                {0: frozenset({1}), 1: frozenset({5})}),
            move_messages.unpack_move(move_xml.read_move_record(MOVE)))
