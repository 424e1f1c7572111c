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

"""Plan of how many more guests of each flavor fit, and why not more.

:func:`plan_cloud_capacity` reads the hosts from Placement;
:func:`plan_host_capacity` takes descriptions of hosts. Guests are placed in
memory only (:mod:`ghsched_placement.features.planner.offer`).
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from dataclasses import dataclass
from dataclasses import field

from ghsched_placement.features.flavor_check import query
from ghsched_placement.features.planner import choose
from ghsched_placement.features.planner.client import PlacementReader
from ghsched_placement.features.planner.client import PlannerError
from ghsched_placement.features.planner import cloud
from ghsched_placement.features.planner.cloud import Progress
from ghsched_placement.features.planner import fill
from ghsched_placement.features.planner.flavors import Flavor
from ghsched_placement.features.planner.hosts import EqualHosts
from ghsched_placement.features.planner.hosts import group_equal_hosts
from ghsched_placement.features.planner.hosts import PlannedHost
from ghsched_placement.features.planner import limits
from ghsched_placement.features.planner.more import AdditionalGuests
from ghsched_placement.features.planner.more import count_additional_guests
from ghsched_placement.features.planner import need as needs
from ghsched_placement.features.planner.offer import Offers
from ghsched_placement.features.planner.state import FilledHost
from ghsched_placement.fit.capacity import HostInventory
from ghsched_placement.fit import counting
from ghsched_placement.fit import fitting
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.fit import lack
from ghsched_placement.fit.lack import Lack
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit.node_capacity import PAGES_UNKNOWN
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.providers import names

NO_CELLS = ('CPUs and memory are counted by host, not by NUMA node, on {}: '
            'nova-compute does not report them, and Nova may refuse a guest '
            'that fits here')
SHARED = ('hosts share {} by an aggregate; how much there is of it is not '
          'counted')
NOT_SHOWN = ('flavor {}: what {} ask for beside ghsched and CPUs, RAM and '
             'disk is not counted')
NO_WEIGHERS = ('in the mix hosts are chosen by what a guest leaves that the '
               'others of the mix cannot use, and then by name; other '
               'weighers are not counted')
BURSTS = ('bursts are planned as far as hosts promise them now; a host that '
          'is full of them expects to be short in up to 1 % of the periods, '
          'and "openstack ghsched host show" has the chance of each node')


@dataclass(frozen=True)
class HostPlan:
    """Number of guests that a plan places on equal hosts, and what limits it.

    :param hosts: names of the hosts.
    :param guests: number of guests placed on each host.
    :param nodes: number of NUMA nodes of each host.
    :param whole_before: number of NUMA nodes that no guest uses before the
        plan.
    :param whole_after: number of NUMA nodes that no guest uses after the plan.
    :param lacks: reasons why the next guest does not fit.
    :param uses: used and total amount of each inventory.
    :param pooled: number of guests that would fit if the host had a single
        NUMA node; None for a mix.
    :param more: number of further guests that fit with more of each resource.
    :param by_flavor: number of guests placed on each host, by flavor name.
    """

    hosts: tuple[str, ...]
    guests: int
    nodes: int
    whole_before: int
    whole_after: int
    lacks: tuple[Lack, ...]
    uses: tuple[limits.InventoryUse, ...]
    pooled: int | None = None
    more: tuple[AdditionalGuests, ...] = ()
    by_flavor: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FlavorPlan:
    """Plan of a cloud in which all hosts are filled with guests of one flavor.

    :param guests: number of guests placed on all hosts.
    :param hosts: plan for each group of equal hosts.
    """

    flavor: Flavor
    guests: int
    hosts: tuple[HostPlan, ...]


@dataclass(frozen=True)
class MixPlan:
    """Plan of a cloud in which all hosts are filled with guests of a mix.

    :param mix: number of guests of each flavor in the mix, by flavor name.
    :param guests: number of guests placed on all hosts, by flavor name.
    :param stopped_by: name of the flavor whose next guest fits on no host.
    :param hosts: plan for each group of equal hosts.
    """

    mix: Mapping[str, int]
    guests: Mapping[str, int]
    stopped_by: str
    hosts: tuple[HostPlan, ...]


@dataclass(frozen=True)
class CapacityPlan:
    """Capacity plan of a cloud: number of guests that fit, by flavor and host.

    :param hosts: number of hosts.
    :param kinds: number of groups of equal hosts.
    :param flavors: plan for each flavor alone.
    :param mix: plan for a mix of the flavors; None if no mix is given.
    :param notes: remarks for the user, such as what is not counted.
    """

    hosts: int
    kinds: int
    flavors: tuple[FlavorPlan, ...]
    mix: MixPlan | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanSettings:
    """Settings of a capacity plan.

    :param accounting: value of ``[ghsched]bandwidth_accounting``.
    :param aliases: resource class of the VFs by PCI alias.
    :param more: whether to compute how many more guests would fit with more of
        each resource.
    :param without: resource classes that are not counted.
    """

    accounting: Accounting = 'min'
    aliases: Mapping[str, str] | None = None
    more: bool = True
    without: tuple[str, ...] = ()


def plan_cloud_capacity(
        client: PlacementReader, flavors: Sequence[Flavor],
        mix: Mapping[str, int] | None = None,
        settings: PlanSettings | None = None,
        progress: Progress = cloud.ignore_progress,
        offers: Offers | None = None,
        unavailable: Mapping[str, str] | None = None,
        rooms: Mapping[str, tuple[NodeCapacity, ...]] | None = None
) -> CapacityPlan:
    """Compute how many more guests of each flavor fit into a cloud.

    :param client: client of the cloud's Placement API; only read requests are
        sent.
    :param mix: number of guests of each flavor in a mix, by flavor name; None
        for no mix.
    :param progress: called with the progress, 0 to 1, and a description.
    :param offers: ways to place guests on hosts; None to compute them.
    :param unavailable: reason why a host is left out, by compute node UUID.
    :param rooms: free CPUs and memory by NUMA node, by compute node UUID.
    :raises PlannerError: if a flavor cannot be scheduled, or Placement does
        not answer.
    """
    settings, unavailable = settings or PlanSettings(), unavailable or {}
    _build_needs(flavors, settings)
    every = cloud.read_compute_hosts(
        client, cloud.make_step_progress(progress, 0.0, 0.5))
    hosts = [dataclasses.replace(
        host, cells=(rooms or {}).get(host.root.uuid, ()))
        for host in every if host.root.uuid not in unavailable]
    notes = tuple(f'{host.name} does not count: {unavailable[host.root.uuid]}'
                  for host in every if host.root.uuid in unavailable)
    if notes and not hosts:
        raise PlannerError('no host is left: ' + '; '.join(notes))
    shared = cloud.list_shared_resource_classes(hosts, client)
    settings = dataclasses.replace(
        settings, without=(*settings.without, *shared))
    found = plan_host_capacity(hosts, flavors, mix, settings,
                               cloud.make_step_progress(progress, 0.5, 1.0),
                               offers)
    return dataclasses.replace(found, notes=(*notes, *found.notes))


def plan_host_capacity(hosts: Sequence[PlannedHost], flavors: Sequence[Flavor],
                       mix: Mapping[str, int] | None = None,
                       settings: PlanSettings | None = None,
                       progress: Progress = cloud.ignore_progress,
                       offers: Offers | None = None) -> CapacityPlan:
    """Compute how many guests of each flavor fit on given hosts.

    :param mix: number of guests of each flavor in a mix, by flavor name.
    :param progress: called with the progress, 0 to 1, and a description.
    :param offers: ways to place guests on hosts; None to compute them.
    :raises PlannerError: if a flavor cannot be scheduled, or no host is given.
    """
    settings = settings or PlanSettings()
    found = _build_needs(flavors, settings, all(
        names.OWNER_TRAIT in host.root.traits for host in hosts))
    unknown = sorted(set(mix or {}) - found.keys())
    if unknown:
        raise PlannerError(f'mix: {unknown[0]!r} is not one of the flavors')
    if not hosts:
        raise PlannerError('no compute host is given')
    groups = group_equal_hosts(hosts)
    offers = offers or Offers()
    alone = []
    parts = len(found) + bool(mix)
    for number, need in enumerate(found.values()):
        alone.append(_plan_flavor(
            offers, need, groups, settings, cloud.make_step_progress(
                progress, number / parts, (number + 1) / parts)))
    mixed = mix and _plan_mix(
        offers, mix, found, groups,
        cloud.make_step_progress(progress, len(found) / parts, 1.0),
        choose.make_gradient_placement_chooser(mix, found))
    progress(1.0, 'done')
    return CapacityPlan(len(hosts), len(groups), tuple(alone), mixed or None,
                        tuple(_list_notes(hosts, flavors, mix, settings)))


def _build_needs(flavors: Iterable[Flavor], settings: PlanSettings,
                 owned: bool = True) -> dict[str, needs.FlavorNeed]:
    found: dict[str, needs.FlavorNeed] = {}
    for flavor in flavors:
        if flavor.name in found:
            raise PlannerError(f'flavor {flavor.name}: is given twice')
        found[flavor.name] = needs.build_flavor_need(
            flavor, settings.accounting, settings.aliases, settings.without,
            owned)
    if not found:
        raise PlannerError('no flavor is given')
    return found


def _plan_flavor(offers: Offers, need: needs.FlavorNeed,
                 groups: Sequence[EqualHosts],
                 settings: PlanSettings, progress: Progress) -> FlavorPlan:
    progress(0.0, f'flavor {need.flavor.name}')
    states = [FilledHost(group.host) for group in groups]
    fill.fill_each_host_with_flavor(offers, need, states)
    found = tuple(
        _make_host_plan(state, group.names, need, count_additional_guests(
            state, need) if settings.more else (), True)
        for state, group in zip(states, groups, strict=True))
    return FlavorPlan(need.flavor, sum(host.guests * len(host.hosts)
                                       for host in found), found)


def _plan_mix(offers: Offers, mix: Mapping[str, int],
              found: Mapping[str, needs.FlavorNeed],
              groups: Sequence[EqualHosts],
              progress: Progress, choose_placement: choose.Choose) -> MixPlan:
    states = [FilledHost(group.host) for group in groups for _ in group.names]
    names = [name for group in groups for name in group.names]
    result = fill.fill_hosts_with_flavor_mix(
        offers, mix, found, states, progress, choose_placement)
    alike_now: dict[object, list[int]] = {}
    for number, state in enumerate(states):
        key = (id(state.host), frozenset(state.by_flavor.items()),
               state.make_comparison_key())
        alike_now.setdefault(key, []).append(number)
    need = found[result.stopped_by]
    return MixPlan(dict(mix), result.guests, result.stopped_by, tuple(
        _make_host_plan(states[numbers[0]],
                   tuple(names[number] for number in numbers), need, (),
                   False)
        for numbers in alike_now.values()))


def _make_host_plan(state: FilledHost, names: tuple[str, ...],
                    need: needs.FlavorNeed,
                    bought: tuple[AdditionalGuests, ...],
                    single: bool) -> HostPlan:
    empty = FilledHost(state.host)
    return HostPlan(
        hosts=names, guests=state.guests, nodes=len(
            state.list_free_nodes()),
        whole_before=limits.count_unused_nodes(empty),
        whole_after=limits.count_unused_nodes(state),
        lacks=limits.list_shortages(state,
                                    need), uses=limits.list_inventory_usage(
                                        state, dict(need.aliases)),
        pooled=_count_guests_without_numa_limits(
            empty.fit_host, need.demand)
        if single else None, more=bought, by_flavor=dict(state.by_flavor))


def _count_guests_without_numa_limits(host: HostInventory,
                                      demand: GuestDemand) -> int:
    """Return how many guests would fit if a host had a single NUMA node.

    The number of guests that really fit is lower if the host is fragmented.
    """
    if any(fitting.find_missing_traits(host, demand)):
        return 0
    return counting.count_guests_without_nodes(host.amounts,
                                               demand.make_need(host))


def _list_notes(
        hosts: Sequence[PlannedHost], flavors: Sequence[Flavor],
        mix: Mapping[str, int] | None, settings: PlanSettings) -> list[str]:
    notes = []
    without = [host.name for host in hosts if not host.cells]
    if without:
        notes.append(NO_CELLS.format(lack.format_host_names(without)))
    unpaged = [host.name for host in hosts
               if any(not cell.pages for cell in host.cells)]
    if unpaged and any(flavor.extra_specs.get('hw:mem_page_size') not in (
            None, 'small', 'any') for flavor in flavors):
        notes.append(PAGES_UNKNOWN.format(lack.format_host_names(unpaged)))
    if settings.without:
        notes.append(SHARED.format(', '.join(settings.without)))
    if any(key.startswith(keys.MEM_BW_BURST.extra_spec)
           for flavor in flavors for key in flavor.extra_specs):
        notes.append(BURSTS)
    for flavor in flavors:
        specs = query.list_ignored_extra_specs(flavor.extra_specs)
        if specs:
            notes.append(NOT_SHOWN.format(flavor.name, ', '.join(specs)))
    if mix:
        notes.append(NO_WEIGHERS)
    return notes
