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
import json
from pathlib import Path

from prometheus_client import core
from prometheus_client import registry

from ghsched_nova.features.exporter import metrics
from ghsched_placement.base import wire

#: Name of the file in nova's state_path.
FILE = 'ghsched-repairs.json'
VERSION = 1
#: Maximum number of kinds of repairs in the file.
MAX_KINDS = 100
_LONGEST_KIND = 64


def render_repair_counts(counts: Mapping[str, int]) -> str:
    """Return as JSON how often each kind of repair was made on this host.

    A repair is a correction of a guest's resctrl group by nova-compute.
    """
    return json.dumps({'version': VERSION, 'repairs': dict(counts)},
                      sort_keys=True)


def parse_repair_counts(text: str) -> dict[str, int]:
    """Parse how often each kind of repair was made, from JSON.

    A repair is a correction of a guest's resctrl group by nova-compute. The
    result is empty if the text is malformed.
    """
    return wire.parse_record(text, VERSION, lambda found: {
        wire.check_text(kind, _LONGEST_KIND): wire.check_integer(count)
        for kind, count in wire.check_object(
            found['repairs'], MAX_KINDS).items()}) or {}


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
        counts = parse_repair_counts(wire.read_file(self._path))
        yield metrics.make_metric('ghsched_repairs', [
            ((kind,), count) for kind, count in sorted(counts.items())])
