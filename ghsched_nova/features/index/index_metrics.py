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
from dataclasses import dataclass
from dataclasses import field
import os
from pathlib import Path
import threading
import time

from oslo_log import log as logging
import prometheus_client
from prometheus_client import core
from prometheus_client import registry

from ghsched_placement.base import decimals

LOG = logging.getLogger(__name__)

#: Minimum seconds between two writes.
EVERY = 15.0

_PREFIX = 'ghsched_scheduler_'

#: Value of the metric's label for each result of a scheduling request, by key
#: of IndexedScheduler's counts.
_WAYS = {'hits': 'index', 'fallbacks': 'index_in_vain', 'others': 'whole',
         'remembered': 'refused_from_memory'}


@dataclass(frozen=True)
class Figures:
    """Metrics of one scheduler process's index of hosts.

    :param counts: number of requests since the start, by result.
    :param hosts: number of hosts in the index.
    :param rebuilt: number of times that the reports of all hosts were read.
    :param read_at: time at which reports were last read, in seconds since
        1970.
    :param future: number of hosts whose report has a time in the future.
    :param malformed: number of hosts whose report cannot be parsed.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    hosts: int = 0
    rebuilt: int = 0
    read_at: float = 0.0
    future: int = 0
    malformed: int = 0


class IndexCollector(registry.Collector):
    """Prometheus collector of the metrics of one scheduler process."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[core.Metric]:
        """Yield the metrics of this process's index of hosts.

        The index holds the free resources of all hosts in nova-scheduler's
        memory.
        """
        process, figures = str(os.getpid()), self._figures
        requests = core.CounterMetricFamily(
            f'{_PREFIX}requests',
            'Scheduling requests, by how they were served.',
            labels=('process', 'way'))
        for name, way in _WAYS.items():
            requests.add_metric((process, way), figures.counts.get(name, 0))
        yield requests
        rebuilds = core.CounterMetricFamily(
            f'{_PREFIX}index_rebuilds',
            'Times that the index read the reports of all hosts.',
            labels=('process',))
        rebuilds.add_metric((process,), figures.rebuilt)
        yield rebuilds
        for name, text, value in (
                ('index_hosts', 'Hosts in the index.', figures.hosts),
                ('index_hosts_ahead',
                 'Hosts with a report that is later than the time of the '
                 'database.', figures.future),
                ('index_hosts_unread',
                 'Hosts with a report that cannot be read.',
                 figures.malformed),
                ('index_looked_timestamp_seconds',
                 'Time at which the index last read reports of hosts.',
                 figures.read_at)):
            gauge = core.GaugeMetricFamily(f'{_PREFIX}{name}', text,
                                           labels=('process',))
            gauge.add_metric((process,), value)
            yield gauge


class Writer:
    """Periodic writer of this process's metrics to a file; thread-safe.

    :param directory: directory of the textfile collector; empty for no file.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory) if directory else None
        self._lock = threading.Lock()
        self._written = float('-inf')
        self._registered = 0

    def write_metrics(self, figures: Figures) -> None:
        """Write the scheduler's metrics to a file, at most every 15 seconds.

        Each scheduler process writes a file of its own.

        :param figures: current values of the metrics.
        """
        if self._directory is None or not self._lock.acquire(blocking=False):
            return
        try:
            now = time.monotonic()
            if now - self._written >= EVERY:
                self._written = now
                self._write_file(self._directory, figures)
        except OSError as error:
            LOG.warning('ghsched: cannot write the metrics file of '
                        'nova-scheduler to directory %(directory)s: %(error)s',
                        {'directory': self._directory, 'error': error})
        finally:
            self._lock.release()

    def _write_file(self, directory: Path, figures: Figures) -> None:
        self._remove_at_exit(directory)
        found = prometheus_client.CollectorRegistry()
        found.register(IndexCollector(figures))
        prometheus_client.write_to_textfile(
            str(_get_path(directory, os.getpid())), found)

    def _remove_at_exit(self, directory: Path) -> None:
        """Remove this process's metrics file when the process exits.

        This is called again in each forked process, which has its own file.
        """
        if self._registered != os.getpid():
            self._registered = os.getpid()
            remove_stale_files(directory)
            atexit.register(_remove_file, _get_path(directory,
                                                    self._registered))


def remove_stale_files(directory: Path) -> None:
    """Remove the metrics files of scheduler processes that have ended."""
    for path in directory.glob(f'{_PREFIX}*.prom'):
        process = path.stem.removeprefix(_PREFIX)
        if decimals.parse_decimal(process) is not None and (
                not os.path.exists(f'/proc/{process}')):
            _remove_file(path)


def _get_path(directory: Path, process: int) -> Path:
    return directory / f'{_PREFIX}{process}.prom'


def _remove_file(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
