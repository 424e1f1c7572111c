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

"""Counter of repairs: corrections of guests' settings by nova-compute."""

from collections import Counter
from pathlib import Path

from ghsched_nova.base import record_file
from ghsched_nova.features.exporter import repair_metrics
from ghsched_nova.host import compute_hooks
from ghsched_nova.resctrl import model


class RepairCounts(compute_hooks.ComputeHooks):
    """Numbers of repairs by nova-compute, by kind, stored in a file.

    :param path: file that preserves the counters over restarts of
        nova-compute.
    """

    def __init__(self, path: Path) -> None:
        self._file = record_file.RecordFile(path, repair_metrics.FORMAT)
        self._counts = Counter(self._file.read())

    def observe(self, snapshot: compute_hooks.HostSnapshot) -> None:
        """Add the repairs since the previous snapshot to the counters.

        Each change by nova-compute is a repair of a guest's setting that
        something else has altered. Assignments of the kernel's bandwidth
        counters to resctrl groups do not count.
        """
        done = Counter({kind: count for kind, count
                        in snapshot.repairs.items()
                        if kind not in model.COUNTING})
        if done:
            self._counts += done
            self._file.write(self._counts)


def make_compute_hooks(services: compute_hooks.ComputeServices
                       ) -> RepairCounts:
    """Return the exporter's hooks in nova-compute, which count its repairs."""
    return RepairCounts(services.state_path / repair_metrics.FORMAT.name)
