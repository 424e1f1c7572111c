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

"""A guest that writes what it likes to its channel, as fast as it can.

The guest is one end of a socket pair; the other end is libvirt's stream. All
above it is nova-compute's own. A nightly run has all lines and minutes, a
commit an eighth.
"""

import contextlib
import functools
import gc
import json
from pathlib import Path
import random
import re
import select
import socket
import threading
import tracemalloc
from types import SimpleNamespace
from unittest import mock

import fixtures

from ghsched_nova.features.guest_channel import channel
from ghsched_nova.features.guest_channel import guest_channel
from ghsched_nova.features.guest_channel import lines
from ghsched_nova.features.guest_channel import stream
from ghsched_nova.guest import metadata
from ghsched_nova.host import bandwidth_use
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_placement.features.load import pressure
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import forged
from ghsched_placement.tests.fixtures import spaces

HOSTILE = 'c2d4e6f8-0000-4000-8000-000000000001'
OTHER = 'c2d4e6f8-0000-4000-8000-000000000002'
VCPUS = 4
LINES, MINUTES = 20000, 10
#: Bytes that nova-compute may have more afterwards.
MOST_GROWTH = 2 ** 20
#: Calls of functions for one guest in a minute. A call takes less than 1 us,
#: so these are less than 0.4 % of a CPU.
MOST_CALLS = 200_000

HONEST = (
    {'ghsched': 1, 'ask': 'policy'},
    {'ghsched': 1, 'pressure': {'cpu': 1.5, 'memory': 0, 'steal': 100}},
    {'ghsched': 1, 'classes': {'latency': '0-1'}},
    {'ghsched': 1, 'classes': {'latency': '0,2', 'batch': '3'}})


class SocketStream:
    """libvirt's stream of a channel; the guest has the other end.

    :ivar received: number of bytes that the host has read.
    """

    def __init__(self):
        self.host, self.guest = socket.socketpair()
        for end in (self.host, self.guest):
            end.setblocking(False)
        self.events, self.callback, self.received = 0, None, 0

    def eventAddCallback(self, events, callback, opaque):  # noqa: N802
        self.events, self.callback, self.opaque = events, callback, opaque

    def eventUpdateCallback(self, events):  # noqa: N802
        self.events = events

    def eventRemoveCallback(self):  # noqa: N802
        self.callback = None

    def abort(self):
        self.host.close()

    def __del__(self):
        self.is_freed = True

    def send(self, data):
        try:
            return self.host.send(data)
        except BlockingIOError:
            return stream.WOULD_BLOCK

    def recv(self, count):
        try:
            data = self.host.recv(count)
        except BlockingIOError:
            return stream.WOULD_BLOCK
        self.received += len(data)
        return data

    def run(self):
        """Call back as libvirt's event loop does, until nothing is ready."""
        for _ in range(1000):
            if self.callback is None:
                return
            poll = select.poll()
            poll.register(self.host, (
                select.POLLIN if self.events & stream.READABLE else 0) | (
                select.POLLOUT if self.events & stream.WRITABLE else 0))
            ready = {flag for _fd, mask in poll.poll(0) for flag, bit in (
                (stream.READABLE, select.POLLIN),
                (stream.WRITABLE, select.POLLOUT),
                (stream.HANGUP, select.POLLHUP)) if mask & bit}
            if not ready:
                return
            self.callback(self, sum(ready), self.opaque)

    def write(self, data):
        """Write as much as the host takes, and return the number of bytes."""
        try:
            return self.guest.send(data)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return 0


class Domain:
    """A running domain of libvirt, whose metadata can change."""

    def __init__(self, uuid):
        self.uuid, self.streams = uuid, []
        found = policy.parse_policy({
            'ghsched:vcpu_classes': 'latency:0-1,batch:3',
            'ghsched:mem_bw_min.latency': '30',
            'ghsched:mem_bw_max.batch': '40',
            'ghsched:guest_channel': 'write'}, 1, VCPUS)
        self.xml = metadata.write_policy(guest_channel.add_channel_port(
            f'<domain><uuid>{uuid}</uuid><vcpu>{VCPUS}</vcpu><devices/>'
            '</domain>', 'write'), metadata.DomainPolicy(found, (0,)))

    def jobInfo(self):  # noqa: N802
        return [0]

    def XMLDesc(self, _flags):  # noqa: N802
        return self.xml

    def setMetadata(self, _kind, text, _prefix, _uri, _flags):  # noqa: N802
        inner = re.sub('<(/?)', rf'<\1{metadata.PREFIX}:', text).replace(
            f'<{metadata.PREFIX}:policy',
            f'<{metadata.PREFIX}:policy xmlns:{metadata.PREFIX}='
            f'"{metadata.NAMESPACE}"')
        self.xml = re.sub(r'<metadata>.*</metadata>',
                          lambda _match: f'<metadata>{inner}</metadata>',
                          self.xml, flags=re.DOTALL)

    def openChannel(self, _name, opened, _flags):  # noqa: N802
        self.streams.append(opened)

    def close_ended_streams(self):
        """Close and forget all streams but the last."""
        for one in self.streams[:-1]:
            one.host.close()
            one.guest.close()
        del self.streams[:-1]

    @property
    def running(self):
        return desired.parse_running_domain(self.xml, 1)

    @property
    def members(self):
        return {one.name: one.current for one in metadata.read_policy(
            self.xml).policy.classes}


class HostileGuestTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.useFixture(fixtures.MockPatchObject(threading, 'Thread'))
        self.useFixture(fixtures.MockPatchObject(
            guest_channel, 'time', SimpleNamespace(
                monotonic=lambda: self.now, sleep=None)))
        make = stream.GuestStream
        self.useFixture(fixtures.MockPatchObject(
            stream, 'GuestStream', lambda opened, may_write: make(
                opened, may_write, lambda: self.now)))
        self.useFixture(fixtures.MockPatchObject(
            bandwidth_use.BandwidthMeter, 'measure_bandwidth',
            lambda _meter, _guests: None))
        self.parse = self.useFixture(fixtures.MockPatchObject(
            lines, 'parse_guest_line', mock.Mock(
                side_effect=lines.parse_guest_line))).mock
        self.log = self.useFixture(fixtures.FakeLogger(level=30))
        self.domains = {uuid: Domain(uuid) for uuid in (HOSTILE, OTHER)}
        self.touched = []
        self.engine = SimpleNamespace(
            not_held={}, reconcile_guest=lambda running: self.touched.append(
                running.domain.uuid))
        connection = SimpleNamespace(
            newStream=lambda _flags: SocketStream(),
            lookupByUUIDString=self.domains.get)
        self.part = guest_channel.make_compute_hooks(SimpleNamespace(
            engine=self.engine, changing=contextlib.nullcontext(),
            section=None, find_running=lambda uuid: self.domains[uuid].running,
            list_running=self.list_running,
            state_path=Path(self.useFixture(fixtures.TempDir()).path),
            libvirt_host=SimpleNamespace(get_connection=lambda: connection)))
        self.addCleanup(self.close_sockets)
        self.report()
        self.chance = random.Random(  # noqa: S311
            f'hostile {spaces.number()}')

    def close_sockets(self):
        for one in self.domains.values():
            one.streams.append(None)
            one.close_ended_streams()

    def list_running(self):
        return [one.running for one in self.domains.values()]

    def report(self):
        """Report of the host, once a minute."""
        running = self.list_running()
        self.part.observe(compute_hooks.HostSnapshot(
            time=self.now, running=running))
        for uuid in self.domains:
            self.part.make_diagnostics(SimpleNamespace(uuid=uuid), {})

    def skip_to_report(self):
        self.now += 60 - self.now % 60
        self.report()

    @property
    def channel(self):
        return self.domains[HOSTILE].streams[-1]

    def pass_second(self):
        """Run the event loop and the thread of nova-compute for a second."""
        self.channel.run()
        self.part.serve_vcpu_move_requests()
        self.part.inform_of_enforcement_changes()
        self.now += 1.0
        if self.now % 60 == 0:
            self.report()

    def mutate(self):
        """Return a line of bytes that an honest guest would not write."""
        line = self.chance.choice(HONEST)
        if self.chance.random() < 0.5:
            key = self.chance.choice(list(line))
            return forged.write({**line, key: self.chance.choice(
                forged.VALUES)}).encode(errors='replace')[:6000]
        data = bytearray(json.dumps(line).encode())
        for _ in range(self.chance.randint(1, 4)):
            place = self.chance.randrange(len(data) + 1)
            data[place:place + self.chance.choice((0, 1, 8))] = (
                self.chance.choice((b'', b'\0', b'{', b'"', b'-', b'9' * 99,
                                    b'\xff', b'0-65535', b'\n', b'[' * 3000,
                                    bytes([self.chance.randrange(256)]))))
        return bytes(data)

    def assert_others_are_untouched(self):
        self.assertLessEqual(set(self.touched), {HOSTILE})
        self.assertEqual({'latency': {0, 1}, 'batch': {3}, 'default': {2}},
                         self.domains[OTHER].members)
        self.assertTrue(self.part._channels[OTHER].stream.is_open)
        vcpus = [vcpu for some in self.domains[HOSTILE].members.values()
                 for vcpu in some]
        self.assertEqual(list(range(VCPUS)), sorted(vcpus))

    def measure_growth(self, function):
        """Return by how many bytes a function grows what Python keeps."""
        function()      # caches
        gc.collect()
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        before, _peak = tracemalloc.get_traced_memory()
        function()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    def test_mutated_lines_harm_nobody_else(self):
        parsed = []

        def write_lines():
            for _ in range(spaces.count(LINES) // 20):
                for _ in range(10):
                    self.channel.write(self.mutate() + b'\n')
                self.pass_second()
                if not self.part._channels[HOSTILE].stream.is_open:
                    self.skip_to_report()
            self.domains[HOSTILE].close_ended_streams()
            parsed.append(self.parse.call_count)
            self.parse.reset_mock()

        self.assertLess(self.measure_growth(write_lines), MOST_GROWTH)
        # Beside them are lines that are too long.
        self.assertGreater(sum(parsed), spaces.count(LINES) // 2)
        self.assertTrue(self.touched)
        self.assert_others_are_untouched()
        # A line an hour, and what is malformed is never an error.
        hours = 1 + (self.now - 1000.0) // channel.LOG_PERIOD_S
        logged = self.log.output.splitlines()
        self.assertLessEqual(len(logged), hours, self.log.output)
        self.assertNotIn('Traceback', self.log.output)
        # An honest line is still understood.
        self.skip_to_report()
        self.channel.write(b'\n' + json.dumps(HONEST[1]).encode() + b'\n')
        self.channel.run()
        self.assertEqual(pressure.Pressure(1.5, 0, 100),
                         self.part._find_pressure(HOSTILE))

    def flood(self, data):
        for _ in range(59):
            self.channel.write(data)
            self.pass_second()

    def test_flood_costs_a_bounded_number_of_bytes_and_calls(self):
        for line in (b'\n', b'x' * 99, b'{}\n', *(
                json.dumps(one).encode() + b'\n' for one in HONEST)):
            for _ in range(spaces.count(MINUTES)):
                self.skip_to_report()
                before = sum(one.received for one
                             in self.domains[HOSTILE].streams)

                _none, calls = forged.count_calls(functools.partial(
                    self.flood, line * (2 ** 18 // len(line))))
                self.assertLess(calls, MOST_CALLS, line)
                received = sum(one.received for one
                               in self.domains[HOSTILE].streams) - before
                self.assertLessEqual(
                    received, stream.MAX_RECEIVED + 2 * 4096, line)
        self.assert_others_are_untouched()

    def test_guest_that_never_reads_is_written_a_bounded_number(self):
        for _ in range(60 * spaces.count(MINUTES)):
            for line in (HONEST[2], *[HONEST[0]] * 9):
                self.channel.write(json.dumps(line).encode() + b'\n')
                self.channel.run()
            self.pass_second()
        for one in self.domains[HOSTILE].streams:
            one.host.close()
            read = 0
            while data := one.guest.recv(65536):
                read += len(data)
            self.assertLessEqual(read, 2 ** 15)
        minutes = 1 + spaces.count(MINUTES)
        self.assertLessEqual(
            len(self.touched),
            channel.MOVES_PER_MINUTE * minutes)
