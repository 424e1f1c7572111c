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

"""Capacity and usage of hosts, from Placement's providers (pure).

:func:`build_hosts` turns the resource providers of a cloud into a
:class:`HostInventory` for each host with ghsched's driver, with its NUMA
nodes, and their bandwidth and devices.
"""

from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
import re
from typing import NamedTuple

import os_resource_classes as orc

from ghsched_placement.fit import model
from ghsched_placement.fit.node_capacity import CacheCpus
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit.node_capacity import take_first_cpus
from ghsched_placement.fit import room as rooms
from ghsched_placement.flavor.resources import BESIDE_BANDWIDTH
from ghsched_placement.providers import names
from ghsched_placement.providers import tree

#: Resource classes of a host NUMA node, in the order of their amounts and of
#: reasons: bandwidth first.
NODE_CLASSES = (names.MEM_BW_PCT, *sorted(BESIDE_BANDWIDTH))

_NODE = re.compile(r'.*_NUMA([0-9]{1,6})', re.DOTALL)


@dataclass(frozen=True)
class Provider:
    """Resource provider with its inventories, usage and traits.

    :param root: UUID of the compute node's provider.
    :param inventories: by resource class.
    :param used: amount that is allocated, by resource class.
    """

    uuid: str
    name: str
    parent: str | None
    root: str
    inventories: Mapping[str, tree.Inventory] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()

    def get_inventory(self, resource_class: str) -> 'InventoryUsage | None':
        """Return the inventory of a resource class, with its usage.

        :returns: None if the provider has no such inventory.
        """
        record = self.inventories.get(resource_class)
        if record is None:
            return None
        return InventoryUsage(record, self.used.get(resource_class, 0))


@dataclass(frozen=True)
class InventoryUsage:
    """Inventory of one resource class of a provider, and its usage."""

    record: tree.Inventory
    used: int

    @property
    def total(self) -> int:
        return int(self.record['total'])

    @property
    def reserved(self) -> int:
        return int(self.record['reserved'])

    @property
    def capacity(self) -> int:
        """Amount that can be allocated in total: (total - reserved) * ratio.
        """
        return tree.compute_free_amount(self.record, 0)

    @property
    def free(self) -> int:
        return tree.compute_free_amount(self.record, self.used)

    @property
    def min_unit(self) -> int:
        """Smallest amount that one Placement allocation can have (min_unit).
        """
        return int(self.record.get('min_unit', 1))

    @property
    def step_size(self) -> int:
        """Number of which allocated amounts must be multiples (step_size)."""
        return int(self.record.get('step_size', 1))

    @property
    def max_unit(self) -> int:
        """Largest amount that one more allocation can take now.

        This is the free amount or Placement's max_unit, whichever is smaller,
        rounded down to a multiple of the step size.
        """
        most = min(self.free, int(self.record['max_unit']))
        return most - most % self.step_size


#: Stock of a resource class that a host NUMA node does not have.
NO_STOCK = InventoryUsage(tree.make_inventory(0), 0)


class ResourceTable(NamedTuple):
    """Resources of a host, in the order of their amounts.

    :param classes: resource classes of the compute node, without control
        groups.
    :param vfs: resource classes of VFs.
    :param sizes: page sizes in KiB.
    :param caches: dedicated CPUs of each L3 cache of the largest node.
    """

    classes: tuple[str, ...]
    vfs: tuple[str, ...]
    sizes: tuple[int, ...]
    caches: tuple[int, ...] = ()


@dataclass(frozen=True)
class PfInventory:
    """Resource provider of a PF with its VFs, or of other PCI devices.

    :param address: PCI address of the PF.
    :param uuid: UUID of the resource provider.
    :param resource_class: resource class of the VFs.
    :param stock: inventory and usage of the VFs.
    """

    address: str
    uuid: str
    resource_class: str
    stock: InventoryUsage


@dataclass(frozen=True)
class NodeInventory:
    """Host NUMA node with its inventories and usages in Placement.

    :param number: number of the node; None if its provider was not created by
        nova-compute of this release.
    :param uuid: UUID of the resource provider.
    :param name: name of the resource provider.
    :param room: CPUs and memory of the node. Placement does not have them;
        None if the host was not asked or does not report them.
    :param stocks: inventory and usage by resource class of
        :data:`names.NODE_CLASSES`.
    :param nearest: for a node without CPUs, UUID of the provider of the
        nearest node with CPUs; else empty.
    :param unstated: key of the host file that would give the amount of a
        resource class, for each class that the file does not give.
    :param near: free VFs of the node's socket by resource class, which all
        nodes of the socket have in common; empty if CPUs and memory are not
        known.
    """

    number: int | None
    uuid: str
    name: str
    pfs: tuple[PfInventory, ...] = ()
    traits: frozenset[str] = frozenset()
    room: NodeCapacity | None = None
    stocks: Mapping[str, InventoryUsage] = field(default_factory=dict)
    nearest: str = ''
    unstated: Mapping[str, str] = field(default_factory=dict)
    near: Mapping[str, int] = field(default_factory=dict)

    @property
    def bandwidth(self) -> InventoryUsage | None:
        """Percent of the node's theoretical bandwidth.

        The value is None if its bandwidth cannot be controlled.
        """
        return self.stocks.get(names.MEM_BW_PCT)

    @property
    def bursts(self) -> InventoryUsage | None:
        """Percent of the node's bandwidth that may be promised as bursts.

        The value is None if the host reserves no bandwidth for bursts.
        """
        return self.stocks.get(names.MEM_BW_BURST_PCT)

    def count_free_vfs(self, resource_class: str) -> int:
        """Return the number of free VFs of a resource class on this node."""
        return sum(pf.stock.free for pf in self.pfs
                   if pf.resource_class == resource_class)

    def read_amounts(self, table: ResourceTable) -> model.Node:
        """Return the free amounts of this node, by position.

        They are those of :data:`NODE_CLASSES`, of
        :data:`ghsched_placement.fit.room.RESOURCES`, of pages by size, of CPUs
        by L3 cache, of VFs, and of VFs of the socket.
        """
        free, most = rooms.read_free_amounts(self.room, table.sizes,
                                             len(table.caches))
        vfs = (*map(self.count_free_vfs, table.vfs),
               *(self.near.get(name, model.UNCOUNTED) for name in table.vfs))
        stocks = [self.stocks.get(name, NO_STOCK) for name in NODE_CLASSES]
        units = _make_units(stocks)
        ones = (1,) * (len(vfs) + len(free))
        assert self.number is not None  # noqa: S101
        return model.Node(
            self.number, (*(stock.free for stock in stocks), *free, *vfs),
            model.Units((*units.most, *most,
                         *(model.UNCOUNTED for _vf in vfs)),
                        (*units.least, *ones), (*units.step, *ones)),
            self.traits, self.room.socket if self.room else None)


@dataclass(frozen=True)
class HostInventory:
    """Compute host that runs ghsched, with its inventories in Placement.

    :param root: resource provider of the compute node.
    :param nodes: NUMA nodes of the host.
    :param elsewhere: PFs that belong to no NUMA node.
    """

    root: Provider
    nodes: tuple[NodeInventory, ...]
    elsewhere: tuple[PfInventory, ...] = ()

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def uuid(self) -> str:
        return self.root.uuid

    @property
    def groups(self) -> InventoryUsage | None:
        """Inventory of resctrl control groups for guests; None if the host
        has none.
        """
        return self.root.get_inventory(names.RESCTRL_GROUP)

    @property
    def pfs(self) -> tuple[PfInventory, ...]:
        return (*(pf for node in self.nodes for pf in node.pfs),
                *self.elsewhere)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Sorted names of the capabilities that the host has for ghsched.

        A capability is, for instance, MEM_BW_MAX (bandwidth caps).
        """
        return tuple(sorted(
            name for name, trait in names.CAPABILITY_TRAITS.items()
            if trait in self.root.traits))

    @cached_property
    def table(self) -> ResourceTable:
        """Resources of the host, in the order of :attr:`amounts`."""
        return ResourceTable(
            tuple(sorted(self.root.inventories.keys()
                         - {names.RESCTRL_GROUP})),
            tuple(sorted({pf.resource_class for pf in self.pfs})),
            rooms.list_page_sizes(node.room for node in self.nodes),
            rooms.list_cache_totals(node.room for node in self.nodes))

    @cached_property
    def amounts(self) -> model.Host:
        """Free amounts of the host and of its NUMA nodes, by position.

        Those of the host are control groups, VFs, the resource classes of the
        table, and one resource of which there is none.
        """
        table = self.table
        stocks = [stock for name in table.classes
                  if (stock := self.root.get_inventory(name))]
        vfs = [sum(pf.stock.free for pf in self.pfs
                   if pf.resource_class == name) for name in table.vfs]
        units = _make_units([*stocks, NO_STOCK])
        more = 1 + len(vfs)
        nodes = tuple(node.read_amounts(table) for node in self.nodes
                      if node.number is not None)
        return model.Host(
            (self.groups.free if self.groups else 0, *vfs,
             *(stock.free for stock in stocks), 0),
            model.Units((*[model.UNCOUNTED] * more, *units.most),
                        (*[1] * more, *units.least),
                        (*[1] * more, *units.step)),
            nodes, frozenset(range(
                len(nodes[0].free) - len(table.vfs), len(nodes[0].free))
                if nodes else ()))

    def get_largest_guarantee(self, node: NodeInventory) -> int:
        """Return the largest bandwidth guarantee for one more guest on a node.

        It is a percentage of the node's bandwidth. It is 0 if the host has no
        free control group.
        """
        if node.bandwidth is None or not self.groups or not self.groups.free:
            return 0
        return node.bandwidth.max_unit


def _make_units(stocks: Iterable[InventoryUsage]) -> model.Units:
    """Return the sizes of allocations that inventories allow."""
    stocks = list(stocks)
    return model.Units(
        tuple(int(stock.record['max_unit']) for stock in stocks),
        tuple(stock.min_unit for stock in stocks),
        tuple(stock.step_size for stock in stocks))


def compute_fragmentation(host: HostInventory) -> int | None:
    """Return the percent of a host's free bandwidth on partly allocated nodes.

    This bandwidth is of no use to a guest that needs a whole NUMA node.

    :returns: 0 if all free bandwidth is on unused nodes; None if no bandwidth
        is free.
    """
    stocks = [node.bandwidth for node in host.nodes if node.bandwidth]
    free = sum(stock.free for stock in stocks)
    if not free:
        return None
    broken = sum(stock.free for stock in stocks if stock.used)
    return round(100 * broken / free)


def set_node_capacity(host: HostInventory, capacities: Iterable[NodeCapacity]
                      ) -> HostInventory:
    """Return a copy of a host with its NUMA nodes' CPUs and memory replaced.

    :param capacities: CPUs and memory of host NUMA nodes. The CPUs and memory
        of nodes that are not listed become unknown.
    """
    known: dict[int | None, NodeCapacity] = {
        capacity.node: capacity for capacity in capacities}
    near: dict[tuple[int | None, int | None], Counter[str]] = {}
    nodes = [(replace(node, room=known.get(node.number)),
              _find_socket(node.number, known)) for node in host.nodes]
    for node, socket in nodes:
        free = near.setdefault(socket, Counter(dict.fromkeys(
            (pf.resource_class for pf in host.pfs), 0)))
        for pf in node.pfs:
            free[pf.resource_class] += pf.stock.free
    return replace(host, nodes=tuple(
        replace(node, near=near[socket] if node.room else {})
        for node, socket in nodes))


def _find_socket(number: int | None, known: Mapping[int | None, NodeCapacity]
                 ) -> tuple[int | None, int | None]:
    """Return the socket of a host node; a node without one is alone.

    The scheduler takes VFs of nodes whose socket is unknown for far.
    """
    socket = known[number].socket if number in known else None
    return (socket, None) if socket is not None else (None, number)


def make_hardware_key(host: HostInventory) -> Hashable:
    """Return a key that is equal for hosts with the same hardware.

    Such hosts have the same inventories of CPUs and memory and the same NUMA
    nodes. Their usage may differ.
    """
    return (tuple(str(host.root.inventories.get(name))
                  for name in (orc.VCPU, orc.PCPU, orc.MEMORY_MB)),
            tuple((node.number, tuple(
                (name, stock.total) for name, stock in node.stocks.items()))
                for node in host.nodes))


def estimate_node_capacity(host: HostInventory,
                           known: Sequence[NodeCapacity] = ()
                           ) -> tuple[NodeCapacity, ...]:
    """Estimate the CPUs and memory of each NUMA node of a host.

    The use of them is assumed to be spread evenly over the nodes, and these to
    be of one socket if no other host of the make is known. On a host
    that reports no PCPU, Nova gives guests dedicated CPUs out of the shared
    ones, unless [compute]cpu_shared_set excludes that.

    :param known: CPUs and memory of the nodes of another host of the same
        make. If empty, they are assumed to be spread evenly, too.
    """
    numbers = [node.number for node in host.nodes if node.number is not None]
    parts = len(numbers)
    cpus, vcpus_used, cpu_ratio = _divide_inventory(host, orc.VCPU, parts)
    dedicated, dedicated_used, _one = _divide_inventory(host, orc.PCPU, parts)
    if orc.PCPU not in host.root.inventories:
        dedicated, dedicated_used = cpus, 0
    memory, memory_used, ram_ratio = _divide_inventory(host, orc.MEMORY_MB,
                                                       parts)
    return tuple(replace(
        node, vcpus_used=vcpus_used, dedicated_used=dedicated_used,
        caches=take_first_cpus([CacheCpus(cache.total) for cache
                                in node.caches], dedicated_used),
        memory_used=memory_used, pages=tuple(
            replace(pages, used=0 if number else memory_used * 1024
                    // pages.size_kb)
            for number, pages in enumerate(node.pages)))
        for node in known or (NodeCapacity(
            number, cpus, cpu_ratio=cpu_ratio, dedicated=dedicated, socket=0,
            memory=memory, ram_ratio=ram_ratio) for number in numbers))


def _divide_inventory(host: HostInventory, resource_class: str,
                      parts: int) -> tuple[int, int, float]:
    """Return an equal part of a host's inventory: total, usage and ratio.

    :param resource_class: resource class of the host's inventory.
    :param parts: number of parts to divide the host's inventory into.
    :returns: total and used amount of one part, and the allocation ratio.
    """
    stock = host.root.get_inventory(resource_class)
    if stock is None or not parts:
        return 0, 0, 1.0
    return (stock.total // parts, -(-stock.used // parts),
            float(stock.record['allocation_ratio']))


def build_hosts(providers: Iterable[Provider]) -> tuple[HostInventory, ...]:
    """Build the hosts that use ghsched from Placement's resource providers.

    The hosts are sorted by name. Hosts without ghsched's providers are left
    out.
    """
    by_root: dict[str, list[Provider]] = {}
    for provider in providers:
        by_root.setdefault(provider.root, []).append(provider)
    found = ((one, members) for members in by_root.values()
             for one in members if one.uuid == one.root)
    return tuple(sorted((_build_host(root, members) for root, members in found
                         if _uses_ghsched(root, members)),
                        key=lambda host: host.name))


def parse_numa_node_number(root: str, uuid: str, name: str) -> int | None:
    """Parse the host NUMA node number from the name of a resource provider.

    :param root: UUID of the compute node's provider.
    :param uuid: UUID of the resource provider.
    :param name: name of the resource provider.
    :returns: None if the name has no number, or if the UUID is not the one
        that ghsched gives the provider of this NUMA node.
    """
    match = _NODE.fullmatch(name)
    if match is None:
        return None
    number = int(match[1])
    return number if names.make_numa_provider_uuid(root,
                                                   number) == uuid else None


def build_described_host(providers: Sequence[Provider],
                         rooms: Mapping[int, NodeCapacity],
                         unstated: Mapping[str, str]) -> HostInventory:
    """Build a host from the resource providers of a host file.

    :param providers: the compute node's own provider first.
    :param rooms: CPUs and memory by host NUMA node. A node without a provider
        becomes a node of the host, too.
    :param unstated: key of the host file for each resource class whose amount
        the file does not give.
    """
    host = _build_host(providers[0], providers)
    known = {node.number for node in host.nodes}
    bare = (NodeInventory(number, '', f'{host.name}_NUMA{number}')
            for number in rooms if number not in known)
    return set_node_capacity(replace(host, nodes=tuple(
        replace(node, unstated=unstated) for node in sorted(
            (*host.nodes, *bare), key=_make_node_sort_key))), rooms.values())


def _uses_ghsched(root: Provider, members: Iterable[Provider]) -> bool:
    return any(names.NUMA_NODE_TRAIT in one.traits for one in members) or (
        not root.traits.isdisjoint(names.CAPABILITY_TRAITS.values()))


def _build_host(root: Provider, members: Iterable[Provider]) -> HostInventory:
    of_nodes = [one for one in members
                if names.NUMA_NODE_TRAIT in one.traits]
    pfs: dict[str | None, list[PfInventory]] = {}
    for one in members:
        if one is not root and one not in of_nodes:
            pfs.setdefault(one.parent, []).extend(_build_pfs(one, root))
    nodes = [_build_node(one, root, pfs.pop(one.uuid, [])) for one in of_nodes]
    return HostInventory(root, tuple(sorted(nodes, key=_make_node_sort_key)),
                         tuple(pf for found in pfs.values() for pf in found))


def _make_node_sort_key(node: NodeInventory) -> tuple[bool, int, str]:
    return node.number is None, node.number or 0, node.name


def _build_node(provider: Provider, root: Provider, pfs: list[PfInventory]
                ) -> NodeInventory:
    return NodeInventory(
        parse_numa_node_number(root.uuid, provider.uuid, provider.name),
        provider.uuid,
        provider.name, tuple(sorted(pfs, key=lambda pf: pf.address)),
        provider.traits, nearest=provider.parent if provider.parent
        and provider.parent != root.uuid else '',
        stocks={name: stock for name in sorted(names.NODE_CLASSES)
                if (stock := provider.get_inventory(name)) is not None})


def _build_pfs(provider: Provider, root: Provider) -> list[PfInventory]:
    """Return the PFs that a resource provider stands for.

    There is one PF for each custom (CUSTOM_*) resource class of the provider.

    :param root: provider of the compute node.
    """
    address = provider.name.removeprefix(f'{root.name}_')
    found = []
    for resource_class in sorted(provider.inventories):
        stock = provider.get_inventory(resource_class)
        if stock is not None and resource_class.startswith('CUSTOM_'):
            found.append(PfInventory(address, provider.uuid, resource_class,
                                     stock))
    return found
