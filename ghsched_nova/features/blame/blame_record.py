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

"""Record of the bandwidth of this host's guests in the last minutes."""

from collections.abc import Sequence
from pathlib import Path

from ghsched_nova.base import record_file
from ghsched_nova.features.blame import blame_periods
from ghsched_nova.features.load import load_rates
from ghsched_nova.host import compute_hooks


class BlameRecord(compute_hooks.ComputeHooks):
    """Record of guests' bandwidth and load in the last reporting periods.

    The record is used to find out which guests slow down a server.

    :param path: file that preserves the record over restarts of nova-compute
        and shows it to ``ghsched-host blame``.
    """

    def __init__(self, path: Path) -> None:
        self._file = record_file.RecordFile(path, blame_periods.FORMAT)
        # Replaced as a whole, so that readers do not wait for the disk.
        self.periods: Sequence[blame_periods.BlamePeriod] = self._file.read()

    def observe(self, snapshot: compute_hooks.HostSnapshot) -> None:
        """Record bandwidth and load since the previous snapshot."""
        if snapshot.bandwidth is None or snapshot.since is None:
            return
        period = blame_periods.make_period_record(
            load_rates.extract_known_bandwidth(snapshot.bandwidth),
            snapshot.results.get('load'), snapshot.time - snapshot.since,
            snapshot.time)
        if not period.guests:
            return
        self.periods = (*self.periods, period)[-blame_periods.PERIODS_KEPT:]
        self._file.write(self.periods)
