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

"""Number of refusals by nova-scheduler as Prometheus metrics.

The processes of nova-scheduler add to a file
(:mod:`ghsched_placement.features.refusals.refusal_record`); this collector
reads it.
"""

from collections.abc import Iterator
from pathlib import Path

from prometheus_client import core
from prometheus_client import registry

from ghsched_nova.monitor import prometheus
from ghsched_placement.features.refusals import refusal_record

METRICS = (
    prometheus.MetricDescription(
        'ghsched_refusals',
        'Requests for which nova-scheduler found no host, by flavor.',
        ('flavor', 'name'), True,
        'The 100 flavors that were refused last have a sample.'),
    prometheus.MetricDescription(
        'ghsched_last_refusal_timestamp_seconds',
        'Time of the last request for which nova-scheduler found no host, by '
        'flavor.', ('flavor', 'name')),
)


class RefusalCollector(registry.Collector):
    """Prometheus collector of requests that nova-scheduler has refused.

    nova-scheduler records them in a file, which is read at each scrape.
    Without the file there are no samples.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Iterator[core.Metric]:
        """Yield metrics of requests that nova-scheduler refused, by flavor.

        The metrics are the number of refusals and the time of the last one.
        """
        record = refusal_record.FORMAT.read(self._path)
        refusals, last_times = METRICS
        yield prometheus.make_described_metric(refusals, [
            ((one.flavor, one.name), one.count) for one in record])
        yield prometheus.make_described_metric(last_times, [
            ((one.flavor, one.name), one.last) for one in record])
