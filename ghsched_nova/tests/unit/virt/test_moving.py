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
import types
from unittest import mock

from lxml import etree

from ghsched_nova.guest import metadata
from ghsched_nova.guest import move_record
from ghsched_nova.guest import node_move as domains
from ghsched_nova.live import move_messages
from ghsched_nova.virt import live
from ghsched_nova.virt import moving
from ghsched_placement import cpulist
from ghsched_placement.node_move import GuestCell
from ghsched_placement.node_move import Move
from ghsched_placement.policy import GuestPolicy
from ghsched_placement.policy import NodePolicy
from ghsched_placement.tests import base

OLD = GuestCell(0, pins={0: 0, 1: 1}, memory=512)
NEW = GuestCell(1, pins={0: 4, 1: 5}, memory=512)
REQUEST = move_messages.Request(Move((OLD,), (NEW,)),
                                {0: frozenset(), 1: frozenset()})
XML = metadata.write('''<domain><name>i-1</name><uuid>u</uuid><vcpu>2</vcpu>
 <cputune><vcpupin vcpu="0" cpuset="0"/><vcpupin vcpu="1" cpuset="1"/>
  <emulatorpin cpuset="0-1"/><iothreadpin iothread="1" cpuset="0-1"/></cputune>
 <numatune><memory mode="strict" nodeset="0"/>
  <memnode cellid="0" mode="strict" nodeset="0"/></numatune></domain>''',
                     metadata.DomainPolicy(
                         GuestPolicy(nodes=(NodePolicy(20, 60),)), (0,)))


class Dead(Exception):
    """A step that fails."""


class FakeHost:
    """A libvirt domain, its memory and its record, which fail on demand.

    :ivar fails_at: number of the step that fails.
    :ivar after: whether it has been done then.
    """

    def __init__(self):
        self.xml = dict.fromkeys((0, 1), XML)     # live, stored
        self.node, self.cells = 0, (OLD,)
        self.fails_at, self.after, self.count = None, False, 0
        self.claimed, self.enforced = [], []
        self.guest = types.SimpleNamespace(
            id=1, uuid='u', name='i-1', _domain=self,
            get_xml_desc=lambda dump_inactive=False, **_: self.xml[
                int(dump_inactive)])
        self.domain = live.Domain(self.guest, self.define)
        self.domain_xml = types.SimpleNamespace(retune=lambda xml: xml)

    @contextlib.contextmanager
    def step(self):
        self.count += 1
        fails = self.count == self.fails_at
        if fails and not self.after:
            raise Dead('before')
        yield
        if fails:
            raise Dead('after')

    def setMetadata(self, _kind, text, _key, uri, _flags):
        with self.step():
            for number, xml in self.xml.items():
                root = etree.fromstring(xml)
                parent = root.find('metadata')
                for old in parent.findall(f'{{{uri}}}*'):
                    parent.remove(old)
                if text is not None:
                    new = etree.fromstring(text)
                    for one in new.iter():
                        one.tag = f'{{{uri}}}{one.tag}'
                    parent.append(new)
                self.xml[number] = etree.tostring(root, encoding='unicode')

    def pin(self, path, cpus):
        with self.step():
            root = etree.fromstring(self.xml[0])
            root.find(path).set('cpuset', cpulist.render(
                cpu for cpu, there in enumerate(cpus) if there))
            self.xml[0] = etree.tostring(root, encoding='unicode')

    def pinVcpuFlags(self, vcpu, cpus, _flags):
        self.pin(f"cputune/vcpupin[@vcpu='{vcpu}']", cpus)

    def pinEmulator(self, cpus, _flags):
        self.pin('cputune/emulatorpin', cpus)

    def pinIOThread(self, thread, cpus, _flags):
        self.pin(f"cputune/iothreadpin[@iothread='{thread}']", cpus)

    def define(self, xml):
        with self.step():
            self.xml[1] = xml

    def reconcile_guest(self, running):
        with self.step():
            self.enforced.append(running.policy.host_nodes)

    def move(self, _name, moved, nodes):
        with self.step():
            self.node = moved[nodes[0]]

    @contextlib.contextmanager
    def claim(self):
        self.claimed.append(1)

        def commit():
            with self.step():
                self.cells = (NEW,)
        try:
            yield commit
        finally:
            self.claimed.pop()


class MovingTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.host = FakeHost()
        self.mover = moving.Mover(self.host, self.host, threading.RLock())

    def run_it(self):
        self.mover.run(self.host.domain, move_messages.pack(REQUEST),
                       self.host.claim, lambda: self.host.cells)

    def assert_agreed(self):
        """Everything is where the record has the guest."""
        cell, = self.host.cells
        self.assertEqual(cell.host_node, self.host.node)
        self.assertEqual((cell.host_node,), self.host.enforced[-1])
        self.assertEqual([], self.host.claimed)
        for xml in self.host.xml.values():
            self.assertEqual((cell.host_node,),
                             metadata.read(xml).host_nodes)
            self.assertIsNone(move_record.read(xml))
            both = frozenset(cell.pins.values())
            self.assertEqual(
                {**{('vcpupin', vcpu): {cpu}
                    for vcpu, cpu in cell.pins.items()},
                 ('emulatorpin', 0): both, ('iothreadpin', 1): both},
                domains.pins(xml))
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
                host = FakeHost()
                host.fails_at, host.after = step, after
                yield host

    def test_each_step_that_fails_is_taken_back_or_kept_as_the_record_says(
            self):
        for host in list(self.failures()):
            self.host = host
            self.mover = moving.Mover(host, host, threading.RLock())
            refused = None
            try:
                self.run_it()
            except live.NotChanged as error:
                refused = error
                self.assertFalse(error.left)
            self.assertEqual((OLD,) if refused else (NEW,), host.cells)
            if not host.enforced:      # it failed before anything was done
                host.enforced.append((0,))
            self.mover.repair(host.domain, host.cells)
            self.assert_agreed()

    def test_a_crash_at_each_step_is_repaired_as_the_record_says(self):
        for host in list(self.failures()):
            self.host = host
            self.mover = moving.Mover(host, host, threading.RLock())
            with mock.patch.object(self.mover, '_give_up',
                                   side_effect=live.NotChanged('killed')):
                with contextlib.suppress(live.NotChanged):
                    self.run_it()
            # The next nova-compute, which crashes in its turn.
            other = moving.Mover(host, host, threading.RLock())
            for turn in range(1, 12):
                host.fails_at = host.count + turn
                with contextlib.suppress(Dead):
                    other.repair(host.domain, host.cells)
            if not host.enforced:
                host.enforced.append((0,))
            self.assertFalse(other.repair(host.domain, host.cells))
            self.assert_agreed()

    def test_what_cannot_be_put_back_is_said_and_tried_again(self):
        def refuse(*_args):
            raise Dead('3 pages stay')
        with mock.patch.object(self.host, 'move', refuse):
            error = self.assertRaises(live.NotChanged, self.run_it)
        self.assertTrue(error.left)
        self.assertIn('3 pages stay; the guest could not be put back',
                      str(error))
        self.assertTrue(self.mover.repair(self.host.domain, self.host.cells))
        self.assert_agreed()

    def test_a_record_of_a_move_elsewhere_is_dropped(self):
        self.host.setMetadata(2, move_record.fragment([{'x': 1}]), '',
                              move_record.NAMESPACE, 3)
        self.host.enforced.append((0,))
        self.assertTrue(self.mover.repair(self.host.domain, (OLD,)))
        self.assert_agreed()

    def test_who_is_being_moved_is_busy(self):
        seen = []
        with mock.patch.object(
                self.host, 'move',
                lambda *_args: seen.append(self.mover.is_busy('u'))):
            self.run_it()
        self.assertEqual([True], seen)
        self.assertFalse(self.mover.is_busy('u'))

    def test_the_new_place_is_claimed_until_all_is_back(self):
        claimed = []

        def refuse(_name, moved, _nodes):
            claimed.append((dict(moved), len(self.host.claimed)))
            if moved == {0: 1}:
                raise Dead('pages stay')
        with mock.patch.object(self.host, 'move', refuse):
            self.assertRaises(live.NotChanged, self.run_it)
        self.assertEqual([({0: 1}, 1), ({1: 0}, 1)], claimed)
        self.assert_agreed()
