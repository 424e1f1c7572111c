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

"""Metrics of ``ghsched-exporter --cloud`` (pure)."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import core
from prometheus_client import registry

from ghsched_nova.monitor import prometheus
from ghsched_placement.features.exporter import cloud_figures
from ghsched_placement.features.planner import flavor_counts
from ghsched_placement.fit import capacity

_AMOUNT = ('host', 'node', 'resource_class')

#: All metrics of a cloud, in the order of the manual.
METRICS = (
    prometheus.MetricDescription(
        'ghsched_cloud_capacity',
        'Amount of a resource class that Placement can allocate.', _AMOUNT,
        details='Without a node: of the host as a whole. '
                '``CUSTOM_MEM_BW_PCT`` is in percent of the bandwidth of a '
                'host NUMA node.'),
    prometheus.MetricDescription(
        'ghsched_cloud_allocated',
        'Amount of a resource class that is allocated to guests.', _AMOUNT,
        details='The exporters of the hosts measure what is used of it.'),
    prometheus.MetricDescription(
        'ghsched_cloud_free',
        'Amount of a resource class that is free.', _AMOUNT),
    prometheus.MetricDescription(
        'ghsched_cloud_fragmentation_percent',
        'Share of a host\'s free bandwidth that is on NUMA nodes in use.',
        ('host',)),
    prometheus.MetricDescription(
        'ghsched_cloud_host_available',
        'Whether nova-compute of a host is up and enabled.', ('host',)),
    prometheus.MetricDescription(
        'ghsched_cloud_flavor_guests',
        'Number of guests of a watched flavor that still fit.', ('flavor',),
        details='As ``openstack ghsched flavor check`` counts them, without '
                'its last question to Placement.'),
    prometheus.MetricDescription(
        'ghsched_cloud_flavor_least_guests',
        'Number of guests of a watched flavor that should fit.',
        ('flavor',)),
    prometheus.MetricDescription(
        'ghsched_cloud_flavor_hosts',
        'Number of hosts on which a guest of a watched flavor fits.',
        ('flavor',)),
    prometheus.MetricDescription(
        'ghsched_cloud_flavor_lacking_hosts',
        'Number of hosts on which no guest of a watched flavor fits, by the '
        'resource that they lack.', ('flavor', 'resource'),
        details='A host that lacks several counts for each.'),
    prometheus.MetricDescription(
        'ghsched_cloud_requests',
        'Requests to the APIs of the cloud.', ('service',), True),
    prometheus.MetricDescription(
        'ghsched_cloud_errors',
        'Attempts to read the cloud that failed.', (), True),
    prometheus.MetricDescription(
        'ghsched_cloud_age_seconds',
        'Time since the cloud was read.',
        details='Without a sample before it was read once.'),
    prometheus.MetricDescription(
        'ghsched_cloud_unread_hosts',
        'Number of hosts that have changed and are yet to be read.'),
)
_BY_NAME = {metric.name: metric for metric in METRICS}


@dataclass(frozen=True)
class CloudReading:
    """State of a cloud as last read, with statistics of the reads.

    :param cloud: capacity of the hosts and flavors of the cloud.
    :param age: seconds since the cloud was read; None before the first read.
    :param requests: number of requests sent to each service, by service.
    :param errors: number of failed reads.
    """

    cloud: cloud_figures.CloudFigures
    age: float | None = None
    requests: Mapping[str, int] | None = None
    errors: int = 0


class CloudCollector(registry.Collector):
    """Prometheus collector of the last known state of a cloud.

    :param read: function that returns the state without asking the cloud.
    """

    def __init__(self, read: Callable[[], CloudReading]) -> None:
        self._read = read

    def collect(self) -> list[core.Metric]:
        """Return all Prometheus metrics of a cloud, from its last known state.

        Prometheus' client calls this method at each scrape.
        """
        reading = self._read()
        cloud = reading.cloud
        return [
            *_yield_host_resource_metrics(cloud.hosts),
            *_yield_availability_metrics(cloud),
            *_yield_fitting_guest_metrics(cloud.flavors),
            _make_cloud_metric(
                'requests',
                (
                    ((name,), count)
                    for name, count in sorted((reading.requests or {}).items())
                )),
            _make_cloud_metric('errors', [((), reading.errors)]),
            _make_cloud_metric(
                'age_seconds',
                [((), age) for age in (reading.age,) if age is not None]),
            _make_cloud_metric('unread_hosts', [((), cloud.unread)]),
        ]


def _yield_host_resource_metrics(
        hosts: Iterable[capacity.HostInventory]) -> Iterator[core.Metric]:
    """Yield metrics of each host's total, allocated and free resources.

    The metrics are ``ghsched_cloud_capacity``, ``_allocated`` and ``_free``,
    by host, NUMA node and resource class.
    """
    found = [((one.host, '' if one.node is None else str(one.node),
               one.resource_class), one)
             for host in hosts
             for one in cloud_figures.list_host_amounts(host)]
    yield _make_cloud_metric(
        'capacity', ((labels, one.capacity) for labels, one in found))
    yield _make_cloud_metric(
        'allocated', ((labels, one.allocated) for labels, one in found))
    yield _make_cloud_metric(
        'free', ((labels, one.free) for labels, one in found))


def _yield_availability_metrics(cloud: cloud_figures.CloudFigures
                                ) -> Iterator[core.Metric]:
    """Yield metrics of each host's fragmentation and availability.

    Fragmentation is the percentage of free bandwidth that is on partly
    allocated NUMA nodes. A host is available if its nova-compute is up and
    enabled.
    """
    broken = ((host.name, capacity.compute_fragmentation(host))
              for host in cloud.hosts)
    yield _make_cloud_metric('fragmentation_percent', (
        ((name,), percent) for name, percent in broken
        if percent is not None))
    yield _make_cloud_metric('host_available', (
        ((host.name,), host.name not in cloud.unavailable)
        for host in cloud.hosts))


def _yield_fitting_guest_metrics(
        flavors: Sequence[flavor_counts.FlavorCapacity]
) -> Iterator[core.Metric]:
    """Yield metrics of how many more guests of each flavor the cloud can take.

    Further metrics count the hosts that can take one, and those that cannot,
    by the resource that they lack.

    :param flavors: flavors that the administrator chose to watch.
    """
    for name, values in (
            ('guests', [room.guests for room in flavors]),
            ('least_guests', [room.least for room in flavors]),
            ('hosts', [room.hosts for room in flavors])):
        yield _make_cloud_metric(f'flavor_{name}', (
            ((room.flavor,), value)
            for room, value in zip(flavors, values, strict=True)))
    yield _make_cloud_metric('flavor_lacking_hosts', (
        ((room.flavor, resource), hosts) for room in flavors
        for resource, hosts in sorted(room.lacking.items())))


def _make_cloud_metric(
    name: str, samples: Iterable[tuple[Sequence[str], float]]
) -> core.Metric:
    """Return the Prometheus metric ``ghsched_cloud_NAME`` with samples.

    :param name: NAME of the metric.
    :param samples: label values and value of each sample.
    """
    return prometheus.make_described_metric(
        _BY_NAME[f'ghsched_cloud_{name}'], samples)
