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

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.icon import conntrack
from ghsched_nova.icon import privileged
from ghsched_nova.icon import traffic
from ghsched_nova.icon.traffic import Flow
from ghsched_placement import affinity
from ghsched_placement.tests import base

#: Of Linux 6.18 with nf_conntrack_acct=1: 100000 bytes of TCP, 1000 of UDP,
#: and 5000 of TCP over IPv6, each with its headers.
CAPTURED = '''\
ipv4     2 tcp      6 432000 ESTABLISHED src=10.0.0.6 dst=10.0.0.5 \
sport=41000 dport=5000 packets=5 bytes=100268 src=10.0.0.5 dst=10.0.0.6 \
sport=5000 dport=41000 packets=3 bytes=164 [ASSURED] mark=0 zone=0 use=2
ipv6     10 tcp      6 432000 ESTABLISHED \
src=fd00:0000:0000:0000:0000:0000:0000:0006 \
dst=fd00:0000:0000:0000:0000:0000:0000:0005 sport=41002 dport=5000 packets=3 \
bytes=5224 src=fd00:0000:0000:0000:0000:0000:0000:0005 \
dst=fd00:0000:0000:0000:0000:0000:0000:0006 sport=5000 dport=41002 packets=2 \
bytes=152 [ASSURED] mark=0 zone=0 use=2
ipv4     2 udp      17 30 src=10.0.0.6 dst=10.0.0.5 sport=41001 dport=5353 \
packets=1 bytes=1028 [UNREPLIED] src=10.0.0.5 dst=10.0.0.6 sport=5353 \
dport=41001 packets=0 bytes=0 mark=0 zone=0 use=2
'''
BOTH = frozenset({'10.0.0.6', 'fd00::5'})


def counted(text, addresses=BOTH):
    return [(flow.source, flow.destination, flow.count)
            for flow in conntrack.parse(text, addresses)]


class ParseTest(base.TestCase):

    def test_what_a_kernel_shows(self):
        self.assertEqual(
            [('10.0.0.6', '10.0.0.5', 100432), ('fd00::6', 'fd00::5', 5376),
             ('10.0.0.6', '10.0.0.5', 1028)], counted(CAPTURED))

    def test_a_connection_of_nobody_is_left_out(self):
        self.assertEqual([('fd00::6', 'fd00::5', 5376)],
                         counted(CAPTURED, frozenset({'fd00::6'})))

    def test_a_connection_in_two_zones_counts_once(self):
        other = CAPTURED.replace('zone=0', 'zone=7').replace(
            'bytes=100268', 'bytes=100000')
        self.assertEqual(sorted(counted(CAPTURED)),
                         sorted(counted(CAPTURED + other)))

    def test_the_ends_are_those_behind_a_translation(self):
        line = ('ipv4 2 tcp 6 9 ESTABLISHED src=10.0.0.6 dst=192.0.2.9 '
                'sport=1 dport=2 packets=1 bytes=100 src=10.0.0.5 '
                'dst=192.0.2.1 sport=2 dport=1 packets=1 bytes=50 mark=0')
        self.assertEqual([('10.0.0.6', '10.0.0.5', 150)], counted(line))

    def test_a_kernel_that_counts_nothing_is_told_apart_from_silence(self):
        with self.assertRaisesRegex(traffic.SourceError, 'nf_conntrack_acct'):
            conntrack.parse(CAPTURED.replace('bytes=', 'b='), BOTH)
        self.assertEqual((), conntrack.parse('', BOTH))

    @given(st.text())
    def test_any_text_is_read_or_refused(self, text):
        try:
            conntrack.parse(CAPTURED + text, BOTH)
            conntrack.parse(text, BOTH)
        except traffic.SourceError:
            pass

    def test_a_kernel_without_the_table(self):
        with mock.patch.object(privileged, 'connections',
                               side_effect=FileNotFoundError(2, 'No such')):
            with self.assertRaisesRegex(traffic.SourceError, 'PROCFS'):
                conntrack.Conntrack().flows(BOTH)


class Fake(traffic.Source):
    """Counts as a kernel does."""

    def __init__(self):
        self.counts = {}

    def flows(self, addresses):
        return [Flow(str(number), one, other, count)
                for number, ((one, other), count)
                in enumerate(self.counts.items())
                if {one, other} & addresses]


class MeterTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.source = Fake()
        self.meter = traffic.Meter(self.source, affinity.Settings(
            half_life=0.001, least=1, delay=60))
        self.all = frozenset('ab')

    def look(self, count, now, addresses=None):
        self.source.counts['a', 'b'] = count
        self.meter.look(addresses or self.all, now)
        return self.meter.ties.strength('b', 'a')

    def test_what_was_sent_before_the_first_look_is_of_another_time(self):
        self.assertEqual(0, self.look(10 ** 9, 10))
        self.assertEqual(50, self.look(10 ** 9 + 500, 20))

    def test_an_address_that_is_new_begins_with_its_next_look(self):
        self.look(0, 10, frozenset('x'))
        self.assertEqual(0, self.look(10 ** 9, 20))
        self.assertEqual(50, self.look(10 ** 9 + 500, 30))

    def test_a_flow_that_began_again(self):
        self.look(10 ** 9, 10)
        self.assertEqual(20, self.look(200, 20))

    def test_a_connection_that_begins_is_counted(self):
        self.meter.look(self.all, 10)
        self.assertEqual(20, self.look(200, 20))

    @given(st.lists(st.integers(0, 10 ** 12), min_size=1))
    def test_nothing_is_ever_sent_twice(self, counts):
        before, total = {}, 0
        for count in sorted(counts):
            flow = Flow('k', 'a', 'b', count)
            total += sum(traffic.sent(before, [flow]).values())
            before = {'k': flow}
        self.assertEqual(max(counts), total)
