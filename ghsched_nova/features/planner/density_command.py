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

"""``openstack ghsched density plan``."""

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import sys
from typing import Any

from osc_lib import exceptions

from ghsched_nova.features.planner import planner_inputs
from ghsched_placement.base import exits
from ghsched_placement.features.flavor_check import flavor_check as flavors
from ghsched_placement.features.planner.client import PlannerError
from ghsched_placement.features.planner.cloud import make_step_progress
from ghsched_placement.features.planner.density import DensityPlan
from ghsched_placement.features.planner.density import SCENARIOS
from ghsched_placement.features.planner import flavors as planned
from ghsched_placement.features.planner.output import make_lack_object
from ghsched_placement.features.planner import plan as planner
from ghsched_placement.features.planner.predict import (
    predict_container_densities)
from ghsched_placement.features.planner.predict import DensityPredictions
from ghsched_placement.features.planner.predict import Target
from ghsched_placement.features.planner.progress import Bar
from ghsched_placement.fit import lack
from ghsched_placement.flavor import keys
from ghsched_placement.flavor import policy as policies
from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients
from ghsched_placement.osc import columns
from ghsched_placement.osc import host_commands
from ghsched_placement.osc import node_capacities

COLUMNS = ('Flavor', 'Hosts', 'Guests per Host', 'Guests', 'As One Pool',
           'Whole Nodes', 'Binds', 'One More Buys')

#: Column of the container densities that the contention model predicts.
PREDICTED = 'Density (Simulated)'

#: Text in the flavor column for rows of a mix of flavors.
MIX = '(mix)'

FITTED = ('the densities of {} (simulated) rest on figures that were fitted: '
          '{}; "ghsched plan" tells how the ratios move with them')


class PlanDensity(base.Lister):
    """Plan how many more guests fit into the cloud.

    For each flavor, hosts are filled with guests in memory; equal hosts share
    one line. "As one pool" is the number of guests that would fit on a host
    without NUMA nodes, "whole nodes" the number of NUMA nodes without any
    guest, before and after. With --mix the hosts are also filled with guests
    of all flavors together. With --machine, further lines predict (simulated)
    how many containers run well in the guests of one empty host of that kind.
    "ghsched plan --cloud" shows more. Hosts whose nova-compute is down or
    disabled do not count. Exit status: 0 a guest fits, 1 no guest fits, 2 the
    plan failed.
    """

    SHORT = ('Flavor', 'Hosts', 'Guests per Host', 'Guests', 'Whole Nodes',
             'Binds', PREDICTED)

    def load_target_machines(self, parsed_args: argparse.Namespace
                             ) -> tuple[Target, ...]:
        """Load the machines for which to predict container densities.

        A density is the number of containers that run on a machine without
        slowing each other down too much.

        :raises PlannerError: if the host file of a machine cannot be used.
        """
        return planner_inputs.load_density_machines(parsed_args.machines)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--flavor', metavar='<flavor>', action='append', required=True,
            dest='flavors', help='Flavor (name or ID; repeat for several)')
        parser.add_argument(
            '--mix', metavar='<flavor>=<n>,...',
            help='How many guests of each flavor go together, by name')
        parser.add_argument(
            '--machine', metavar='<file>', action='append', default=[],
            dest='machines',
            help='Description of a host, as those in etc/ghsched/hosts, with '
                 'a section "contention": predict what guests hold there '
                 '(simulated; repeat for several)')
        flavors.add_vf_class_option(parser)
        host_commands.add_accounting_option(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        bar = Bar(sys.stderr, sys.stderr.isatty())
        try:
            targets = self.load_target_machines(parsed_args)
            found, predictions = _make_plan_with_densities(
                clients.get_client(self.app), parsed_args, targets, bar)
        except PlannerError as error:
            raise exceptions.CommandError(str(error)) from None
        finally:
            bar.clear()
        if not any(flavor.guests for flavor in found.flavors):
            self.status = exits.FOUND
        for note in (
            *found.notes,
            *predictions.reasons,
            *collect_density_notes(predictions.densities),
        ):
            self.log.warning(note)
        if not targets:
            return COLUMNS, list(yield_plan_rows(found))
        return (*COLUMNS, PREDICTED), [
            *((*row, DensityColumn([])) for row in yield_plan_rows(found)),
            *map(make_density_row, predictions.densities)]


def _make_plan_with_densities(
        client: clients.Client, parsed_args: argparse.Namespace,
        targets: Sequence[Target],
        bar: Bar) -> tuple[planner.CapacityPlan, DensityPredictions]:
    """Return the capacity plan of a cloud, with predicted container densities.

    A density is how many containers run well on a machine.

    :param targets: machines for which densities are predicted.
    :param bar: shows the progress.
    """
    wanted = [
        convert_flavor_for_planner(client.get_flavor(name))
        for name in parsed_args.flavors
    ]
    mix = (planned.parse_flavor_mix(
        parsed_args.mix, {one.name: one
                          for one in wanted}) if parsed_args.mix else None)
    settings = planner.PlanSettings(
        accounting=parsed_args.accounting,
        aliases={
            **map_flavor_aliases_to_vf_classes(client, wanted),
            **dict(parsed_args.vf_class),
        },
    )
    nodes = client.list_compute_nodes()
    rooms = node_capacities.read_free_node_resources(
        client, client.list_hosts(), nodes)
    found = planner.plan_cloud_capacity(
        client.placement, wanted, mix, settings,
        make_step_progress(bar, 0.0, 0.8 if targets else 1.0),
        unavailable=client.list_unavailable_nodes(nodes), rooms=rooms.by_host)
    found = dataclasses.replace(
        found, notes=(*found.notes,
                      *rooms.describe_hosts_with_assumed_cpus()))
    return found, predict_container_densities(
        found, targets, wanted, settings,
        progress=make_step_progress(bar, 0.8, 1.0))


def convert_flavor_for_planner(flavor: Any) -> planned.Flavor:
    """Convert an openstacksdk flavor to a flavor of the capacity planner."""
    size = flavors.get_flavor_size(flavor)
    return planned.Flavor(flavor.name, size.vcpus, size.memory_mb,
                          size.disk_gb, size.swap_mb, flavor.extra_specs)


def map_flavor_aliases_to_vf_classes(
        client: clients.Client, requested: Sequence[planned.Flavor]
) -> dict[str, str]:
    """Return the VF resource class of each PCI alias that flavors request.

    Placement is read only if a flavor requests VFs.

    :param requested: the flavors.
    :raises CommandError: if a flavor is invalid, or the cloud has no VFs at
        all.
    """
    vfs = [vfs for flavor in requested
           for vfs in flavors.parse_flavor_specs(
               flavors.Size(flavor.vcpus, flavor.ram),
               flavor.extra_specs)[0].vfs]
    if not vfs:
        return {}
    found = client.list_hosts()
    if not any(host.pfs for host in found):
        raise exceptions.CommandError(
            'no host of the cloud has VFs in Placement, and the flavors ask '
            f'for some ({keys.VFS.extra_spec})')
    return flavors.guess_vf_classes(policies.GuestPolicy(vfs=tuple(vfs)),
                                    found)


def yield_plan_rows(plan: planner.CapacityPlan) -> Iterator[tuple[Any, ...]]:
    """Yield the table rows of a capacity plan.

    There is a row for each flavor on each group of equal hosts, and one for
    the mix of flavors on each group.
    """
    for flavor in plan.flavors:
        for host in flavor.hosts:
            yield _make_plan_row(flavor.flavor.name, host)
    if plan.mix is not None:
        for host in plan.mix.hosts:
            yield _make_plan_row(MIX, host)
        for name, guests in sorted(plan.mix.guests.items()):
            unknown = columns.mark_unknown(None)
            yield (f'{MIX} {name}', columns.CommaListCell([]), unknown, guests,
                   unknown, unknown, columns.MultilineCell([]),
                   columns.MultilineCell([]))


def _make_plan_row(name: str, host: planner.HostPlan) -> tuple[Any, ...]:
    """Return a table row with the number of guests that fit on equal hosts.

    :param name: name of the flavor or of the mix.
    """
    return (name, columns.CommaListCell(list(host.hosts)), host.guests,
            host.guests * len(host.hosts), columns.mark_unknown(host.pooled),
            f'{host.whole_before} -> {host.whole_after} of {host.nodes}',
            ReasonColumn(list(map(make_lack_object, host.lacks))),
            GainColumn([dataclasses.asdict(more) for more in host.more
                        if more.guests]))


# -- what is predicted --------------------------------------------------------


def make_density_row(plan: DensityPlan) -> tuple[Any, ...]:
    """Return a table row that shows how many containers run well on a machine.
    """
    return (plan.subject,
            columns.CommaListCell([f'{plan.report.machine} (simulated)']),
            plan.guests['ghsched'],
            *(columns.mark_unknown(None) for _ in range(3)),
            columns.MultilineCell([]), columns.MultilineCell([]),
            DensityColumn(list(_curves_to_dicts(plan))))


def _curves_to_dicts(plan: DensityPlan) -> Iterator[dict[str, Any]]:
    """Convert the latency curves of a density prediction to dicts for JSON.

    A latency curve has the latency for each number of containers.
    """
    for curve in plan.report.curves:
        yield {'scenario': curve.scenario,
               'guests': plan.guests[curve.scenario],
               'density': curve.density,
               'p99': curve.points[curve.density - 1].p99,
               'first_failing': curve.first_failing, 'binds': curve.binds,
               'fitted': [f'{machine} {one.name}'
                          for machine, one in plan.fitted],
               'simulated': True}


class DensityColumn(columns.MultilineCell):
    """Table column: for each scenario, how many containers run well.

    It also shows their p99 latency relative to that of a single container.
    """

    def line(self, item: Mapping[str, Any]) -> str:
        return (f'{SCENARIOS[item["scenario"]]}: {item["density"]} '
                f'containers, p99 {item["p99"]:.3f}, {item["binds"]}')


def collect_density_notes(densities: Sequence[DensityPlan]) -> list[str]:
    """Return the notes on predicted container densities, without duplicates.
    """
    found = [f'{one.subject}: {note}' for one in densities
             for note in one.notes]
    fitted = [FITTED.format(one.report.machine, ', '.join(
        f'{parameter.name} {parameter.value:g} ({parameter.source})'
        for _machine, parameter in one.fitted))
        for one in densities if one.fitted]
    return list(dict.fromkeys(found + fitted))


# -- what fits ----------------------------------------------------------------


def _format_node_name(item: Mapping[str, Any]) -> str:
    """Return the text for an item's NUMA node in a table.

    :param item: reason or gain in the plan's JSON format, with the key
        ``node``.
    :returns: e.g. ``node 1``; ``host`` for an item of the whole host.
    """
    return 'host' if item['node'] is None else f'node {item["node"]}'


class ReasonColumn(columns.MultilineCell):
    """Table column: for each NUMA node, why no further guest fits."""

    def line(self, item: Mapping[str, Any]) -> str:
        return f'{_format_node_name(item)}: {item["text"]}'


class GainColumn(columns.MultilineCell):
    """Table column: how many guests would fit with more of a resource."""

    def line(self, item: Mapping[str, Any]) -> str:
        more = lack.describe_amount(item['amount'], item['resource'])
        return f'{_format_node_name(item)}: +{more}: +{item["guests"]} guests'
