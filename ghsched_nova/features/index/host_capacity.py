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

"""Needs of guests and free resources of hosts in the index (pure).

Both are tuples of amounts. :mod:`ghsched_placement.fit` computes from them
whether, where and how often a guest fits.
"""

from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import functools
from typing import NamedTuple

from ghsched_placement.features.index import headroom
from ghsched_placement.fit import counting
from ghsched_placement.fit import model
from ghsched_placement.fit.node_capacity import CacheCpus
from ghsched_placement.fit import room

#: Seconds for which a host is not proposed again for requests like one that
#: was refused there, unless the host reports more free resources.
REFUSAL_AGE = 60.0

#: Vendor and product of a device, as Nova's PCI pools have them.
Device = tuple[str, str]

#: Position of the bandwidth of a host NUMA node, after dedicated and shared
#: CPUs; memory by page size, CPUs by L3 cache and devices follow.
_BANDWIDTH = 2

#: Free amounts from here on are of resources that the host does not report.
_UNKNOWN = model.UNCOUNTED // 2


class IndexTable(NamedTuple):
    """Page sizes and device types of a host, in the order of its amounts.

    :param pages: page sizes in KiB; 0 is for memory in pages of any size.
    :param devices: vendor and product of passthrough devices.
    :param caches: number of L3 caches of the largest NUMA node.
    """

    pages: tuple[int, ...]
    devices: tuple[Device, ...]
    caches: int = 0

    @property
    def cache_places(self) -> tuple[int, ...]:
        """Positions of each L3 cache's dedicated CPUs in a node's amounts."""
        first = _BANDWIDTH + 1 + len(self.pages)
        return tuple(range(first, first + self.caches))


@dataclass(frozen=True)
class RequestNodeNeed:
    """Resources that a guest NUMA node needs on its host NUMA node.

    :param pinned: dedicated CPUs.
    :param shared: vCPUs on shared CPUs.
    :param memory: MiB.
    :param page: page size in KiB; 0 for any.
    :param bandwidth: percent of the host node's memory bandwidth.
    :param devices: number of passthrough devices by vendor and product.
    :param few_caches: whether the dedicated CPUs must share few L3 caches.
    :param threads: whether a policy chooses hardware threads of these CPUs,
        which no report counts.
    """

    pinned: int = 0
    shared: int = 0
    memory: int = 0
    page: int = 0
    bandwidth: int = 0
    devices: tuple[tuple[Device, int], ...] = ()
    few_caches: bool = False
    threads: bool = False

    def read_amounts(self, table: IndexTable, is_reported: bool = True,
                     is_in_placement: bool = True) -> model.NodeNeed:
        """Return the amounts of this need, by position.

        :param is_reported: whether to count CPUs, memory and devices.
        :param is_in_placement: whether to count bandwidth.
        """
        wanted = dict(self.devices)
        return model.NodeNeed((
            self.pinned * is_reported, self.shared * is_reported,
            self.bandwidth * is_in_placement,
            *(self.memory * (is_reported and size in (0, self.page))
              for size in table.pages),
            *(0 for _cache in range(table.caches)),
            *(wanted.get(device, 0) * is_reported
              for device in table.devices)),
            (model.StockChoice(self.pinned, table.cache_places,
                               may_span=True),)
            if self.few_caches and is_reported and table.caches else ())


@dataclass(frozen=True)
class RequestNeed:
    """Resources that a scheduling request needs on one host.

    :param nodes: resources that each guest NUMA node needs.
    :param groups: number of resctrl control groups.
    :param needs_driver: whether the host must run ghsched's driver, which lets
        the scheduler choose the host NUMA nodes of a guest.
    :param other_requirements: all other requirements for which Placement may
        refuse a host; equal for requests with equal requirements.
    :param vcpus: vCPUs on shared CPUs of the host as a whole.
    :param memory: MiB of the host as a whole.
    """

    nodes: tuple[RequestNodeNeed, ...]
    groups: int = 0
    needs_driver: bool = False
    other_requirements: Hashable = None
    vcpus: int = 0
    memory: int = 0

    @functools.cached_property
    def cpus_and_memory(self) -> 'RequestNeed':
        """CPUs and memory of the need, which every host report includes.

        Bandwidth and control groups are left out, because hosts report them
        less often, devices, because they may be on other nodes, and L3 caches
        where a policy chooses hardware threads.
        """
        return RequestNeed(tuple(
            RequestNodeNeed(node.pinned, node.shared, node.memory, node.page,
                            few_caches=node.few_caches and not node.threads)
            for node in self.nodes))

    def read_amounts(self, table: IndexTable, is_reported: bool = True,
                     is_in_placement: bool = True) -> model.Need | None:
        """Return the amounts of this need, by position.

        :param table: resources of the host.
        :param is_reported: whether to count what is in a host's report in
            Nova: CPUs, memory and devices.
        :param is_in_placement: whether to count bandwidth and control groups.
        :returns: None if the host does not have a resource.
        """
        key = table, is_reported, is_in_placement
        if key not in self._by_table:
            self._by_table[key] = self._read_amounts(*key)
        return self._by_table[key]

    @functools.cached_property
    def _by_table(self) -> dict[Hashable, model.Need | None]:
        return {}

    def _read_amounts(self, table: IndexTable, is_reported: bool,
                      is_in_placement: bool) -> model.Need | None:
        if not all(node.page in table.pages and {
                device for device, count in node.devices if count} <= {
                    *table.devices} for node in self.nodes):
            return None
        return model.Need(
            (self.groups * is_in_placement, self.vcpus * is_reported,
             self.memory * is_reported),
            tuple(node.read_amounts(table, is_reported, is_in_placement)
                  for node in self.nodes))


@dataclass(frozen=True)
class ReportedNode:
    """Free resources of a host NUMA node, as reported.

    :param number: number of the NUMA node.
    :param pinned: number of free dedicated CPUs.
    :param shared: number of further vCPUs that fit on the shared CPUs.
    :param pages: free memory in MiB by page size in KiB. The key 0 is for
        memory in pages of any size.
    :param devices: number of free passthrough devices by vendor and product.
    :param caches: dedicated CPUs by L3 cache; empty if all share one, or if
        unknown.
    """

    number: int
    pinned: int = 0
    shared: int = 0
    pages: Mapping[int, int] = field(default_factory=dict)
    devices: Mapping[Device, int] = field(default_factory=dict)
    caches: tuple[CacheCpus, ...] = ()

    def read_amounts(self, table: IndexTable, bandwidth: int) -> model.Node:
        """Return the free amounts of this node, by position."""
        by_cache, most = room.read_cache_amounts(self.caches, table.caches)
        before = (self.pinned, self.shared, bandwidth,
                  *(self.pages.get(size, 0) for size in table.pages))
        devices = tuple(self.devices.get(device, 0)
                        for device in table.devices)
        return model.Node(self.number, (*before, *by_cache, *devices),
                          _make_units(len(before), most, len(devices)))


@functools.lru_cache(maxsize=1024)
def _make_units(count: int, caches: model.Amounts = (),
                after: int = 0) -> model.Units:
    """Return the sizes of allocations of resources with any size.

    :param count: number of resources.
    :param caches: largest amounts of the resources that follow.
    :param after: number of resources with any size after these.
    """
    most = ((model.UNCOUNTED,) * count + caches
            + (model.UNCOUNTED,) * after)
    ones = (1,) * len(most)
    return model.Units(most, ones, ones)


@dataclass(frozen=True)
class PfCapacity:
    """Free VFs of a PF.

    :param provider: UUID of the PF's resource provider in Placement.
    :param node: number of the PF's host NUMA node.
    :param device: vendor and product of the VFs.
    :param free: number of free VFs.
    """

    provider: str
    node: int
    device: Device
    free: int

    @property
    def resource_class(self) -> str:
        """Resource class of the VFs, unless ``[pci]device_spec`` sets another.
        """
        return 'CUSTOM_PCI_{}_{}'.format(*self.device).upper()


@dataclass(frozen=True)
class ReportedHost:
    """Free resources that a compute host reported to Nova's database.

    :param uuid: UUID of the compute node.
    :param cell: UUID of the host's cell.
    :param updated: value that differs between two reports of the host, such as
        the time of the report.
    :param guests: number of guests that the report includes.
    :param has_driver: whether the host runs ghsched's driver, which lets the
        scheduler choose the host NUMA nodes of a guest.
    :param placement_headroom: free bandwidth and control groups in Placement,
        as the host has reported them; None if it has not.
    :param floating: number of free devices whose NUMA node is unknown, by
        vendor and product.
    :param pfs: PFs with free VFs whose provider and NUMA node are known.
    :param vcpus: number of further vCPUs that fit on the shared CPUs of the
        host as a whole.
    :param memory: free memory of the host as a whole in MiB.
    """

    uuid: str
    name: str
    cell: str
    updated: Hashable
    nodes: tuple[ReportedNode, ...] = ()
    guests: int = 0
    has_driver: bool = False
    placement_headroom: headroom.Headroom | None = None
    floating: Mapping[Device, int] = field(default_factory=dict)
    pfs: tuple[PfCapacity, ...] = ()
    vcpus: int = model.UNCOUNTED
    memory: int = model.UNCOUNTED

    @functools.cached_property
    def table(self) -> IndexTable:
        """Resources of the host, in the order of their amounts."""
        return IndexTable(
            tuple(sorted({0}.union(*(node.pages for node in self.nodes)))),
            tuple(sorted(set().union(*(node.devices
                                       for node in self.nodes)))),
            max((len(node.caches) for node in self.nodes), default=0))

    @functools.cached_property
    def amounts(self) -> model.Host:
        """Free amounts in this report, without those of Placement."""
        return self.read_amounts({}, None)

    def read_amounts(self, bandwidth: Mapping[int, int],
                     groups: int | None) -> model.Host:
        """Return the free amounts of the host, by position.

        :param bandwidth: free percent of bandwidth by NUMA node. A missing
            node is assumed to have enough.
        :param groups: number of free control groups; None if unknown.
        """
        free = (model.UNCOUNTED if groups is None else groups, self.vcpus,
                self.memory)
        return model.Host(free, _make_units(len(free)), tuple(
            node.read_amounts(self.table, bandwidth.get(
                node.number, model.UNCOUNTED)) for node in self.nodes))


@dataclass(frozen=True)
class HostView:
    """Free resources of a host at one moment.

    :param row: last report of the host.
    :param amounts: free amounts by position.
    :param refused: time at which Placement or Nova refused a request on this
        host, by the needs of the request.
    """

    row: ReportedHost
    amounts: model.Host
    refused: Mapping[RequestNeed, float] = field(default_factory=dict)

    @property
    def groups(self) -> int | None:
        """Number of free control groups; None if unknown."""
        return _known(self.amounts.free[0])

    @property
    def bandwidth(self) -> dict[int, int]:
        """Free percent of bandwidth by NUMA node, where it is known."""
        return {node.number: node.free[_BANDWIDTH]
                for node in self.amounts.nodes
                if node.free[_BANDWIDTH] < _UNKNOWN}

    def list_pfs(self) -> list[PfCapacity]:
        """Return the host's PFs with the VFs that are certainly free.

        For guests that were placed after the host's report, only the NUMA node
        of their VFs is known. These VFs are subtracted from each PF of the
        node.
        """
        devices = self.row.table.devices
        newer = {
            (node.number, device): before - after
            for node, was in zip(self.amounts.nodes, self.row.amounts.nodes,
                                 strict=True)
            for device, before, after in zip(
                devices, was.free[len(was.free) - len(devices):],
                node.free[len(was.free) - len(devices):], strict=True)}
        return [replace(pf, free=pf.free - newer.get((pf.node, pf.device), 0))
                for pf in self.row.pfs]

    def assign_nodes(self, need: RequestNeed) -> tuple[int, ...] | None:
        """Choose a host NUMA node for each guest NUMA node.

        :returns: numbers of the chosen host NUMA nodes; None if the guest
            certainly does not fit on the host.
        """
        wanted = self._read_need(need)
        return (None if wanted is None
                else counting.choose_host_nodes(self.amounts, wanted))

    def count_guests(self, need: RequestNeed, most: int) -> int:
        """Return how many guests with equal needs may fit on this host.

        :param most: number at which counting ends.
        """
        wanted = self._read_need(need)
        return counting.count_guests(
            self.amounts, wanted, most).guests if wanted else 0

    def _read_need(self, need: RequestNeed) -> model.Need | None:
        return (None if need.needs_driver and not self.row.has_driver
                else need.read_amounts(self.row.table))

    def has_refused(self, need: RequestNeed, now: float) -> bool:
        """Return whether the host refused an equal request in the last minute.

        :param need: resources that the request needs on one host.
        :param now: present time in seconds of the monotonic clock.
        """
        when = self.refused.get(need) if self.refused else None
        return when is not None and now - when < REFUSAL_AGE

    def has_more_free_than(self, earlier: 'HostView') -> bool:
        """Return whether more of any resource is free than in an earlier view.
        """
        new, old = self.row, earlier.row
        return (new.table != old.table
                or len(self.amounts.nodes) != len(earlier.amounts.nodes)
                or any(map(int.__gt__, _list_amounts(self.amounts),
                           _list_amounts(earlier.amounts)))
                or new.has_driver > old.has_driver
                or new.guests < old.guests
                or any(left > old.floating.get(name, 0)
                       for name, left in new.floating.items()))


def _list_amounts(host: model.Host) -> Iterable[int]:
    """Return the free amounts of a host and of its NUMA nodes.

    An unknown amount is -1, so that it counts as grown once it is known.
    """
    for free in (host.free, *(node.free for node in host.nodes)):
        for amount in free:
            yield -1 if amount >= _UNKNOWN else amount


def _known(amount: int) -> int | None:
    """Return a free amount; None if the host does not report it."""
    return amount if amount < _UNKNOWN else None
