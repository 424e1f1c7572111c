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


"""Which NUMA nodes of a host are bottlenecks (pure).

A node is one at a resource from when its load, or its waiting, reaches a
threshold until it has fallen well below it. Between the two it stays what it
was, so that a figure near the threshold does not make guests go to and fro.
What is not known begins nothing and ends nothing; a node without guests is
known to have nobody who waits for a CPU.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
from dataclasses import dataclass
from types import MappingProxyType

from ghsched_placement.load import HostNode
from ghsched_placement.load import Load
from ghsched_placement.load import RESOURCES

#: Percent, in order of RESOURCES. What asks for a resource at random waits
#: nine times as long as it is served where that is busy for nine tenths of
#: the time, and four times at eight tenths (M/M/1). A vCPU that waits for a
#: tenth of the time loses what no guest should notice. A memory controller
#: delivers about four fifths of its theoretical bandwidth (STREAM). The
#: kernel's stalls are nought on a healthy host. A disk that serves many
#: requests at a time is busy long before it is full, so of I/O a queue says
#: more: eight requests that wait, on average.
DEFAULTS: Mapping[str, int] = MappingProxyType({
    'cpu_load': 90, 'cpu_wait': 10, 'memory_load': 80, 'memory_wait': 5,
    'io_load': 95, 'io_wait': 800})

#: Percent of a threshold by which a figure has to fall below it.
HYSTERESIS = 20


@dataclass(frozen=True)
class Limits:
    """When a node becomes a bottleneck, and when it ceases to be one.

    :param begin: by resource, shares as in the record; a resource without
        one is not judged.
    :param hysteresis: part of the threshold.
    """

    begin: Mapping[str, float]
    hysteresis: float = HYSTERESIS / 100


@dataclass(frozen=True)
class Change:
    """A node that has become a bottleneck, or is none any more.

    :param value: of the figure that says so.
    """

    node: int
    resource: str
    begins: bool
    value: float


def limits(percent: Mapping[str, int],
           hysteresis: int = HYSTERESIS) -> Limits:
    """What an admin asks for; the defaults for what is left out.

    :param percent: by resource; 0 has it not judged.
    :raises ValueError: naming what is no resource.
    """
    for name in percent:
        if name not in RESOURCES:
            raise ValueError(f'{name!r} is none of {", ".join(RESOURCES)}')
    return Limits({name: value / 100 for name, value
                   in {**DEFAULTS, **percent}.items() if value},
                  hysteresis / 100)


def judge(load: Load, before: Load | None, limits: Limits) -> Load:
    """The record with its bottlenecks.

    :param before: the record of the time before, judged.
    """
    earlier = before.by_node() if before else {}
    return dataclasses.replace(load, nodes=tuple(
        dataclasses.replace(node, bottlenecks=_of(
            node, _known(earlier.get(node.node)), limits))
        for node in load.nodes))


def _known(node: HostNode | None) -> Iterable[str]:
    return (node.bottlenecks or ()) if node else ()


def _of(node: HostNode, before: Iterable[str],
        limits: Limits) -> tuple[str, ...]:
    figures = node.figures()
    if node.vcpus == 0:
        # Those that waited have gone, and with them who could tell the end.
        figures.setdefault('cpu_wait', 0.0)
    found = []
    for name, begin in limits.begin.items():
        was = name in before
        end = begin * (1 - limits.hysteresis) if was else begin
        value = figures.get(name)
        if was if value is None else value >= end:
            found.append(name)
    return tuple(sorted(found, key=RESOURCES.index))


def changes(before: Load | None, now: Load) -> tuple[Change, ...]:
    """What has begun and what has ended between two judged records."""
    earlier = before.by_node() if before else {}
    found = []
    for node in now.nodes:
        was, is_now = (frozenset(_known(earlier.get(node.node))),
                       frozenset(_known(node)))
        figures = node.figures()
        found += [Change(node.node, name, name in is_now,
                         figures.get(name, 0.0))
                  for name in RESOURCES if name in was ^ is_now]
    return tuple(found)
