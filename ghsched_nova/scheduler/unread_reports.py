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


"""Warnings about hosts whose reports nova-scheduler cannot read."""

from collections.abc import Callable
from collections import OrderedDict
import threading
import time

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

#: Seconds between two warnings about a host.
_PAUSE_S = 3600.0
#: Maximum number of hosts that are remembered.
_MAX_HOSTS = 10000


class Warnings:
    """Warnings about hosts with unreadable reports; thread-safe.

    There is one for each host and hour, because each request meets the report
    again.

    :param clock: returns the time of the monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._warned: OrderedDict[str, float] = OrderedDict()

    def warn_once(self, host: str, error: Exception,
                  consequence: str = 'refusing the host') -> None:
        """Log that the report of a host cannot be read, once in an hour.

        :param error: error that the report has raised.
        :param consequence: consequence for the host, for the log.
        """
        now = self._clock()
        with self._lock:
            last = self._warned.get(host)
            if last is not None and now - last < _PAUSE_S:
                return
            self._warned[host] = now
            self._warned.move_to_end(host)
            if len(self._warned) > _MAX_HOSTS:
                self._warned.popitem(last=False)
        LOG.warning('ghsched: host %(host)s: cannot read its report; '
                    '%(consequence)s for this request: %(error).200r',
                    {'host': host, 'consequence': consequence,
                     'error': error}, exc_info=True)


#: Warnings of this process.
WARNINGS = Warnings()
