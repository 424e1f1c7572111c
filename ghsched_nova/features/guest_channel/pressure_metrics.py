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

"""Pressure that guests report of themselves, as a Prometheus metric.

nova-compute writes it to a file
(:mod:`ghsched_placement.features.load.pressure`); this collector reads it.
"""

from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
import time

from prometheus_client import core
from prometheus_client import registry

from ghsched_nova.monitor import prometheus
from ghsched_placement.features.load import pressure

METRICS = (
    prometheus.MetricDescription(
        'ghsched_server_pressure_percent',
        'Percent of the time that a server waits for a resource, as the '
        'server reports it of itself.',
        ('project', 'server', 'flavor', 'resource'),
        details='``resource`` is ``cpu``, ``memory`` or ``steal``. No sample '
                'of a server that reports nothing.'),
)


class PressureCollector(registry.Collector):
    """Prometheus collector of the pressure that guests report.

    nova-compute records the values in a file, which is read at each scrape.
    Without the file, or if it is old, there are no samples.

    :param clock: function that returns the seconds since 1970.
    """

    def __init__(self, path: Path,
                 clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock

    def collect(self) -> Iterator[core.Metric]:
        """Yield the metric of the pressure of servers, by resource."""
        metric, = METRICS
        yield prometheus.make_described_metric(metric, [
            ((one.project, uuid, one.flavor, resource), percent)
            for uuid, one in sorted(pressure.read_pressures(
                self._path, self._clock()).items())
            for resource, percent in vars(one.pressure).items()])
