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
"""Lines between a guest and its host."""

import json

import hypothesis
from hypothesis import strategies
from lxml import etree

from ghsched_nova.features.guest_channel import domain_facts
from ghsched_nova.features.guest_channel import lines
from ghsched_nova.monitor import effective_limits
from ghsched_nova.monitor import rates
from ghsched_nova.monitor import view
from ghsched_placement.base import wire
from ghsched_placement.features.load import pressure
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base

GIB = 2 ** 30
POLICY = policy.parse_policy({
    'ghsched:mem_bw_min': '30', 'ghsched:mem_bw_max.1': '50',
    'ghsched:guest_channel': 'read'}, 2)
UNKNOWN = rates.NOTHING
LIMITS = effective_limits.EffectiveLimits(30, 60, True, 2)


def usage(**by_node):
    return view.GuestUsage(view.MonitoredGuest('one'), (), tuple(
        view.GuestNodeBandwidth((int(node[1:]),), None, limits, UNKNOWN)
        for node, limits in by_node.items()), UNKNOWN)


class StateTest(base.TestCase):

    def test_line_has_limits_in_percent_and_bandwidth(self):
        state = lines.make_guest_state(
            POLICY, (3, 1), True, usage(n1=LIMITS, n3=LIMITS),
            {1: 10 * GIB, 3: 20 * GIB})
        found = json.loads(lines.render_line(state, lines.STARTED))
        self.assertEqual({'ghsched': 1, 'reason': 'started', 'why': '',
                          'enforced': True,
                          'policy': {'nodes': [
                              {'mem_bw_min': 30, 'mem_bw_max': 100,
                               'mem_bw_hardlimit': True,
                               'mem_bw_priority': None},
                              {'mem_bw_min': 30, 'mem_bw_max': 50,
                               'mem_bw_hardlimit': True,
                               'mem_bw_priority': None}]},
                          'effective': [
                              {'mem_bw_min': 30, 'mem_bw_max': 60,
                               'min_mib': 6144, 'max_mib': 12288},
                              {'mem_bw_min': 30, 'mem_bw_max': 60,
                               'min_mib': 3072, 'max_mib': 6144}]}, found)

    def test_limits_of_which_one_is_unknown_are_left_out(self):
        for known in (None, usage(n1=LIMITS), usage(n1=LIMITS, n3=None)):
            self.assertEqual((), lines.make_guest_state(
                POLICY, (3, 1), True, known, {}).effective)

    def test_line_has_no_number_of_a_host_node(self):
        state = lines.make_guest_state(POLICY, (717, 718), False, None, {})
        for reason in (lines.STARTED, lines.REPEATED):
            self.assertIn(b'"enforced":false,"why":"the host cannot',
                          lines.render_line(state, reason))
        for reason in (lines.MOVED, lines.UNPROTECTED):
            self.assertNotIn(b'71', lines.render_line(state, reason))

    def test_policy_that_is_too_long_is_left_out(self):
        wide = policy.parse_policy({'ghsched:mem_bw_min': '1'}, 60)
        line = lines.render_line(
            lines.make_guest_state(wide, range(60), True, None, {}),
            lines.CHANGED)
        self.assertEqual({'ghsched': 1, 'reason': 'changed', 'enforced': True,
                          'why': ''},
                         json.loads(line))


class DomainFactsTest(base.TestCase):

    def describe(self, *elements):
        return domain_facts.describe_domain_for_guest(etree.fromstring(
            '<domain>' + ''.join(elements) + '</domain>'))

    def test_devices_are_counted_by_node_of_the_guest(self):
        # As libvirt writes a domain with two expander buses (1 and 3, with a
        # root port each), and a device that is behind none.
        def device(number, bus, more=''):
            return (
                '<hostdev mode="subsystem" type="pci"><source>'
                f'<address domain="0" bus="129" slot="{number}" function="0"/>'
                f'</source><address type="pci" domain="0x0000" bus="{bus}" '
                f'slot="0x00" function="0x0"/>{more}</hostdev>')

        def controller(index, model, bus, node=None):
            target = f'<target><node>{node}</node></target>' if node else ''
            return (f'<controller type="pci" index="{index}" model="{model}">'
                    f'{target}<address type="pci" bus="{bus}"/></controller>')
        buses = [controller(1, 'pcie-expander-bus', 0, '1'),
                 controller(2, 'pcie-root-port', 1),
                 controller(3, 'pcie-expander-bus', 0, '0'),
                 controller(4, 'pcie-root-port', 3),
                 controller(5, 'pcie-root-port', 0)]
        self.assertEqual(
            {'devices': [{'node': node, 'devices': 1}
                         for node in (None, 0, 1)]},
            self.describe('<devices>', *buses, device(1, 2), device(2, 4),
                          device(3, 5), '</devices>'))
        self.assertEqual(
            {'devices': [{'node': 3, 'devices': 1}]},
            self.describe('<devices>', device(1, 2, '<numa node="3"/>'),
                          '</devices>'))

    def test_realtime_vcpus(self):
        self.assertEqual(
            {'realtime': [{'vcpus': '2-3', 'scheduler': 'fifo',
                           'priority': '1'}]},
            self.describe('<cputune><vcpusched vcpus="2-3" scheduler="fifo" '
                          'priority="1"/></cputune><devices/>'))
        self.assertEqual({}, self.describe('<devices/>'))

    def test_change_is_named(self):
        last, now = (lines.make_guest_state(POLICY, (), True, None, {}, {
            'devices': [{'node': 0, 'devices': count}]}) for count in (1, 2))
        self.assertEqual('changed in the policy: devices',
                         lines.explain_change(last, now, lines.CHANGED))


class ReasonTest(base.TestCase):

    def test_reason_of_each_change(self):
        last = lines.GuestState({'nodes': []}, ({'mem_bw_min': 1},), (0,))
        more = ({'mem_bw_min': 2},)
        for now, reason in (
                (last, ''),
                (lines.GuestState({'nodes': [1]}, (), (0,)), lines.CHANGED),
                (lines.GuestState({'nodes': []}, more, (0,)), lines.CHANGED),
                (lines.GuestState({'nodes': []}, more, (1,)), lines.MOVED),
                (lines.GuestState({'nodes': []}, (), (0,)), ''),
                (lines.GuestState({'nodes': []}, (), (0,), False),
                 lines.UNPROTECTED)):
            self.assertEqual(reason, lines.choose_reason(last, now))
        self.assertEqual(lines.RESTORED, lines.choose_reason(
            lines.GuestState({'nodes': []}, (), (0,), False), last))


class SplitterTest(base.TestCase):

    @hypothesis.given(strategies.binary(max_size=200),
                      strategies.lists(strategies.integers(0, 200)))
    def test_lines_are_the_same_however_they_arrive(self, data, cuts):
        whole, parts = lines.LineSplitter(), lines.LineSplitter()
        cuts = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
        found, start = [], 0
        for cut in cuts:
            found += parts.split_lines(data[start:cut])
            start = cut
        self.assertEqual([*whole.split_lines(data)], found)
        self.assertEqual(data.split(b'\n')[:-1], found)

    def test_line_that_is_too_long_is_dropped_without_being_kept(self):
        splitter = lines.LineSplitter()
        for _ in range(100):
            self.assertEqual([], [*splitter.split_lines(b'x' * 4096)])
            self.assertEqual(b'', splitter._rest)
        self.assertEqual([b'next'], [*splitter.split_lines(b'x\nnext\n')])
        self.assertEqual(1, splitter.dropped)
        longest = b'y' * 4095
        self.assertEqual([longest], [*splitter.split_lines(longest + b'\n')])


class GuestLineTest(base.TestCase):

    def test_known_lines(self):
        self.assertEqual(lines.PolicyRequest(), lines.parse_guest_line(
            b'{"ghsched":1,"ask":"policy","new":[]}'))
        self.assertEqual(
            pressure.Pressure(1.5, 0.0, 100), lines.parse_guest_line(
                b'{"ghsched":1,"pressure":{"cpu":1.5,"steal":100,"io":3}}'))
        for line in (b'{"ghsched":2,"ask":"policy"}', b'{"ghsched":1}',
                     b'{"ghsched":1,"ask":["policy"]}'):
            self.assertIsNone(lines.parse_guest_line(line))

    def test_malformed_lines(self):
        for line in (b'', b'{', b'\xff', b'[]', b'null', b'{}', b'[' * 4000,
                     b'{"ghsched":"1"}', b'{"ghsched":' + b'9' * 4000 + b'}',
                     *(b'{"ghsched":1,"pressure":%b}' % value for value in (
                         b'1', b'null', b'{"cpu":-1}', b'{"cpu":101}',
                         b'{"cpu":NaN}', b'{"cpu":1e999}', b'{"cpu":"1"}',
                         b'{"cpu":true}', b'{"cpu":null}'))):
            self.assertRaises(wire.MALFORMED, lines.parse_guest_line, line)

    @hypothesis.given(strategies.binary(max_size=100))
    def test_any_other_bytes_are_malformed(self, data):
        try:
            lines.parse_guest_line(data)
        except wire.MALFORMED:
            pass
