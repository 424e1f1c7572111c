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

import random
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
import msgpack
from oslo_utils import importutils

from ghsched_nova.base import privsep
from ghsched_nova.features.rebalance import conntrack
from ghsched_nova.features.rebalance import conntrack_table
from ghsched_nova.features.rebalance import flow_source
from ghsched_nova.features.rebalance.flow_source import Flow
from ghsched_nova.features.rebalance import privileged
from ghsched_placement.features.rebalance import affinity
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


def select(text, addresses=BOTH):
    return conntrack_table.select_connections(text.splitlines(), addresses)


def list_flows(text, addresses=BOTH):
    return [(flow.source, flow.destination, flow.count)
            for flow in select(text, addresses).flows]


def table(count, own='10.0.0.6'):
    """Connections of one address to many, each with one byte more."""
    for number in range(count):
        other = f'10.{number >> 16}.{number >> 8 & 255}.{number & 255}'
        yield (f'ipv4 2 tcp 6 9 ESTABLISHED src={own} dst={other} sport=1 '
               f'dport=2 packets=1 bytes={number} src={other} dst={own} '
               'sport=2 dport=1 packets=1 bytes=0 mark=0 zone=0 use=2\n')


class SelectTest(base.TestCase):

    def test_files_that_a_kernel_shows(self):
        self.assertCountEqual(
            [('10.0.0.6', '10.0.0.5', 100432), ('fd00::6', 'fd00::5', 5376),
             ('10.0.0.6', '10.0.0.5', 1028)], list_flows(CAPTURED))

    def test_a_connection_of_nobody_is_left_out(self):
        self.assertEqual([('fd00::6', 'fd00::5', 5376)],
                         list_flows(CAPTURED, frozenset({'fd00::6'})))

    def test_a_connection_in_two_zones_counts_once(self):
        other = CAPTURED.replace('zone=0', 'zone=7').replace(
            'bytes=100268', 'bytes=100000')
        self.assertEqual(sorted(list_flows(CAPTURED)),
                         sorted(list_flows(CAPTURED + other)))

    def test_the_ends_are_those_behind_a_translation(self):
        line = ('ipv4 2 tcp 6 9 ESTABLISHED src=10.0.0.6 dst=192.0.2.9 '
                'sport=1 dport=2 packets=1 bytes=100 src=10.0.0.5 '
                'dst=192.0.2.1 sport=2 dport=1 packets=1 bytes=50 mark=0')
        self.assertEqual([('10.0.0.6', '10.0.0.5', 150)], list_flows(line))

    def test_select_table_without_counts_is_not_counted(self):
        self.assertFalse(select(CAPTURED.replace('bytes=', 'b=')).is_counted)
        self.assertTrue(select('').is_counted)
        self.assertTrue(select(CAPTURED, frozenset()).is_counted)

    @given(st.text())
    def test_select_any_text_gives_flows_of_the_addresses(self, text):
        for flow in (*select(CAPTURED + text).flows, *select(text).flows):
            self.assertTrue({flow.source, flow.destination} & BOTH)

    def test_select_long_table_keeps_the_largest_flows_of_each_address(self):
        most = conntrack_table.MAX_FLOWS_OF_ADDRESS
        lines = [*table(5 * most), *table(3, '10.255.0.9')]
        random.Random(5).shuffle(lines)     # noqa: S311
        found = conntrack_table.select_connections(
            lines, frozenset({'10.0.0.6', '10.255.0.9'}))
        counts = sorted(flow.count for flow in found.flows
                        if flow.source == '10.0.0.6')
        self.assertEqual([*range(4 * most, 5 * most)], counts)
        # A flow of no byte is left out.
        self.assertEqual(2, len(found.flows) - most)
        self.assertEqual({'10.0.0.6': 4 * most - 1}, found.floors)

    def test_select_many_addresses_share_the_bound(self):
        with mock.patch.object(conntrack_table, 'MAX_FLOWS', 100):
            own = [f'10.200.0.{number}' for number in range(10)]
            found = conntrack_table.select_connections(
                (line for one in own for line in table(50, one)),
                frozenset(own))
        self.assertEqual(100, len(found.flows))

    def test_select_that_is_late_ends_and_is_incomplete(self):
        looked = []

        def is_late():
            looked.append(None)
            return len(looked) > 3

        lines = table(10 ** 9)
        found = conntrack_table.select_connections(lines, BOTH, is_late)
        self.assertFalse(found.is_complete)
        self.assertLess(len(found.flows), 10 ** 4)


class ConntrackTest(base.TestCase):

    def flows(self, *answers):
        source = conntrack.Conntrack()
        with mock.patch.object(privileged, 'read_connections',
                               side_effect=answers):
            return [source.flows(BOTH) for _answer in answers]

    def test_flows_without_a_table_raises_the_reason(self):
        for answer, words in (
                (FileNotFoundError(2, 'No such'), 'PROCFS'),
                (privsep.HelperTimeout('late'), 'late'),
                (conntrack_table.Selection((), False, True),
                 'nf_conntrack_acct')):
            with self.assertRaisesRegex(flow_source.SourceError, words):
                self.flows(answer)

    def test_flows_of_a_table_that_is_too_long_are_logged_once(self):
        whole, part = (conntrack_table.Selection((), True, complete)
                       for complete in (True, False))
        with self.assertLogs(conntrack.LOG, 'WARNING') as log:
            self.flows(whole, part, part, whole, part)
        self.assertEqual(2, len(log.output))

    def test_connections_cross_to_the_helper_and_back(self):
        path = self.create_tempfiles([('table', CAPTURED)])[0]
        channel = mock.Mock(running=True)
        channel.remote_call.side_effect = self._remote_call
        with (mock.patch.object(privileged, 'TABLE', path),
              mock.patch.object(privsep.connections, 'channel', channel)):
            self.assertEqual(
                select(CAPTURED), privileged.read_connections(BOTH)
            )

    def _remote_call(self, name, args, _kwargs, _timeout):
        with mock.patch.object(privsep.connections, 'client_mode', new=False):
            found = importutils.import_class(name)(*args)
        return msgpack.unpackb(msgpack.packb(found), use_list=False)


class Fake(flow_source.Source):
    """Counts as a kernel does."""

    def __init__(self):
        super().__init__()
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
        self.meter = flow_source.Meter(self.source, affinity.AffinitySettings(
            half_life=0.001, least=1, delay=60))
        self.all = frozenset('ab')

    def measure_traffic(self, count, now, addresses=None):
        self.source.counts['a', 'b'] = count
        self.meter.update_traffic_averages(addresses or self.all, now)
        return self.meter.averages.get_mean_traffic('b', 'a')

    def test_bytes_sent_before_the_first_measurement_do_not_count(self):
        self.assertEqual(0, self.measure_traffic(10 ** 9, 10))
        self.assertEqual(50, self.measure_traffic(10 ** 9 + 500, 20))

    def test_an_address_that_is_new_begins_with_its_next_look(self):
        self.measure_traffic(0, 10, frozenset('x'))
        self.assertEqual(0, self.measure_traffic(10 ** 9, 20))
        self.assertEqual(50, self.measure_traffic(10 ** 9 + 500, 30))

    def test_a_flow_that_began_again(self):
        self.measure_traffic(10 ** 9, 10)
        self.assertEqual(20, self.measure_traffic(200, 20))

    def test_a_connection_that_begins_is_counted(self):
        self.meter.update_traffic_averages(self.all, 10)
        self.assertEqual(20, self.measure_traffic(200, 20))

    def test_look_at_a_flow_left_out_before_counts_what_is_beyond(self):
        self.meter.update_traffic_averages(self.all, 10)
        self.source.floors = {'a': 10 ** 9}
        self.measure_traffic(0, 20)
        self.source.counts.clear()
        self.meter.update_traffic_averages(self.all, 30)
        self.source.floors = {}
        self.assertEqual(50, self.measure_traffic(10 ** 9 + 500, 40))

    def test_look_after_a_part_was_read_counts_no_new_flow(self):
        self.source.floors = dict.fromkeys(self.all, float('inf'))
        self.meter.update_traffic_averages(self.all, 10)
        self.assertEqual(0, self.measure_traffic(10 ** 9, 20))

    def test_look_at_many_peers_keeps_the_strongest(self):
        for look in range(1, 4):
            for number in range(3 * flow_source.MAX_PEERS):
                self.source.counts['a', f'peer {number}'] = (
                    10 ** 6 * look * (number + 1))
            self.meter.update_traffic_averages(frozenset('a'), look)
        pairs = self.meter.averages.by_pair
        self.assertEqual(flow_source.MAX_PEERS, len(pairs))
        self.assertEqual(
            {f'peer {number}' for number in range(2 * flow_source.MAX_PEERS,
                                                  3 * flow_source.MAX_PEERS)},
            {other for _own, other in pairs})

    @given(st.lists(st.integers(0, 10 ** 12), min_size=1))
    def test_nothing_is_ever_sent_twice(self, counts):
        before, total = {}, 0
        for count in sorted(counts):
            flow = Flow('k', 'a', 'b', count)
            total += sum(
                flow_source.count_new_bytes(before, [flow], {}).values()
            )
            before = {'k': flow}
        self.assertEqual(max(counts), total)
