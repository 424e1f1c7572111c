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


from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.live_change import change
from ghsched_nova.features.live_change import node_move
from ghsched_placement.fit.cells import GuestCell
from ghsched_placement.fit.cells import HostCell
from ghsched_placement.providers import names
from ghsched_placement.tests import base

COMPUTE = '1b1c5d0e-5b1d-4c39-8a67-6f1c0b7c2a11'
GUEST = change.GuestRecord('u', 'web', 'host_a', COMPUTE, (0,),
                           {'ghsched:mem_bw_min': '30'}, True)
CORES = (frozenset({4}), frozenset({5}))
PLACE = node_move.GuestLocation(
    GUEST, (GuestCell(0, pins={0: 0, 1: 1}, memory=512),), {
        0: HostCell(frozenset({2}), tuple(frozenset({cpu})
                                          for cpu in range(3))),
        1: HostCell(frozenset({4, 5}), CORES, memory_free=1024)})


FROM, TO = ((names.make_numa_provider_uuid(COMPUTE, node), names.MEM_BW_PCT)
            for node in (0, 1))


class NodeMoveTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.place = PLACE
        self.held = {FROM: 30, TO: 0}
        self.shares, self.host = mock.Mock(), mock.Mock()
        self.shares.read_allocated_amounts.side_effect = lambda: dict(
            self.held
        )
        self.nodes = []

    def mover(self, **guest):
        place = dataclasses.replace(
            self.place, guest=dataclasses.replace(self.place.guest, **guest))

        def make_allocation_client(_guest, nodes):
            self.nodes.append(nodes)
            return self.shares

        self.records = mock.Mock(
            read_guest_nodes=mock.Mock(return_value=place)
        )
        self.records.lock_server.return_value = 'lock'
        self.records.unlock_server.return_value = ''
        return node_move.NodeMover(self.records, make_allocation_client,
                                   self.host, 'min')

    def check(self, wish=None, **guest):
        return self.mover(**guest).plan_move(wish or {0: 1})

    def refused(self, text, wish=None, **guest):
        error = self.assertRaises(errors.Refused, self.check, wish, **guest)
        self.assertIn(text, str(error))


class CheckTest(NodeMoveTestCase):

    def test_placement_and_the_host_are_asked_for_the_new_node(self):
        plan = self.check()
        self.assertEqual({0: 4, 1: 5}, plan.request.move.after[0].pins)
        self.shares.check_capacity.assert_called_once_with({FROM: 0, TO: 30})
        self.assertEqual({(0, 1)}, set(self.nodes))
        (guest, packed), _ = self.host.check_move.call_args
        self.assertEqual(('u', 1),
                         (guest.uuid, packed[0]['after']['host_node']))

    def test_nobody_is_asked_about_a_guest_that_is_there(self):
        self.assertFalse(self.check({0: 0}).is_needed)
        self.host.check_move.assert_not_called()
        self.shares.check_capacity.assert_not_called()

    def test_a_guest_without_a_guarantee_needs_no_room_in_placement(self):
        self.assertTrue(self.check(extra_specs={}).is_needed)
        self.shares.check_capacity.assert_not_called()

    def test_immovable_servers_are_refused_before_the_host_is_asked(self):
        self.refused('is not running', running=False)
        self.refused('has no NUMA node 7', {0: 7})
        self.place = dataclasses.replace(PLACE, devices=('0000:81:00.1',))
        self.refused('0000:81:00.1')
        self.place = dataclasses.replace(PLACE, guest_cells=())
        self.refused('hw:numa_nodes')
        self.host.check_move.assert_not_called()

    def test_who_refuses_says_why(self):
        self.shares.check_capacity.side_effect = errors.Refused('20 % left')
        self.refused('20 % left')
        self.shares.check_capacity.side_effect = None
        self.host.check_move.side_effect = errors.HostSilent('silent')
        self.refused('silent')
        self.host.check_move.side_effect = ValueError('x')
        self.refused('ValueError: x')


class RunTest(NodeMoveTestCase):

    def setUp(self):
        super().setUp()
        self.puts = []
        self.shares.write_amounts.side_effect = self.put
        self.host.move_nodes.side_effect = self.moved

    def put(self, wanted):
        if self.held == wanted:
            return
        self.held = dict(wanted)
        self.puts.append(dict(wanted))

    def moved(self, *_args):
        """Nova has the guest on its new node from here on."""
        self.held_meanwhile = dict(self.held)
        after = self.host.move_nodes.call_args[0][1][0]['after']
        place = self.records.read_guest_nodes.return_value
        self.records.read_guest_nodes.return_value = dataclasses.replace(
            place, guest_cells=(dataclasses.replace(
                place.guest_cells[0], host_node=after['host_node']),))

    def run_it(self, **guest):
        return self.mover(**guest).move_guest({0: 1})

    def move_and_get_leftover(self):
        error = self.assertRaises(errors.RollbackIncomplete, self.run_it)
        self.records.unlock_server.assert_called_once_with()
        return error

    def test_both_places_are_held_meanwhile(self):
        self.run_it()
        self.assertEqual({FROM: 30, TO: 30}, self.held_meanwhile)
        self.assertEqual({FROM: 0, TO: 30}, self.held)
        _guest, _packed, _token, lock = self.host.move_nodes.call_args[0]
        self.assertEqual('lock', lock)
        self.records.unlock_server.assert_called_once_with()

    def test_leftovers_of_a_crash_in_placement_are_removed(self):
        self.held = {FROM: 30, TO: 30}
        self.mover().move_guest({0: 0})
        self.assertEqual([{FROM: 30, TO: 0}], self.puts)
        self.host.move_nodes.assert_not_called()

    def test_a_guest_that_is_there_is_not_written_to(self):
        self.mover().move_guest({0: 0})
        self.assertEqual([], self.puts)
        self.records.lock_server.assert_not_called()

    def test_a_host_that_refuses_leaves_all_as_it_was(self):
        self.host.move_nodes.side_effect = errors.Refused('pinned')
        self.assertIn('pinned', str(
            self.assertRaises(errors.Refused, self.run_it)))
        self.assertEqual({FROM: 30, TO: 0}, self.held)
        self.records.unlock_server.assert_called_once_with()

    def test_a_host_between_both_keeps_both(self):
        self.host.move_nodes.side_effect = errors.HostRollbackFailed('half')
        self.assertIn('audit --fix', str(self.move_and_get_leftover()))
        self.assertEqual({FROM: 30, TO: 30}, self.held)

    def test_guest_that_nothing_is_counted_for_leaves_no_word_of_placement(
            self):
        for extra_specs in ({}, {'ghsched:affinity_group': 'web'},
                            {'ghsched:monitor': 'true'}):
            self.host.move_nodes.side_effect = errors.HostRollbackFailed(
                'half')
            error = self.assertRaises(errors.RollbackIncomplete, self.run_it,
                                      extra_specs=extra_specs)
            self.assertNotIn('Placement', str(error))
            self.assertIn('finishes or undoes the move', str(error))
            self.assertEqual([], self.puts)

    def test_a_silent_host_is_asked_what_it_did(self):
        def silent(*args):
            self.moved(*args)
            raise errors.HostSilent('silent')
        self.host.move_nodes.side_effect = silent
        self.run_it()
        self.assertEqual({FROM: 0, TO: 30}, self.held)
        self.host.cancel_call.assert_called_once()

    def test_a_silent_host_that_did_nothing_will_not_later(self):
        self.host.move_nodes.side_effect = errors.HostSilent('silent')
        self.assertIn('has not been moved', str(
            self.assertRaises(errors.Refused, self.run_it)))
        self.assertEqual({FROM: 30, TO: 0}, self.held)

    def test_a_host_that_stays_silent_keeps_both(self):
        self.host.move_nodes.side_effect = errors.HostSilent('silent')
        self.host.cancel_call.side_effect = errors.HostSilent('silent')
        self.assertIn('old and on the new', str(self.move_and_get_leftover()))
        self.assertEqual({FROM: 30, TO: 30}, self.held)

    def test_placement_that_fails_after_the_move_takes_nothing_back(self):
        self.shares.write_amounts.side_effect = [None, errors.Refused('away')]
        self.assertIn('the server was moved',
                      str(self.move_and_get_leftover()))
