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

"""Number of repairs of nova-compute as a Prometheus counter.

nova-compute adds its repairs to a file, so that the counter survives a
restart.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import core
from prometheus_client import registry

from ghsched_nova.features.exporter import metrics
from ghsched_placement.base import wire

#: Maximum number of kinds of repairs in the file.
MAX_KINDS = 100
_LONGEST_KIND = 64

#: Number of repairs by kind. A repair is a correction of a guest's resctrl
#: group by nova-compute.
FORMAT: wire.FileFormat[Mapping[str, int]] = wire.FileFormat(
    'ghsched-repairs.json', 1, lambda found: {
        wire.check_text(kind, _LONGEST_KIND): wire.check_integer(count)
        for kind, count in wire.check_object(
            found['repairs'], MAX_KINDS).items()},
    lambda counts: {'repairs': dict(sorted(counts.items()))}, dict)


class RepairCollector(registry.Collector):
    """Prometheus collector of repairs of guests' resctrl groups.

    nova-compute records the repairs in a file, which is read at each scrape.
    Without the file there are no samples.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Iterator[core.Metric]:
        """Yield the Prometheus counter of this host's repairs, by kind.

        A repair is a correction of a guest's resctrl group by nova-compute.
        """
        counts = FORMAT.read(self._path)
        yield metrics.make_metric('ghsched_repairs', [
            ((kind,), count) for kind, count in sorted(counts.items())])
