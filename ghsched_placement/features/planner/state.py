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

"""Free and used resources of a host during a plan (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

import os_resource_classes as orc

from ghsched_placement.features.packing.likely_nodes import guess_host_nodes
from ghsched_placement.features.packing.numa_nodes import HostNode
from ghsched_placement.features.packing.numa_nodes import NodeAmount
from ghsched_placement.features.planner.hosts import PlannedHost
from ghsched_placement.features.planner.need import FlavorNeed
from ghsched_placement.fit import capacity
from ghsched_placement.fit import fitting
from ghsched_placement.fit import room as rooms
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.flavor.topology import PageSize
from ghsched_placement.providers import tree
from ghsched_placement.query import candidates

#: Inventory of a host: index of the provider, and resource class.
Slot = tuple[int, str]


@dataclass(frozen=True)
class GuestPlacement:
    """Possible placement of a guest on a host.

    :param nodes: host NUMA node of each guest NUMA node; empty if Nova would
        choose the host nodes.
    :param takes: amount that the guest allocates from each inventory.
    :param far: number of VFs that are on another host node than their guest
        node, and number of those that are on another socket.
    """

    nodes: tuple[int, ...]
    takes: tuple[tuple[Slot, int], ...]
    far: candidates.Far = (0, 0)


class FilledHost:
    """Host with the resources that guests placed by a plan use on it.

    :ivar taken: amount that the placed guests use of each inventory.
    :ivar by_flavor: number of placed guests by flavor name.
    """

    def __init__(self, host: PlannedHost) -> None:
        self.host = host
        self.by_flavor: dict[str, int] = {}
        self.taken: dict[Slot, int] = {}
        self._rooms = {cell.node: cell for cell in host.cells}
        self._fit_host: capacity.HostInventory | None = None
        self._free = {
            (place, name): tree.compute_free_amount(
                self.get_inventory_record((place, name)),
                provider.used.get(name, 0))
            for place, provider in enumerate(host.providers)
            for name in provider.inventories}

    @property
    def guests(self) -> int:
        """Number of guests placed on the host so far."""
        return sum(self.by_flavor.values())

    def make_comparison_key(self) -> Any:
        """Return a key that is equal for equal usages of a host's resources.

        The planner needs to examine only one of several hosts with equal keys.
        """
        return (frozenset(self.taken.items()),
                frozenset(self._rooms.values()))

    def get_inventory_record(self, slot: Slot) -> tree.Inventory:
        """Return an inventory record in the form of Placement's API.

        :param slot: index of the provider, and resource class.
        """
        return self.host.providers[slot[0]].inventories[slot[1]]

    def get_free_amount(self, slot: Slot) -> int:
        """Return the free amount of an inventory; 0 if it does not exist.

        :param slot: index of the provider, and resource class.
        """
        return self._free.get(slot, 0)

    def find_host_nodes(self, need: FlavorNeed,
                        placement: GuestPlacement) -> tuple[int, ...] | None:
        """Return the host NUMA nodes on which one more guest would run.

        If the placement leaves the host nodes to Nova, the nodes that Nova is
        likely to choose are returned.

        :param need: resources that the guest needs.
        :param placement: a possible way to place the guest: the allocated
            amounts and the host nodes.
        :returns: None if the guest does not fit.
        """
        if any(amount > self.get_free_amount(slot) for slot,
               amount in placement.takes):
            return None
        guest = need.guest.needs
        if not self.host.cells or not guest:
            return placement.nodes
        nodes = placement.nodes or self._guess_nodes(need)
        if len(nodes) < len(guest) or not all(
                self.has_room(node, part, need.guest.page_size)
                for node, part in zip(nodes, guest, strict=True)):
            return None
        return nodes

    def _guess_nodes(self, need: FlavorNeed) -> tuple[int, ...]:
        """Return the host nodes that Nova is likely to choose for a guest.

        Used if Placement chooses none. nova-scheduler may choose others on
        which the guest leaves room for more further guests.
        """
        guest, needed = need.guest.needs, self.find_needed_nodes(need)
        nodes = tuple(node.number for node in guess_host_nodes(
            [node for node in self.list_free_nodes()
             if any(self.has_room(node.number, part, need.guest.page_size)
                    for part in guest)], guest))
        if len(needed.intersection(nodes)) >= min(len(needed), len(guest)):
            return nodes
        return tuple(sorted(sorted(
            (node for node in self._rooms
             if self.has_room(node, guest[0], need.guest.page_size)),
            key=lambda node: (node not in needed, node))[:len(guest)]))

    @property
    def fit_host(self) -> capacity.HostInventory:
        """Inventories of the host and their usage, as input of the fit."""
        if self._fit_host is None:
            self._fit_host = self.make_fit_host({})
        return self._fit_host

    def make_fit_host(self, more: Mapping[Slot, int]
                      ) -> capacity.HostInventory:
        """Return the host's inventories and usage, as input of the fit.

        :param more: amounts to add to inventories of the host.
        """
        return capacity.build_described_host([
            replace(provider, inventories={
                name: {**record, 'total': record['total'] + added,
                       'max_unit': record['max_unit'] + added}
                for name, record in provider.inventories.items()
                for added in (more.get((place, name), 0),)}, used={
                    name: provider.used.get(name, 0)
                    + self.taken.get((place, name), 0)
                    for name in provider.inventories})
            for place, provider in enumerate(self.host.providers)],
            self._rooms, self.host.unstated)

    def find_needed_nodes(self, need: FlavorNeed) -> frozenset[int]:
        """Return the host nodes that a guest must use to leave most room.

        Most room means that most further guests of the same flavor fit on the
        host afterwards.

        :returns: empty if any host nodes will do, or if the NUMA nodes of the
            guest differ.
        """
        return (fitting.find_needed_nodes(self.fit_host, need.demand)
                if need.demand.guest_nodes > 1 else frozenset())

    def place_guest(
            self, need: FlavorNeed, placement: GuestPlacement,
            nodes: tuple[int, ...]) -> None:
        """Add a guest to the host: count the resources of the guest as used.

        :param need: resources that the guest needs.
        :param placement: amounts that the guest allocates from providers.
        :param nodes: host NUMA node of each guest NUMA node.
        """
        self._fit_host = None
        for slot, amount in placement.takes:
            self._take_amount(slot, amount)
        for node, part in zip(nodes, need.guest.needs, strict=False):
            if node in self._rooms:
                self._rooms[node] = self._rooms[node].subtract_guest_node(
                    part, need.guest.page_size)
        name = need.flavor.name
        self.by_flavor[name] = self.by_flavor.get(name, 0) + 1

    def _take_amount(self, slot: Slot, amount: int) -> None:
        self.taken[slot] = self.taken.get(slot, 0) + amount
        self._free[slot] -= amount

    # -- NUMA nodes -----------------------------------------------------------

    def has_room(self, node: int, guest_node: GuestNode,
                 page_size: PageSize = None) -> bool:
        """Return whether a host node has CPUs and memory for a guest node.

        :param node: number of the host NUMA node.
        :param guest_node: CPUs and memory that the guest NUMA node needs.
        :param page_size: memory page size that the guest asks for.
        :returns: True if the CPUs and memory of the host node are unknown.
        """
        known = self._rooms.get(node)
        return known is None or rooms.count_guest_nodes(
            known, guest_node, page_size) > 0

    def list_free_nodes(self) -> list[HostNode]:
        """Return the free CPUs, memory and devices of each host NUMA node.

        If the host's CPUs and memory are unknown, free bandwidth takes the
        place of free CPUs.
        """
        devices = {node.number: {
            f'{pf.address}/{pf.resource_class}': pf.stock.free
            for pf in node.pfs} for node in self.fit_host.nodes}
        if not self.host.cells:
            return [
                HostNode(
                    number=node.number, devices=devices[node.number],
                    shared=NodeAmount(
                        node.bandwidth.capacity if node.bandwidth else 0,
                        node.bandwidth.free if node.bandwidth else 0))
                for node in self.fit_host.nodes if node.number is not None]
        floating = self._compute_vcpu_share_of_node()
        return [HostNode(
            number=node, memory_free=cell.memory_free,
            memory=NodeAmount(cell.memory_capacity, cell.memory_free),
            pinned=NodeAmount(cell.dedicated, cell.dedicated_free),
            shared=NodeAmount(cell.vcpus, cell.vcpus_free - floating),
            devices=devices[node]) for node, cell in self._rooms.items()]

    def _compute_vcpu_share_of_node(self) -> int:
        """Return a node's share of the vCPUs of guests without NUMA topology.

        These vCPUs may run on all NUMA nodes of the host. Each node is assumed
        to run the same number of them.
        """
        placed = sum(self._rooms[cell.node].vcpus_used - cell.vcpus_used
                     for cell in self.host.cells)
        floating = max(0, self.taken.get((0, orc.VCPU), 0) - placed)
        return -(-floating // len(self.host.cells))
