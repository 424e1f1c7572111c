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

"""Counters of repairs: policies that nova-compute had to enforce again."""

from collections.abc import Iterable
from collections import Counter
from pathlib import Path
import threading

from oslo_log import log as logging

from ghsched_nova.base import atomic_file
from ghsched_nova.features.exporter import repair_metrics
from ghsched_nova.resctrl import model
from ghsched_placement.base import wire

LOG = logging.getLogger(__name__)


class Repairs:
    """Counters of repairs by kind, kept in a file; thread-safe.

    :param path: file that preserves the counters over restarts of
        nova-compute.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._adding = threading.Lock()

    def count_repairs(self, kinds: Iterable[str]) -> None:
        """Add changes by nova-compute to the repair counters; never raises.

        Each change is a repair: something has altered what nova-compute had
        set for a guest. Assignments of the kernel's bandwidth counters to
        resctrl groups do not count.

        :param kinds: kinds of the changes made.
        """
        done = Counter(kind for kind in kinds if kind not in model.COUNTING)
        if not done:
            return
        try:
            with self._adding:
                atomic_file.write_state_file(
                    self._path,
                    repair_metrics.render_repair_counts(
                        Counter(self._read_counts()) + done),
                )
        except OSError as error:
            LOG.warning(
                'ghsched: cannot count restored guest settings in the metric '
                'ghsched_repairs; its value will be too low: %s',
                error
            )

    def _read_counts(self) -> dict[str, int]:
        """Return the counters in the file; none if the file does not exist.

        :raises OSError: if the file cannot be read.
        """
        try:
            return repair_metrics.parse_repair_counts(
                wire.read_record_file(self._path))
        except FileNotFoundError:
            return {}
