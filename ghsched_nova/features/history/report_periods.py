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

"""Times between the reports of nova-compute, for records of what happened."""

from collections.abc import Iterator
import contextlib
import threading

#: Maximum length of a period in seconds. After a longer pause of nova-compute,
#: the earlier bandwidth is unknown.
PERIOD_MAX_S = 600.0


class ReportClock:
    """Time of nova-compute's last report to Placement; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: float | None = None

    @contextlib.contextmanager
    def report_period_lock(self, now: float) -> Iterator[float | None]:
        """Within this context, no other thread can record a report period.

        A report period is the time between two reports of nova-compute to
        Placement. The context yields the start of the period that ends now,
        in seconds since 1970. It yields None if there is no period: for the
        first report, and for a report that is older than the last one.

        :param now: time of this report, in seconds since 1970.
        """
        with self._lock:
            last = self._last
            if last is not None and now <= last:
                yield None
                return
            self._last = now
            yield last
