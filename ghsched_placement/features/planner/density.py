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

"""Number of containers in guests before latency suffers (pure).

All figures are those of :mod:`ghsched_placement.features.density`, and
*simulated*.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

from ghsched_placement.features.density import density
from ghsched_placement.features.density.machine import Machine
from ghsched_placement.features.density.machine import Parameter
from ghsched_placement.features.density.machine import PublishedDensity
from ghsched_placement.features.density.workload import make_bandwidth_controls
from ghsched_placement.features.density.workload import place_guests
from ghsched_placement.features.density.workload import REFERENCE
from ghsched_placement.features.density.workload import Workload
from ghsched_placement.features.planner.client import PlannerError
from ghsched_placement.features.planner.need import FlavorNeed
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.vcpu_classes import DEFAULT
from ghsched_placement.flavor.vcpu_classes import has_other_threads


class NotPredicted(PlannerError):
    """Raised if the model cannot predict a density; the text has the reason.
    """


#: Name of the published test in the list of flavors.
PUBLISHED = 'published test'

#: Scenarios in words.
SCENARIOS = {'none': 'no control', 'static': 'best static bind',
             'ghsched': 'ghsched'}

NO_NODES = ('the flavor has no NUMA nodes, so nothing binds its guests; '
            'hw:numa_nodes gives it some')

NO_VFS = ('the flavor has no ghsched:vfs, so no DMA of devices is in these '
          'figures, and neither are VFs that come with a port nor what the '
          'host does for the network; containers want as much as those of '
          'the published test, which had VFs')

BASELINE = ('"no control" binds nothing, but in the published test redis was '
            'bound to a core; if its guests were bound as well, hardly any of '
            'the ratios to "no control" is due to ghsched')

NOT_ALL = ('Placement has room for {} guests, and these figures are of {}: '
           'the model shares no CPU among guests')

#: Number of guests that is larger than any host can take.
_MANY = 256


@dataclass(frozen=True)
class DensityPlan:
    """Predicted container densities of one kind of guest (simulated).

    :param subject: name of the flavor, or :data:`PUBLISHED` for the guests of
        the published test.
    :param workload: guests, and the load of their containers.
    :param keys: bandwidth extra specs that the prediction assumes.
    :param report: predictions for all scenarios.
    :param fitted: name of the machine and parameter, for each model parameter
        that was fitted to a published result.
    :param shifts: predictions with each of these parameters changed.
    :param against: name of the machine without bandwidth control with which
        the densities are compared; None if there is none.
    :param fits: published densities to which the machine and the other machine
        are fitted.
    :param guests: number of guests by scenario.
    :param notes: remarks for the user.
    :param found: best bandwidth policy; None if it was not searched for.
    :param found_guests: number of guests with this policy that fit on an empty
        host; None if unknown.
    """

    subject: str
    workload: Workload
    keys: Mapping[str, str]
    report: density.DensityReport
    fitted: tuple[tuple[str, Parameter], ...]
    shifts: tuple[density.ParameterShift, ...]
    against: str | None = None
    fits: tuple[PublishedDensity | None, ...] = ()
    guests: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    found: density.BestPolicy | None = None
    found_guests: int | None = None

    @property
    def best_extra_specs(self) -> dict[str, str]:
        """Extra specs of the best bandwidth policy that a search has found.

        The value is empty if no search was made.
        """
        return make_bandwidth_extra_specs(
            self.found.keys) if self.found else {}


def predict_published_test_density(machine: Machine,
                                   against: Machine | None = None,
                                   search: bool = False) -> DensityPlan:
    """Predict how many containers run well on a machine in the published test.

    The published test is a measurement whose results were published for some
    machines. It has guests and containers of a fixed size. Containers run well
    as long as the p99 latency of an observed container is below 1.10 times
    the latency that it has alone.

    :param machine: machine with bandwidth control.
    :param against: machine without bandwidth control to compare with.
    :param search: whether to search for the bandwidth extra specs that allow
        the most containers.
    """
    return _make_density_plan(
        PUBLISHED, machine, None,
        density.make_default_policy(machine), against, search)


def predict_flavor_density(machine: Machine, need: FlavorNeed,
                           guests: int | None = None,
                           against: Machine | None = None,
                           search: bool = False,
                           guests_without: int | None = None) -> DensityPlan:
    """Predict how many containers run well in guests of a flavor on a host.

    Containers run well as long as the p99 latency of an observed container is
    below 1.10 times the latency that it has alone.

    :param machine: machine with bandwidth control.
    :param need: resources that each guest needs.
    :param guests: number of guests on the host; None for as many as its CPUs
        and memory allow.
    :param against: machine without bandwidth control to compare with.
    :param search: whether to search for the bandwidth extra specs that allow
        the most containers.
    :param guests_without: number of guests on the host without ghsched extra
        specs; None for the same number.
    :raises NotPredicted: if the model does not cover the guests, or the
        machine cannot enforce their bandwidth policy.
    """
    workload = Workload(
        guests=_MANY if guests is None else guests,
        vcpus=need.flavor.vcpus, memory_mb=need.flavor.ram,
        nodes=len(need.guest.cells), vfs=sum(need.vf_counts.values()),
        guests_without=guests_without)
    reason = _explain_unpredictable_density(machine, workload, need.policy)
    if reason:
        raise _make_refusal(need.flavor.name, machine, reason)
    return _make_density_plan(
        need.flavor.name, machine, workload, need.policy, against, search)


def _explain_unpredictable_density(machine: Machine, workload: Workload,
                                   policy: GuestPolicy) -> str | None:
    """Return why the container density on a machine cannot be predicted.

    The density is how many containers run well on the machine.

    :param workload: guests, and the load of their containers.
    :param policy: bandwidth policy of the guests.
    :returns: None if the density can be predicted.
    """
    if not workload.nodes:
        return NO_NODES
    try:
        make_bandwidth_controls(machine, workload, policy)
    except ValueError as error:
        return str(error)
    if not workload.guests:
        return 'no guest fits on the host'
    if not min(workload.count_containers_by_resource().values()):
        return (f'a guest (vCPUs: {workload.vcpus}, MB: '
                f'{workload.memory_mb}) has no room for a container of '
                f'{workload.container_vcpus} vCPUs and '
                f'{workload.container_memory_mb} MB')
    return None


def _make_refusal(subject: str, machine: Machine, reason: str) -> NotPredicted:
    reason = reason.removeprefix(f'{machine.name}: ')
    return NotPredicted(f'density of {subject} on {machine.name}: not '
                        f'predicted: {reason}')


def _make_density_plan(subject: str, machine: Machine, workload: Workload
                       | None, policy: GuestPolicy, against: Machine | None,
                       search: bool) -> DensityPlan:
    """Predict how many containers run well on a machine; return a report.

    :param subject: name of the prediction in the output.
    :param workload: guests and containers; None for the published test.
    :param policy: bandwidth policy of the guests.
    :param against: machine without bandwidth control to compare with.
    :param search: whether to search for the bandwidth extra specs that allow
        the most containers.
    :raises NotPredicted: if the model cannot predict the density.
    """
    asked = workload or REFERENCE
    guests = {scenario: len(place_guests(machine, asked, scenario))
              for scenario in SCENARIOS}
    try:
        return DensityPlan(
            subject, asked, make_bandwidth_extra_specs(policy),
            density.predict_scenarios(machine, policy, against, workload),
            _list_fitted_parameters(machine, against),
            density.compute_sensitivity(machine, policy, against, workload),
            against.name if against else None,
            tuple(one.fit for one in (machine, against) if one),
            guests, tuple(_list_notes(workload, guests)),
            density.search_best_policy(
                machine, _make_workload_for_search(asked))
            if search else None)
    except ValueError as error:
        raise _make_refusal(subject, machine, str(error)) from None


def _list_notes(workload: Workload | None,
                guests: Mapping[str, int]) -> Iterator[str]:
    if workload is None:
        yield BASELINE
        return
    if not workload.vfs:
        yield NO_VFS
    # Where nobody counted them, as many as fit are asked for.
    if guests['ghsched'] < workload.guests < _MANY:
        yield NOT_ALL.format(workload.guests, guests['ghsched'])


def _make_workload_for_search(workload: Workload) -> Workload:
    """Return the workload for the search for the best bandwidth extra specs.

    It has as many guests as fit on the host without bandwidth control.
    """
    return replace(workload, guests=workload.count_guests('static'))


def _list_fitted_parameters(
        *machines: Machine | None) -> tuple[tuple[str, Parameter], ...]:
    return tuple((machine.name, parameter) for machine in machines if machine
                 for parameter in machine.parameters
                 if parameter.basis == 'fitted')


def make_bandwidth_extra_specs(policy: GuestPolicy) -> dict[str, str]:
    """Return the flavor extra specs that describe a bandwidth policy.

    Extra specs with the default value are omitted. The extra spec for the
    NUMA locality of VFs is included. The extra specs that request VFs are not.
    """
    found = {}
    named = [str(one) for one in policy.classes if one.name != DEFAULT]
    if named:
        found[keys.VCPU_CLASSES.extra_spec] = ','.join(named)
    for one in policy.groups:
        suffix = '' if has_other_threads(one.name) else f'.{one.name}'
        same = bool(suffix) or len(set(one.nodes)) == 1
        for number, node in enumerate(one.nodes):
            for key, value, default in (
                    (keys.MEM_BW_MIN, node.minimum, 0),
                    (keys.MEM_BW_MAX, node.maximum, 100),
                    (keys.MEM_BW_HARDLIMIT, str(node.hardlimit).lower(),
                     'true'),
                    (keys.MEM_BW_PRIORITY, node.priority, None)):
                if value != default:
                    name = (key.extra_spec + suffix if same
                            else key.get_node_extra_spec(number))
                    found[name] = str(value)
    if policy.device_numa != 'none':
        found[keys.DEVICE_NUMA.extra_spec] = policy.device_numa
    return found
