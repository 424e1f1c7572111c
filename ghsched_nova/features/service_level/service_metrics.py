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

"""Service levels of servers as metrics of ``ghsched-exporter``.

nova-compute measures them and writes them to a file
(:mod:`ghsched_placement.features.service_level.service_level`); this collector
reads it.
"""

from collections.abc import Callable
from pathlib import Path

from prometheus_client import core
from prometheus_client import registry

from ghsched_nova.monitor import prometheus
from ghsched_placement.features.service_level import service_level

#: ``vcpu_class`` is empty for servers without vCPU classes.
_SERVER = ('project', 'server', 'flavor', 'node', 'vcpu_class')

#: All metrics of service levels, in the order of the manual.
METRICS = (
    prometheus.MetricDescription(
        'ghsched_server_asked_percent',
        'Share of a node\'s bandwidth that the flavor of a server '
        'guarantees.', _SERVER),
    prometheus.MetricDescription(
        'ghsched_server_allocated_percent',
        'Share of a node\'s bandwidth that a server has in Placement.',
        _SERVER, details='No sample where Placement lacks it.'),
    prometheus.MetricDescription(
        'ghsched_server_held_percent',
        'Share of a node\'s bandwidth that the control group of a server '
        'guarantees.', _SERVER,
        details='No sample where the kernel has no guarantees.'),
    prometheus.MetricDescription(
        'ghsched_server_got_percent',
        'Share of a node\'s bandwidth that a server used in the last period.',
        _SERVER),
    prometheus.MetricDescription(
        'ghsched_server_measured_seconds',
        'Seconds of this month in which the bandwidth of a server was '
        'measured.', _SERVER, True,
        'It begins again with each month (UTC), as the next three do.'),
    prometheus.MetricDescription(
        'ghsched_server_short_seconds',
        'Seconds of this month in which a server was short of bandwidth, by '
        'cause.', (*_SERVER, 'cause'), True),
    prometheus.MetricDescription(
        'ghsched_server_periods',
        'Periods of this month in which the bandwidth of a server was '
        'measured.', _SERVER, True),
    prometheus.MetricDescription(
        'ghsched_server_short_periods',
        'Periods of this month in which a server was short of bandwidth, by '
        'cause.', (*_SERVER, 'cause'), True),
)
#: Longest time from a measurement until its file is written, in seconds.
_REPORT_MAX_S = 600.0

_BY_NAME = {metric.name: metric for metric in METRICS}

_OF_PERIOD: tuple[tuple[str, Callable[[service_level.LevelPeriod],
                                      float | None]], ...] = (
    ('asked', lambda period: period.asked),
    ('allocated', lambda period: period.allocated),
    ('held', lambda period: period.held),
    ('got', lambda period: period.got))


class ServiceLevelCollector(registry.Collector):
    """Prometheus collector of the guaranteed and used bandwidth of servers.

    nova-compute records the values in a file, which is read at each scrape.
    Without the file there are no samples.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> list[core.Metric]:
        """Return metrics of the guaranteed and used bandwidth of servers.

        A guarantee is the bandwidth that a server's flavor promises.
        """
        levels = service_level.FORMAT.read(self._path)
        last = _find_last_report(levels, self._path)
        rows = [((level.owner.project, key.server, level.owner.flavor,
                  str(key.node), key.vcpu_class), level)
                for key, level in sorted(levels.items())]
        return [
            *(
                _make_server_metric(
                    f'{name}_percent',
                    [
                        (labels, value) for labels, level in rows
                        if level.seen == last
                        and (value := get(level.last)) is not None])
                for name, get in _OF_PERIOD),
            _make_server_metric(
                'measured_seconds',
                [(labels, level.seconds) for labels, level in rows]),
            _make_server_metric(
                'short_seconds',
                [
                    ((*labels, cause), level.short.get(cause, 0.0))
                    for labels, level in rows
                    for cause in service_level.ShortageCause]),
            _make_server_metric(
                'periods', [(labels, level.periods) for labels, level in rows]
            ),
            _make_server_metric(
                'short_periods',
                [
                    ((*labels, cause), level.short_periods.get(cause, 0))
                    for labels, level in rows
                    for cause in service_level.ShortageCause]),
        ]


def _find_last_report(levels: service_level.Levels,
                      path: Path) -> float | None:
    """Return the time at which nova-compute last measured servers.

    The file keeps deleted servers for a day. Those of the last report were
    measured at the same time, unless it was of a host without servers: then
    only the file is newer.

    :param path: file of the levels.
    :returns: seconds since 1970; None if no server has been measured lately.
    """
    last = max((level.seen for level in levels.values()), default=None)
    if last is None or path.stat().st_mtime - last > _REPORT_MAX_S:
        return None
    return last


def _make_server_metric(
    name: str, samples: list[tuple[tuple[str, ...], float]]
) -> core.Metric:
    """Return the Prometheus metric ``ghsched_server_NAME`` with samples.

    :param name: NAME of the metric.
    :param samples: label values and value of each sample.
    """
    return prometheus.make_described_metric(
        _BY_NAME[f'ghsched_server_{name}'], samples)
