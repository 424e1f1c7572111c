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

"""Memory traffic over the nodes and links of a machine (pure).

A remote access uses the bandwidth of the link between the two nodes and of
both nodes, and waits at all three. Links come first and serve all control
groups alike, because the kernel controls bandwidth at the memory. Only traffic
that has passed the link reaches the nodes. So bandwidth that a link holds back
is free for others at the memory behind it.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from collections import defaultdict
from dataclasses import dataclass
from dataclasses import field
import math

from ghsched_placement.features.density.machine import Machine
from ghsched_placement.features.density import queueing
from ghsched_placement.features.density import share as sharing
from ghsched_placement.features.density.share import Claim
from ghsched_placement.flavor.policy import NodePolicy

#: No flow is held back for longer, as a factor: one that gets nothing at all
#: has a latency too, and it is above that of any that gets something.
LONGEST = 1e6

#: A link: near or far, from, to.
Link = tuple[str, int, int]
WHOLE = 100.0


@dataclass(frozen=True)
class BandwidthControl:
    """Bandwidth control of a control group on one NUMA node.

    :param minimum: guarantee in percent of the node's bandwidth.
    :param maximum: cap in percent of the node's bandwidth; 100 is no cap.
    :param hardlimit: whether the cap holds even if bandwidth is idle.
    :param priority: priority for bandwidth above the guarantee; the highest
        number is served first.
    """

    minimum: float = 0.0
    maximum: float = WHOLE
    hardlimit: bool = True
    priority: int = sharing.DEFAULT_PRIORITY

    @classmethod
    def from_policy(cls, policy: NodePolicy) -> 'BandwidthControl':
        """Return a guest node's bandwidth policy for the contention model."""
        return cls(policy.minimum, policy.maximum, policy.hardlimit,
                   sharing.DEFAULT_PRIORITY if policy.priority is None
                   else policy.priority)

    def compute_demand_and_limits(self, capacity: float, demand: float
                                  ) -> Claim:
        """Return the demand of a control group and its limits, in MB/s.

        The limits are the group's minimum and maximum, which are shares of the
        bandwidth of a host NUMA node.

        :param capacity: bandwidth of the node, in MB/s.
        :param demand: bandwidth that the group would use without limits, in
            MB/s.
        """
        return Claim(
            demand, capacity * self.minimum / WHOLE,
            capacity * self.maximum / WHOLE if self.maximum < WHOLE
            else math.inf, self.hardlimit, self.priority)


#: By control group and host NUMA node. What is not there is not controlled.
Controls = Mapping[tuple[str, int], BandwidthControl]
_FREE = BandwidthControl()


@dataclass(frozen=True)
class MemoryFlow:
    """Memory traffic of one control group from one NUMA node to another.

    :param group: name of the control group.
    :param origin: node of the CPUs or of the device that access the memory.
    :param memory: node of the memory.
    :param demand: bandwidth that the flow wants, in MB/s.
    """

    group: str
    origin: int
    memory: int
    demand: float


@dataclass(frozen=True)
class FlowOutcome:
    """Bandwidth and latency that a flow of memory traffic gets.

    :param achieved: bandwidth in MB/s.
    :param latency: latency of an access, relative to an access to local memory
        on an idle machine.
    """

    flow: MemoryFlow
    achieved: float
    latency: float


@dataclass(frozen=True)
class TrafficLoad:
    """Outcomes of all flows, and the utilisation of nodes and links.

    :param nodes: utilisation of the memory of each node, as a fraction of its
        theoretical bandwidth.
    :param links: utilisation of each link that flows use.
    """

    outcomes: tuple[FlowOutcome, ...]
    nodes: Mapping[int, float]
    links: Mapping[Link, float]


@dataclass(frozen=True)
class _FlowDelays:
    """Limits and delays of flows of traffic at one memory or link.

    :param part: fraction of its bandwidth that each flow gets, by index of the
        flow.
    :param wait: mean waiting time of each flow, by index of the flow.
    :param utilisation: utilisation of the memory or link, 0 to 1.
    """

    part: Mapping[int, float] = field(default_factory=dict)
    wait: Mapping[int, float] = field(default_factory=dict)
    utilisation: float = 0.0


def compute_flow_outcomes(machine: Machine, flows: Sequence[MemoryFlow],
                          controls: Controls | None = None) -> TrafficLoad:
    """Compute the bandwidth and the latency of each flow of memory traffic.

    A flow is the traffic of one control group between two NUMA nodes.

    :param flows: memory traffic between NUMA nodes.
    :param controls: bandwidth control of each group on each node.
    """
    arriving = [flow.demand for flow in flows]
    links = _make_link_stages(machine, flows)
    for stage in links.values():
        for number, part in stage.part.items():
            arriving[number] *= part
    nodes = {
        node.id: _compute_delays_at_memory(machine, node.id, flows, arriving,
                                           controls or {})
        for node in machine.nodes}
    outcomes = []
    for number, flow in enumerate(flows):
        passed = [nodes[node] for node in sorted({flow.origin, flow.memory})]
        through = links.get(machine.get_link(flow.origin, flow.memory))
        achieved = arriving[number] * min(
            stage.part[number] for stage in passed)
        waiting = math.fsum(
            stage.wait[number]
            for stage in passed + ([through] if through else []))
        held_back = (min(flow.demand / achieved, LONGEST) if achieved
                     else LONGEST if flow.demand else 1.0)
        outcomes.append(FlowOutcome(
            flow, achieved,
            (get_idle_latency(machine, flow.origin, flow.memory) + waiting)
            * held_back))
    return TrafficLoad(tuple(outcomes),
                       {number: stage.utilisation
                        for number, stage in nodes.items()},
                       {link: stage.utilisation
                        for link, stage in links.items() if link})


def get_idle_latency(machine: Machine, origin: int, memory: int) -> float:
    """Return the latency of a memory access on an idle machine.

    The latency is relative to an access within the same NUMA node.

    :param origin: NUMA node of the CPU or device.
    :param memory: NUMA node of the memory.
    """
    link = machine.get_link(origin, memory)
    return machine[f'{link[0]}_latency'] if link else 1.0


def _make_link_stages(machine: Machine,
                      flows: Sequence[MemoryFlow]
                      ) -> dict[Link | None, _FlowDelays]:
    users: dict[Link, list[int]] = defaultdict(list)
    for number, flow in enumerate(flows):
        link = machine.get_link(flow.origin, flow.memory)
        if link:
            users[link].append(number)
    stages: dict[Link | None, _FlowDelays] = {}
    for link, numbers in users.items():
        capacity = machine[f'{link[0]}_mb']
        total = math.fsum(flows[number].demand for number in numbers)
        part = min(1.0, capacity / total) if total else 1.0
        busy = total * part / capacity
        stages[link] = _FlowDelays(
            dict.fromkeys(numbers, part),
            dict.fromkeys(numbers, queueing.get_mean_queueing_delay(busy)),
            busy)
    return stages


def _compute_delays_at_memory(
        machine: Machine, node: int, flows: Sequence[MemoryFlow],
        arriving: Sequence[float], controls: Controls) -> _FlowDelays:
    """Return the limits and delays of flows of traffic at a node's memory.

    The bandwidth control of a group applies only to accesses to this memory.

    :param node: host NUMA node of the memory.
    :param arriving: bandwidth of each flow that reaches the node, in MB/s.
    """
    capacity = machine['capacity_mb']
    users: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for number, flow in enumerate(flows):
        if node in (flow.origin, flow.memory):
            users[flow.group, flow.memory == node].append(number)
    claims = [
        (controls.get((group, node), _FREE)
         if here else _FREE).compute_demand_and_limits(
             capacity, math.fsum(arriving[number] for number in numbers))
        for (group, here), numbers in users.items()]
    got = sharing.share_bandwidth(
        queueing.get_deliverable_bandwidth(capacity, machine.curve), claims)
    waiting = queueing.get_control_group_delays(
        capacity, claims, got, machine.curve, machine.enforcement)
    part, wait = {}, {}
    for asked, amount, waits, numbers in zip(
            claims, got, waiting, users.values(), strict=True):
        for number in numbers:
            part[number] = amount / asked.demand if asked.demand else 1.0
            wait[number] = waits
    return _FlowDelays(part, wait, math.fsum(got) / capacity)
