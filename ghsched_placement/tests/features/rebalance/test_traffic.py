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

import json

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.rebalance import affinity
from ghsched_placement.features.rebalance import traffic
from ghsched_placement.features.rebalance.traffic import AddressTraffic
from ghsched_placement.features.rebalance.traffic import Port
from ghsched_placement.tests import base

SERVER = {
    'id': 'one', 'tenant_id': 'p', 'addresses': {'net': [
        {'addr': '10.0.0.5', 'version': 4, 'OS-EXT-IPS:type': 'fixed'},
        {'addr': '192.0.2.5', 'version': 4, 'OS-EXT-IPS:type': 'floating'},
        {'addr': 'fd00:0::5', 'version': 6, 'OS-EXT-IPS:type': 'fixed'}]}}


class RecordTest(base.TestCase):

    def test_written_values_are_read(self):
        ties = affinity.TrafficAverages(0, {
            ('10.0.0.5', '10.0.0.6'): affinity.PairTraffic(50.4, 0),
            ('10.0.0.4', '10.0.0.5'): affinity.PairTraffic(70, 0),
            ('10.0.0.4', '10.0.0.6'): affinity.PairTraffic(90, 0)})
        found = traffic.parse_traffic_diagnostics(json.loads(json.dumps(
            traffic.make_traffic_diagnostics(ties, ['10.0.0.5']))))
        self.assertEqual((AddressTraffic('10.0.0.5', '10.0.0.4', 70),
                          AddressTraffic('10.0.0.5', '10.0.0.6', 50)), found)

    def test_no_record_is_not_silence(self):
        self.assertIsNone(traffic.parse_traffic_diagnostics({}))
        self.assertEqual(
            (), traffic.parse_traffic_diagnostics({traffic.KEY: []}))

    @given(st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner)))
    def test_invalid_values_are_left_out(self, found):
        traffic.parse_traffic_diagnostics({traffic.KEY: found})
        traffic.parse_traffic_diagnostics(
            {traffic.KEY: [found, ['::1', '::2', found]]})


class BetweenTest(base.TestCase):

    def ties(self, talks, *known):
        found = traffic.compute_guest_traffic(
            talks, [Port(*port.split()) for port in known])
        return {pair: tie.strength for pair, tie in found.by_pair.items()}

    def test_fixed_addresses_of_a_server(self):
        self.assertEqual(
            (Port('one', 'p net', '10.0.0.5'),
             Port('one', 'p net', 'fd00::5')),
            traffic.list_server_ports(SERVER))
        self.assertEqual((), traffic.list_server_ports({'id': 'one'}))

    def test_tie_between_networks_needs_traffic_of_both_guests(self):
        victim = [AddressTraffic('7', '8', 1e6)]
        friend = [AddressTraffic('8', '7', 1e6)]
        ports = ('attacker x 9', 'victim y 7', 'friend y 8')
        for amount in (1.0, 1e12):
            self.assertEqual({('friend', 'victim'): 1e6}, self.ties(
                {'attacker': [AddressTraffic('9', '7', amount)],
                 'victim': victim, 'friend': friend}, *ports))
        self.assertEqual(
            {('friend', 'victim'): 1e6, ('attacker', 'victim'): 5},
            self.ties({'attacker': [AddressTraffic('9', '7', 1e9)],
                       'victim': [*victim, AddressTraffic('7', '9', 5)]},
                      *ports))

    def test_near_and_far_addresses_of_a_pair_add_up(self):
        self.assertEqual({('a', 'b'): 57}, self.ties(
            {'a': [AddressTraffic('1', '2', 50), AddressTraffic('3', '4', 9)],
             'b': [AddressTraffic('4', '3', 7)]},
            'a n 1', 'b n 2', 'a x 3', 'b y 4'))

    @given(st.lists(st.floats(0, 1e300), min_size=1, max_size=9))
    def test_traffic_of_one_guest_is_limited(self, rates):
        found = self.ties(
            {'a': [AddressTraffic('1', f'p{number}', rate)
                   for number, rate in enumerate(rates)]},
            'a n 1', *(f'g{number} n p{number}'
                       for number in range(len(rates))))
        self.assertLessEqual(sum(found.values()), 25.001e9)

    def test_ambiguous_values_are_left_out(self):
        talks = {
            'a': [AddressTraffic('1', '2', 50), AddressTraffic('1', '1', 5),
                  AddressTraffic('1', '9', 7)]}
        self.assertEqual({}, self.ties(talks, 'a n 1', 'b m 2', 'c o 2'))
        self.assertEqual({}, self.ties(talks, 'a n 1', 'b n 2', 'c n 2'))
