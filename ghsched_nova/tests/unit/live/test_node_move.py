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

import dataclasses
from unittest import mock

import testtools

from ghsched_nova.live import change
from ghsched_nova.live import errors
from ghsched_nova.live import node_move
from ghsched_placement import names
from ghsched_placement.node_move import GuestCell
from ghsched_placement.node_move import HostCell

COMPUTE = '1b1c5d0e-5b1d-4c39-8a67-6f1c0b7c2a11'
GUEST = change.Guest('u', 'web', 'host_a', COMPUTE, (0,),
                     {'ghsched:mem_bw_min': '30'}, True)
CORES = (frozenset({4}), frozenset({5}))
PLACE = node_move.Place(
    GUEST, (GuestCell(0, pins={0: 0, 1: 1}, memory=512),), {
        0: HostCell(frozenset({2}), tuple(frozenset({cpu})
                                          for cpu in range(3))),
        1: HostCell(frozenset({4, 5}), CORES, memory_free=1024)})


class NodeMoveTest(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.place = PLACE
        self.shares, self.host = mock.Mock(), mock.Mock()
        self.nodes = []

    def check(self, wish=None, **guest):
        place = dataclasses.replace(
            self.place, guest=dataclasses.replace(self.place.guest, **guest))

        def shares_of(_guest, nodes):
            self.nodes.append(nodes)
            return self.shares
        return node_move.NodeMove(
            mock.Mock(place=lambda: place), shares_of, self.host,
            'min').check(wish or {0: 1})

    def refused(self, text, wish=None, **guest):
        error = self.assertRaises(errors.Refused, self.check, wish, **guest)
        self.assertIn(text, str(error))

    def test_placement_and_the_host_are_asked_for_the_new_node(self):
        plan = self.check()
        self.assertEqual({0: 4, 1: 5}, plan.request.move.after[0].pins)
        self.shares.check_room.assert_called_once_with(
            {names.numa_provider_uuid(COMPUTE, 1): 30})
        self.assertEqual([(1,)], self.nodes)
        (guest, packed), _ = self.host.check_move.call_args
        self.assertEqual(('u', 1),
                         (guest.uuid, packed[0]['after']['host_node']))

    def test_nobody_is_asked_about_a_guest_that_is_there(self):
        self.assertFalse(self.check({0: 0}).needed)
        self.host.check_move.assert_not_called()
        self.shares.check_room.assert_not_called()

    def test_a_guest_without_a_guarantee_needs_no_room_in_placement(self):
        self.assertTrue(self.check(extra_specs={}).needed)
        self.shares.check_room.assert_not_called()

    def test_what_cannot_be_moved_is_refused_before_the_host_is_asked(self):
        self.refused('does not run', running=False)
        self.refused('ways of the L3', extra_specs={
            'ghsched:l3_ways': '2', 'ghsched:mem_bw_min': '30'})
        self.refused('has no NUMA node 7', {0: 7})
        self.place = dataclasses.replace(PLACE, devices=('0000:81:00.1',))
        self.refused('0000:81:00.1')
        self.place = dataclasses.replace(PLACE, cells=())
        self.refused('hw:numa_nodes')
        self.host.check_move.assert_not_called()

    def test_who_refuses_says_why(self):
        self.shares.check_room.side_effect = errors.Refused('20 % left')
        self.refused('20 % left')
        self.shares.check_room.side_effect = None
        self.host.check_move.side_effect = errors.HostSilent('silent')
        self.refused('silent')
        self.host.check_move.side_effect = ValueError('x')
        self.refused('ValueError: x')
