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

"""Needs of guests and free resources of hosts in the index (pure)."""

from collections.abc import Hashable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import functools
from typing import Any

from ghsched_placement.features.index import headroom
from ghsched_placement.query import matching

#: Seconds for which a host is not proposed again for requests like one that
#: was refused there, unless the host reports more free resources.
REFUSAL_AGE = 60.0

#: Vendor and product of a device, as Nova's PCI pools have them.
Device = tuple[str, str]


@dataclass(frozen=True)
class NodeNeed:
    """Resources that a guest NUMA node needs on its host NUMA node.

    :param pinned: dedicated CPUs.
    :param shared: vCPUs on shared CPUs.
    :param memory: MiB.
    :param page: page size in KiB; 0 for any.
    :param bandwidth: percent of the host node's memory bandwidth.
    :param devices: number of passthrough devices by vendor and product.
    """

    pinned: int = 0
    shared: int = 0
    memory: int = 0
    page: int = 0
    bandwidth: int = 0
    devices: tuple[tuple[Device, int], ...] = ()


@dataclass(frozen=True)
class Need:
    """Resources that a scheduling request needs on one host.

    :param nodes: resources that each guest NUMA node needs.
    :param groups: number of resctrl control groups.
    :param needs_driver: whether the host must run ghsched's driver, which lets
        the scheduler choose the host NUMA nodes of a guest.
    :param other_requirements: all other requirements for which Placement may
        refuse a host; equal for requests with equal requirements.
    """

    nodes: tuple[NodeNeed, ...]
    groups: int = 0
    needs_driver: bool = False
    other_requirements: Hashable = None

    @functools.cached_property
    def guest_nodes_by_size(self) -> tuple[int, ...]:
        """Numbers of the guest's NUMA nodes, from the largest to the smallest.
        """
        return tuple(sorted(range(len(self.nodes)), reverse=True, key=(
            lambda number: _get_sort_size(self.nodes[number]))))

    @functools.cached_property
    def cpus_and_memory(self) -> 'Need':
        """Part of the need that each report of a host states as Nova reads it.

        Bandwidth and control groups are left out, because a host reports them
        only once in a while, and devices, because they may be on other nodes.
        """
        return Need(tuple(
            NodeNeed(node.pinned, node.shared, node.memory, node.page)
            for node in self.nodes))


@dataclass(frozen=True)
class NodeCapacity:
    """Free resources of a host NUMA node.

    :param number: number of the NUMA node.
    :param cpus: number of dedicated CPUs, free or not.
    :param pinned: number of free dedicated CPUs.
    :param shared: number of further vCPUs that fit on the shared CPUs.
    :param pages: free memory in MiB by page size in KiB. The key 0 is for
        memory in pages of any size.
    :param bandwidth: free percent of the memory bandwidth; None if unknown.
    :param devices: number of free passthrough devices by vendor and product.
    """

    number: int
    cpus: int = 0
    pinned: int = 0
    shared: int = 0
    pages: Mapping[int, int] = field(default_factory=dict)
    bandwidth: int | None = None
    devices: Mapping[Device, int] = field(default_factory=dict)

    def has_capacity_for(self, need: NodeNeed) -> bool:
        """Return whether a guest NUMA node fits on this host NUMA node."""
        return (self.pinned >= need.pinned and self.shared >= need.shared
                and self.pages.get(need.page, 0) >= need.memory
                and (self.bandwidth is None
                     or self.bandwidth >= need.bandwidth)
                and all(self.devices.get(device, 0) >= count
                        for device, count in need.devices))

    def subtract_guest_node(self, need: NodeNeed, from_nova_report: bool,
                            from_bandwidth: bool) -> 'NodeCapacity':
        """Return this host node's free resources less those of a guest node.

        :param need: resources of the guest NUMA node.
        :param from_nova_report: whether to subtract CPUs, memory and devices.
            False if the host's report in Nova includes the guest already.
        :param from_bandwidth: whether to subtract bandwidth. False if the
            figures from Placement include the guest already.
        """
        room = self
        if from_nova_report:
            wanted = dict(need.devices)
            room = replace(
                room, pinned=room.pinned - need.pinned,
                shared=room.shared - need.shared,
                pages={size: left - need.memory * (size in (0, need.page))
                       for size, left in room.pages.items()},
                devices={device: left - wanted.get(device, 0)
                         for device, left in room.devices.items()})
        if from_bandwidth and room.bandwidth is not None:
            room = replace(room, bandwidth=room.bandwidth - need.bandwidth)
        return room


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
class HostReport:
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
    """

    uuid: str
    name: str
    cell: str
    updated: Hashable
    nodes: tuple[NodeCapacity, ...] = ()
    guests: int = 0
    has_driver: bool = False
    placement_headroom: headroom.Headroom | None = None
    floating: Mapping[Device, int] = field(default_factory=dict)
    pfs: tuple[PfCapacity, ...] = ()


@dataclass(frozen=True)
class HostView:
    """Free resources of a host at one moment.

    :param row: last report of the host.
    :param nodes: free resources of the host's NUMA nodes, in the order of the
        report.
    :param groups: number of free control groups; None if unknown.
    :param refused: time at which Placement or Nova refused a request on this
        host, by the needs of the request.
    """

    row: HostReport
    nodes: tuple[NodeCapacity, ...]
    groups: int | None = None
    refused: Mapping[Need, float] = field(default_factory=dict)

    def list_pfs(self) -> list[PfCapacity]:
        """Return the host's PFs with the VFs that are certainly free.

        Guests that were placed later than the host's report have VFs of a
        NUMA node, and the PF is not recorded: the VFs are subtracted from
        each PF of the node.
        """
        newer: dict[tuple[int, Device], int] = {}
        for reported, room in zip(self.row.nodes, self.nodes, strict=True):
            for device, count in reported.devices.items():
                newer[room.number, device] = (
                    count - room.devices.get(device, 0))
        return [replace(pf, free=pf.free - newer.get((pf.node, pf.device), 0))
                for pf in self.row.pfs]

    def assign_nodes(self, need: Need) -> tuple[int, ...] | None:
        """Choose a host NUMA node for each guest NUMA node.

        The largest guest node is assigned first, to the host node with the
        fewest free CPUs.

        :param need: resources of each guest NUMA node.
        :returns: the chosen host NUMA nodes, as positions in the host's
            report; None if the guest certainly does not fit on the host.
        """
        if need.needs_driver and not self.row.has_driver:
            return None
        if self.groups is not None and self.groups < need.groups:
            return None
        choices: dict[NodeNeed, list[int]] = {}
        for node in need.nodes:
            if node not in choices:
                choices[node] = self._list_fitting_nodes(node)
                if not choices[node]:
                    return None
        return matching.match_items_to_places(
            [choices[node] for node in need.nodes], need.guest_nodes_by_size)

    def _list_fitting_nodes(self, need: NodeNeed) -> list[int]:
        """Return the host NUMA nodes on which a guest NUMA node fits.

        :returns: the nodes as positions in the host's report, the node with
            the fewest free CPUs first.
        """
        places = [place for place, room in enumerate(self.nodes)
                  if room.has_capacity_for(need)]
        return sorted(
            places, key=lambda at: _make_node_sort_key(self.nodes[at], need))

    def has_refused(self, need: Need, now: float) -> bool:
        """Return whether the host refused an equal request in the last minute.

        :param need: resources that the request needs on one host.
        :param now: present time in seconds of the monotonic clock.
        """
        when = self.refused.get(need) if self.refused else None
        return when is not None and now - when < REFUSAL_AGE

    def has_more_free_than(self, earlier: 'HostView') -> bool:
        """Return whether more of any resource is free than in an earlier view.
        """
        return (_nodes_gained(earlier.nodes, self.nodes)
                or self.row.has_driver > earlier.row.has_driver
                or _may_have_grown(self.groups, earlier.groups)
                or self.row.guests < earlier.row.guests
                or _amounts_grew(earlier.row.floating, self.row.floating))


def _get_sort_size(need: NodeNeed) -> tuple[int, ...]:
    return (sum(count for _device, count in need.devices), need.bandwidth,
            need.pinned, need.shared, need.memory)


def _make_node_sort_key(free: NodeCapacity, need: NodeNeed) -> tuple[int, ...]:
    """Return a host NUMA node's sort key for the placement of a guest node.

    The guest NUMA node is tried on the host nodes in ascending order of their
    keys. Host nodes without guests come last. Host nodes with devices also
    come last if the guest needs no devices.

    :param free: free resources of the host NUMA node.
    :param need: resources of the guest NUMA node.
    """
    spare = not need.devices and any(free.devices.values())
    return free.pinned == free.cpus, spare, free.pinned - need.pinned


def _nodes_gained(before: Sequence[NodeCapacity],
                  after: Sequence[NodeCapacity]) -> bool:
    return len(before) != len(after) or any(
        new.pinned > old.pinned or new.shared > old.shared
        or _may_have_grown(new.bandwidth, old.bandwidth) or _amounts_grew(
            old.pages, new.pages) or _amounts_grew(old.devices, new.devices)
        for old, new in zip(before, after, strict=True))


def _may_have_grown(new: int | None, old: int | None) -> bool:
    """Return whether a free amount may be larger than before.

    An amount of None is unknown, so it may be larger.
    """
    return new != old and (new is None or old is None or new > old)


def _amounts_grew(old: Mapping[Any, int], new: Mapping[Any, int]) -> bool:
    return any(left > old.get(name, 0) for name, left in new.items())
