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

from pathlib import Path

from oslo_log import log as logging

from ghsched_nova.base import atomic_file
from ghsched_nova.features.blame import blame_periods
from ghsched_nova.features.history import report_periods
from ghsched_nova.features.load import load_rates
from ghsched_nova.monitor import view
from ghsched_placement.base import wire
from ghsched_placement.features.load import load

LOG = logging.getLogger(__name__)

#: Name of the file in Nova's state_path.
FILE = 'ghsched-blame.json'


class BlameRecord:
    """Record of the last periods between reports of nova-compute; thread-safe.

    :param path: file that preserves the record over restarts of nova-compute
        and shows it to ``ghsched-host blame``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = report_periods.ReportClock()
        # Replaced as a whole, so that readers do not wait for the disk.
        self.periods = read_bandwidth_record(path)

    def record_bandwidth_and_load(self, snapshot: view.Snapshot | None,
                                  measured: load.Load | None,
                                  now: float) -> None:
        """Record bandwidth and load since the last report; never raises.

        The record of the last minutes is used to find out which guests slow
        down a server.

        :param snapshot: bandwidth since the last report; None if unknown.
        :param measured: load since the last report; None if unknown.
        :param now: seconds since 1970.
        """
        try:
            with self._clock.report_period_lock(now) as last:
                if snapshot is None or last is None:
                    return
                period = blame_periods.make_period_record(
                    load_rates.extract_known_bandwidth(snapshot), measured,
                    now - last, now)
                if not period.guests:
                    return
                self.periods = (*self.periods, period)[
                    -blame_periods.PERIODS_KEPT:]
                atomic_file.write_state_file(
                    self._path,
                    blame_periods.format_periods_as_json(self.periods))
        except Exception as error:
            LOG.warning('ghsched: cannot save the bandwidth samples of '
                        'guests; retrying in the next periodic task: %r',
                        error)


def read_bandwidth_record(path: Path) -> tuple[blame_periods.Period, ...]:
    """Read a host's bandwidth and load of the last minutes from a file.

    nova-compute adds one period to the file with each report to Placement.

    :returns: the periods; an empty tuple if the file cannot be read.
    """
    return blame_periods.parse_periods(wire.read_file(path))
