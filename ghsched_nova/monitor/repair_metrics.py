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

"""What nova-compute has repaired, for Prometheus.

nova-compute repairs with its reports, and counts in a file that outlives it,
so that the counter does not begin again.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import json
from pathlib import Path

from prometheus_client import core
from prometheus_client import registry

from ghsched_nova.monitor import metrics

#: In nova's state_path.
FILE = 'ghsched-repairs.json'
VERSION = 1


def write(counts: Mapping[str, int]) -> str:
    """The file: repairs by kind, ``write line`` for example."""
    return json.dumps({'version': VERSION, 'repairs': dict(counts)},
                      sort_keys=True)


def read(text: str) -> dict[str, int]:
    """The reverse of :func:`write`; empty where that makes no sense."""
    try:
        found = json.loads(text)
        if found['version'] != VERSION:
            return {}
        return {str(kind): int(count)
                for kind, count in found['repairs'].items()}
    except (AttributeError, KeyError, OverflowError, RecursionError,
            TypeError, ValueError):
        return {}


class Collector(registry.Collector):
    """Reads the file at each scrape; without one there are no samples."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Iterator[core.Metric]:
        """One counter."""
        try:
            counts = read(self._path.read_text())
        except (OSError, UnicodeDecodeError):
            counts = {}
        yield metrics.family('ghsched_repairs', [
            ((kind,), count) for kind, count in sorted(counts.items())])
