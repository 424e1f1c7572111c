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

"""``openstack ghsched capacity flavors``."""

import argparse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import TypeAlias

from cliff import columns as cliff_columns

from ghsched_placement.base import decimals
from ghsched_placement.features import declared_moves
from ghsched_placement.features.flavor_check import flavor_check as flavors
from ghsched_placement.features.planner.flavor_counts import add_up_verdicts
from ghsched_placement.features.planner.flavor_counts import EqualHosts
from ghsched_placement.features.planner.flavor_counts import FlavorCapacity
from ghsched_placement.features.planner.flavor_counts import group_equal_hosts
from ghsched_placement.fit import fitting
from ghsched_placement.flavor import keys
from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients
from ghsched_placement.osc import columns
from ghsched_placement.osc import host_commands
from ghsched_placement.osc import node_capacities

COLUMNS = ('Flavor', 'Guests That Fit', 'Hosts', 'Binds', 'Change',
           'Guests After')

#: Keys of an amount for each guest NUMA node.
_BY_NODE = (keys.MEM_BW_MIN, keys.MEM_BW_MAX, keys.MEM_BW_BURST)

ExtraSpecs: TypeAlias = Mapping[str, str]

#: Function that returns what a guest needs by size and extra specs of its
#: flavor, with each number of guest NUMA nodes.
ParseFlavor: TypeAlias = Callable[[flavors.Size, ExtraSpecs],
                                  list[flavors.Requirements]]


@dataclass(frozen=True)
class CloudHosts:
    """Hosts of a cloud, grouped to count the guests that fit.

    :param refused: refusals of hosts whose nova-compute takes no servers.
    :param groups: equal hosts among the others.
    """

    refused: tuple[fitting.Verdict, ...]
    groups: tuple[EqualHosts, ...]

    def count_guests_of_flavor(self, name: str, requirements: Iterable[
            flavors.Requirements]) -> FlavorCapacity:
        """Return how many further guests of a flavor fit.

        :param requirements: needs of a guest, by ascending number of guest
            NUMA nodes.
        """
        demands = [one.demand for one in requirements]
        return add_up_verdicts(name, [
            *((one, 1) for one in self.refused),
            *((fitting.count_guests(group[0], demands), len(group))
              for group in self.groups)])


class ListFlavorCapacities(base.Lister):
    """Show how many more guests of each flavor fit in the cloud.

    Shows for each flavor the number of guests that fit now if no others come,
    the number of hosts on which at least one fits, what binds (the resources
    that one guest more lacks, each with the number of hosts), and of the
    changes that make more guests fit the one that makes most: another number
    of NUMA nodes with the same bandwidth in all, or another page size. With
    --moves also a running server to move. Placement is not asked about each
    host; "openstack ghsched flavor check" does that for one flavor, and says
    why a host refuses. Exit status: 0 done, 2 the cloud cannot be reached.
    """

    nothing = 'There are no flavors.'

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('flavors', nargs='*', metavar='<flavor>',
                            help='Show these flavors only (name)')
        parser.add_argument(
            '--moves', action='store_true',
            help='Look also for a running server whose move makes room; reads '
                 'each server of the cloud')
        flavors.add_vf_class_option(parser)
        host_commands.add_accounting_option(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        client = clients.get_client(self.app)
        nodes = client.list_compute_nodes()
        away = client.list_unavailable_nodes(nodes)
        found = client.list_hosts()
        rooms = node_capacities.read_free_node_resources(client, [
            host for host in found if host.uuid not in away], nodes)
        for note in rooms.describe_hosts_with_uncertain_cpus():
            self.log.warning(note)
        there = [host for host in rooms.add_free_node_resources(found)
                 if host.uuid not in away]
        owned = client.is_owner_trait_required()

        def parse(size: flavors.Size, specs: ExtraSpecs
                  ) -> list[flavors.Requirements]:
            return flavors.list_requirements(
                size, specs, found, dict(parsed_args.vf_class),
                parsed_args.accounting, owned)
        finders = [make_finder(client, there, parsed_args.accounting)
                   for make_finder in declared_moves.MOVE_FINDERS
                   if parsed_args.moves]
        cloud = CloudHosts(tuple(
            flavors.make_host_refusal(host, away[host.uuid])
            for host in found if host.uuid in away),
            tuple(group_equal_hosts(there)))
        return COLUMNS, [
            self._make_row(cloud, record, parse, finders)
            for record in client.list_flavors()
            if record['name'] in (parsed_args.flavors or (record['name'],))]

    def _make_row(self, cloud: CloudHosts, record: Mapping[str, Any],
                  parse: ParseFlavor,
                  finders: Sequence[declared_moves.FindMoves]
                  ) -> tuple[Any, ...]:
        """Return the output row of a flavor: its name and how many guests fit.

        Further columns say on how many hosts, what limits the number, and
        which one change makes room for more.

        :param record: flavor in Nova's API.
        :param parse: returns the resources that the flavor needs.
        :param finders: functions that find moves to make room.
        """
        name, specs = record['name'], record['extra_specs']
        size = flavors.get_flavor_record_size(record)
        try:
            requirements = parse(size, specs)
        except base.CommandRefused as error:
            self.log.warning('flavor %s: %s', name, error)
            return (name, 0, 0, HostCountsCell({'valid flavor': 0}),
                    *(columns.mark_unknown(None),) * 2)
        now = cloud.count_guests_of_flavor(name, requirements)
        changes = list(_yield_flavor_changes(cloud, record, parse))
        for find_moves in finders:
            changes += find_moves([one.demand for one in requirements],
                                  now.guests)
        change, after = max(changes, key=lambda one: one[1],
                            default=('', 0))
        more = after > now.guests
        return (name, now.guests, now.hosts,
                HostCountsCell(now.binding),
                columns.mark_unknown(change if more else None),
                columns.mark_unknown(after if more else None))


class HostCountsCell(cliff_columns.FormattableColumn[Mapping[str, int]]):
    """Table cell with numbers of hosts by resource, the largest first."""

    def human_readable(self) -> str:
        return '\n'.join(
            f'{resource} ({hosts})' for resource, hosts in sorted(
                self._value.items(), key=lambda one: (-one[1], one[0]))) or '-'


def _yield_flavor_changes(cloud: CloudHosts, record: Mapping[str, Any],
                          parse: ParseFlavor) -> Iterator[tuple[str, int]]:
    """Yield changes of a flavor with the number of guests that then fit."""
    specs = record['extra_specs']
    for other in yield_other_extra_specs(specs):
        try:
            found = parse(flavors.get_flavor_record_size(record), other)
        except base.CommandRefused:
            continue
        yield (', '.join(f'{key}={value}' for key, value
                         in sorted(other.items()) if specs.get(key) != value),
               cloud.count_guests_of_flavor(record['name'], found).guests)


def yield_other_extra_specs(specs: ExtraSpecs) -> Iterator[ExtraSpecs]:
    """Yield copies of a flavor's extra specs, each with one change.

    The change is another number of NUMA nodes, with the same total bandwidth,
    or another page size.
    """
    count = decimals.parse_decimal(specs.get('hw:numa_nodes', '')) or 0
    for other in sorted({1, count // 2, 2 * count} - {0, count}):
        found = {**specs, 'hw:numa_nodes': str(other)}
        for key in _BY_NODE:
            amount = decimals.parse_decimal(specs.get(key.extra_spec, ''))
            if amount is not None:
                found[key.extra_spec] = str(-(-amount * count // other))
        if count:
            yield found
    asked = specs.get('hw:mem_page_size')
    for size in ('small', 'large'):
        if asked not in (None, size):
            yield {**specs, 'hw:mem_page_size': size}
