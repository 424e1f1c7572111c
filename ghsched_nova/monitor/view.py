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

A guest's groups are found by their names: ``qemu-<domain id>-...`` is made by
libvirt, ``ghsched-<UUID>`` by nova-compute, as a control group or, inside of
one that several guests share, as a monitoring group. The figure of a control
group has in it those of the monitoring groups below it
(Documentation/filesystems/resctrl.rst, "mon_data"), so that all control
groups, with the default group, add up to what a node is used, and nothing is
counted twice.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from fractions import Fraction

from ghsched_nova.guest.cells import Cell
from ghsched_nova.guest import metadata
from ghsched_nova.monitor import rates
from ghsched_nova.monitor import topology
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import schemata
from ghsched_placement import bandwidth
from ghsched_placement import policy as policies


@dataclass(frozen=True)
class Group:
    """A group of resctrl.

    :param name: its path below the root; empty for the root group.
    :param number: tells it apart from an earlier group of the same name.
    :param control: whether it is a control group, and no monitoring group.
    :param parent: the control group that a monitoring group is in.
    :param lines: what a control group holds, None where that cannot be
        read.
    """

    name: str
    number: int
    control: bool
    parent: str
    lines: schemata.Schemata | None = None

    @property
    def last_name(self) -> str:
        """The name of its directory."""
        return self.name.rpartition('/')[2]


@dataclass(frozen=True)
class GroupUsage:
    """What a group uses, by the host NUMA nodes of its domains.

    :param used: bandwidth.
    :param cached: bytes that it fills of the L3 caches; of nodes left out
        nothing is known.
    """

    group: Group
    used: Mapping[topology.Nodes, rates.Figure]
    cached: Mapping[topology.Nodes, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """The bandwidth of all groups of a host."""

    host: topology.Host
    groups: tuple[GroupUsage, ...]


@dataclass(frozen=True)
class Guest:
    """A running guest.

    :param name: as libvirt has it.
    :param uuid: empty where only the group shows the guest.
    :param domain_id: libvirt's number, None where it is not known.
    :param policy: what the guest was started with; None without one.
    :param problem: why the policy cannot be read.
    :param cells: its NUMA nodes; none where they are not known.
    :param server: the name of the server in Nova; empty where it is not
        known.
    :param devices: PCI addresses of its passthrough devices on the host.
    :param project: UUID of its project in Nova; empty where it is not known.
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

    @property
    def title(self) -> str:
        """The name that people know it by."""
        return self.server or self.name

    @property
    def host_nodes(self) -> tuple[int, ...]:
        """Host NUMA nodes of its policy; empty without one."""
        return self.policy.host_nodes if self.policy else ()


@dataclass(frozen=True)
class Effective(bandwidth.Bandwidth):
    """What the control group of a guest holds on a host NUMA node.

    A guarantee or a priority is None without such a line, the cap where it
    is a bandwidth and it is not known what the node can deliver.

    :param rate: the cap in bytes per second; None where there is no cap, or
        where it is a percentage of what nobody knows.
    """

    rate: int | None = None


@dataclass(frozen=True)
class GuestNode:
    """A guest on a host NUMA node: asked, effective and used.

    :param cached: bytes that it fills of the L3 caches; None when not known.
    """

    nodes: topology.Nodes
    asked: policies.NodePolicy | None
    effective: Effective | None
    used: rates.Figure
    cached: int | None = None


@dataclass(frozen=True)
class GuestUsage:
    """A guest.

    :param groups: names of its groups, one that it shares among them; empty
        when it is in the default group with all others, and is not measured
        by itself.
    :param nodes: host NUMA nodes that it uses or has a policy for.
    :param held: the control groups among them whose values hold for it.
    """

    guest: Guest
    groups: tuple[str, ...]
    nodes: tuple[GuestNode, ...]
    used: rates.Figure
    held: tuple[Group, ...] = ()


@dataclass(frozen=True)
class NodeUsage:
    """A host NUMA node.

    :param used: of all groups.
    :param default: of the default group, without the guests in it.
    :param guests: of all guests that are measured by themselves.
    :param others: of groups that are nobody's guest.
    :param capacity: bytes per second that it can deliver, where known.
    :param guaranteed: percent that its guests are promised in all.
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
    """All that is shown of a host.

    :param unit: how the kernel reports bandwidth.
    :param others: groups that are nobody's guest, without the root group.
    :param cached: whether it was read how much of the caches groups fill.
    :param short: by host NUMA node, the chance that bursts are short, 0 to 1.
    """

    title: str
    unit: rates.Unit
    nodes: tuple[NodeUsage, ...]
    guests: tuple[GuestUsage, ...]
    others: tuple[GroupUsage, ...]
    used: rates.Figure
    cached: bool = False
    short: Mapping[int, float] = field(default_factory=dict)

    def short_of(self, nodes: topology.Nodes) -> float | None:
        """The greatest chance of some nodes; None where none is known."""
        return max((self.short[node] for node in nodes if node in self.short),
                   default=None)


# -- whose group it is --------------------------------------------------------


@dataclass(frozen=True)
class Owners:
    """Finds the guest of a group."""

    by_uuid: Mapping[str, Guest] = field(default_factory=dict)
    by_domain: Mapping[int, Guest] = field(default_factory=dict)

    def of(self, group: Group) -> Guest | None:
        """The guest of a group by its name; None for the groups of others.

        A guest that nobody has reported is made up from the name. The number
        of a domain is not enough: libvirt can begin to count again, and a
        group may be left from before.
        """
        uuid = naming.guest_of(group.last_name)
        if uuid is not None:
            return self.by_uuid.get(uuid) or Guest(uuid, uuid)
        machine = naming.machine(group.last_name)
        if machine is None:
            return None
        number, part = machine
        guest = self.by_domain.get(number)
        if guest is not None and naming.alike(part, guest.name):
            return guest
        return Guest(part or f'domain {number}', domain_id=number)


def owners(guests: Iterable[Guest]) -> Owners:
    """For guests that libvirt lists."""
    guests = tuple(guests)
    return Owners(
        {guest.uuid: guest for guest in guests},
        {guest.domain_id: guest for guest in guests
         if guest.domain_id is not None})


# -- all together -------------------------------------------------------------


def snapshot(usage: Usage, guests: Sequence[Guest]) -> Snapshot:
    """Asked, effective and used bandwidth of a host.

    :param guests: as libvirt has them; others are added for groups that tell
        of them.
    """
    find = owners(guests)
    by_guest: dict[Guest, list[GroupUsage]] = {guest: [] for guest in guests}
    others = []
    for one in usage.groups:
        guest = find.of(one.group) if one.group.name else None
        if guest is not None:
            by_guest.setdefault(guest, []).append(one)
        elif one.group.name:
            others.append(one)
    control = {one.group.name: one for one in usage.groups
               if one.group.name and one.group.control}
    held = _Held(usage.host)
    rows = tuple(_guest(held, guest, found, control)
                 for guest, found in by_guest.items())
    root = [one for one in usage.groups if not one.group.name]
    return Snapshot(
        usage.host.title, usage.host.monitor.unit,
        _nodes(usage, root, by_guest, others, rows), rows, tuple(others),
        rates.total(figure for one in usage.groups if one.group.control
                    for figure in one.used.values()),
        any(one.cached for one in usage.groups))


def _measured(groups: Sequence[GroupUsage]) -> list[GroupUsage]:
    """Those that are not part of another one in the list."""
    names = {one.group.name for one in groups if one.group.control}
    return [one for one in groups
            if one.group.control or one.group.parent not in names]


def _figure(groups: Iterable[GroupUsage],
            nodes: topology.Nodes) -> rates.Figure:
    return rates.total(one.used[nodes] for one in groups if nodes in one.used)


def _cached(groups: Iterable[GroupUsage],
            nodes: topology.Nodes) -> int | None:
    known = [one.cached[nodes] for one in groups if nodes in one.cached]
    return sum(known) if known else None


def _guest(on: '_Held', guest: Guest, groups: Sequence[GroupUsage],
           control: Mapping[str, GroupUsage]) -> GuestUsage:
    """Asked, effective and used bandwidth of a guest.

    :param groups: those that are its own.
    :param control: all control groups by name.
    """
    shared = [control[name] for name in shared_groups(
        guest, [one.group for one in groups]) if name in control]
    held = shared[:1] or groups
    measured = _measured(groups)
    asked = _asked(guest)
    every = sorted({nodes for one in measured for nodes in one.used}
                   | {(node,) for node in asked
                      if not any(node in nodes for one in measured
                                 for nodes in one.used)})
    rows = []
    for nodes in every:
        wanted = [asked[node] for node in nodes if node in asked]
        row = GuestNode(
            nodes, wanted[0] if wanted else None,
            _least([on.all(one.group.lines, nodes, asked)
                    for one in held if one.group.lines is not None]),
            _figure(measured, nodes), _cached(measured, nodes))
        if not asked or wanted or row.used.rate:
            rows.append(row)
    return GuestUsage(
        guest, tuple(dict.fromkeys(
            one.group.name for one in (*held, *groups))), tuple(rows),
        rates.total(figure for one in measured
                    for figure in one.used.values()),
        tuple(one.group for one in held if one.group.lines is not None))


def shared_groups(guest: Guest, groups: Iterable[Group]) -> tuple[str, ...]:
    """The control groups that a guest has, or is to have, with others.

    :param groups: those that are its own.
    :returns: their names, that of its policy first; none as a rule.
    """
    found = []
    if guest.policy is not None and guest.policy.shared:
        found.append(naming.shared_name(guest.policy.policy.nodes,
                                        guest.policy.host_nodes))
    found += [group.parent for group in groups
              if not group.control and naming.is_shared(group.parent)]
    return tuple(dict.fromkeys(found))


def _asked(guest: Guest) -> dict[int, policies.NodePolicy]:
    if guest.policy is None:
        return {}
    return dict(zip(guest.policy.host_nodes, guest.policy.policy.nodes,
                    strict=False))


def _nodes(usage: Usage, root: Sequence[GroupUsage],
           by_guest: Mapping[Guest, Sequence[GroupUsage]],
           others: Sequence[GroupUsage],
           rows: Sequence[GuestUsage]) -> tuple[NodeUsage, ...]:
    measured = [one for groups in by_guest.values()
                for one in _measured(groups)]
    inside = [one for one in measured if not one.group.control]
    in_root = [one for one in inside if not one.group.parent]
    in_others = [one for one in inside if one.group.parent]
    foreign = [one for one in others if one.group.control]
    control = [one for one in usage.groups if one.group.control]
    promised = _promised(rows)
    return tuple(
        NodeUsage(
            nodes, _figure(control, nodes),
            rates.without(_figure(root, nodes),
                          [_figure(in_root, nodes)]),
            _figure(measured, nodes) if measured else rates.ZERO,
            rates.without(_figure(foreign, nodes) if foreign else rates.ZERO,
                          [_figure(in_others, nodes)]),
            _capacity(usage.host, nodes),
            max((promised.get(node, 0) for node in nodes), default=0))
        for nodes in sorted({nodes for one in root for nodes in one.used}))


def _promised(rows: Iterable[GuestUsage]) -> dict[int, int]:
    promised: dict[int, int] = {}
    for row in rows:
        for node, asked in _asked(row.guest).items():
            promised[node] = promised.get(node, 0) + asked.minimum
    return promised


def _capacity(host: topology.Host, nodes: topology.Nodes) -> int | None:
    if not nodes or any(node not in host.capacity for node in nodes):
        return None
    return sum(host.capacity[node] for node in nodes)


# -- what a group holds -------------------------------------------------------


@dataclass(frozen=True)
class _Held:
    """What groups hold, found out once for all groups with the same lines."""

    host: topology.Host
    _found: dict[tuple[int, topology.Nodes, tuple[int, ...]],
                 Effective | None] = field(default_factory=dict)

    def all(self, lines: schemata.Schemata, nodes: topology.Nodes,
            of: Collection[int]) -> Effective | None:
        """See :func:`_on_all`."""
        key = id(lines), nodes, tuple(of)
        if key not in self._found:
            self._found[key] = _on_all(self.host, lines, nodes, of)
        return self._found[key]


def _on_all(host: topology.Host, lines: schemata.Schemata,
            nodes: topology.Nodes, of: Collection[int]) -> Effective | None:
    """What a control group holds on the nodes of one figure, together."""
    held = [effective(host, lines, node, of) for node
            in [node for node in nodes if node in of] or nodes]
    parts = [one.rate for one in held if one and one.rate is not None]
    least = _least(held)
    return least and replace(
        least, rate=sum(parts) if len(parts) == len(held) else None)


def effective(host: topology.Host, lines: schemata.Schemata, node: int,
              of: Collection[int] = ()) -> Effective | None:
    """What a control group holds on a host NUMA node.

    Where the domains of the node differ, it is what holds on all of them.
    Where a cap is a bandwidth, that of a domain which several nodes have
    (sub-NUMA clusters) is divided among them.

    :param of: the nodes of the guest; empty when they are not known, and it
        may be on all of them.
    :returns: None where the node has no domain in the MB line, or where the
        lines make no sense.
    """
    domains = host.control.get(node)
    if host.dialect is None or not domains:
        return None
    found = {}
    for knob in host.dialect.knobs:
        try:
            values = lines.values(knob.line) or {}
        except schemata.SchemataError:
            return None
        found[knob.role] = {domain: values[domain] for domain in domains
                            if domain in values}
    if not found.get('maximum'):
        return None
    maximum, rate = _cap(host, found['maximum'], node, of)
    return Effective(
        minimum=min(found.get('minimum', {}).values(), default=None),
        maximum=maximum, rate=rate,
        hardlimit=_hardlimit(host.dialect,
                             found.get('hardlimit', {}).values()),
        priority=min(found.get('priority', {}).values(), default=None))


def _cap(host: topology.Host, caps: Mapping[int, int], node: int,
         of: Collection[int]) -> tuple[float | None, int | None]:
    """A cap in percent and in bytes per second.

    :param caps: by domain.
    """
    capacity = host.capacity.get(node)
    if all(cap >= host.no_cap for cap in caps.values()):
        return 100, None
    size = host.dialect.unit.size if host.dialect else None
    if size is None:
        percent = min(caps.values())
        return percent, (capacity * percent // 100 if capacity else None)
    rate = round(sum(cap * size * _part(host, domain, node, of)
                     for domain, cap in caps.items()))
    return (min(100, round(100 * rate / capacity, 2)) if capacity else None,
            rate)


def _part(host: topology.Host, domain: int, node: int,
          of: Collection[int]) -> Fraction:
    """How much of the cap of a domain is that of a node, at most 1."""
    every = [other for other, domains in host.control.items()
             if domain in domains]
    nodes = [other for other in every if other in of] or every
    if node not in nodes:
        return Fraction(1)      # all that its threads there would be held to
    speeds = [host.capacity.get(other, 0) for other in nodes]
    if not all(speeds):
        return Fraction(1, len(nodes))
    return Fraction(host.capacity[node], sum(speeds))


def _hardlimit(dialect: dialects.Dialect,
               values: Collection[int]) -> bool | None:
    return all(values) if values else dialect.hardlimit_fixed


def _least(found: Iterable[Effective | None]) -> Effective | None:
    """Of several groups of a guest, the one that holds it back most."""
    held = [one for one in found if one is not None]
    if len(held) == 1:      # as a rule
        return held[0]
    return min(held, default=None, key=lambda one: (
        100 if one.maximum is None else one.maximum,
        float('inf') if one.rate is None else one.rate))
