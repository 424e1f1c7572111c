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

import contextlib
import threading
from unittest import mock

from lxml import etree

from ghsched_nova.features.live_change import guest_move
from ghsched_nova.features.live_change import move_messages
from ghsched_nova.features.live_change import move_xml
from ghsched_nova.features.live_change import policy_change
from ghsched_nova.guest import metadata
from ghsched_nova.guest import thread_pins
from ghsched_nova.tests.fixtures import moving_host
from ghsched_placement.tests import base

OLD, NEW = moving_host.OLD, moving_host.NEW
REQUEST, XML = moving_host.REQUEST, moving_host.XML


class MovingTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.host = moving_host.MovingHost(XML, (OLD,))
        self.mover = guest_move.Mover(self.host, self.host, threading.RLock())

    def run_it(self):
        self.mover.move_guest(self.host.domain,
                              move_messages.pack_move(REQUEST),
                              lambda: self.host.claim((NEW,)),
                              lambda: self.host.cells)

    def assert_agreed(self):
        """Everything is where the record has the guest."""
        cell, = self.host.cells
        self.assertEqual(cell.host_node, self.host.node)
        self.assertEqual((cell.host_node,), self.host.enforced[-1])
        self.assertEqual([], self.host.claimed)
        for xml in self.host.xml.values():
            self.assertEqual((cell.host_node,),
                             metadata.read_policy(xml).host_nodes)
            self.assertIsNone(move_xml.read_move_record(xml))
            both = frozenset(cell.pins.values())
            self.assertEqual(
                {**{('vcpu', vcpu): {cpu}
                    for vcpu, cpu in cell.pins.items()},
                 ('emulator', 0): both, ('iothread', 1): both},
                thread_pins.parse_pins(etree.fromstring(xml)))
        memory = etree.fromstring(self.host.xml[1]).find('numatune/memnode')
        self.assertEqual(str(cell.host_node), memory.get('nodeset'))

    def test_all_is_on_the_new_node(self):
        self.run_it()
        self.assertEqual((NEW,), self.host.cells)
        self.assert_agreed()

    def failures(self):
        """The host with each of its steps failing, before and after it."""
        self.run_it()
        for after in (False, True):
            for step in range(1, self.host.count + 1):
                host = moving_host.MovingHost(XML, (OLD,))
                host.fails_at, host.after = step, after
                yield host

    def test_each_step_that_fails_is_taken_back_or_kept_as_the_record_says(
            self):
        for host in list(self.failures()):
            self.host = host
            self.mover = guest_move.Mover(host, host, threading.RLock())
            refused = None
            try:
                self.run_it()
            except policy_change.NotChanged as error:
                refused = error
                self.assertFalse(error.incomplete)
            self.assertEqual((OLD,) if refused else (NEW,), host.cells)
            if not host.enforced:      # it failed before anything was done
                host.enforced.append((0,))
            self.mover.resolve_interrupted_move(host.domain, host.cells)
            self.assert_agreed()

    def test_a_crash_at_each_step_is_repaired_as_the_record_says(self):
        for host in list(self.failures()):
            self.host = host
            self.mover = guest_move.Mover(host, host, threading.RLock())
            with mock.patch.object(self.mover, '_roll_back',
                                   side_effect=policy_change.NotChanged(
                                       'killed')):
                with contextlib.suppress(policy_change.NotChanged):
                    self.run_it()
            # The next nova-compute, which crashes in its turn.
            other = guest_move.Mover(host, host, threading.RLock())
            for turn in range(1, 12):
                host.fails_at = host.count + turn
                with contextlib.suppress(moving_host.Dead):
                    other.resolve_interrupted_move(host.domain, host.cells)
            if not host.enforced:
                host.enforced.append((0,))
            self.assertFalse(
                other.resolve_interrupted_move(host.domain, host.cells))
            self.assert_agreed()

    def test_failed_restores_are_reported_and_retried(self):
        def refuse(*_args):
            raise moving_host.Dead('3 pages stay')
        with mock.patch.object(self.host, 'move_guest_memory', refuse):
            error = self.assertRaises(policy_change.NotChanged, self.run_it)
        self.assertTrue(error.incomplete)
        self.assertIn('3 pages stay; the guest could not be returned',
                      str(error))
        self.assertTrue(self.mover.resolve_interrupted_move(self.host.domain,
                                                            self.host.cells))
        self.assert_agreed()

    def test_a_record_of_a_move_elsewhere_is_dropped(self):
        self.host.setMetadata(
            2, move_xml.render_move_record([{'x': 1}]), '',
            move_xml.NAMESPACE, 3)
        self.host.enforced.append((0,))
        self.assertTrue(
            self.mover.resolve_interrupted_move(self.host.domain, (OLD,)))
        self.assert_agreed()

    def test_who_is_being_moved_is_busy(self):
        seen = []
        with mock.patch.object(
                self.host, 'move_guest_memory',
                lambda *_args: seen.append(self.mover.is_moving('u'))):
            self.run_it()
        self.assertEqual([True], seen)
        self.assertFalse(self.mover.is_moving('u'))

    def test_the_new_place_is_claimed_until_all_is_back(self):
        claimed = []

        def refuse(_name, moved, _nodes):
            claimed.append((dict(moved), len(self.host.claimed)))
            if moved == {0: 1}:
                raise moving_host.Dead('pages stay')
        with mock.patch.object(self.host, 'move_guest_memory', refuse):
            self.assertRaises(policy_change.NotChanged, self.run_it)
        self.assertEqual([({0: 1}, 1), ({1: 0}, 1)], claimed)
        self.assert_agreed()
