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

"""Container densities of the flavors of a plan (simulated).

The planner computes the number of guests;
:mod:`ghsched_placement.features.planner.density` predicts their density.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

from ghsched_placement.features.density.machine import Machine
from ghsched_placement.features.planner.client import PlannerError
from ghsched_placement.features.planner import cloud
from ghsched_placement.features.planner.cloud import Progress
from ghsched_placement.features.planner import density
from ghsched_placement.features.planner.density import DensityPlan
from ghsched_placement.features.planner.flavors import Flavor
from ghsched_placement.features.planner.hosts import PlannedHost
from ghsched_placement.features.planner import need as needs
from ghsched_placement.features.planner import plan as planner
from ghsched_placement.features.planner.plan import CapacityPlan
from ghsched_placement.features.planner.plan import PlanSettings

#: Keys that a search replaces begin so.
_SEARCHED = ('ghsched:mem_bw_', 'ghsched:device_numa')


@dataclass(frozen=True)
class Target:
    """Machine for which container densities are predicted.

    :param host: empty host with the inventories of the machine.
    :param aliases: resource class of the VFs by PCI alias.
    :param counted: names of hosts of the plan that are such machines. How many
        guests fit on them is taken from the plan.
    """

    machine: Machine
    host: PlannedHost
    aliases: Mapping[str, str]
    counted: tuple[str, ...] = ()


@dataclass(frozen=True)
class DensityPredictions:
    """Predicted container densities, and the reasons for missing ones.

    :param densities: predictions, one for each machine and kind of guest
        (simulated).
    :param reasons: texts that say why a flavor has no prediction.
    """

    densities: tuple[DensityPlan, ...] = ()
    reasons: tuple[str, ...] = ()


def reject_duplicate_machine_names(
        targets: Iterable[Target], against: Machine | None) -> None:
    """Raise PlannerError if two different machines have the same name.

    :param targets: machines for which densities are predicted.
    :param against: machine to compare the others with; None for none.
    """
    for target in targets:
        if against and target.machine != against and (
                target.machine.name == against.name):
            raise PlannerError(f'two machines are called {against.name}; '
                               'change "name" in one of their files')


def predict_container_densities(
        plan: CapacityPlan, targets: Sequence[Target],
        flavors: Sequence[Flavor], settings: PlanSettings,
        against: Machine | None = None,
        search: bool = False, progress: Progress = cloud.ignore_progress,
) -> DensityPredictions:
    """Predict how many containers run well on each machine, by flavor.

    The same is predicted for the published test, whose guests have a fixed
    size and belong to no flavor.

    :param plan: capacity plan of the same flavors, in the same order.
    :param targets: machines to predict for.
    :param settings: settings of the plan.
    :param against: machine without bandwidth control to compare with.
    :param search: whether to search for the bandwidth extra specs that allow
        the most containers.
    :param progress: called with the progress, 0 to 1, and a description.
    :returns: the predictions, and the reasons why others are not possible.
    """
    asked = [_MachinePredictor(plan, target, flavors, settings,
                               None if target.machine == against else against,
                               search) for target in targets]
    predictions = [
        one for number, machine in enumerate(asked)
        for one in machine.yield_density_predictions(
            cloud.make_step_progress(progress, number /
                                     len(asked), (number + 1) / len(asked)))]
    return DensityPredictions(
        tuple(one for one in predictions if isinstance(one, DensityPlan)),
        tuple(one for one in predictions if isinstance(one, str)))


@dataclass(frozen=True)
class _MachinePredictor:
    """Predicts container densities on one machine for each flavor of a plan.

    :param against: machine without bandwidth control to compare with.
    :param search: whether to search for the bandwidth extra specs that allow
        the most containers.
    """

    plan: CapacityPlan
    target: Target
    flavors: Sequence[Flavor]
    settings: PlanSettings
    against: Machine | None
    search: bool

    def yield_density_predictions(
            self, progress: Progress) -> Iterator[DensityPlan | str]:
        """Yield how many containers the machine is predicted to run.

        These containers keep their p99 latency. The first prediction is for
        the test that openEuler published, the others are for the flavors. If
        a prediction is not possible, the reason is yielded instead.

        :param progress: called with the progress, 0 to 1, and a description.
        """
        machine = self.target.machine
        what, parts = f'density on {machine.name}', len(self.flavors) + 1
        progress(0.0, what)
        try:
            yield density.predict_published_test_density(
                machine, self.against, self.search)
        except PlannerError as error:
            yield str(error)
        for number, flavor in enumerate(self.flavors):
            progress((number + 1) / parts, f'{what}, {flavor.name}')
            yield self._predict_flavor(number)

    def _predict_flavor(self, number: int) -> DensityPlan | str:
        need = needs.build_flavor_need(
            self.flavors[number], self.settings.accounting,
            {**(self.settings.aliases or {}), **self.target.aliases},
            self.settings.without)
        guests = self._count_guests_on_empty_host(number, need)
        try:
            found = density.predict_flavor_density(
                self.target.machine, need, guests, self.against, self.search,
                self._count_guests_without_extra_specs(need))
        except density.NotPredicted as error:
            return str(error)
        if found.found is None:
            return found
        return replace(
            found, found_guests=self._count_guests_with_extra_specs(
                need, found.best_extra_specs))

    def _count_guests_on_empty_host(self, number: int,
                                    need: needs.FlavorNeed) -> int:
        """Return how many guests of a flavor fit on an empty host.

        :param number: index of the flavor in the plan.
        :param need: resources that each guest needs.
        """
        counted = [kind.guests for kind in self.plan.flavors[number].hosts
                   if not set(kind.hosts).isdisjoint(self.target.counted)]
        if counted:
            return max(counted)
        return self._plan_guests(need.flavor, need)

    def _count_guests_without_extra_specs(
            self, need: needs.FlavorNeed) -> int | None:
        """Return how many guests fit without their bandwidth extra specs.

        :returns: None if the flavor has no bandwidth extra specs.
        """
        if not any(key.startswith(_SEARCHED)
                   for key in need.flavor.extra_specs):
            return None
        return self._count_guests_with_extra_specs(need, {})

    def _count_guests_with_extra_specs(
            self, need: needs.FlavorNeed,
            extra_specs: Mapping[str, str]) -> int:
        """Return how many guests fit on an empty host with other extra specs.

        :param extra_specs: extra specs that replace the flavor's bandwidth
            extra specs.
        """
        specs = {key: value for key, value in need.flavor.extra_specs.items()
                 if not key.startswith(_SEARCHED)}
        return self._plan_guests(replace(
            need.flavor, extra_specs={**specs, **extra_specs}), need)

    def _plan_guests(self, flavor: Flavor, need: needs.FlavorNeed) -> int:
        again = planner.plan_host_capacity(
            [self.target.host], [flavor], settings=PlanSettings(
                need.accounting, need.aliases, more=False,
                without=tuple(need.without)))
        return again.flavors[0].guests
