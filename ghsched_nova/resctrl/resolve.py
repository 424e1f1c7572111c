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


"""Resolution of a guest's policy to lines of schemata, without touching a
host.

A guest has one control group, which holds all of its vCPUs. Each host NUMA
node that backs a guest node has its own values in that group, because the
domains of a schemata line are per node (or per L3 cache of a node).

Where a node has several domains, a cap in percent is the same on each: it is
a share of what that domain can deliver. A cap that is a bandwidth is divided
among them, so that they add up to the cap of the node. That asks for vCPUs on
all of the node's L3 caches, which is what Nova does with a guest that is not
pinned; a guest on one of the caches alone has its part of the cap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from fractions import Fraction
import math

from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import differences
from ghsched_nova.resctrl import errors
from ghsched_nova.resctrl import knobs
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import rounding
from ghsched_placement.flavor import bandwidth
from ghsched_placement.flavor import keys
from ghsched_placement.flavor import policy as guest_policy

PolicyRefused = errors.PolicyRefused


@dataclass(frozen=True)
class DomainSetting:
    """Requested and enforced bandwidth limits of a guest on a resctrl domain.

    A limit is None if the host does not have the control.

    :param domain: id of the resctrl domain.
    :param host_node: host NUMA node of the resctrl domain.
    :param guest_node: guest NUMA node whose memory is on the host node.
    :param requested: limits that the flavor requests.
    :param maximum: enforced cap, in the unit of the dialect.
    :param minimum: enforced guarantee in percent.
    :param hardlimit: whether the cap also applies while bandwidth is idle.
    :param priority: enforced priority; guests with higher ones come first.
    :param scale: factor from ``maximum`` to percent of the host node's
        bandwidth. All resctrl domains of the node have the same cap.
    """

    domain: int
    host_node: int
    guest_node: int
    requested: guest_policy.NodePolicy
    maximum: int
    minimum: int | None
    hardlimit: bool | None
    priority: int | None
    scale: float = 1.0

    @property
    def maximum_percent(self) -> int | float:
        """Effective bandwidth cap in percent of a host NUMA node's bandwidth.

        The value is 100 if the guest has no cap.
        """
        if self.scale == 1:
            return min(100, self.maximum)
        return min(100, round(self.maximum * self.scale, 2))

    @property
    def effective_bandwidth(self) -> bandwidth.Bandwidth:
        """Enforced limits; the cap is in percent of the node's bandwidth."""
        return bandwidth.Bandwidth(self.minimum, self.maximum_percent,
                                   self.hardlimit, self.priority)

    @property
    def memorytune(self) -> dict[str, int | None]:
        """Bandwidth limits as attributes of libvirt's ``<memorytune>``."""
        return {'id': self.domain, 'bandwidth': self.maximum,
                'hardlimit': self.hardlimit, 'priority': self.priority,
                'min_bandwidth': self.minimum}

    def get_value_for_role(self, role: knobs.Role) -> int | None:
        """Return this setting's value for a schemata line of a given purpose.

        :param role: purpose of the line, e.g. ``maximum`` for caps.
        :returns: None if the host has no such line.
        """
        value = getattr(self, role)
        return None if value is None else int(value)


# -- policy -> settings -------------------------------------------------------


def resolve_settings(host: resctrl_host.ResctrlHost,
                     policy: guest_policy.GuestPolicy,
                     host_nodes: Sequence[int]) -> tuple[DomainSetting, ...]:
    """Return the bandwidth limits of a guest for each resctrl domain.

    Guarantees and caps that the host does not support exactly are rounded up.

    :param host: bandwidth control of the host.
    :param policy: bandwidth policy of the guest.
    :param host_nodes: host NUMA node of each guest NUMA node.
    :returns: one setting per domain, ascending; empty if the guest has no
        bandwidth policy.
    :raises PolicyRefused: if the host cannot enforce the policy.
    """
    if not policy.nodes:
        return ()
    if len(host_nodes) != len(policy.nodes):
        raise PolicyRefused(
            f'the guest has {len(policy.nodes)} NUMA nodes, and host NUMA '
            f'nodes are given for {len(host_nodes)}')
    resolve_l3_ways(host, policy, host_nodes)
    settings: dict[int, DomainSetting] = {}
    for guest_node, host_node in enumerate(host_nodes):
        for setting in _make_node_settings(host, policy.nodes[guest_node],
                                           guest_node, host_node):
            first = settings.get(setting.domain)
            settings[setting.domain] = (
                setting
                if first is None
                else _join_settings(host, first, setting)
            )
    return tuple(settings[domain] for domain in sorted(settings))


def resolve_l3_ways(
    host: resctrl_host.ResctrlHost,
    policy: guest_policy.GuestPolicy,
    host_nodes: Sequence[int],
) -> dict[int, int]:
    """Return the number of L3 cache ways that a guest reserves, by L3 cache.

    :param host_nodes: host NUMA node of each guest NUMA node.
    :raises PolicyRefused: if the host has too few ways to reserve.
    """
    found: dict[int, int] = {}
    for guest_node, (requested, host_node) in enumerate(zip(
            policy.nodes, host_nodes, strict=False)):
        if not requested.l3_ways:
            continue
        where = (f'{keys.L3_WAYS.extra_spec}={requested.l3_ways} of guest '
                 f'NUMA node {guest_node} cannot be enforced')
        cache = host.cache
        if cache is None:
            raise PolicyRefused(f'{where}: L3 cache ways of this host cannot '
                                'be reserved')
        domains = cache.domains_by_node.get(host_node)
        if not domains:
            raise PolicyRefused(f'{where} on host NUMA node {host_node}: the '
                                'node has no L3 cache of its own')
        if not cache.least <= requested.l3_ways <= cache.way_count:
            raise PolicyRefused(f'{where}: guests of this host can reserve '
                                f'{cache.least} to {cache.way_count} ways')
        found.update(dict.fromkeys(domains, requested.l3_ways))
    return found


def multiply_policy_by_guests(
    host: resctrl_host.ResctrlHost,
    policy: guest_policy.GuestPolicy,
    guests: int,
) -> guest_policy.GuestPolicy:
    """Return the bandwidth policy of a control group that guests share.

    The policy is that of one guest times the number of guests. On hosts whose
    limits apply to each CPU core, the policy is that of one guest.

    :param policy: bandwidth policy of one guest.
    :param guests: number of guests that share the control group.
    """
    if host.dialect.per_core:
        return policy
    return replace(policy, nodes=tuple(
        replace(node, minimum=min(100, guests * node.minimum),
                burst=min(100, guests * node.burst),
                maximum=min(100, guests * node.maximum))
        for node in policy.nodes))


def make_common_cap_policy(
        host: resctrl_host.ResctrlHost,
        maximum: int) -> tuple[guest_policy.GuestPolicy, tuple[int, ...]]:
    """Return the policy that caps all guests whose flavors request nothing.

    The policy limits the memory bandwidth of these guests together, and gives
    them the lowest priority. The cap is hard if the host supports hard caps.

    :param maximum: cap in percent of a NUMA node's bandwidth.
    :returns: the policy, and the host NUMA nodes to which it applies.
    :raises PolicyRefused: if it is unknown whether caps are hard or soft.
    """
    held = host.capabilities()
    if 'MEM_BW_MAX' not in held:
        raise PolicyRefused(
            'a cap for guests without a policy cannot be enforced: the '
            f'{host.dialect.title} of this host knows no cap')
    if not held & {'MEM_BW_HARDLIMIT', 'MEM_BW_SOFTLIMIT'}:
        raise PolicyRefused(
            'a cap for guests without a policy cannot be enforced: it is '
            f'unknown whether caps of the {host.dialect.title} of this host '
            'are hard or soft; set [ghsched]bandwidth_cap')
    priority = host.dialect.find_knob('priority')
    node = guest_policy.NodePolicy(
        maximum=maximum, hardlimit='MEM_BW_HARDLIMIT' in held,
        priority=priority.minimum if priority else None)
    nodes = tuple(sorted(host.domains_by_node))
    return guest_policy.GuestPolicy(nodes=(node,) * len(nodes)), nodes


def _make_node_settings(host: resctrl_host.ResctrlHost,
                        requested: guest_policy.NodePolicy, guest_node: int,
                        host_node: int) -> list[DomainSetting]:
    domains = host.domains_by_node.get(host_node)
    if not host.dialect.knobs:
        _check_capabilities(host.dialect, frozenset(), requested,
                            requested.is_capped)
        return []
    if not domains and not requested.requests_bandwidth:
        return []
    if not domains:
        reason = host.left_out.get(host_node, 'it has no domain in the MB '
                                              'line')
        raise PolicyRefused(
            f'ghsched:mem_bw_* of guest NUMA node {guest_node} cannot be '
            f'enforced on host NUMA node {host_node}: {reason}')
    scale = _compute_scale(host, host_node)
    held = host.dialect.capabilities()
    has_hardlimit = host.dialect.find_knob('hardlimit') is not None
    _check_capabilities(host.dialect, held, requested, requested.is_capped)
    return [DomainSetting(
        domain=domain, host_node=host_node, guest_node=guest_node,
        requested=requested,
        maximum=_compute_maximum(host, requested, host_node),
        minimum=_compute_minimum(host, requested),
        hardlimit=requested.hardlimit if has_hardlimit else None,
        priority=_choose_priority(host, requested),
        scale=scale) for domain in domains]


def _check_capabilities(dialect: dialects.Dialect,
                        capabilities: frozenset[str],
                        requested: guest_policy.NodePolicy,
                        is_capped: bool) -> None:
    limit = 'MEM_BW_HARDLIMIT' if requested.hardlimit else 'MEM_BW_SOFTLIMIT'
    needs = (
        (requested.minimum > 0, 'MEM_BW_MIN', keys.MEM_BW_MIN,
         requested.minimum,
         'knows no guaranteed share'),
        (requested.burst > 0, 'MEM_BW_MIN', keys.MEM_BW_BURST, requested.burst,
         'knows no guaranteed share'),
        (is_capped, 'MEM_BW_MAX', keys.MEM_BW_MAX, requested.maximum,
         'knows no cap'),
        (is_capped, limit, keys.MEM_BW_HARDLIMIT,
         str(requested.hardlimit).lower(),
         'cannot hold a cap while bandwidth is idle' if requested.hardlimit
         else 'cannot let a guest exceed its cap'),
        (requested.priority is not None, 'MEM_BW_PRIORITY',
         keys.MEM_BW_PRIORITY,
         requested.priority, 'knows no priority'),
    )
    for needed, capability, key, value, why in needs:
        if needed and capability not in capabilities:
            raise PolicyRefused(
                f'{key.extra_spec}={value} cannot be enforced: the '
                f'{dialect.title} of this host {why}')


def _join_settings(host: resctrl_host.ResctrlHost, first: DomainSetting,
                   second: DomainSetting) -> DomainSetting:
    """Join the settings of two guest NUMA nodes on the same resctrl domain.

    A cap in bytes per second is the sum of both caps.

    :raises PolicyRefused: if both guest nodes are on one host node, or if
        their policies differ.
    """
    where = (f'guest NUMA nodes {first.guest_node} and {second.guest_node} '
             f'are both in domain {second.domain} of the host')
    if first.host_node == second.host_node:
        raise PolicyRefused(f'{where}, on host NUMA node {first.host_node}; '
                            'ghsched:mem_bw_* requires a host NUMA node for '
                            'each')
    if first.requested != second.requested:
        raise PolicyRefused(f'{where}, which has one set of limits; '
                            'ghsched:mem_bw_* must be the same for both')
    if not host.dialect.has_absolute_caps:
        return first
    return replace(
        first, maximum=min(first.maximum + second.maximum, host.no_cap),
        scale=1 / (1 / first.scale + 1 / second.scale))


def _round_up_value(host: resctrl_host.ResctrlHost, knob: knobs.Knob,
                    key: keys.Key,
                    value: int, floor: int = 0) -> int:
    """Round a requested schemata value up to one that the kernel supports.

    :param key: flavor key of the requested value, for the error message.
    :param value: requested value, in the unit of the schemata line.
    :param floor: minimum of the result, e.g. the value of the guarantee if a
        cap must not be lower.
    :raises PolicyRefused: if the schemata line supports no such value.
    """
    value = max(value, floor, knob.minimum if knob.is_percent else 0)
    if knob.line in host.scales:
        scale = host.scales[knob.line]
        found = scale.round_percent_up(value)
        if found is None:
            raise PolicyRefused(
                f'{key.extra_spec}={value} cannot be enforced: {knob.line} of '
                f'this host cannot exceed {scale.highest_percent}')
        return found
    if knob.stepped:
        # A multiple, not floor + N steps: libvirt refuses anything else,
        # and the kernel rounds up to one.
        value = rounding.round_up_to_multiple(value, host.granularity)
    return min(value, knob.maximum)


def _compute_maximum(host: resctrl_host.ResctrlHost,
                     requested: guest_policy.NodePolicy,
                     host_node: int) -> int:
    knob = host.dialect.find_knob('maximum')
    if knob is None:
        return requested.maximum
    if not host.dialect.has_absolute_caps:
        # A guarantee that was rounded up may be above the cap.
        return _round_up_value(host, knob, keys.MEM_BW_MAX, requested.maximum,
                               max(host.min_bandwidth,
                                   _compute_minimum(host, requested) or 0))
    if not requested.is_capped:
        return host.no_cap
    size, domains = _get_unit_and_domain_count(host, host_node)
    wanted = -(-requested.maximum * host.node_bandwidth[host_node]
               // (100 * size * domains))
    return min(_round_up_value(host, knob, keys.MEM_BW_MAX, wanted,
                               host.min_bandwidth), host.no_cap)


def _compute_scale(host: resctrl_host.ResctrlHost, host_node: int) -> float:
    if not host.dialect.has_absolute_caps:
        return 1.0
    size, domains = _get_unit_and_domain_count(host, host_node)
    return float(100 * size * domains / host.node_bandwidth[host_node])


def _get_unit_and_domain_count(host: resctrl_host.ResctrlHost,
                               host_node: int) -> tuple[int | Fraction, int]:
    """Return the unit of caps and a node's number of resctrl domains.

    :param host_node: the host NUMA node.
    :returns: unit of caps in bytes per second, or 1 if caps are percentages;
        and the number of domains.
    """
    return (host.dialect.unit.size or 1,
            len(host.domains_by_node[host_node]))


def _compute_minimum(host: resctrl_host.ResctrlHost,
                     requested: guest_policy.NodePolicy) -> int | None:
    knob = host.dialect.find_knob('minimum')
    if knob is None:
        return None
    minimum = (_round_up_value(host, knob, keys.MEM_BW_MIN, requested.minimum)
               if requested.minimum else 0)
    if not requested.burst:
        return minimum
    return max(minimum, _round_down_burst(host, knob, requested))


def _round_down_burst(host: resctrl_host.ResctrlHost, knob: knobs.Knob,
                      requested: guest_policy.NodePolicy) -> int:
    """Return the schemata value of a guarantee plus a share of the burst.

    A burst is bandwidth above the guarantee. The share is what each guest gets
    when all guests burst at once. The value is rounded down, so that the sum
    of all guests stays within the bandwidth reserved for bursts.

    :returns: 0 if the value does not exceed the guarantee.
    """
    most = math.floor(min(100, requested.minimum + requested.burst
                          / resctrl_host.BURST_RATIO))
    if knob.line in host.scales:
        found = host.scales[knob.line].round_percent_down(most)
    else:
        found = most - most % (host.granularity if knob.stepped else 1)
    return found if found > requested.minimum else 0


def _choose_priority(host: resctrl_host.ResctrlHost,
                     requested: guest_policy.NodePolicy) -> int | None:
    knob = host.dialect.find_knob('priority')
    if knob is None:
        return None
    if requested.priority is None:
        return host.get_default_value(knob)
    if not knob.minimum <= requested.priority <= knob.maximum:
        raise PolicyRefused(
            f'{keys.MEM_BW_PRIORITY.extra_spec}={requested.priority} cannot '
            f'be enforced: the {host.dialect.title} of this host has '
            f'priorities {knob.minimum}..{knob.maximum}')
    return requested.priority


# -- settings -> values -------------------------------------------------------


def make_desired_lines(
    host: resctrl_host.ResctrlHost, settings: Sequence[DomainSetting]
) -> differences.Desired:
    """Return the schemata values that a guest's control group must have.

    The values are ordered by line and resctrl domain as they are written.

    :param settings: the guest's bandwidth settings.
    """
    desired: dict[str, dict[int, int]] = {}
    for knob in host.dialect.knobs:
        for setting in settings if knob.role != 'kept' else ():
            value = setting.get_value_for_role(knob.role)
            if value is None:
                continue
            if knob.role == 'minimum' or knob.role == 'maximum' and (
                    not host.dialect.has_absolute_caps):
                value = knob.percent_to_value(value)
            desired.setdefault(knob.line, {})[setting.domain] = value
    return desired
