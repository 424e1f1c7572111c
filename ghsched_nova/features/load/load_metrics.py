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


"""Load and wait time of NUMA nodes as Prometheus metrics (pure).

The values are ratios over the time between two scrapes; with several scrapers,
over the time since the last scrape of any. Unknown values have no sample.
"""

from collections.abc import Iterable
from collections.abc import Iterator

from prometheus_client import core

from ghsched_nova.monitor import view
from ghsched_placement.features.load import load

_NODE = ('node', 'resource')
_GUEST = ('guest_node', 'node', 'guest_uuid', 'guest_name')

#: Field of the load record, name of the metric, and help text.
_OF_NODE = (
    ('reclaim', 'ghsched_node_reclaimed_pages_per_second',
     'Memory pages that the kernel reclaimed on a host NUMA node.'),
    ('refaults', 'ghsched_node_refaults_per_second',
     'Reclaimed pages of a host NUMA node that were read in again.'),
    ('remote', 'ghsched_node_remote_memory_ratio',
     'Fraction of the memory of guests on a host NUMA node that is on other '
     'nodes.'),
    ('memory_free', 'ghsched_node_memory_free_mebibytes',
     'Free memory of a host NUMA node.'))
_OF_GUEST = (
    ('cpu_load', 'ghsched_guest_cpu_load_ratio',
     'Fraction of the time that the vCPUs of a guest NUMA node were busy.'),
    ('cpu_wait', 'ghsched_guest_cpu_wait_ratio',
     'Fraction of the time that vCPUs of a guest NUMA node waited for a CPU.'),
    ('memory_wait', 'ghsched_guest_memory_wait_ratio',
     'Fraction of the time that some thread of a guest waited for memory.'),
    ('remote', 'ghsched_guest_remote_memory_ratio',
     'Fraction of the memory of a guest that is on other nodes than its '
     'vCPUs.'))


def make_load_metrics(
    measured: load.HostLoad | None, guests: Iterable[view.MonitoredGuest]
) -> Iterator[core.Metric]:
    """Yield the Prometheus metrics of a host's measured load.

    :param measured: the load. If it is None, nothing is yielded.
    """
    if measured is None:
        return
    for kind, text in (
            ('load', 'Fraction of the time that a resource of a host NUMA '
                     'node was busy.'),
            ('wait', 'Fraction of the time that a resource of a host NUMA '
                     'node was waited for; for io, number of waiting '
                     'requests.')):
        family = core.GaugeMetricFamily(f'ghsched_node_{kind}', text,
                                        labels=_NODE)
        for node in measured.nodes:
            for name, value in node.get_loads_by_resource().items():
                resource, _line, which = name.partition('_')
                if which == kind:
                    family.add_metric((str(node.node), resource), value)
        yield family
    yield _bottlenecks(measured)
    for field, name, text in _OF_NODE:
        family = core.GaugeMetricFamily(name, text, labels=('node',))
        for node in measured.nodes:
            _add(family, (str(node.node),), getattr(node, field))
        yield family
    yield from _guests(measured, guests)


def _bottlenecks(found: load.HostLoad) -> core.Metric:
    family = core.GaugeMetricFamily(
        'ghsched_node_bottleneck', 'Whether a host NUMA node is a bottleneck '
        'by its load of, or its waiting for, a resource.',
        labels=('node', 'figure'))
    for node in found.nodes:
        for name in sorted({*node.get_loads_by_resource(),
                            *(node.bottlenecks or ())}):
            family.add_metric((str(node.node), name),
                              float(name in (node.bottlenecks or ())))
    return family


def _guests(found: load.HostLoad,
            guests: Iterable[view.MonitoredGuest]) -> Iterator[core.Metric]:
    names = {guest.uuid: guest.name for guest in guests}
    for field, name, text in _OF_GUEST:
        family = core.GaugeMetricFamily(name, text, labels=_GUEST)
        for one in found.guests:
            host_node = '' if one.host_node is None else str(one.host_node)
            _add(family, (str(one.node), host_node, one.guest,
                          names.get(one.guest, '')), getattr(one, field))
        yield family


def _add(family: core.GaugeMetricFamily, labels: tuple[str, ...],
         value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)
