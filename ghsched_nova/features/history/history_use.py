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

"""History of the bandwidth of this host's guests, added with each report."""

from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ghsched_nova.base import record_file
from ghsched_nova.features.load import load_rates
from ghsched_nova.host import compute_hooks
from ghsched_nova.monitor import view
from ghsched_placement.features.history import usage_history
from ghsched_placement.features.history.usage_history import UsageKey


class HistoryRecorder(compute_hooks.ComputeHooks):
    """Recorder of the bandwidth of guests in each of the last minutes.

    :param path: file that preserves the record over restarts of nova-compute.
        ``ghsched-top`` reads it, too.
    """

    def __init__(self, path: Path) -> None:
        self._file = record_file.RecordFile(path, usage_history.FILE_FORMAT)
        # Replaced as a whole, so that readers do not wait for the disk.
        self.history = self._file.read()

    def observe(self, snapshot: compute_hooks.HostSnapshot) -> None:
        """Add bandwidth since the previous snapshot to the history."""
        if snapshot.bandwidth is None or snapshot.since is None:
            return
        self.history = usage_history.add_period_to_history(
            self.history, make_usage_period(
                snapshot.bandwidth,
                max(snapshot.since,
                    snapshot.time - compute_hooks.PERIOD_MAX_S),
                snapshot.time))
        if self.history.minutes:
            self._file.write(self.history)

    def make_diagnostics(self, guest: Any,
                         found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a guest's bandwidth in the last hours."""
        return usage_history.make_history_diagnostics(self.history, guest.uuid)


def make_compute_hooks(services: compute_hooks.ComputeServices
                       ) -> HistoryRecorder:
    """Return nova-compute's recorder of the bandwidth history."""
    return HistoryRecorder(services.state_path
                           / usage_history.FILE_FORMAT.name)


def make_usage_period(snapshot: view.Snapshot, start: float,
                      end: float) -> usage_history.UsagePeriod:
    """Return the bandwidth of guests and host nodes in a period of history.

    Bandwidth of which a part is unknown is left out.

    :param start: start of the period, in seconds since 1970.
    :param end: end of the period, in seconds since 1970.
    """
    known = load_rates.extract_known_bandwidth(snapshot)
    return usage_history.UsagePeriod(
        start, end,
        {**{UsageKey(*key): rate for key,
            rate in known.guests.items() if key[0]},
         **{UsageKey('', node): rate for node, rate in known.used.items()}},
        dict(_yield_names(snapshot)), known.capacity)


def _yield_names(snapshot: view.Snapshot) -> Iterator[tuple[str, str]]:
    for usage in snapshot.guests:
        yield usage.guest.uuid, usage.guest.title
