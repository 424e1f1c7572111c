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

"""Notifications of guests that lose their protection, and have it again."""

from collections.abc import Callable
from collections.abc import Mapping
import threading
from typing import Any

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

_NOT_PROTECTED = 'ghsched.server.not_protected.'


class Notices:
    """Notifications that were sent, by guest; safe for threads.

    :param send: takes the type of an event and its payload.
    """

    def __init__(self, send: Callable[[str, dict[str, Any]], None]) -> None:
        self._send = send
        self._sending = threading.Lock()
        self._sent: set[str] = set()

    def report(self, host: str, reasons: Mapping[str, str]) -> None:
        """Send what has changed; what cannot be sent comes with a later call.

        What fails here must not stop a report or a guest that has arrived.

        :param reasons: by the UUID of each guest that is not protected.
        """
        try:
            with self._sending:
                self._send_changes(host, reasons)
        except Exception as error:
            LOG.warning('ghsched: a notification cannot be sent; it will be '
                        'tried again with the next report: %s', error)

    def _send_changes(self, host: str, reasons: Mapping[str, str]) -> None:
        """Send what differs from the notifications that were sent."""
        for uuid in sorted(reasons.keys() - self._sent):
            self._send(_NOT_PROTECTED + 'start', {
                'host': host, 'server': uuid, 'reason': reasons[uuid]})
            self._sent.add(uuid)
        for uuid in sorted(self._sent - reasons.keys()):
            self._send(_NOT_PROTECTED + 'end', {
                'host': host, 'server': uuid})
            self._sent.remove(uuid)
