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

"""Metrics of a nova-scheduler process, for a textfile collector.

nova-scheduler has several processes and no port of its own, so each of them
writes a file, which node_exporter's textfile collector reads.
"""

import atexit
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import os
from pathlib import Path
import time

from oslo_log import log as logging
import prometheus_client
from prometheus_client import core
from prometheus_client import registry

LOG = logging.getLogger(__name__)

#: Seconds between two writes.
EVERY = 15.0

_PREFIX = 'ghsched_scheduler_'

#: What became of requests: how IndexedScheduler counts them, and the label.
_WAYS = {'hits': 'index', 'fallbacks': 'index_in_vain', 'others': 'whole',
         'remembered': 'refused_from_memory'}


class Collector(registry.Collector):
    """The figures of one process.

    :ivar counts: requests by what became of them, since the start.
    :ivar hosts: in the index.
    :ivar rebuilt: how often all hosts were looked at.
    :ivar looked: when the hosts were last looked at, seconds since 1970.
    """

    def __init__(self) -> None:
        self.counts: Mapping[str, int] = {}
        self.hosts = self.rebuilt = 0
        self.looked = 0.0

    def collect(self) -> Iterator[core.Metric]:
        process = str(os.getpid())
        requests = core.CounterMetricFamily(
            f'{_PREFIX}requests', 'Requests, by how a host was looked for.',
            labels=('process', 'way'))
        for name, way in _WAYS.items():
            requests.add_metric((process, way), self.counts.get(name, 0))
        yield requests
        rebuilds = core.CounterMetricFamily(
            f'{_PREFIX}index_rebuilds',
            'How often the index looked at all hosts.', labels=('process',))
        rebuilds.add_metric((process,), self.rebuilt)
        yield rebuilds
        for name, text, value in (
                ('index_hosts', 'Hosts in the index.', self.hosts),
                ('index_looked_timestamp_seconds',
                 'When the index last looked at what hosts reported.',
                 self.looked)):
            gauge = core.GaugeMetricFamily(f'{_PREFIX}{name}', text,
                                           labels=('process',))
            gauge.add_metric((process,), value)
            yield gauge


class Writer:
    """Writes the figures of this process, now and then.

    :param directory: of the textfile collector; empty for no file.
    """

    def __init__(self, directory: str) -> None:
        self.figures = Collector()
        self._directory = Path(directory) if directory else None
        self._written = float('-inf')
        self._registered = 0

    def write(self) -> None:
        """Write the file, unless it was written a moment ago."""
        now = time.monotonic()
        if self._directory is None or now - self._written < EVERY:
            return
        self._written = now
        try:
            self._register(self._directory)
            found = prometheus_client.CollectorRegistry()
            found.register(self.figures)
            prometheus_client.write_to_textfile(
                str(_path(self._directory, os.getpid())), found)
        except OSError as error:
            LOG.warning('ghsched: no metrics in %(directory)s: %(error)s',
                        {'directory': self._directory, 'error': error})

    def _register(self, directory: Path) -> None:
        """Have the file removed at the end; a fork has one of its own."""
        if self._registered != os.getpid():
            self._registered = os.getpid()
            remove_stale(directory)
            atexit.register(_remove, _path(directory, self._registered))


def remove_stale(directory: Path) -> None:
    """Remove the files of processes that have ended."""
    for path in directory.glob(f'{_PREFIX}*.prom'):
        process = path.stem.removeprefix(_PREFIX)
        if process.isdecimal() and not os.path.exists(f'/proc/{process}'):
            _remove(path)


def _path(directory: Path, process: int) -> Path:
    return directory / f'{_PREFIX}{process}.prom'


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
