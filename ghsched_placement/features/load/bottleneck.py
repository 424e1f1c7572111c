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


"""Decide which NUMA nodes of a host are bottlenecks (pure).

A node becomes a bottleneck for a resource when its load or waiting time
reaches a threshold, and stops being one when this value has fallen well below
the threshold. This hysteresis prevents guests from being moved back and forth.
An unknown value changes nothing. On a node without guests, the waiting time
for CPUs is 0.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
from dataclasses import dataclass
from types import MappingProxyType

from ghsched_placement.features.load.load import HostLoad
from ghsched_placement.features.load.load import HostNodeLoad
from ghsched_placement.features.load.load import RESOURCES

#: Default thresholds in percent, by resource. In a queue with random arrivals
#: (M/M/1), the mean wait is 9 times the service time at 90 percent load, and 4
#: times at 80 percent. A vCPU that waits for 10 percent of the time has become
#: noticeably slower. A memory controller delivers about 80 percent of its
#: theoretical bandwidth (STREAM). A healthy host has no memory reclaim stalls.
#: A disk that serves many requests at a time is busy long before it is
#: saturated, so the threshold for io_wait is a queue of 8 waiting requests.
DEFAULTS: Mapping[str, int] = MappingProxyType({
    'cpu_load': 90, 'cpu_wait': 10, 'memory_load': 80, 'memory_wait': 5,
    'io_load': 95, 'io_wait': 800})


@dataclass(frozen=True)
class LoadLimits:
    """Thresholds of load at which a host NUMA node becomes a bottleneck.

    :param begin: threshold by resource, in the units of the load record. A
        resource without a threshold is never a bottleneck.
    :param hysteresis: fraction of the threshold by which the load must fall
        below the threshold before the bottleneck ends.
    """

    begin: Mapping[str, float]
    hysteresis: float = 0.2


@dataclass(frozen=True)
class BottleneckChange:
    """Begin or end of a bottleneck on a host NUMA node.

    :param node: number of the host NUMA node.
    :param resource: one of
        :data:`ghsched_placement.features.load.load.RESOURCES`.
    :param begins: whether the bottleneck begins; else it ends.
    :param value: measured load or waiting time of the resource.
    """

    node: int
    resource: str
    begins: bool
    value: float


def make_bottleneck_limits(thresholds: Mapping[str, int]) -> LoadLimits:
    """Return the loads at which a host NUMA node counts as a bottleneck.

    Resources without a given threshold get a default one.

    :param thresholds: percent of load by resource; 0: the resource is never a
        bottleneck.
    :raises ValueError: if a name is not one of RESOURCES.
    """
    for name in thresholds:
        if name not in RESOURCES:
            raise ValueError(f'[ghsched]bottleneck_thresholds: {name!r} is '
                             f'not one of {", ".join(RESOURCES)}')
    return LoadLimits({name: value / 100 for name, value
                       in {**DEFAULTS, **thresholds}.items() if value})


def mark_bottlenecks(load: HostLoad, previous: HostLoad | None,
                     limits: LoadLimits) -> HostLoad:
    """Return a host's load record with the bottlenecks of its nodes marked.

    A bottleneck is a resource, such as CPUs, whose load is above a threshold.

    :param load: load record without bottlenecks.
    :param previous: previous load record of the host; a bottleneck in it ends
        only when the load is well below the threshold.
    :param limits: thresholds at which a bottleneck begins and ends.
    """
    earlier = previous.get_nodes_by_number() if previous else {}
    return dataclasses.replace(load, nodes=tuple(
        dataclasses.replace(node, bottlenecks=_find_bottlenecks(
            node, _get_bottlenecks(earlier.get(node.node)), limits))
        for node in load.nodes))


def _get_bottlenecks(node: HostNodeLoad | None) -> Iterable[str]:
    return (node.bottlenecks or ()) if node else ()


def _find_bottlenecks(node: HostNodeLoad, previous: Iterable[str],
                      limits: LoadLimits) -> tuple[str, ...]:
    """Return the overloaded resources of a host NUMA node, by name.

    :param previous: resources that were overloaded before; they remain so
        until their load is well below the threshold.
    :param limits: thresholds at which a bottleneck begins and ends.
    """
    figures = node.get_loads_by_resource()
    if node.vcpus == 0:
        # A node without guests reports no waiting time; it is 0.
        figures.setdefault('cpu_wait', 0.0)
    found = []
    for name, begin in limits.begin.items():
        was = name in previous
        end = begin * (1 - limits.hysteresis) if was else begin
        value = figures.get(name)
        if was if value is None else value >= end:
            found.append(name)
    return tuple(sorted(found, key=RESOURCES.index))


def find_bottleneck_changes(previous: HostLoad | None,
                            now: HostLoad) -> tuple[BottleneckChange, ...]:
    """Return the bottlenecks that began or ended between two load records.

    A bottleneck is a resource of a host NUMA node with too high a load.

    :param previous: earlier load record of the host; None if there is none.
    :param now: latest load record of the host.
    """
    earlier = previous.get_nodes_by_number() if previous else {}
    found = []
    for node in now.nodes:
        was, is_now = (frozenset(_get_bottlenecks(earlier.get(node.node))),
                       frozenset(_get_bottlenecks(node)))
        figures = node.get_loads_by_resource()
        found += [BottleneckChange(node.node, name, name in is_now,
                                   figures.get(name, 0.0))
                  for name in RESOURCES if name in was ^ is_now]
    return tuple(found)
