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

"""Fit parameters of a machine to published results (pure).

``demand_mb`` of a machine with a published density is the demand with which
the p99 latency reaches the limit half-way between the largest number of
containers that passes and the smallest that fails. ``far_latency`` is the
latency with which :func:`get_memory_speedup_of_binding` is the published gain
of binding a single instance.
"""

from collections.abc import Callable

from ghsched_placement.features.density import density
from ghsched_placement.features.density.machine import Machine
from ghsched_placement.features.density import traffic
from ghsched_placement.features.density.workload import REFERENCE
from ghsched_placement.features.density.workload import Workload

#: redis-benchmark with all threads bound to one node against the kernel's own
#: choice, on a machine that is not named: set +32.2 %, get +27.9 % (NUMA-ICON,
#: CLK 2024). Two of four gains: pipelined, they are 5.4 and 6.7 %, which no
#: latency above 1 explains.
BIND_GAIN = (1.322 + 1.279) / 2

_TURNS = 40


def estimate_container_bandwidth(machine: Machine,
                                 workload: Workload = REFERENCE,
                                 baseline: str = 'none',
                                 keys: density.Keys | None = None,
                                 limit_mb: float | None = None) -> float:
    """Return the MB/s per container that explain a published density.

    The density is how many containers run well on the machine in a published
    test. The bandwidth is not published: the result is the bandwidth with
    which the model predicts exactly this density.

    :param workload: guests, and the load of their containers.
    :param baseline: scenario of the published density: guests unbound
        (``none``), bound to NUMA nodes (``static``), or with the policy
        ``keys`` (``ghsched``).
    :param keys: bandwidth policy of the guests; None for the default.
    :param limit_mb: largest result; None for the bandwidth of a node. The
        result is wrong if one container alone fills the memory, because other
        containers then slow down a container with priority only little.
    :raises ValueError: if no density of the machine was published.
    """
    if machine.fit is None:
        raise ValueError(f'{machine.name}: there is no density to fit to')
    failing = machine.fit.containers + machine.fit.passes

    def over(value: float) -> bool:
        moved = machine.replace_parameter('demand_mb', value)
        return sum(
            density.predict_p99(moved, baseline, number, keys, workload)
            for number in (failing - 1, failing)) / 2 > density.LINE

    return _bisect_threshold(over, max(machine['dma_mb'], 0.001),
                             limit_mb or machine['capacity_mb'])


def fit_machine_to_density(machine: Machine, workload: Workload = REFERENCE,
                           baseline: str = 'none') -> Machine:
    """Return a copy of a machine that is fitted to its published density.

    The bandwidth per container is changed so that the model predicts the
    density, which is how many containers run well on the machine.

    :param workload: guests, and the load of their containers.
    :param baseline: scenario of the published density: guests unbound
        (``none``) or bound to NUMA nodes (``static``).
    :raises ValueError: if no density of the machine was published.
    """
    return machine.replace_parameter(
        'demand_mb', estimate_container_bandwidth(machine, workload, baseline))


def get_memory_speedup_of_binding(machine: Machine) -> float:
    """Return how much faster memory is if guests are bound to NUMA nodes.

    The result is the mean memory latency over all pairs of NUMA nodes, divided
    by the latency of a local access.
    """
    numbers = [node.id for node in machine.nodes]
    return sum(traffic.get_idle_latency(machine, here, there)
               for here in numbers for there in numbers) / len(numbers) ** 2


def _bisect_threshold(over: Callable[[float], bool], low: float,
                      high: float) -> float:
    for _turn in range(_TURNS):
        middle = (low + high) / 2
        if over(middle):
            high = middle
        else:
            low = middle
    return (low + high) / 2
