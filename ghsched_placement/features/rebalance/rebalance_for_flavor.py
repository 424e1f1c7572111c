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

"""``openstack ghsched rebalance plan --for FLAVOR``: moves that make room."""

import argparse
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from dataclasses import dataclass
from typing import Any

from osc_lib import exceptions

from ghsched_placement.features.flavor_check import flavor_check as flavors
from ghsched_placement.features.rebalance import flavor_moves
from ghsched_placement.features.rebalance.move_plan import Move
from ghsched_placement.features.rebalance.move_plan import Spot
from ghsched_placement.fit import capacity
from ghsched_placement.fit import fitting
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.flavor import policy as policies
from ghsched_placement.osc import base
from ghsched_placement.osc import client as clients
from ghsched_placement.osc import node_capacities
from ghsched_placement.osc import observe


def add_flavor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options with which ``rebalance plan`` makes room for a flavor.
    """
    parser.add_argument(
        '--for', dest='flavor', metavar='<flavor>',
        help='Show the fewest moves after which a server of this flavor (name '
             'or ID) fits; ignores measured load')
    parser.add_argument(
        '--count', type=base.parse_count, default=1, metavar='<n>',
        help='With --for: number of servers to make room for (default: 1)')
    parser.add_argument(
        '--image', metavar='<image>',
        help='With --for: image (name or ID) whose properties also apply')


@dataclass(frozen=True)
class FlavorMoveRequest:
    """Request to plan moves of servers that make room for a flavor.

    :param name: name of the flavor.
    :param count: number of new servers that should fit.
    :param demands: resources that a server of the flavor needs, as in
        :func:`ghsched_placement.fit.fitting.count_guests`.
    :param hosts: hosts with their free resources.
    :param guests: running servers that can be moved.
    :param records: all servers by UUID, as Nova's API has them.
    """

    name: str
    count: int
    demands: Sequence[GuestDemand]
    hosts: tuple[capacity.HostInventory, ...]
    guests: tuple[flavor_moves.MovableGuest, ...]
    records: Mapping[str, Mapping[str, Any]]

    def plan_moves(self, fixed: frozenset[str] = frozenset(),
                   only: str | None = None) -> tuple[Move, ...]:
        """Plan moves of servers that make room for new servers of the flavor.

        :param fixed: UUIDs of servers that must not be moved.
        :param only: whether servers may move only ``inside`` hosts or only
            ``between`` hosts; None for both.
        """
        return self._plan(fixed, only).moves

    @property
    def fits_without_moves(self) -> bool:
        """Whether the new servers of the flavor fit without any move."""
        return sum(fitting.count_guests(host, self.demands).guests
                   for host in self.hosts) >= self.count

    def explain_no_moves(self, only: str | None = None) -> str:
        """Return a sentence that explains why the plan has no moves.

        :param only: whether servers may move only ``inside`` hosts or only
            ``between`` hosts; None for both.
        """
        plan = self._plan(frozenset(), only)
        if plan.fits >= self.count:
            return (f'Nothing to move, because {plan.fits} servers of flavor '
                    f'{self.name} fit now.')
        if plan.is_cut:
            return (f'No moves were found that make room for flavor '
                    f'{self.name}: the search ended at its limit of steps.')
        return (
            f'No {flavor_moves.MOVES_PER_GUEST} moves of running servers make '
            f'room for one more server of flavor {self.name} '
            f'({plan.fits} of {self.count} fit). '
            + flavor_moves.describe_missing_resources(self.hosts,
                                                      self.demands[0]))

    def _plan(self, staying: frozenset[str],
              only: str | None) -> flavor_moves.RoomPlan:
        return flavor_moves.plan_moves_for_flavor(self.hosts, [
            dataclasses.replace(
                guest, inside=guest.inside and only != 'between',
                between=guest.between and only != 'inside')
            for guest in self.guests if guest.uuid not in staying],
            self.demands, self.count)


def read_flavor_move_request(client: clients.Client, name: str, count: int,
                             image: str | None,
                             accounting: policies.Accounting = 'min'
                             ) -> FlavorMoveRequest:
    """Read a flavor, hosts and servers to plan moves that make room for it.

    The planned moves free resources for new servers of the flavor.

    :param name: name or ID of the flavor.
    :param count: number of new servers that are to fit.
    :param image: name or ID of the image; None for no image.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :raises CommandError: if the flavor or the image is invalid.
    """
    flavor = client.get_flavor(name)
    size = flavors.get_flavor_size(flavor)
    specs = flavors.merge_image_properties(flavor.extra_specs,
                                           client.get_image_properties(image)
                                           if image else {})
    nodes = client.list_compute_nodes()
    away = client.list_unavailable_nodes(nodes)
    open_hosts = [host for host in client.list_hosts()
                  if host.uuid not in away]
    hosts = node_capacities.read_free_node_resources(
        client, open_hosts, nodes).add_free_node_resources(open_hosts)
    parser = _FlavorParser(hosts, accounting, client.is_owner_trait_required())
    records = {record['id']: record for record in client.list_servers()}
    return FlavorMoveRequest(
        name, count, parser.list_guest_demands(size, specs), hosts,
        _read_movable_guests(client, parser, records.values()), records)


def make_move_finder(client: clients.Client,
                     hosts: Sequence[capacity.HostInventory],
                     accounting: policies.Accounting = 'min'
                     ) -> Callable[[Sequence[GuestDemand], int],
                                   list[tuple[str, int]]]:
    """Return a function that finds moves that make room for one more guest.

    :param hosts: hosts that accept guests.
    """
    parser = _FlavorParser(hosts, accounting, client.is_owner_trait_required())
    records = {record['id']: record for record in client.list_servers()}
    guests = _read_movable_guests(client, parser, records.values())

    def find_moves(demands: Sequence[GuestDemand],
                   now: int) -> list[tuple[str, int]]:
        plan = flavor_moves.plan_moves_for_flavor(hosts, guests, demands,
                                                  now + 1)
        return [(', '.join(
            f'move {records[move.guest].get("name") or move.guest} from '
            f'{_format_spot(move.origin)} to {_format_spot(move.destination)}'
            for move in plan.moves), plan.fits)] if plan.moves else []
    return find_moves


def _format_spot(spot: Spot) -> str:
    return f'node {spot.node} of {spot.host}'


def _read_movable_guests(client: clients.Client, parser: '_FlavorParser',
                         records: Iterable[Mapping[str, Any]]
                         ) -> tuple[flavor_moves.MovableGuest, ...]:
    """Read the running servers that a plan may move.

    :param records: server records of Nova's API.
    """
    movable = _list_movable_servers(records, parser.host_names)
    return tuple(filter(None, client.map_in_parallel(
        lambda record: _make_movable_guest(client, parser, record), movable)))


def _list_movable_servers(records: Iterable[Mapping[str, Any]],
                          host_names: Collection[str]
                          ) -> list[Mapping[str, Any]]:
    """Return the running, unlocked servers of some hosts.

    :param records: server records of Nova's API.
    """
    return [record for record in records
            if record['status'] == 'ACTIVE'
            and not observe.is_server_moving(record)
            and not observe.is_server_locked(record)
            and record.get(observe.HYPERVISOR) in host_names]


class _FlavorParser:
    """Parser of flavors into the resources that servers need from a host.

    :ivar host_names: names of the hosts.
    """

    def __init__(self, hosts: Sequence[capacity.HostInventory],
                 accounting: policies.Accounting, owned: bool) -> None:
        self._hosts = hosts
        self.host_names = {host.name for host in hosts}
        self._accounting = accounting
        self._owned = owned

    def list_guest_demands(
            self, size: flavors.Size,
            extra_specs: Mapping[str, str]) -> list[GuestDemand]:
        """Return the resources that a server of a flavor needs from a host.

        With ``ghsched:numa=auto``, there is one for each number of guest NUMA
        nodes, in ascending order.
        """
        return [one.demand for one in flavors.list_requirements(
            size, extra_specs, self._hosts, {}, self._accounting,
            self._owned)]

    def count_cpus_by_cache(self, spot: Spot, list_cpus: Callable[
            [], frozenset[int]]) -> tuple[int, ...]:
        """Return how many CPUs of each L3 cache of a host node a server has.

        :param list_cpus: function that returns the server's dedicated CPUs.
        :returns: empty if all CPUs of the node share one cache.
        """
        room = next((node.room for host in self._hosts
                     if host.name == spot.host for node in host.nodes
                     if node.number == spot.node), None)
        return room.count_by_cache(list_cpus()) if room and room.caches else ()


def _make_movable_guest(client: clients.Client, parser: _FlavorParser,
                        record: Mapping[str, Any]
                        ) -> flavor_moves.MovableGuest | None:
    """Convert a running server to a guest that a plan may move.

    :param parser: computes the resources that a server of a flavor needs.
    :param record: server record of Nova's API.
    :returns: None if the server cannot be moved, or its flavor is invalid.
    """
    nodes = client.get_host_numa_nodes(record['id'])
    flavor = record['flavor']
    size = flavors.Size(flavor['vcpus'], flavor['ram'],
                        flavor['disk'] + flavor['ephemeral'], flavor['swap'])
    try:
        demand = parser.list_guest_demands(
            size, observe.get_flavor_extra_specs(record))[0]
    except exceptions.CommandError:
        # A flavor that was stored before its keys were checked.
        return None
    if len(nodes) != 1 or nodes[0] is None:
        return None
    if not flavor_moves.is_guest_movable(demand, demand.guest_nodes):
        return None
    spot = Spot(str(record[observe.HYPERVISOR]), nodes[0])
    return flavor_moves.MovableGuest(
        record['id'], spot, demand, size.memory_mb, size.vcpus,
        by_cache=parser.count_cpus_by_cache(
            spot, lambda: client.get_dedicated_cpus(record['id'])))
