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

"""Random draws of what nobody knows exactly: a range, and no one figure.

Each draw takes every parameter of a machine anywhere in its documented range,
one of the latency curves, one elasticity of p99 and one baseline (bound or
not); the demand of a container is fitted again to the published density. All
figures are *simulated*.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
import random

from ghsched_placement.features.density import calibrate
from ghsched_placement.features.density.curve import LatencyCurve
from ghsched_placement.features.density import density
from ghsched_placement.features.density.machine import Machine
from ghsched_placement.features.density.queueing import Enforcement
from ghsched_placement.features.density.workload import REFERENCE
from ghsched_placement.features.density.workload import Workload

#: Lowest and highest value, by parameter. ``capacity_mb`` is four channels of
#: DDR4-2666 to DDR5-4800, because the memory of the machine was not
#: published; ``far_mb`` is 36, 50 or 90 GB/s by source; 30 % for a near node
#: is a lower bound (NUMA-ICON, CLK 2024); the far latency comes of redis over
#: the loop-back device; packets at 100 to 150 thousand requests a second are
#: 17 to 50 MB/s, and the line rate over 80 VFs is 78.
RANGES: Mapping[str, tuple[float, float]] = {
    'capacity_mb': (85312.0, 153600.0), 'far_mb': (36000.0, 90000.0),
    'near_latency': (1.1, 1.5), 'far_latency': (1.3, 2.2),
    'dma_mb': (17.0, 78.125),
}

#: Range of the relative growth of p99 with the latency of memory, below
#: saturation: a request waits for memory for at least 27 % and at most all of
#: its time.
ELASTICITY = (0.24, 1.0)

#: Scenarios in which the published density without control may have been
#: measured.
BASELINES = ('none', 'static')

#: Largest gain of vCPU classes that is looked for.
MAX_GAIN = 2.0

#: Density that the published test claims to have reached.
GOAL = 60


@dataclass(frozen=True)
class DensityRange:
    """Predictions for many random draws of the model parameters (simulated).

    Each tuple has one value for each draw, in ascending order.

    :param densities: densities with ghsched.
    :param by_latency: densities with ghsched if resources did not limit them.
    :param over_static: ``by_latency`` relative to the density with static
        binding, if resources did not limit either of them.
    """

    densities: tuple[float, ...]
    by_latency: tuple[float, ...]
    over_static: tuple[float, ...]

    @property
    def fraction_at_goal(self) -> float:
        """Fraction of the random draws whose density reaches the goal.

        A density is how many containers run well on the machine. The goal is
        the density of the published test.
        """
        return sum(one >= GOAL for one in self.by_latency) / len(
            self.by_latency)


def get_percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of a list of ascending values (nearest-rank method).
    """
    place = round(percent / 100 * (len(values) - 1))
    return values[min(max(place, 0), len(values) - 1)]


def predict_random_densities(
        machine: Machine, curves: Sequence[LatencyCurve | None], count: int,
        seed: int = 1, workload: Workload = REFERENCE,
        baselines: Sequence[str] = BASELINES,
        progress: Callable[[int], None] = lambda _done: None) -> DensityRange:
    """Predict container densities for random values of the model parameters.

    A density is how many containers run well on the machine. The result shows
    how much it depends on parameters that are not exactly known.

    :param curves: latency curves to draw from; None models memory as a queue.
    :param count: number of draws of random values.
    :param workload: guests, and the load of their containers.
    :param baselines: scenarios of the published density to draw from.
    :param progress: called with the number of finished draws.
    """
    found = []
    for number, (one, load) in enumerate(_yield_random_machines(
            machine, curves, count, seed, workload, baselines)):
        ours = density.predict_latencies(one, 'ghsched', workload=load)
        static = density.predict_latencies(one, 'static', workload=load)
        found.append((ours.density, ours.latency_density,
                      ours.latency_density / max(1, static.latency_density)))
        progress(number + 1)
    return DensityRange(*(tuple(sorted(column))
                          for column in zip(*found, strict=True)))


def _yield_random_machines(
        machine: Machine, curves: Sequence[LatencyCurve | None], count: int,
        seed: int, workload: Workload, baselines: Sequence[str]
) -> Iterator[tuple[Machine, Workload]]:
    """Yield random machines, fitted to the published density, and workloads.

    :param curves: latency curves to draw from; None models memory as a queue.
    :param count: number of draws of random values.
    :param baselines: scenarios of the published density to draw from.
    """
    rng = random.Random(seed)  # noqa: S311
    for _number in range(count):
        one = draw_random_machine(machine, rng, curves)
        load = replace(workload, elasticity=rng.uniform(*ELASTICITY))
        baseline = rng.choice(baselines)
        if one.fit is not None:
            one = calibrate.fit_machine_to_density(one, load, baseline)
        yield one, load


@dataclass(frozen=True)
class ClassRange:
    """Gain of vCPU classes for many random draws of parameters (simulated).

    Each tuple has one value for each draw, in ascending order. The baseline is
    guests that are bound to NUMA nodes, with the published density.

    :param by_latency: densities with vCPU classes if resources did not limit
        them.
    :param over_static: ``by_latency`` relative to the same density with static
        binding.
    :param over_guest: ``by_latency`` relative to the same density with the
        default policy for whole guests.
    :param traffic_over_static: bandwidth that each container may use at the
        published density, relative to that with static binding.
    :param traffic_over_guest: the same, relative to that with the default
        policy for whole guests.
    :param all_over_guest: density if each container must be acceptable,
        relative to that with the default policy for whole guests.
    """

    by_latency: tuple[float, ...]
    over_static: tuple[float, ...]
    over_guest: tuple[float, ...]
    traffic_over_static: tuple[float, ...]
    traffic_over_guest: tuple[float, ...]
    all_over_guest: tuple[float, ...]


def predict_random_gains_of_classes(
        machine: Machine, curves: Sequence[LatencyCurve | None], count: int,
        cases: Sequence[tuple[Mapping[str, str], str]], seed: int = 1,
        workload: Workload = REFERENCE) -> tuple[ClassRange, ...]:
    """Predict what vCPU classes add for random values of model parameters.

    :param machine: machine with a published density.
    :param curves: latency curves to draw from; None models memory as a queue.
    :param count: number of draws of random values.
    :param cases: pairs of a flavor's extra specs, and where guarantees and
        priorities act, of :data:`queueing.SCOPES`.
    :param workload: guests, and the load of their containers.
    :returns: one range for each case.
    """
    found: list[list[tuple[float, ...]]] = [[] for _case in cases]
    for one, load in _yield_random_machines(machine, curves, count, seed,
                                            workload, ['static']):
        static = density.predict_latencies(one, 'static', workload=load)
        for rows, (specs, scope) in zip(found, cases, strict=True):
            guest, traffic_of_guest = _predict_with_keys(
                one, load, scope, None)
            ours, traffic = _predict_with_keys(one, load, scope, specs)
            rows.append((
                ours.latency_density,
                ours.latency_density / static.latency_density,
                ours.latency_density / guest.latency_density,
                traffic / one['demand_mb'], traffic / traffic_of_guest,
                ours.all_density / guest.all_density))
    return tuple(ClassRange(*(tuple(sorted(column))
                              for column in zip(*rows, strict=True)))
                 for rows in found)


def _predict_with_keys(
        machine: Machine, load: Workload, scope: str,
        keys: Mapping[str, str] | None) -> tuple[density.Curve, float]:
    """Return the prediction with some keys, and the traffic at which it fails.

    :param scope: where guarantees and priorities act.
    :param keys: bandwidth policy of the guests; None for the default.
    :returns: MB/s of a container at which the published density fails.
    """
    scoped = replace(machine, enforcement=Enforcement(scope))
    return (density.predict_latencies(scoped, 'ghsched', keys, workload=load),
            calibrate.estimate_container_bandwidth(
                scoped, load, 'ghsched', keys,
                MAX_GAIN * machine['demand_mb']))


def draw_random_machine(machine: Machine, rng: random.Random,
                        curves: Sequence[LatencyCurve | None]) -> Machine:
    """Return a copy of a machine with random values of its model parameters.

    :param rng: random number generator.
    :param curves: latency curves to draw from; None models memory as a queue.
    """
    for name, (low, high) in RANGES.items():
        machine = machine.replace_parameter(name, rng.uniform(low, high))
    machine = replace(machine, curve=rng.choice(curves))
    return machine.replace_parameter(
        'demand_mb', max(machine['demand_mb'], machine['dma_mb']))
