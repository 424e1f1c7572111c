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

"""Notifications of guests that lose or regain their bandwidth protection."""

from collections.abc import Callable
from collections.abc import Mapping
import threading
from typing import Any

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

_NOT_PROTECTED = 'ghsched.server.not_protected.'


class ProtectionNotifier:
    """Sender of notifications of guests that lose or regain protection.

    A guest is protected while its bandwidth policy is enforced. Thread-safe.

    :param send: function that sends a notification, given its event type and
        payload.
    """

    def __init__(self, send: Callable[[str, dict[str, Any]], None]) -> None:
        self._send = send
        self._sending = threading.Lock()
        self._sent: frozenset[str] = frozenset()

    def notify_protection_changes(self, host: str,
                                  reasons: Mapping[str, str]) -> None:
        """Notify about guests that lost or regained bandwidth protection.

        A guest is protected while its bandwidth policy is enforced. This
        method never raises. The next call retries a notification that cannot
        be sent.

        :param host: name of this compute host.
        :param reasons: reason by UUID of each guest that is not protected.
        """
        try:
            # A guest that starts does not wait for what others send.
            if reasons.keys() == self._sent:
                return
            with self._sending:
                self._send_protection_changes(host, reasons)
        except Exception as error:
            LOG.warning('ghsched: cannot notify that a guest lost or regained '
                        'its guaranteed bandwidth; retrying in the next '
                        'periodic task: %s', error)

    def _send_protection_changes(self, host: str,
                                 reasons: Mapping[str, str]) -> None:
        """Send a notification for each guest whose protection changed.

        A guest is protected while its bandwidth policy is enforced.

        :param reasons: reason by UUID of each guest that is not protected.
        """
        for uuid in sorted(reasons.keys() - self._sent):
            self._send(_NOT_PROTECTED + 'start', {
                'host': host, 'server': uuid, 'reason': reasons[uuid]})
            self._sent |= {uuid}
        for uuid in sorted(self._sent - reasons.keys()):
            self._send(_NOT_PROTECTED + 'end', {
                'host': host, 'server': uuid})
            self._sent -= {uuid}
