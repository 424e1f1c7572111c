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
"""A guest's channel on a stream of libvirt."""

import gc
import weakref

from ghsched_nova.features.guest_channel import stream
from ghsched_placement.tests import base

ASK = b'{"ghsched":1,"ask":"policy"}\n'
PRESSURE = b'{"ghsched":1,"pressure":{"cpu":2}}\n'


class FakeStream:
    """A stream of libvirt whose other end writes, reads or does not.

    :param room: bytes that send() takes until somebody reads.
    """

    def __init__(self, room=10 ** 9):
        self.room = room
        self.events, self.callback = 0, None
        self.written, self.incoming = b'', b''
        self.is_ended = self.is_aborted = self.is_freed = False

    def eventAddCallback(self, events, callback, opaque):  # noqa: N802
        self.events, self.callback = events, callback
        # As libvirt 9.0, which never lets go of them.
        self.kept = callback, opaque

    def eventUpdateCallback(self, events):  # noqa: N802
        if self.callback is None:
            raise ValueError('no callback')
        self.events = events

    def eventRemoveCallback(self):  # noqa: N802
        self.callback = None

    def abort(self):
        self.is_aborted = True

    def __del__(self):
        self.is_freed = True

    def send(self, data):
        taken = data[:self.room]
        if not taken:
            return stream.WOULD_BLOCK
        self.room -= len(taken)
        self.written += taken
        return len(taken)

    def recv(self, count):
        found, self.incoming = self.incoming[:count], self.incoming[count:]
        if not found and not self.is_ended:
            return stream.WOULD_BLOCK
        return found

    def run(self, times=20):
        """Call back as libvirt's event loop does."""
        for _ in range(times):
            ready = stream.WRITABLE if self.room else 0
            if self.incoming or self.is_ended:
                ready |= stream.READABLE
            if self.callback and self.events & ready:
                self.callback(self, self.events & ready, self.kept[1])


class GuestStreamTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.now = 0.0

    def open(self, may_write=True, **options):
        fake = FakeStream(**options)
        return fake, stream.GuestStream(fake, may_write, lambda: self.now)

    def test_line_is_written_whole_after_a_newline(self):
        fake, guest = self.open()
        guest.send(b'one\n', b'')
        self.assertEqual(b'', fake.written)
        fake.run()
        guest.send(b'two\n', b'')
        fake.run()
        self.assertEqual(b'\none\ntwo\n', fake.written)
        self.assertFalse(fake.events & stream.WRITABLE)

    def test_line_that_is_taken_in_pieces_arrives_whole(self):
        fake, guest = self.open(room=3)
        guest.send(b'one\n', b'')
        for _ in range(3):
            fake.run()
            fake.room = 1
        self.assertEqual(b'\none\n', fake.written)

    def test_newer_line_replaces_one_that_waits(self):
        fake, guest = self.open()
        guest.send(b'one\n', b'')
        guest.send(b'two\n', b'')
        fake.run()
        self.assertEqual(b'\ntwo\n', fake.written)

    def test_guest_that_never_reads_gets_no_more_than_the_limit(self):
        fake, guest = self.open()
        for _ in range(100):
            if guest.is_open:
                guest.send(b'x' * 1000 + b'\n', b'')
                fake.run()
        self.assertLessEqual(len(fake.written), stream.MAX_SENT)
        self.assertTrue(fake.is_aborted)
        self.assertIsNone(fake.callback)

    def test_guest_that_asks_hears_its_policy_again(self):
        fake, guest = self.open(may_write=False)
        fake.incoming = ASK
        fake.run()
        self.assertEqual(b'', fake.written)
        guest.send(b'one\n', b'again\n')
        fake.incoming = ASK
        fake.run()
        fake.incoming = ASK
        fake.run()
        self.assertEqual(b'\none\nagain\nagain\n', fake.written)

    def test_pressure_is_kept_for_a_minute_where_it_may_be_reported(self):
        for may_write in (False, True):
            fake, guest = self.open(may_write)
            fake.incoming = PRESSURE
            fake.run()
            self.assertEqual(may_write, guest.pressure is not None)
        self.assertEqual(2, guest.pressure.cpu)
        self.now += stream.PRESSURE_MAX_S + 1
        self.assertIsNone(guest.pressure)

    def test_guest_that_writes_too_much_is_cut_off(self):
        for flood in (PRESSURE * 10000, b'\n' * (stream.MAX_LINES + 1)):
            fake, guest = self.open()
            fake.incoming = flood
            fake.run()
            self.assertTrue(guest.is_flooding)
            self.assertFalse(guest.is_open)
            self.assertTrue(fake.is_aborted)

    def test_guest_that_writes_slowly_is_not_cut_off(self):
        fake, guest = self.open()
        for _ in range(100):
            self.now += stream.PERIOD_S
            fake.incoming = PRESSURE * 1000
            fake.run()
        self.assertTrue(guest.is_open)

    def test_malformed_lines_are_counted(self):
        fake, guest = self.open()
        fake.incoming = b'{\n' + b'x' * 5000 + b'\n' + PRESSURE
        fake.run()
        self.assertEqual(2, guest.malformed)
        self.assertEqual(2, guest.pressure.cpu)

    def test_stream_that_ended_is_freed_without_the_garbage_collector(self):
        self.addCleanup(gc.enable)
        gc.disable()

        def fail(*_arguments):
            raise OSError('gone')
        for end in ('flood', 'error', 'close'):
            fake, guest = self.open()
            if end == 'flood':
                fake.incoming = b'x' * (stream.MAX_RECEIVED + 1)
            elif end == 'error':
                fake.recv = fake.abort = fail
                fake.incoming = ASK
            fake.run()
            if end == 'close':
                guest.close()
            self.assertFalse(guest.is_open)
            self.assertTrue(fake.is_freed)
            guest = weakref.ref(guest)
            self.assertIsNone(guest())
            freed = weakref.ref(fake)
            del fake
            self.assertIsNone(freed(), end)

    def test_stream_that_ends_is_closed(self):
        for end in ('is_ended', 'hangup', 'error'):
            fake, guest = self.open()
            if end == 'is_ended':
                fake.is_ended = True
                fake.run()
            elif end == 'hangup':
                fake.callback(fake, stream.HANGUP, fake.kept[1])
            else:
                fake.recv = None
                fake.incoming = b'x'
                fake.run()
                self.assertIsInstance(guest.error, TypeError)
            self.assertFalse(guest.is_open)
            self.assertFalse(guest.is_flooding)
            self.assertIsNone(fake.callback)
