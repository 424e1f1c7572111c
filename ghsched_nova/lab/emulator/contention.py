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


"""Traffic of an emulated host, as the contention model says (pure).

A load file says what everybody would like to move. What they do move follows
from the schemata, by the model of latency under load, and the monitor files
show it. It is one JSON object::

    {"capacity_mb": 100000,
     "link_mb": 36000,
     "groups": {"noisy": {"0": 90000}, "guest/mon_groups/m": {"0": 500}},
     "tasks": {"4711": {"0": 20000, "1>0": 3000}},
     "iommu_groups": {"17": {"0": 3000}}}

``capacity_mb`` is what the memory of each node delivers, ``link_mb`` what
goes from one node to another (as much, when it is left out). Everything else
is MB/s by node: ``0`` of node 0's CPUs in its own memory, ``1>0`` of node 1's
CPUs in the memory of node 0. Groups are named by their path. What tasks and
IOMMU groups ask for counts for the group that they are in. A group or a task
that is not there asks for nothing.

While a load is in force, what threads really use moves nothing. All figures
are *simulated*.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from collections import defaultdict
from dataclasses import dataclass
from dataclasses import field
import math
import re
from typing import Any

from ghsched_nova.lab.emulator import control_file
from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import staging
from ghsched_placement.features.density.machine import Machine
from ghsched_placement.features.density import traffic

#: From the CPUs of a node to the memory of a node.
Way = tuple[int, int]
#: MB/s by way.
Demand = Mapping[Way, float]
#: NUMA node of the memory, L3 cache of the CPUs.
Place = tuple[int, int]

#: Bytes of a MB.
MB = 10 ** 6
_WAY = re.compile('(?:(0|[1-9][0-9]{0,3})>)?(0|[1-9][0-9]{0,3})')
_KINDS = ('groups', 'tasks', 'iommu_groups')


class BadLoad(ValueError):
    """Malformed load file; the text names the key and the reason."""


@dataclass(frozen=True)
class Load:
    """Bandwidth that groups, threads and devices would use without limits.

    :param capacity_mb: MB/s of the memory of a node.
    :param link_mb: MB/s from one node to another.
    :param groups: by path of the group.
    :param tasks: by thread.
    :param iommu_groups: by number.
    """

    capacity_mb: float
    link_mb: float
    groups: Mapping[str, Demand] = field(default_factory=dict)
    tasks: Mapping[int, Demand] = field(default_factory=dict)
    iommu_groups: Mapping[int, Demand] = field(default_factory=dict)


@dataclass(frozen=True)
class Member:
    """Group with the parts of the load that are in it.

    :param number: of the group.
    :param control: name of its control group.
    :param values: the schemata of that.
    """

    number: int
    control: str
    values: staging.Values
    demands: Sequence[Demand]


def parse_text(text: str, machine: machines.Machine) -> Load | None:
    """Return the load of a load file; None when it is empty.

    :raises BadLoad: it is no load of this machine.
    """
    spec = control_file.read_object(text, BadLoad)
    return None if spec is None else parse(spec, machine)


def parse(spec: Mapping[str, Any], machine: machines.Machine) -> Load:
    """Parse a load from the object in a load file, see :func:`parse_text`."""
    unknown = set(spec) - {'capacity_mb', 'link_mb', *_KINDS}
    if unknown:
        raise BadLoad(f'{min(unknown)}: unknown key')
    capacity = _amount('capacity_mb', spec.get('capacity_mb'), 1)
    link = _amount('link_mb', spec.get('link_mb', capacity), 1)
    nodes = {node.id for node in machine.nodes}
    found: dict[str, dict[str, Demand]] = {
        kind: {name: _demand(f'{kind}.{name}', value, nodes)
               for name, value in _mapping(kind, spec.get(kind, {})).items()}
        for kind in _KINDS}
    return Load(capacity, link, found['groups'],
                _numbered('tasks', found['tasks']),
                _numbered('iommu_groups', found['iommu_groups']))


def _mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadLoad(f'{where}: want an object')
    return value


def _numbered(where: str,
              named: Mapping[str, Demand]) -> dict[int, Demand]:
    for name in named:
        if not re.fullmatch('[0-9]{1,9}', name):
            raise BadLoad(f'{where}.{name}: want a number for a name')
    return {int(name): demand for name, demand in named.items()}


def _demand(where: str, value: Any, nodes: set[int]) -> Demand:
    demand = {}
    for way, amount in _mapping(where, value).items():
        match = _WAY.fullmatch(way)
        if match is None:
            raise BadLoad(f'{where}.{way}: want NODE or NODE>NODE')
        origin, memory = int(match[1] or match[2]), int(match[2])
        if not {origin, memory} <= nodes:
            raise BadLoad(f'{where}.{way}: the machine has no such node')
        demand[origin, memory] = _amount(f'{where}.{way}', amount, 0)
    return demand


def _amount(where: str, value: Any, lowest: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or (
            not lowest <= value < 1e12):
        raise BadLoad(f'{where}: want MB/s, a number from {lowest:g}')
    return float(value)


class Drive:
    """Bytes that groups have moved so far, and their present rates.

    Figures are bytes, and bytes per second, by number of the group and by
    place.
    """

    def __init__(self, machine: machines.Machine, now: float):
        self._machine = machine
        self._at = now
        self._moved: dict[int, dict[Place, float]] = defaultdict(dict)
        self._rates: dict[int, dict[Place, float]] = {}

    def advance(self, now: float) -> None:
        """Add the bytes moved at the present rates until now."""
        elapsed, self._at = now - self._at, now
        for number, rates in self._rates.items():
            moved = self._moved[number]
            for place, rate in rates.items():
                moved[place] = moved.get(place, 0.0) + rate * elapsed

    def steer(self, load: Load | None, members: Sequence[Member]) -> None:
        """Set the rates from now on, by the load and the schemata."""
        self._rates = rates(self._machine, load, members) if load else {}

    def figures(self, number: int, unit: str) -> Mapping[Place, float]:
        """Return bytes so far of a group, or with ``MBps`` its MB/s."""
        if unit == 'MBps':
            return {place: rate / MB for place, rate
                    in self._rates.get(number, {}).items()}
        return self._moved.get(number, {})


def rates(machine: machines.Machine, load: Load,
          members: Sequence[Member]) -> dict[int, dict[Place, float]]:
    """Bytes per second that each group moves, by its number and by place."""
    flows, owners = [], []
    for member in members:
        for demand in member.demands:
            for (origin, memory), amount in demand.items():
                flows.append(traffic.MemoryFlow(member.control, origin, memory,
                                                amount))
                owners.append(member.number)
    outcome = traffic.compute_flow_outcomes(
        _model(machine, load), flows,
        {(member.control, node.id): control(machine, load, member.values,
                                            node)
         for member in members for node in machine.nodes})
    found: dict[int, dict[Place, float]] = defaultdict(
        lambda: defaultdict(float))
    for owner, one in zip(owners, outcome.outcomes, strict=True):
        caches = [cache.id for node in machine.nodes
                  if node.id == one.flow.origin for cache in node.caches]
        for cache in caches or [-1]:
            found[owner][one.flow.memory, cache] += (
                one.achieved * MB / max(1, len(caches)))
    return found


def _model(machine: machines.Machine, load: Load) -> Machine:
    """Return the machine as the model knows it: nodes of one socket."""
    def figure(value: float) -> dict[str, Any]:
        return {'value': value, 'basis': 'specified', 'source': 'load file'}

    return Machine.from_mapping({
        'nodes': [{'id': node.id, 'threads': len(node.cpus), 'memory_mb': 0}
                  for node in machine.nodes],
        'capacity_mb': figure(load.capacity_mb),
        'near_mb': figure(load.link_mb), 'far_mb': figure(load.link_mb),
        # Latencies do not show in a monitor file.
        'near_latency': figure(1), 'far_latency': figure(1),
        'demand_mb': figure(1), 'dma_mb': figure(0)})


def control(machine: machines.Machine, load: Load, values: staging.Values,
            node: machines.Node) -> traffic.BandwidthControl:
    """Return the bandwidth control that a group's schemata set on a node.

    Lines that the machine has not are at what does nothing. Of a node with
    several L3 caches, percentages are averaged and bandwidths summed.
    """
    def get(name: str, default: float) -> float:
        line = machine.line(name)
        if line is None:
            return default
        domains = ([cache.id for cache in node.caches]
                   if line.scope == 'l3' else [node.id])
        found = [values[name][domain] for domain in domains
                 if domain in values.get(name, {})]
        return sum(found) / len(found) if found else default

    free = traffic.BandwidthControl()
    return traffic.BandwidthControl(
        minimum=get('MBMIN', free.minimum),
        maximum=_cap(machine, load, node, get(machine.cap, math.inf)),
        hardlimit=bool(get(machine.hard, 1)),
        priority=int(get('MBPRI', free.priority)))


def _cap(machine: machines.Machine, load: Load, node: machines.Node,
         value: float) -> float:
    """Return a cap as percent of what the node delivers.

    :param value: as in the schemata, the mean of the node's domains.
    """
    line = machine.line(machine.cap)
    if line is None or value >= line.maximum:
        return traffic.WHOLE
    if not machine.cap_unit:
        return value / line.maximum * traffic.WHOLE
    parts = len(node.caches) if line.scope == 'l3' else 1
    amount = value * parts * machine.cap_unit / MB
    return min(traffic.WHOLE, amount / load.capacity_mb * traffic.WHOLE)
