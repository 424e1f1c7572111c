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
"""Open channel of one guest, through a stream of libvirt.

libvirt calls the methods of a channel in its own thread, where nothing may
block or log; only the end of a stream waits for libvirtd, as in virsh. Other
threads only append a line.

libvirtd holds a packet that a guest does not read, and counts it as one of the
five requests that a client may have open (``max_client_requests``). A guest
that never reads would so end the connection of nova-compute. The socket
between libvirtd and QEMU takes more than :data:`MAX_SENT` bytes, so a stream
on which so much was written is closed. It is opened again with the next
report.
"""

import collections
from collections.abc import Callable
import time
from typing import Any
import weakref

from ghsched_nova.features.guest_channel import lines
from ghsched_placement.base import wire
from ghsched_placement.features.load import pressure as pressures

#: Flags of VIR_STREAM_EVENT_*.
READABLE, WRITABLE, ERROR, HANGUP = 1, 2, 4, 8
#: Flags of newStream() and openChannel(): non-blocking, and take the channel
#: from a nova-compute that has not noticed its end.
NONBLOCK, FORCE = 1, 1
#: What recv() and send() return if they would block.
WOULD_BLOCK = -2
#: Codes of errors of a domain that is gone or does not run:
#: VIR_ERR_NO_DOMAIN and VIR_ERR_OPERATION_INVALID.
GONE = frozenset({42, 55})

#: Bytes that are written on one stream at most.
MAX_SENT = 32768
#: Bytes and lines of a guest that are read in one period at most, and seconds
#: of it. A line of one byte costs as much time as one of a hundred.
MAX_RECEIVED, MAX_LINES, PERIOD_S = 65536, 1000, 60.0
#: Seconds after which a reported pressure is old.
PRESSURE_MAX_S = 60.0


class GuestStream:
    """Open libvirt stream of one guest's channel.

    :param stream: non-blocking libvirt stream on which the channel is open.
    :param may_write: whether the guest may report its pressure, and move its
        vCPUs between its classes.
    :param clock: function that returns seconds.
    :ivar is_open: False once the stream has ended.
    :ivar is_flooding: whether the guest wrote more than the limits allow.
    :ivar error: error that ended the stream; None for none.
    """

    def __init__(self, stream: Any, may_write: bool,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._stream: Any = stream
        self._may_write = may_write
        self._clock = clock
        self._splitter = lines.LineSplitter()
        # A newline ends what an earlier stream has begun.
        self._prefix, self._rest = b'\n', b''
        self._next: collections.deque[bytes] = collections.deque(maxlen=1)
        self._repetition = b''
        self._sent = self._received = self._lines = 0
        self._began = clock()
        self._pressure: tuple[float, pressures.Pressure] | None = None
        self._class_requests: collections.deque[
            lines.VcpuMoveRequest] = collections.deque(maxlen=1)
        self._malformed = 0
        self.is_open = True
        self.is_flooding = False
        self.error: Exception | None = None
        # remoteStreamCallbackFree() of libvirt 9.0 keeps for ever what it
        # gets here: it must not keep this object, with what the guest wrote.
        stream.eventAddCallback(READABLE | ERROR | HANGUP, self._dispatch,
                                weakref.ref(self))

    # -- called by other threads ----------------------------------------------

    def send(self, line: bytes, repetition: bytes) -> None:
        """Send a line to the guest; it replaces a line not written yet.

        :param repetition: line to send if the guest requests its policy later.
        """
        self._repetition = repetition
        self._next.append(line)
        if (stream := self._stream) is not None:
            _wait_for(stream, READABLE | WRITABLE)

    def close(self) -> None:
        """Close the stream."""
        if (stream := self._stream) is not None:
            self._end(stream)

    @property
    def is_flushed(self) -> bool:
        """Whether all lines have been written to the guest."""
        return not self._rest and not self._next

    @property
    def malformed(self) -> int:
        """Number of lines that were malformed or too long."""
        return self._malformed + self._splitter.dropped

    @property
    def pressure(self) -> pressures.Pressure | None:
        """Pressure that the guest reported last; None if it is not recent."""
        found = self._pressure
        return (found[1] if found is not None
                and self._clock() - found[0] <= PRESSURE_MAX_S else None)

    def pop_move_request(self) -> lines.VcpuMoveRequest | None:
        """Return the guest's last request to move vCPUs, and remove it.

        :returns: None without a new request, or if the stream has ended.
        """
        try:
            found = self._class_requests.pop()
        except IndexError:
            return None
        return found if self.is_open else None

    # -- called by libvirt ----------------------------------------------------
    # With eventlet self._stream is a proxy, which is not for this thread.

    @staticmethod
    def _dispatch(stream: Any, events: int,
                  reference: weakref.ref['GuestStream']) -> None:
        if (guest := reference()) is not None:
            guest._on_event(stream, events)
        else:
            stream.eventRemoveCallback()

    def _on_event(self, stream: Any, events: int) -> None:
        try:
            if events & WRITABLE:
                self._write(stream)
            if events & READABLE:
                self._read(stream)
            if events & (ERROR | HANGUP):
                self._end(stream)
        except Exception as error:
            self.error = error.with_traceback(None)
            self._end(stream)

    def _end(self, stream: Any) -> None:
        self.is_open = False
        # A traceback keeps the stream: only the garbage collector, which
        # rarely comes in a process with many objects, would free it.
        self._stream = None
        # libvirt keeps its reference to a stream whose callback was removed
        # (remoteStreamCallbackFree() of 9.0), so that it is never deleted.
        for end in (stream.eventRemoveCallback, stream.abort, stream.__del__):
            try:
                end()
            except Exception as error:  # it has ended already
                self.error = self.error or error.with_traceback(None)

    def _write(self, stream: Any) -> None:
        """Write as much as the stream takes without blocking."""
        if not self._rest and self._next:
            self._rest = self._prefix + self._next.popleft()
            self._prefix = b''
        if self._sent + len(self._rest) > MAX_SENT:
            self._end(stream)
            return
        if self._rest and (count := stream.send(self._rest)) > 0:
            self._sent += count
            self._rest = self._rest[count:]
        if not self._rest:
            _wait_for(stream, READABLE)
            # Another thread may have appended one in between.
            if self._next:
                _wait_for(stream, READABLE | WRITABLE)

    def _read(self, stream: Any) -> None:
        """Read and parse lines of the guest, up to the limits of a period."""
        now = self._clock()
        if now - self._began >= PERIOD_S:
            self._began, self._received, self._lines = now, 0, 0
        while self.is_open:
            data = stream.recv(lines.MAX_LINE)
            if data == WOULD_BLOCK:
                return
            self._received += len(data)
            self._lines += data.count(b'\n')
            if (not data or self._received > MAX_RECEIVED
                    or self._lines > MAX_LINES):
                self.is_flooding = bool(data)
                self._end(stream)
                return
            for line in self._splitter.split_lines(data):
                self._take(line)
            if self._next:
                _wait_for(stream, READABLE | WRITABLE)

    def _take(self, line: bytes) -> None:
        try:
            found = lines.parse_guest_line(line)
        except wire.MALFORMED:
            self._malformed += 1
            return
        if isinstance(found, pressures.Pressure) and self._may_write:
            self._pressure = self._clock(), found
        elif isinstance(found, lines.VcpuMoveRequest) and self._may_write:
            self._class_requests.append(found)
        elif (isinstance(found, lines.PolicyRequest) and self._repetition
              and not self._next):
            self._next.append(self._repetition)


def _wait_for(stream: Any, events: int) -> None:
    stream.eventUpdateCallback(events | ERROR | HANGUP)
