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
from pathlib import Path

from oslo_log import log as logging

from ghsched_nova.base import atomic_file
from ghsched_nova.features.history import report_periods
from ghsched_nova.features.load import load_rates
from ghsched_nova.monitor import view
from ghsched_placement.features.history import usage_history
from ghsched_placement.features.history.usage_history import UsageKey

LOG = logging.getLogger(__name__)

#: Name of the file in Nova's state_path.
FILE = 'ghsched-history.json'


class HistoryRecorder:
    """Recorder of the bandwidth of guests in each of the last minutes.

    Thread-safe.

    :param path: file that preserves the record over restarts of nova-compute.
        ``ghsched-top`` reads it, too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = report_periods.ReportClock()
        # Replaced as a whole, so that readers do not wait for the disk.
        self.history = _read_history(path)

    def record_guest_bandwidth(self, snapshot: view.Snapshot | None,
                               now: float) -> None:
        """Add bandwidth since the last report to the history; never raises.

        The history has the bandwidth of each guest in each of the last
        minutes.

        :param snapshot: bandwidth since the last report; None if unknown.
        :param now: seconds since 1970.
        """
        try:
            with self._clock.report_period_lock(now) as last:
                if snapshot is None or last is None:
                    return
                self.history = usage_history.add_period_to_history(
                    self.history, make_period(
                        snapshot,
                        max(last, now - report_periods.PERIOD_MAX_S), now))
                if self.history.minutes:
                    atomic_file.write_state_file(
                        self._path, usage_history.to_json(self.history))
        except Exception as error:
            LOG.warning('ghsched: cannot save the bandwidth history of '
                        'guests; retrying in the next periodic task: %r',
                        error)


def make_period(snapshot: view.Snapshot, start: float,
                end: float) -> usage_history.Period:
    """Return the bandwidth of guests and host nodes in a period of history.

    Bandwidth of which a part is unknown is left out.

    :param start: start of the period, in seconds since 1970.
    :param end: end of the period, in seconds since 1970.
    """
    known = load_rates.extract_known_bandwidth(snapshot)
    return usage_history.Period(
        start, end,
        {**{UsageKey(*key): rate for key,
            rate in known.guests.items() if key[0]},
         **{UsageKey('', node): rate for node, rate in known.used.items()}},
        dict(_yield_names(snapshot)), known.capacity)


def _yield_names(snapshot: view.Snapshot) -> Iterator[tuple[str, str]]:
    for usage in snapshot.guests:
        yield usage.guest.uuid, usage.guest.title


def _read_history(path: Path) -> usage_history.History:
    """Read the bandwidth history of a host's guests from a file.

    The history is empty if the file cannot be read.
    """
    try:
        return usage_history.from_file(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        LOG.warning('ghsched: cannot read the bandwidth history of guests; '
                    'starting a new one: %s', error)
    return usage_history.History()
