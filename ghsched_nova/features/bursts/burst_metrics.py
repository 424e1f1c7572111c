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

"""Burst statistics of nova-compute as Prometheus metrics.

nova-compute measures bursts and writes the statistics to a file
(:mod:`ghsched_placement.features.bursts.burst_record`); this collector reads
it.
"""

from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import core
from prometheus_client import registry

from ghsched_placement.features.bursts import burst_record

#: Name, help and value of each metric; all are by host NUMA node.
_METRICS: tuple[tuple[str, str, Callable[[burst_record.Record],
                                         float | None]], ...] = (
    ('pool_percent', 'Percent of a node\'s bandwidth that is reserved for '
     'bursts of guests.', lambda record: record.pool),
    ('promised_percent', 'Percent of a node\'s bandwidth that guests are '
     'promised as bursts.', lambda record: record.promised),
    ('offered_percent', 'Percent of a node\'s bandwidth that may be promised '
     'as bursts.', lambda record: record.offered),
    ('short_chance', 'Expected fraction of the periods in which the bandwidth '
     'reserved for bursts does not suffice.', lambda record: record.chance),
    ('periods', 'Periods in which bursts were measured, over the window.',
     lambda record: record.total.periods),
    ('periods_over', 'Periods of the window in which bursts used all the '
     'bandwidth that is reserved for them.',
     lambda record: record.total.over),
    ('periods_short', 'Periods of the window in which bursts used all their '
     'bandwidth and the node was full.', lambda record: record.total.short),
    ('largest_project_percent', 'Largest percent of a node\'s bandwidth that '
     'guests of one project are promised as bursts.',
     lambda record: record.uses.largest_promised))


class BurstCollector(registry.Collector):
    """Prometheus collector of statistics of bandwidth bursts.

    nova-compute records them in a file, which is read at each scrape. Without
    the file there are no samples.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Iterator[core.Metric]:
        """Yield a Prometheus gauge for each statistic of bandwidth bursts.

        A burst is bandwidth above a guest's guarantee. Each gauge has a sample
        for each host NUMA node.
        """
        records = burst_record.FORMAT.read(self._path)
        for name, text, figure in _METRICS:
            family = core.GaugeMetricFamily(f'ghsched_bursts_{name}', text,
                                            labels=['node'])
            for node, record in sorted(records.items()):
                value = figure(record)
                if value is not None:
                    family.add_metric([str(node)], value)
            yield family
