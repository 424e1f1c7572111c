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

"""Bandwidth limits that the kernel enforces, from schemata (pure)."""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from fractions import Fraction

from ghsched_nova.monitor import topology
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import schemata
from ghsched_placement.flavor import bandwidth


@dataclass(frozen=True)
class EffectiveLimits(bandwidth.Bandwidth):
    """Bandwidth limits that the kernel enforces for a guest on a NUMA node.

    The guarantee or the priority is None if resctrl of this host has no
    schemata line for it. The cap in percent is None if resctrl has caps in
    bytes and the bandwidth of the node is unknown.

    :param rate: cap in bytes per second; None without a cap, or if the cap is
        a percentage of an unknown bandwidth.
    """

    rate: int | None = None


@dataclass(frozen=True)
class LimitCache:
    """Cache of bandwidth limits, shared by control groups with equal schemata.
    """

    host: topology.MonitoredHost
    _found: dict[tuple[int, topology.Nodes, tuple[int, ...]],
                 EffectiveLimits | None] = field(default_factory=dict)

    def find_effective_limits(
            self, lines: schemata.Schemata, nodes: topology.Nodes,
            guest_host_nodes: Collection[int]) -> EffectiveLimits | None:
        """Return a control group's bandwidth limits on host NUMA nodes.

        The result is cached for equal arguments.

        :param lines: schemata of the group.
        :param nodes: host NUMA nodes whose bandwidth is reported together.
        :param guest_host_nodes: host NUMA nodes of the guest; empty if
            unknown.
        """
        key = id(lines), nodes, tuple(guest_host_nodes)
        if key not in self._found:
            self._found[key] = _compute_limits_on_several_nodes(
                self.host, lines, nodes, guest_host_nodes)
        return self._found[key]


def _compute_limits_on_several_nodes(
        host: topology.MonitoredHost, lines: schemata.Schemata,
        nodes: topology.Nodes,
        guest_host_nodes: Collection[int]) -> EffectiveLimits | None:
    """Return a control group's bandwidth limits on several host NUMA nodes.

    The kernel reports only the sum of the bandwidth on these nodes. The
    result is the strictest limit of a single node in percent, and the sum of
    the nodes' caps in bytes per second.

    :param lines: schemata (resctrl settings) of the group.
    :param nodes: the host NUMA nodes.
    :param guest_host_nodes: host NUMA nodes of the guest; empty if unknown.
    """
    held = [compute_effective_limits(host, lines, node, guest_host_nodes)
            for node in [node for node in nodes
                         if node in guest_host_nodes] or nodes]
    parts = [one.rate for one in held if one and one.rate is not None]
    least = select_strictest_limits(held)
    return least and replace(
        least, rate=sum(parts) if len(parts) == len(held) else None)


def compute_effective_limits(
        host: topology.MonitoredHost, lines: schemata.Schemata, node: int,
        guest_host_nodes: Collection[int] = ()) -> EffectiveLimits | None:
    """Return a control group's bandwidth limits on one host NUMA node.

    If the resctrl domains of the node differ, the strictest values are
    returned. If several nodes share a domain, they share its cap in bytes.

    :param lines: schemata of the group.
    :param guest_host_nodes: host NUMA nodes of the guest; empty if unknown.
    :returns: None if the node has no domain in the MB line, or if the lines
        are malformed.
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
        share = knob.role == 'minimum' or knob.role == 'maximum' and (
            not host.dialect.has_absolute_caps)
        found[knob.role] = {
            domain: round(knob.value_to_percent(values[domain]))
            if share and not knob.is_percent else values[domain]
            for domain in domains if domain in values}
    if not found.get('maximum'):
        return None
    maximum, rate = _convert_cap_to_percent_and_bytes(
        host, found['maximum'], node, guest_host_nodes)
    return EffectiveLimits(
        minimum=min(found.get('minimum', {}).values(), default=None),
        maximum=maximum, rate=rate,
        hardlimit=_find_hardlimit(host.dialect,
                                  found.get('hardlimit', {}).values()),
        priority=min(found.get('priority', {}).values(), default=None))


def _convert_cap_to_percent_and_bytes(
        host: topology.MonitoredHost, caps: Mapping[int, int], node: int,
        guest_host_nodes: Collection[int]) -> tuple[float | None, int | None]:
    """Return a NUMA node's bandwidth cap in percent and bytes per second.

    Each of the two is None if it is unknown.

    :param caps: values of the MB line by resctrl domain.
    :param guest_host_nodes: host NUMA nodes of the guest; empty if unknown.
    """
    capacity = host.capacity.get(node)
    if all(cap >= host.no_cap for cap in caps.values()):
        return 100, None
    size = host.dialect.unit.size if host.dialect else None
    if size is None:
        percent = min(caps.values())
        return percent, (capacity * percent // 100 if capacity else None)
    rate = round(
        sum(
            cap * size * _compute_cap_share(host, domain, node,
                                            guest_host_nodes)
            for domain, cap in caps.items()))
    return (min(100, round(100 * rate / capacity, 2)) if capacity else None,
            rate)


def _compute_cap_share(
    host: topology.MonitoredHost, domain: int, node: int,
    guest_host_nodes: Collection[int]
) -> Fraction:
    """Return the fraction of a resctrl domain's cap that a NUMA node gets.

    The fraction is less than 1 if several NUMA nodes of the guest share the
    domain. They get fractions in proportion to their bandwidth, or equal ones
    if a bandwidth is unknown.

    :param guest_host_nodes: host NUMA nodes of the guest. If it is empty
        (unknown), all nodes of the domain share the cap.
    """
    every = [other for other, domains in host.control.items()
             if domain in domains]
    nodes = [other for other in every if other in guest_host_nodes] or every
    if node not in nodes:
        return Fraction(1)      # the limit of its threads on that node
    speeds = [host.capacity.get(other, 0) for other in nodes]
    if not all(speeds):
        return Fraction(1, len(nodes))
    return Fraction(host.capacity[node], sum(speeds))


def _find_hardlimit(dialect: dialects.Dialect,
                    values: Collection[int]) -> bool | None:
    return all(values) if values else dialect.hardlimit_fixed


def sum_class_limits(limits: Iterable[EffectiveLimits | None]
                     ) -> EffectiveLimits | None:
    """Return a guest's limits as the sum of those of its vCPU classes.

    :returns: None if there are no limits.
    """
    held = [one for one in limits if one is not None]
    if not held:
        return None
    minimums = [one.minimum for one in held if one.minimum is not None]
    maximums = [one.maximum for one in held if one.maximum is not None]
    return EffectiveLimits(
        sum(minimums) if minimums else None,
        min(100, sum(maximums)) if len(maximums) == len(held) else None,
        all(one.hardlimit is not False for one in held))


def select_strictest_limits(
        limits: Iterable[EffectiveLimits | None]) -> EffectiveLimits | None:
    """Return the bandwidth limits with the lowest cap.

    Returns None if there are no limits.
    """
    held = [one for one in limits if one is not None]
    if len(held) == 1:      # as a rule
        return held[0]
    return min(held, default=None, key=lambda one: (
        100 if one.maximum is None else one.maximum,
        float('inf') if one.rate is None else one.rate))
