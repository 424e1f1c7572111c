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


"""Bandwidth per guest and per host NUMA node (pure).

Groups are assigned to guests by their names: libvirt creates ``qemu-<domain
id>-...``, nova-compute ``ghsched-<UUID>``, as a control group or as a
monitoring group inside a control group that several guests share. The figure
of a control group includes its monitoring groups
(Documentation/filesystems/resctrl.rst, "mon_data"). All control groups and the
default group therefore sum up to the total use of a node.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import functools

from ghsched_nova.guest.cells import Cell
from ghsched_nova.guest import metadata
from ghsched_nova.monitor import effective_limits
from ghsched_nova.monitor import rates
from ghsched_nova.monitor import topology
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import schemata
from ghsched_placement.flavor import policy as policies
from ghsched_placement.flavor.vcpu_classes import VcpuClass


@dataclass(frozen=True)
class MonitoredGroup:
    """Resctrl group.

    :param number: inode number, which distinguishes the group from an earlier
        one of the same name.
    :param lines: schemata of a control group; None if they cannot be read.
    """

    name: naming.GroupName
    number: int
    lines: schemata.Schemata | None = None

    @property
    def path(self) -> str:
        """Path below the mount point; empty for the root group."""
        return self.name.path

    @property
    def is_control(self) -> bool:
        """Whether this is a control group, not a monitoring group."""
        return not self.name.monitor


@dataclass(frozen=True)
class GroupUsage:
    """Bandwidth and cache occupancy of a resctrl group by host NUMA nodes.

    :param used: bandwidth of the group.
    :param cached: bytes of the group in the L3 caches; nodes with unknown
        values are left out.
    """

    group: MonitoredGroup
    used: Mapping[topology.Nodes, rates.Figure]
    cached: Mapping[topology.Nodes, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """Bandwidth and cache occupancy of all resctrl groups of a host."""

    host: topology.MonitoredHost
    groups: tuple[GroupUsage, ...]


@dataclass(frozen=True)
class MonitoredGuest:
    """Running guest.

    :param name: libvirt's name of the domain.
    :param uuid: empty if the guest is known only by its group.
    :param domain_id: libvirt's domain ID; None if unknown.
    :param policy: bandwidth policy of the guest; None without one.
    :param problem: cause why the policy cannot be read.
    :param cells: guest NUMA cells; empty if unknown.
    :param server: name of the server in Nova; empty if unknown.
    :param devices: host PCI addresses of its passthrough devices.
    :param project: UUID of its project in Nova; empty if unknown.
    :param flavor: name of its flavor in Nova; empty if unknown.
    :param requires_irq_bypass: whether its flavor requires that interrupts of
        its devices reach it without the hypervisor.
    """

    name: str
    uuid: str = ''
    domain_id: int | None = None
    policy: metadata.DomainPolicy | None = None
    problem: str = ''
    cells: tuple[Cell, ...] = ()
    server: str = ''
    devices: tuple[str, ...] = ()
    project: str = ''
    flavor: str = ''
    requires_irq_bypass: bool = False

    @property
    def title(self) -> str:
        """Displayed name of a guest.

        This is the name of the server, or else of the libvirt domain.
        """
        return self.server or self.name

    @property
    def host_nodes(self) -> tuple[int, ...]:
        """Host NUMA nodes to which a guest's bandwidth policy applies.

        The value is empty if the guest has no policy.
        """
        return self.policy.host_nodes if self.policy else ()


@dataclass(frozen=True)
class GuestNodeBandwidth:
    """Requested, effective and used bandwidth of a guest on a host NUMA node.

    :param cached: bytes of the guest in the L3 caches; None if unknown.
    """

    nodes: topology.Nodes
    asked: policies.NodePolicy | None
    effective: effective_limits.EffectiveLimits | None
    used: rates.Figure
    cached: int | None = None


@dataclass(frozen=True)
class ClassUsage:
    """Bandwidth of a vCPU class of a guest.

    :param vcpu_class: class with a control group.
    :param nodes: usage on each host NUMA node of the guest.
    :param control_groups: control groups of the class; empty if it has none
        now.
    """

    vcpu_class: VcpuClass
    nodes: tuple[GuestNodeBandwidth, ...]
    control_groups: tuple[MonitoredGroup, ...] = ()


@dataclass(frozen=True)
class GuestUsage:
    """Bandwidth of a guest.

    :param groups: names of the guest's resctrl groups, including a shared one;
        empty if the guest is in the default group and not measured separately.
    :param nodes: usage on each host NUMA node that the guest uses or has a
        policy for.
    :param control_groups: control groups whose limits the guest has.
    :param classes: usage of each vCPU class with a control group; empty if
        the guest has no classes.
    """

    guest: MonitoredGuest
    groups: tuple[str, ...]
    nodes: tuple[GuestNodeBandwidth, ...]
    used: rates.Figure
    control_groups: tuple[MonitoredGroup, ...] = ()
    classes: tuple[ClassUsage, ...] = ()


@dataclass(frozen=True)
class NodeUsage:
    """Bandwidth of a host NUMA node.

    :param used: bandwidth used by all resctrl groups.
    :param default: bandwidth used by the default group, without the guests
        that are measured in it.
    :param guests: bandwidth used by all guests that are measured separately.
    :param others: bandwidth used by control groups that belong to no guest,
        without the guests that are measured in them.
    :param capacity: bytes per second that the node can deliver; None if
        unknown.
    :param guaranteed: percent of the node's bandwidth that is guaranteed to
        guests.
    """

    nodes: topology.Nodes
    used: rates.Figure
    default: rates.Figure
    guests: rates.Figure
    others: rates.Figure
    capacity: int | None
    guaranteed: int


@dataclass(frozen=True)
class Snapshot:
    """Bandwidth of a host, its NUMA nodes, guests and groups at one time.

    :param title: displayed name of the host's variant of resctrl.
    :param unit: unit of the kernel's monitor files.
    :param others: resctrl groups that belong to no guest, without the root
        group.
    :param cached: whether L3 cache occupancy was read.
    """

    title: str
    unit: rates.Unit
    nodes: tuple[NodeUsage, ...]
    guests: tuple[GuestUsage, ...]
    others: tuple[GroupUsage, ...]
    used: rates.Figure
    cached: bool = False


# -- whose group it is --------------------------------------------------------


@dataclass(frozen=True)
class GuestIndex:
    """Index of running guests, to find the guest of a resctrl group.

    :param by_uuid: guests by UUID.
    :param by_domain: guests by libvirt's domain ID.
    """

    by_uuid: Mapping[str, MonitoredGuest] = field(default_factory=dict)
    by_domain: Mapping[int, MonitoredGuest] = field(default_factory=dict)

    def find_guest_of_group(self, group: MonitoredGroup
                            ) -> MonitoredGuest | None:
        """Find the guest to which a resctrl group belongs, by group name.

        If libvirt did not list the guest, a guest is made from the group's
        name.

        :returns: None if the group is not a guest's.
        """
        name = group.name
        if name.uuid is not None:
            return (self.by_uuid.get(name.uuid)
                    or MonitoredGuest(name.uuid, name.uuid))
        if name.machine is None:
            return None
        number, part = name.machine
        guest = self.by_domain.get(number)
        if guest is not None and name.is_of_domain(number, guest.name):
            return guest
        return MonitoredGuest(part or f'domain {number}', domain_id=number)


def index_guests_by_group(guests: Iterable[MonitoredGuest]) -> GuestIndex:
    """Return an index of guests, to find the guest of a resctrl group.

    The name of a resctrl group contains the UUID of its guest or libvirt's
    domain id, so the guests are indexed by both.

    :param guests: running guests.
    """
    guests = tuple(guests)
    return GuestIndex(
        {guest.uuid: guest for guest in guests},
        {guest.domain_id: guest for guest in guests
         if guest.domain_id is not None})


# -- all together -------------------------------------------------------------


def make_bandwidth_snapshot(usage: Usage, guests: Sequence[MonitoredGuest]
                            ) -> Snapshot:
    """Return the requested, allowed and used bandwidth of host and guests.

    :param usage: measured bandwidth by resctrl group.
    :param guests: running guests of libvirt. Guests that are known only by
        their groups are added.
    """
    find = index_guests_by_group(guests)
    by_guest: dict[MonitoredGuest, list[GroupUsage]] = {
        guest: [] for guest in guests}
    others = []
    for one in usage.groups:
        guest = find.find_guest_of_group(one.group) if one.group.path else None
        if guest is not None:
            by_guest.setdefault(guest, []).append(one)
        elif one.group.path:
            others.append(one)
    control = {one.group.path: one for one in usage.groups
               if one.group.path and one.group.is_control}
    held = effective_limits.LimitCache(usage.host)
    rows = tuple(_make_guest_usage(held, guest, found, control)
                 for guest, found in by_guest.items())
    root = [one for one in usage.groups if not one.group.path]
    return Snapshot(
        usage.host.title,
        usage.host.monitor.unit,
        _make_node_usages(usage, root, by_guest, others, rows),
        rows,
        tuple(others),
        rates.sum_bandwidths(
            figure for one in usage.groups if one.group.is_control
            for figure in one.used.values()),
        any(one.cached for one in usage.groups),
    )


def _drop_nested_monitoring_groups(
        groups: Sequence[GroupUsage]) -> list[GroupUsage]:
    """Drop monitoring groups whose parent group is in the list, too.

    The bandwidth of the parent includes that of these groups.
    """
    names = {one.group.path for one in groups if one.group.is_control}
    return [one for one in groups
            if one.group.is_control or one.group.name.control not in names]


def _sum_used_bandwidth(groups: Iterable[GroupUsage],
                        nodes: topology.Nodes) -> rates.Figure:
    return rates.sum_bandwidths(
        one.used[nodes] for one in groups if nodes in one.used)


def _sum_cached_bytes(groups: Iterable[GroupUsage],
                      nodes: topology.Nodes) -> int | None:
    known = [one.cached[nodes] for one in groups if nodes in one.cached]
    return sum(known) if known else None


def _make_guest_usage(
        limit_cache: effective_limits.LimitCache, guest: MonitoredGuest,
        groups: Sequence[GroupUsage],
        control_groups: Mapping[str, GroupUsage]) -> GuestUsage:
    """Return the requested, allowed and used bandwidth of a guest.

    :param limit_cache: cache of the limits of control groups.
    :param groups: resctrl groups of this guest alone.
    :param control_groups: all control groups by name.
    """
    shared = [control_groups[name] for name in list_shared_groups(
        guest, [one.group for one in groups]) if name in control_groups]
    held = shared[:1] or groups
    asked = _get_policies_by_node(guest)
    rows = _make_node_rows(limit_cache, groups, held, asked)
    classes = tuple(_make_class_usages(limit_cache, guest, groups))
    if classes:
        rows = tuple(replace(row, effective=effective_limits.sum_class_limits(
            mine.effective for one in classes for mine in one.nodes
            if mine.nodes == row.nodes)) for row in rows)
    measured = _drop_nested_monitoring_groups(groups)
    return GuestUsage(
        guest,
        tuple(dict.fromkeys(one.group.path for one in (*held, *groups))),
        rows,
        rates.sum_bandwidths(
            figure for one in measured for figure in one.used.values()),
        tuple(one.group for one in held if one.group.lines is not None),
        classes,
    )


def _make_class_usages(limit_cache: effective_limits.LimitCache,
                       guest: MonitoredGuest,
                       groups: Sequence[GroupUsage]) -> Iterator[ClassUsage]:
    """Yield the bandwidth of each vCPU class that has a control group.

    :param groups: resctrl groups of this guest.
    """
    if guest.policy is None or not guest.policy.policy.classes:
        return
    for one in guest.policy.policy.groups:
        mine = [group for group in groups
                if is_group_of_class(group.group.name, one)]
        yield ClassUsage(
            one, _make_node_rows(limit_cache, mine, mine, dict(zip(
                guest.policy.host_nodes, one.nodes, strict=False))),
            tuple(group.group for group in mine
                  if group.group.lines is not None))


def is_group_of_class(name: naming.GroupName, vcpu_class: VcpuClass) -> bool:
    """Whether a guest's control group belongs to a vCPU class of the guest.
    """
    return (name.vcpu_class == vcpu_class.name
            or name.is_of_vcpus(vcpu_class.vcpus or ()))


def _make_node_rows(limit_cache: effective_limits.LimitCache,
                    groups: Sequence[GroupUsage],
                    held: Sequence[GroupUsage],
                    asked: Mapping[int, policies.NodePolicy]
                    ) -> tuple[GuestNodeBandwidth, ...]:
    """Return requested, allowed and used bandwidth on each host NUMA node.

    :param groups: groups in which the bandwidth is measured.
    :param held: control groups whose limits apply.
    :param asked: requested bandwidth by host NUMA node.
    """
    measured = _drop_nested_monitoring_groups(groups)
    every = sorted({nodes for one in measured for nodes in one.used}
                   | {(node,) for node in asked
                      if not any(node in nodes for one in measured
                                 for nodes in one.used)})
    rows = []
    for nodes in every:
        wanted = [asked[node] for node in nodes if node in asked]
        limits = effective_limits.select_strictest_limits(
            limit_cache.find_effective_limits(one.group.lines, nodes, asked)
            for one in held if one.group.lines is not None)
        row = GuestNodeBandwidth(nodes, wanted[0] if wanted else None, limits,
                                 _sum_used_bandwidth(measured, nodes),
                                 _sum_cached_bytes(measured, nodes))
        if not asked or wanted or row.used.rate:
            rows.append(row)
    return tuple(rows)


def list_shared_groups(
    guest: MonitoredGuest, groups: Iterable[MonitoredGroup]
) -> tuple[str, ...]:
    """Return the control groups that a guest shares with other guests.

    Most guests share no group. The group that the guest's policy requires
    comes first, even if it does not exist.

    :param groups: resctrl groups that belong to this guest only. Their parents
        may be shared groups.
    :returns: names of the shared groups.
    """
    found = []
    if guest.policy is not None and guest.policy.shared:
        found.append(naming.render_shared_name(guest.policy.policy.nodes,
                                               guest.policy.host_nodes))
    found += [group.name.control for group in groups
              if not group.is_control
              and naming.parse_group_name(group.name.control).is_shared]
    return tuple(dict.fromkeys(found))


def _get_policies_by_node(guest: MonitoredGuest
                          ) -> dict[int, policies.NodePolicy]:
    if guest.policy is None:
        return {}
    return dict(zip(guest.policy.host_nodes, guest.policy.policy.nodes,
                    strict=False))


def _make_node_usages(
        usage: Usage, root: Sequence[GroupUsage],
        by_guest: Mapping[MonitoredGuest, Sequence[GroupUsage]],
        others: Sequence[GroupUsage],
        rows: Sequence[GuestUsage]) -> tuple[NodeUsage, ...]:
    """Return the bandwidth of each host NUMA node.

    :param root: the root group.
    :param by_guest: resctrl groups by guest.
    :param others: groups that belong to no guest, without the root group.
    :param rows: bandwidth of each guest.
    """
    measured = [one for groups in by_guest.values()
                for one in _drop_nested_monitoring_groups(groups)]
    inside = [one for one in measured if not one.group.is_control]
    in_root = [one for one in inside if not one.group.name.control]
    in_others = [one for one in inside if one.group.name.control]
    foreign = [one for one in others if one.group.is_control]
    control = [one for one in usage.groups if one.group.is_control]
    promised = _sum_guarantees(rows)
    found = []
    for nodes in sorted({nodes for one in root for nodes in one.used}):
        sum_used = functools.partial(_sum_used_bandwidth, nodes=nodes)
        found.append(NodeUsage(
            nodes, used=sum_used(control),
            default=rates.subtract_bandwidths(sum_used(root),
                                              [sum_used(in_root)]),
            guests=sum_used(measured) if measured else rates.ZERO,
            others=rates.subtract_bandwidths(
                sum_used(foreign) if foreign else rates.ZERO,
                [sum_used(in_others)]),
            capacity=_sum_capacity(usage.host, nodes),
            guaranteed=max((promised.get(node, 0) for node in nodes),
                           default=0)))
    return tuple(found)


def _sum_guarantees(rows: Iterable[GuestUsage]) -> dict[int, int]:
    promised: dict[int, int] = {}
    for row in rows:
        for node, asked in _get_policies_by_node(row.guest).items():
            promised[node] = promised.get(node, 0) + asked.minimum
    return promised


def _sum_capacity(host: topology.MonitoredHost,
                  nodes: topology.Nodes) -> int | None:
    if not nodes or any(node not in host.capacity for node in nodes):
        return None
    return sum(host.capacity[node] for node in nodes)
