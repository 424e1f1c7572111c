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

"""Channel of one guest: its stream and the state that was last sent to it."""

import collections
import logging
import time
from typing import Any

from ghsched_nova.features.guest_channel import lines
from ghsched_nova.features.guest_channel import stream as streams

LOG = logging.getLogger(__name__)

#: Seconds between two messages about one guest.
LOG_PERIOD_S = 3600.0
#: Moves of vCPUs between classes that one guest gets in a minute.
MOVES_PER_MINUTE = 6


class Channel:
    """Stream of a guest, and the last state sent to it.

    :param domain_id: libvirt's ID of the domain, which changes with each
        start.
    :param mode: ``read`` or ``write``.
    :ivar is_listed: whether a host snapshot was processed since the channel
        was created. The first snapshot may be older than the domain.
    :ivar connection: connection of libvirt that the stream belongs to.
    :ivar informed: state that was last written to the guest.
    :ivar sending: state that is being written, and the reason.
    """

    def __init__(self, domain_id: int, mode: str) -> None:
        self.domain_id = domain_id
        self.mode = mode
        self.is_listed = False
        self.stream: streams.GuestStream | None = None
        self.connection: Any = None
        self.informed: lines.GuestState | None = None
        self.sending: tuple[lines.GuestState, str] | None = None
        self.logged_at = float('-inf')
        self.malformed = 0
        self.moves: collections.deque[float] = collections.deque(
            maxlen=MOVES_PER_MINUTE)

    @property
    def last(self) -> lines.GuestState | None:
        """State that was last sent to the guest; None before the first."""
        return self.sending[0] if self.sending else self.informed

    def choose_reason(self, state: lines.GuestState, first: str) -> str:
        """Return the reason to send a guest's state; empty if it is not new.

        :param state: present state of the guest.
        :param first: reason of the first line.
        """
        if self.stream is not None and self.stream.is_flushed and self.sending:
            self.informed, self.sending = self.sending[0], None
        if self.stream is not None and self.stream.is_open:
            return ('' if self.last == state
                    else self._choose_reason(state, first))
        return self._choose_reason(state, first) or lines.REPEATED

    def _choose_reason(self, state: lines.GuestState, first: str) -> str:
        if self.informed is not None:
            return lines.choose_reason(self.informed, state)
        return self.sending[1] if self.sending else first

    def forget_state(self) -> None:
        """Forget the last state, so that the next one is sent as the first."""
        self.informed = self.sending = None

    def log_problems(self, uuid: str) -> None:
        """Log that a guest floods its channel, or sends malformed lines.

        An error that ended the stream is logged, too. At most one problem of a
        guest is logged in an hour.
        """
        stream = self.stream
        if stream is None:
            return
        if stream.is_flooding:
            self.log(uuid, 'the guest wrote more than '
                     f'{streams.MAX_RECEIVED} bytes or {streams.MAX_LINES} '
                     'lines in a minute; not reading on before the next '
                     'report')
        elif (not stream.is_open and stream.error is not None
              and not is_domain_gone_error(stream.error)):
            self.log(uuid, f'the stream ended: {stream.error}')
        elif stream.malformed > self.malformed:
            self.log(uuid, f'dropped {stream.malformed - self.malformed} '
                     'malformed lines of the guest')
        self.malformed = stream.malformed if stream.is_open else 0

    def log(self, uuid: str, problem: str) -> None:
        """Log a problem of a guest's channel, at most one in an hour."""
        now = time.monotonic()
        if now - self.logged_at >= LOG_PERIOD_S:
            self.logged_at = now
            LOG.warning('ghsched: guest channel of guest %(guest)s: '
                        '%(problem)s',
                        {'guest': uuid, 'problem': problem})


def is_domain_gone_error(error: Exception) -> bool:
    """Whether an error of libvirt says that a domain is gone or not running.

    A snapshot of the host may have a guest that has just stopped or left.
    """
    read_code = getattr(error, 'get_error_code', None)
    return read_code is not None and read_code() in streams.GONE
