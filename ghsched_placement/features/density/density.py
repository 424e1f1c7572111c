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

"""Number of containers that a host runs before their latency suffers (pure).

As in the published test, one container is observed while others are added. The
density is the largest number of containers with which the p99 latency of the
observed one is below 1.10 times its latency alone. The model assumes that the
p99 latency of a request grows like the mean latency of its memory accesses.

All figures of this module are *simulated*.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
import functools
import itertools
import math

from ghsched_placement.features.density.machine import Machine
from ghsched_placement.features.density.machine import Parameter
from ghsched_placement.features.density import traffic
from ghsched_placement.features.density import workload as workloads
from ghsched_placement.features.density.workload import REFERENCE
from ghsched_placement.features.density.workload import SCENARIOS
from ghsched_placement.features.density.workload import Workload
from ghsched_placement.flavor import policy
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy

#: Highest acceptable p99 latency of the observed container, relative to its
#: p99 latency when it is alone. A number of containers fails if it is reached.
LINE = 1.10
#: Number of containers at which the search for a density ends.
FAR = 4096

#: Bandwidth policy of a flavor: parsed, or as extra specs.
Keys = GuestPolicy | Mapping[str, str]


@dataclass(frozen=True)
class LatencyPoint:
    """Predicted p99 latency for a number of containers.

    :param n: number of containers.
    :param p99: p99 latency relative to that of one container alone.
    """

    n: int
    p99: float


@dataclass(frozen=True)
class Curve:
    """Predicted latency by number of containers in one scenario (simulated).

    A number of containers is acceptable if the p99 latency of an observed
    container is below :data:`LINE`.

    :param points: latency for 1 container up to the number that fits.
    :param density: largest number of containers that is acceptable and fits.
    :param first_failing: smallest number that is not acceptable; None if all
        numbers that fit are acceptable.
    :param binds: limit of the density: ``latency``, a resource, or ``most`` if
        it is the caller's limit.
    :param alone: latency of the observed container when it is alone, relative
        to a container on an idle machine that accesses only local memory.
    :param latency_density: largest acceptable number if resources are not
        limited.
    :param all_density: the same if each container must be acceptable, not only
        the observed one.
    :param node_busy: utilisation of the busiest node at the density, 0 to 1.
    :param link_busy: utilisation of the busiest link at the density, 0 to 1.
    """

    scenario: str
    points: tuple[LatencyPoint, ...]
    density: int
    first_failing: int | None
    binds: str
    alone: float = 1.0
    latency_density: int = 0
    all_density: int = 0
    node_busy: float = 0.0
    link_busy: float = 0.0


def predict_latencies(
        machine: Machine, scenario: str, keys: Keys | None = None,
        max_containers: int | None = None,
        workload: Workload = REFERENCE) -> Curve:
    """Predict the p99 latency of a container for each number of containers.

    :param scenario: how guests run: unbound (``none``), bound to NUMA nodes
        (``static``), or bound with a bandwidth policy (``ghsched``).
    :param keys: bandwidth policy of the guests; None for the default.
    :param max_containers: largest number of containers; None for as many as
        fit.
    :param workload: guests, and the load of their containers.
    :raises ValueError: if the scenario is unknown, the policy cannot be
        enforced, or the guests do not fit.
    """
    held = _get_policy(machine, scenario, keys, workload)
    limit, binds = workloads.find_container_limit(machine, workload, scenario)
    if max_containers is not None and max_containers < limit:
        limit, binds = max(max_containers, 1), 'most'
    model = _Model(machine, scenario, held, workload)
    points = tuple(LatencyPoint(n, model.get_p99(n))
                   for n in range(1, limit + 1))
    failing = next((point.n for point in points if point.p99 >= LINE), None)
    found = limit if failing is None else failing - 1
    return Curve(
        scenario, points, found, failing,
        binds if failing is None else 'latency', model.get_latency(1),
        model.find_density(), model.find_density(model.get_worst_p99),
        *model.get_peak_utilisations(max(1, found)))


def predict_p99(machine: Machine, scenario: str, containers: int, keys: Keys
                | None = None, workload: Workload = REFERENCE) -> float:
    """Predict the p99 latency of a container among a number of containers.

    The latency is relative to the latency of a single container.

    :param scenario: how guests run: unbound (``none``), bound to NUMA nodes
        (``static``), or bound with a bandwidth policy (``ghsched``).
    :param containers: number of containers on the machine, in all guests.
    :param keys: bandwidth policy of the guests; None for the default.
    :param workload: guests, and the load of their containers.
    :raises ValueError: if the scenario is unknown, the policy cannot be
        enforced, or the guests do not fit.
    """
    return _Model(machine, scenario,
                  _get_policy(machine, scenario, keys, workload),
                  workload).get_p99(containers)


def make_default_policy(machine: Machine,
                        workload: Workload = REFERENCE) -> GuestPolicy:
    """Return the bandwidth policy that predictions assume by default.

    The policy guarantees half of the bandwidth of each host node to its
    guests, in equal parts. It guarantees nothing if the machine cannot enforce
    guarantees.
    """
    guests = workloads.place_guests(machine, workload, 'ghsched')
    sharing = max((sum(node in nodes for nodes in guests)
                   for node in itertools.chain(*guests)), default=1)
    nodes: tuple[NodePolicy, ...] = ()
    if 'MEM_BW_MIN' in machine.controls:
        nodes = (NodePolicy(minimum=50 // sharing),) * workload.nodes
    return GuestPolicy(nodes=nodes,
                       device_numa='preferred' if workload.vfs else 'none')


def _get_policy(machine: Machine, scenario: str, keys: Keys | None,
                workload: Workload) -> GuestPolicy | None:
    if scenario not in SCENARIOS:
        raise ValueError(f'{scenario!r} is not one of ' + ', '.join(SCENARIOS))
    if scenario != 'ghsched':
        return None
    if keys is None:
        return make_default_policy(machine, workload)
    if isinstance(keys, GuestPolicy):
        return keys
    return policy.parse_policy(
        keys, workload.nodes, workload.vcpus) or GuestPolicy()


class _Model:
    """Model of one scenario on a machine, with cached results.

    A result is computed for a number of containers. The observed container is
    the first container of the first guest.

    :param keys: bandwidth policy of the guests; None for no policy.
    :param workload: guests, and the load of their containers.
    """

    def __init__(self, machine: Machine, scenario: str,
                 keys: GuestPolicy | None, workload: Workload) -> None:
        self._machine = machine
        self._workload = workload
        self._controls = workloads.make_bandwidth_controls(
            machine, workload, keys)
        self._slots = workloads.list_guest_nodes(machine, workload, scenario,
                                                 keys)
        # A cache of the class would keep every model in memory.
        self._solve_load = functools.cache(self._compute_load)
        self.get_latency = functools.cache(self._compute_latency)

    def _compute_load(self, containers: int) -> traffic.TrafficLoad:
        return traffic.compute_flow_outcomes(
            self._machine,
            workloads.list_memory_flows(self._machine, self._workload,
                                        self._slots, containers),
            self._controls)

    def _compute_latency(self, containers: int) -> float:
        return self._get_slot_latency(self._slots[0], containers)

    def _get_slot_latency(
            self, slot: workloads.GuestNodeTraffic, containers: int) -> float:
        found = {(one.flow.group, one.flow.origin, one.flow.memory):
                 one.latency for one in self._solve_load(containers).outcomes}
        return math.fsum(
            path.part * found[path.group, path.origin, path.memory]
            for path in slot.paths)

    def get_peak_utilisations(self, containers: int) -> tuple[float, float]:
        """Return how busy the busiest memory node and the busiest link are.

        Both are fractions of the bandwidth, 0 to 1. A link connects two NUMA
        nodes or sockets.

        :param containers: number of containers in all guests.
        """
        load = self._solve_load(containers)
        return (max(load.nodes.values(), default=0.0),
                max(load.links.values(), default=0.0))

    def get_p99(self, containers: int) -> float:
        return self._to_p99(self.get_latency(containers))

    def get_worst_p99(self, containers: int) -> float:
        """Return the highest p99 latency of requests to any container.

        The latency is relative to that of a container that runs alone.

        :param containers: number of containers in all guests.
        """
        return self._to_p99(max(
            self._get_slot_latency(slot, containers) for slot in self._slots
            if slot.count_containers(containers)))

    def _to_p99(self, latency: float) -> float:
        more = latency / self.get_latency(1) - 1
        return 1 + self._workload.elasticity * more

    def find_density(self, p99: Callable[[int], float] | None = None) -> int:
        """Return the largest number of containers with an acceptable latency.

        :param p99: function that returns the p99 latency for a number of
            containers; None for the latency of the first container.
        """
        p99 = p99 or self.get_p99
        above = 2
        while above <= FAR and p99(above) < LINE:
            above *= 2
        below = above // 2
        while above - below > 1:
            middle = (above + below) // 2
            if p99(middle) < LINE:
                below = middle
            else:
                above = middle
        return min(below, FAR)


# -- comparisons --------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """Density with ghsched, relative to a density without it (simulated).

    :param against: machine and scenario of the density without ghsched.
    :param line: density without ghsched, in containers.
    :param value: density with ghsched divided by ``line``.
    :param latency_value: the same, if resources did not limit the density with
        ghsched.
    :param line_is: kind of the density without ghsched; the name of a field of
        :class:`Curve`.
    """

    against: str
    line: int
    value: float
    latency_value: float
    line_is: str = 'density'


@dataclass(frozen=True)
class DensityReport:
    """Predictions for all scenarios of a machine (simulated).

    :param machine: name of the machine.
    :param curves: one for each scenario, in the order of
        :data:`workload.SCENARIOS`.
    :param ratios: density with ghsched relative to that without control, to
        that with static binding, and to that of another machine. The first is
        missing if it has not been published, the last if no machine is given.
    :param parameters: parameters of the machine's model.
    """

    machine: str
    curves: tuple[Curve, ...]
    ratios: tuple[Ratio, ...]
    parameters: tuple[Parameter, ...]

    def get_curve(self, scenario: str) -> Curve:
        return next(one for one in self.curves if one.scenario == scenario)


def predict_scenarios(machine: Machine, keys: Keys | None = None,
                      against: Machine | None = None,
                      workload: Workload | None = None) -> DensityReport:
    """Predict how many containers keep their latency goal on a machine.

    The report compares the number with bandwidth control with three others:
    the number without control, the number with static binding, and, if given,
    the number on another machine.

    :param keys: bandwidth policy of the guests; None for the default.
    :param against: another machine to compare with, without bandwidth control.
    :param workload: workload; None for that of the published test.
    """
    asked = workload or REFERENCE
    curves = tuple(predict_latencies(machine, scenario, keys, workload=asked)
                   for scenario in SCENARIOS)
    none, static, ours = curves
    lines = [(machine, static)]
    if workload is not None or machine.fit is None or machine.fit.passes:
        lines.insert(0, (machine, none))
    if against is not None:
        lines.append(
            (against, predict_latencies(against, 'none', workload=asked)))
    return DensityReport(machine.name, curves, tuple(
        _make_ratio(of, curve, ours) for of, curve in lines),
        machine.parameters)


def _make_ratio(machine: Machine, curve: Curve, ours: Curve) -> Ratio:
    line = max(curve.density, 1)
    return Ratio(f'{machine.name}, {curve.scenario}', line,
                 ours.density / line, ours.latency_density / line)


@dataclass(frozen=True)
class ParameterShift:
    """Prediction with one model parameter changed (simulated).

    :param machine: name of the machine whose parameter was changed.
    :param parameter: the parameter before the change.
    :param factor: factor by which its value was multiplied.
    :param report: predictions with the changed parameter.
    """

    machine: str
    parameter: Parameter
    factor: float
    report: DensityReport


def compute_sensitivity(machine: Machine, keys: Keys | None = None,
                        against: Machine | None = None,
                        workload: Workload | None = None, step: float = 0.2,
                        bases: Collection[str] = ('fitted',),
                        refit: Callable[[Machine], Machine] | None = None
                        ) -> tuple[ParameterShift, ...]:
    """Predict how container densities change with each model parameter.

    A density is how many containers run well on the machine. Each parameter is
    made smaller and larger while the others stay as they are.

    :param keys: bandwidth policy of the guests; None for the default.
    :param against: another machine to compare with, without bandwidth control.
    :param workload: workload; None for the workload of the published test.
    :param step: fraction by which each parameter is varied.
    :param bases: kinds of parameters to vary, of :data:`machine.BASES`.
    :param refit: function that fits the machine again after each change.
    :returns: two predictions for each varied parameter.
    """
    shifts = []
    for mine in (True, False):
        moved = machine if mine else against
        if moved is None:
            continue
        for parameter in moved.parameters:
            if parameter.basis not in bases:
                continue
            for factor in (1 - step, 1 + step):
                other = _copy_with_scaled_parameter(moved, parameter, factor)
                other = refit(other) if refit else other
                shifts.append(
                    ParameterShift(
                        moved.name, parameter, factor,
                        predict_scenarios(other if mine else machine, keys,
                                          against if mine else other,
                                          workload)))
    return tuple(shifts)


def _copy_with_scaled_parameter(
        machine: Machine, parameter: Parameter, factor: float) -> Machine:
    """Return a copy of a machine with one model parameter multiplied.

    The new value is kept within physical limits: remote accesses never become
    faster than local ones, and containers never demand less bandwidth than
    their VFs use.

    :param factor: number by which the parameter is multiplied.
    """
    value = parameter.value * factor
    if parameter.name.endswith('_latency'):
        value = max(value, 1.0)
    if parameter.name == 'demand_mb':
        value = max(value, machine['dma_mb'])
    return machine.replace_parameter(parameter.name, value)


# -- the search ---------------------------------------------------------------


@dataclass(frozen=True)
class BestPolicy:
    """Best bandwidth policy that a search has found (simulated).

    :param keys: the bandwidth policy.
    :param curve: predicted latency with this policy.
    :param guests: number of guests that the predicted density fills.
    :param tried: number of policies that the search has tried.
    """

    keys: GuestPolicy
    curve: Curve
    guests: int
    tried: int


#: Values to try, those that cost other guests least first.
MINIMUMS = tuple(range(0, 101, 5))
MAXIMUMS = (100, 80, 60, 40, 20)
PRIORITIES = (None, 4, 7)


def search_best_policy(machine: Machine, workload: Workload = REFERENCE,
                       max_containers: int | None = None) -> BestPolicy:
    """Search for the bandwidth policy with which most containers run well.

    Containers run well if their p99 latency is below the limit. Policies that
    the host cannot enforce are skipped. Of equally good policies, the one with
    the smallest guarantee is returned.

    :param workload: guests, and the load of their containers.
    :param max_containers: largest number of containers; None for as many as
        fit.
    :raises ValueError: if the guests do not fit the host.
    """
    limit, _binds = workloads.find_container_limit(machine, workload,
                                                   'ghsched')
    if max_containers is not None:
        limit = min(limit, max_containers)
    best, reached, tried = GuestPolicy(), -1, 0
    for keys in _yield_policies(machine, workload):
        tried += 1
        model = _Model(machine, 'ghsched', keys, workload)
        found = limit if model.get_p99(limit) < LINE else model.find_density()
        if found > reached:
            best, reached = keys, found
        if found >= limit:
            break
    curve = predict_latencies(machine, 'ghsched', best, max_containers,
                              workload)
    per_guest = min(workload.count_containers_by_resource().values())
    return BestPolicy(best, curve, curve.density // per_guest, tried)


def _yield_policies(
        machine: Machine, workload: Workload) -> Iterator[GuestPolicy]:
    bare = make_default_policy(machine, workload)
    guests = workloads.place_guests(machine, workload, 'ghsched')
    sharing = max((sum(node in nodes for nodes in guests)
                   for node in itertools.chain(*guests)), default=1)
    seen = set()
    for minimum, maximum, priority, hard in itertools.product(
            MINIMUMS, MAXIMUMS, PRIORITIES, (True, False)):
        node = NodePolicy(minimum, maximum, hard, priority)
        if minimum > maximum or minimum * sharing > 100 or (
                not hard and not node.is_capped) or node in seen:
            continue
        seen.add(node)
        keys = replace(bare, nodes=(node,) * workload.nodes)
        try:
            workloads.make_bandwidth_controls(machine, workload, keys)
        except ValueError:
            continue
        yield keys
