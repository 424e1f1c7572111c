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

"""Resources that a guest needs and no host of the cloud has.

Placement answers a query that nothing satisfies with an empty list and no
reason; :func:`find_refusal_reasons` asks it about each part of the query. What
no question explains is not claimed.
"""

import bisect
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
import re
from typing import TypeAlias

import os_resource_classes as orc
import os_traits

from ghsched_placement.fit.cloud_totals import can_fit_on_separate_nodes
from ghsched_placement.fit.cloud_totals import CloudTotals
from ghsched_placement.fit import lack
from ghsched_placement.fit.lack import Lack
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import Vfs
from ghsched_placement.flavor.resources import BESIDE_BANDWIDTH
from ghsched_placement.flavor.resources import KEY_OF_CAPABILITY
from ghsched_placement.providers import names
from ghsched_placement.query import vfs

#: Function that returns whether any host satisfies the given query parameters
#: of GET /allocation_candidates.
Ask: TypeAlias = Callable[[list[tuple[str, str]]], bool]

#: Smallest possible queries: a query must request a resource. Memory comes
#: first, for every compute node has it and every guest takes it; a host that
#: has none left may have something else.
_LEAST = tuple(('resources', f'{name}:1') for name in (
    orc.MEMORY_MB, orc.VCPU, orc.PCPU, orc.DISK_GB))


@dataclass(frozen=True)
class CloudQueries:
    """Queries to Placement that explain why no host can take a guest.

    :param ask: function that returns whether any host satisfies a query for
        allocation candidates.
    :param pfs: PFs of the cloud by PCI alias, for all aliases of the guest.
    :param joins: whether a host has a control group that the guest could
        share, if the host had all other resources that the guest needs.
    :param nodes: function that returns the host NUMA nodes with free memory
        bandwidth. It is called only for a guest that needs bandwidth on
        several nodes.
    :param read_totals: function that returns what hosts have in all. It is
        called only if something is missing.
    :param known_nodes: host NUMA nodes with their free memory bandwidth, if
        that is known without a question to Placement; None if not.
    :param known_totals: bandwidth that hosts have in all, if that is known
        without a question; None if not.
    :param has_trait: function that returns whether a resource provider, of a
        full host as well, has a trait; None if only ``ask`` says so.
    :param has_pcpu_fallback: whether Nova also tries hosts that report no
        PCPU, with VCPU in place of it.
    """

    ask: Ask
    pfs: Mapping[str, Sequence[vfs.Pf]] = field(default_factory=dict)
    joins: bool = False
    nodes: Callable[[], Sequence[vfs.Pf]] = tuple
    read_totals: Callable[[], CloudTotals] = CloudTotals
    has_pcpu_fallback: bool = False
    known_nodes: Sequence[vfs.Pf] | None = None
    known_totals: CloudTotals | None = None
    has_trait: Callable[[str], bool] | None = None

    @cached_property
    def largest_bandwidth(self) -> int | None:
        """Largest free percent of bandwidth of a host NUMA node, if known."""
        return (None if self.known_nodes is None else
                max((node.free for node in self.known_nodes), default=0))

    def has_node_with(self, amount: int, resource: str = names.MEM_BW_PCT,
                      trait: str = names.NUMA_NODE_TRAIT) -> bool:
        """Whether a host NUMA node of the cloud has an amount free.

        :param resource: resource class of the amount.
        :param trait: trait that the host node must have.
        """
        if resource == names.MEM_BW_PCT and (
                self.largest_bandwidth is not None
                and self.largest_bandwidth < amount):
            return False
        return self.ask([*_make_node_query(amount, resource, trait)])

    def find_largest_free_amount(self, below: int,
                                 resource: str = names.MEM_BW_PCT) -> int:
        """Return the largest amount that a host NUMA node has free.

        All hosts of the cloud are searched, by several queries to Placement.

        :param below: amount that no host NUMA node has free.
        :param resource: resource class.
        """
        return bisect.bisect_left(
            range(1, below), True,
            key=lambda amount: not self.has_node_with(amount, resource))

    @property
    def bandwidth_totals(self) -> CloudTotals:
        """Inventories of memory bandwidth, whether in use or free."""
        return self.known_totals or self.totals

    @cached_property
    def totals(self) -> CloudTotals:
        """Inventories of hosts, whether in use or free."""
        return self.read_totals()


#: Steps, in percent, of the bandwidth guarantees that hosts can enforce.
_STEPS = (2, 4, 5, 7, 10)

_NO_GROUP = 'no host has a resctrl control group left'


def find_refusal_reasons(policy: GuestPolicy, accounting: Accounting,
                         cloud: CloudQueries,
                         rest: Sequence[tuple[str, str]] = ()) -> list[Lack]:
    """Return the reasons why no host of a cloud can take a guest.

    The reasons are resources and traits that no host has free. If each of them
    is free on some host, the reason is that no host has all of them together.

    :param policy: policy of ghsched's extra specs in the guest's flavor.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param cloud: functions that query Placement.
    :param rest: parameters of the allocation candidates query that do not come
        from the policy.
    """
    bounds = [item for item in rest if item[0] in _BOUNDS]

    def ask(query: list[tuple[str, str]]) -> bool:
        return cloud.ask([*query, *bounds])

    if bounds and not _has_host(ask):
        return [Lack(
            None, 'host', reason='Placement has no host where the request '
            'may go (availability zone, aggregates or destination)',
            query=(_LEAST[0], *bounds))]
    found = _find_unmet_needs(policy, accounting, replace(
        cloud, ask=ask,
        known_nodes=None if bounds else cloud.known_nodes,
        known_totals=None if bounds else cloud.known_totals,
        has_trait=None if bounds else cloud.has_trait,
        read_totals=CloudTotals if bounds else cloud.read_totals), rest)
    # Others may have it.
    return [replace(one, reason=f'{one.reason} where the request may go',
                    query=one.query and (*one.query, *bounds))
            for one in found] if bounds else found


def _find_unmet_needs(policy: GuestPolicy, accounting: Accounting,
                      cloud: CloudQueries,
                      rest: Sequence[tuple[str, str]]) -> list[Lack]:
    """Return a reason for each resource or trait that no host has for a guest.

    If every one of them is free on some host, the only reason is that no host
    has all of them together.

    :param policy: policy of ghsched's extra specs in the guest's flavor.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param cloud: queries to Placement.
    :param rest: parameters of the allocation candidates query that ghsched has
        not added.
    """
    ask = cloud.ask
    missing = list(_find_missing_capabilities(policy, cloud))
    if missing:
        return missing
    missing += [*_find_missing_bandwidth_shares(policy, accounting, cloud),
                *_find_missing_resources(policy, accounting, cloud),
                *_find_missing_vfs(policy, cloud.pfs)]
    if _needs_missing_group(policy, ask):
        if not cloud.joins:
            missing.append(_make_group_lack(len(policy.groups), cloud))
        elif not missing:
            missing += _find_missing_shared_bandwidth(policy, accounting,
                                                      cloud)
    return (missing or [*_find_other_unmet_needs(rest, cloud)]
            or [_make_combination_reason(policy, ask, rest)])


def _find_missing_vfs(policy: GuestPolicy, pfs: Mapping[str, Sequence[vfs.Pf]],
                      ) -> Iterator[Lack]:
    for alias, of_alias in pfs.items():
        needs = [need for need in policy.vfs if need.alias == alias]
        if policy.vfs_locality != 'node':
            # What is near may be out; what is far must be there at least.
            total = sum(need.count for need in needs)
            most = max(map(sum, vfs.group_free_vfs(of_alias, 'any').values()),
                       default=0)
            if total > most:
                yield Lack(
                    None, f'VFs of {alias}', most, total,
                    f'no host has {total} VFs of {alias} free '
                    f'({keys.VFS.extra_spec})',
                    f'the most free on one host is {most}')
        else:
            yield from _find_missing_local_vfs(alias, needs, of_alias)


def _find_missing_local_vfs(alias: str, needs: Sequence[Vfs],
                            of_alias: Sequence[vfs.Pf]) -> Iterator[Lack]:
    free = {place: sum(left) for place, left
            in vfs.group_free_vfs(of_alias, 'node').items()}
    most = max(free.values(), default=0)
    for need in needs:
        if need.count > most:
            yield Lack(
                None, f'VFs of {alias}', most, need.count,
                f'no host NUMA node has {need.count} VFs of {alias} free, '
                f'which guest NUMA node {need.guest_node} needs '
                f'({keys.VFS.extra_spec})',
                f'the most free on one node is {most}',
                f'allow {keys.VFS_LOCALITY.extra_spec}=socket or any')
            return
    counts = {need.guest_node: need.count for need in needs}
    hosts: dict[str, set[str]] = {}
    for pf in of_alias:
        hosts.setdefault(pf.root, set()).add(pf.parent)
    if not any(can_fit_on_separate_nodes(counts.values(), sorted(
            map(free.__getitem__, nodes), reverse=True))
            for nodes in hosts.values()):
        yield Lack(
            None, f'VFs of {alias}', needed=max(counts.values()), reason=(
                f'no host has {len(counts)} NUMA nodes with VFs of {alias} '
                f'free, {_format_by_guest_node(counts)} '
                f'({keys.VFS.extra_spec} with '
                f'{keys.VFS_LOCALITY.extra_spec}=node)'),
            cure=f'allow {keys.VFS_LOCALITY.extra_spec}=socket or any')


def _format_by_guest_node(counts: Mapping[int, int], unit: str = '') -> str:
    return (' and '.join(f'{count}{unit}' for count in counts.values())
            + ' for the guest NUMA nodes ' + ' and '.join(map(str, counts)))


def _find_missing_capabilities(policy: GuestPolicy,
                               cloud: CloudQueries) -> Iterator[Lack]:
    wanting = {name: KEY_OF_CAPABILITY[name]
               for name in policy.get_needed_capabilities()}
    if 'MEM_BW_MIN' in wanting and not any(
            node.minimum for node in policy.nodes):
        wanting['MEM_BW_MIN'] = keys.MEM_BW_BURST
    if policy.vfs:      # see ghsched_placement.query.request.build_request
        wanting.setdefault('DEVICE_NUMA', keys.VFS)
    for capability in sorted(wanting):
        trait = names.CAPABILITY_TRAITS[capability]
        if cloud.has_trait is not None and cloud.has_trait(trait):
            continue
        if _lacks_trait(trait, cloud.ask):
            yield Lack(
                None, f'trait {trait}', reason='no host can hold '
                f'{wanting[capability].extra_spec}',
                detail=f'none has the trait {trait}',
                cure='is resctrl mounted on the hosts, and does ghsched-host '
                     'show what they can hold?'
                if capability.startswith(('MEM_BW_', 'L3_')) else '',
                query=(_LEAST[0], ('root_required', trait)))


def _has_host(ask: Ask, *parameters: tuple[str, str]) -> bool:
    """Whether any host, full or not, satisfies parameters of a query."""
    return any(ask([least, *parameters]) for least in _LEAST)


def _lacks_trait(trait: str, ask: Ask) -> bool:
    """Whether there are hosts, and none has a trait.

    :param trait: trait; with an exclamation mark, the trait that no host may
        have.
    """
    return not _has_host(ask, ('root_required', trait)) and _has_host(ask)


def _find_missing_bandwidth_shares(policy: GuestPolicy, accounting: Accounting,
                                   cloud: CloudQueries) -> Iterator[Lack]:
    demand = dict(sorted(policy.get_bandwidth_by_node(accounting).items()))
    key = _get_counted_extra_spec(accounting)
    each_alone = True
    for share in sorted(set(demand.values())):
        if not cloud.has_node_with(share):
            each_alone = False
            yield _make_bandwidth_lack(share, key, cloud)
    if each_alone and len(demand) > 1 and not any(
            can_fit_on_separate_nodes(demand.values(), left)
            for left in vfs.group_free_vfs(
                cloud.nodes() if cloud.known_nodes is None
                else cloud.known_nodes, 'any').values()):
        clause = cloud.bandwidth_totals.describe_nodes_shortage(
            names.MEM_BW_PCT, list(demand.values()),
            'of their memory bandwidth')
        few = cloud.bandwidth_totals.lacks_hosts_with_nodes(len(demand))
        yield Lack(
            None, lack.NUMA_NODES if few else lack.BANDWIDTH,
            needed=len(demand) if few else max(demand.values()), reason=(
                f'{clause}, {_format_by_guest_node(demand, " %")} ({key})'))


def _make_bandwidth_lack(share: int, key: str, cloud: CloudQueries) -> Lack:
    """Return the reason that no host NUMA node has a share of bandwidth.

    :param share: percent of a node's bandwidth.
    :param key: extra spec that requests it.
    """
    step = _find_next_bandwidth_step(share, cloud)
    if step:
        return Lack(
            None, lack.BANDWIDTH, step, share,
            f'no host NUMA node with {share} % of its memory bandwidth free '
            f'can hold that share exactly ({key})', f'one can hold {step} %',
            query=_make_node_query(share))
    most = cloud.largest_bandwidth
    if most is None or most >= share:
        most = cloud.find_largest_free_amount(share)
    clause = cloud.bandwidth_totals.describe_node_shortage(
        names.MEM_BW_PCT, share, f'{share} % of its memory bandwidth')
    return Lack(None, lack.BANDWIDTH, most, share, f'{clause} ({key})',
                f'the most free on one node is {most} %',
                query=_make_node_query(share))


def _find_missing_resources(policy: GuestPolicy, accounting: Accounting,
                            cloud: CloudQueries) -> Iterator[Lack]:
    """Yield a reason for each resource that no host NUMA node has enough of.

    The resources are L3 cache ways, bandwidth bursts and real-time CPU time.
    """
    for name, resource in BESIDE_BANDWIDTH.items():
        for count in sorted({amounts[name] for amounts
                             in policy.get_resources_by_node(
                                 accounting).values()
                             if name in amounts}):
            if not cloud.has_node_with(count, name):
                most = cloud.find_largest_free_amount(count, name)
                clause = cloud.totals.describe_node_shortage(
                    name, count, f'{count} {resource.on_node}')
                yield Lack(
                    None, resource.word, most, count,
                    f'{clause} ({resource.key.extra_spec})',
                    f'the most free on one node is {most}',
                    '' if most else resource.cure,
                    _make_node_query(count, name))


def _get_counted_extra_spec(accounting: Accounting) -> str:
    """Return the name of the extra spec whose bandwidth Placement counts.

    This is the extra spec for the guarantee or for the cap.

    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    """
    key = keys.MEM_BW_MIN if accounting == 'min' else keys.MEM_BW_MAX
    return key.extra_spec


def _needs_missing_group(policy: GuestPolicy, ask: Ask) -> bool:
    return policy.needs_control_group and not ask(
        [('resources', f'{names.RESCTRL_GROUP}:{len(policy.groups)}')])


def _make_group_lack(count: int, cloud: CloudQueries) -> Lack:
    """Return the reason that no host has enough control groups left.

    :param count: number of control groups that the guest needs: one for each
        vCPU class with bandwidth keys.
    """
    if count == 1:
        return Lack(None, lack.GROUPS, reason=_NO_GROUP, cure='guests of one '
                    'flavor can share a group; lower '
                    '[ghsched]reserved_control_groups, or move some away')
    clause = cloud.totals.describe_root_shortage(
        names.RESCTRL_GROUP, count, f'{count} resctrl control groups')
    most = cloud.totals.find_most_on_root(names.RESCTRL_GROUP)
    found = Lack(None, lack.GROUPS, needed=count, cure='lower '
                 '[ghsched]reserved_control_groups, or move guests away',
                 reason=f'{clause}, one for each vCPU class')
    return found if most is None or count <= most else replace(
        found, detail=f'the most on one host is {most}', cure='request '
        f'bandwidth for fewer classes of {keys.VCPU_CLASSES.extra_spec}')


def _find_missing_shared_bandwidth(policy: GuestPolicy, accounting: Accounting,
                                   cloud: CloudQueries) -> Iterator[Lack]:
    """Yield a reason if no shareable control group has enough free bandwidth.

    A guest must share a resctrl control group of other guests if the cloud has
    none free. At most one reason is yielded.
    """
    for node, share in sorted(
            policy.get_bandwidth_by_node(accounting).items()):
        trait = names.make_share_trait(policy.fingerprint, node)
        if not cloud.has_node_with(share, trait=trait):
            yield Lack(
                None, lack.GROUPS, reason=f'{_NO_GROUP}, and no host NUMA '
                'node with one that the guest could share has '
                f'{share} % of its memory bandwidth free '
                f'({_get_counted_extra_spec(accounting)})')
            return


def _make_node_query(amount: int, resource: str = names.MEM_BW_PCT,
                     trait: str = names.NUMA_NODE_TRAIT
                     ) -> tuple[tuple[str, str], ...]:
    """Return the query for a host NUMA node with an amount of a resource."""
    return ('resources', f'{resource}:{amount}'), ('required', trait)


def _find_next_bandwidth_step(share: int, cloud: CloudQueries) -> int:
    """Return the next larger percent of bandwidth that a host can guarantee.

    Hosts can guarantee bandwidth only in steps. The result helps an admin to
    choose another guarantee for a flavor.

    :param share: percent of bandwidth that no host NUMA node can guarantee.
    :returns: 0 if no host can guarantee a larger percent.
    """
    larger = sorted({share + -share % step for step in _STEPS} - {share})
    return next((one for one in larger
                 if one <= 100 and cloud.has_node_with(one)), 0)


_SUFFIXED = re.compile(r'(resources|required|member_of|in_tree)(.*)')

#: Parameters that say which hosts a request may go to.
_BOUNDS = frozenset({'in_tree', 'member_of'})


def strip_ghsched_requests(query: Iterable[tuple[str, str]],
                           prefixes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return an allocation candidates query without what ghsched has added.

    ghsched adds request groups, traits and a limit to Nova's query.

    :param prefixes: suffix prefixes of ghsched's request groups.
    """
    found = []
    for name, value in query:
        suffixed = _SUFFIXED.fullmatch(name)
        if name == 'root_required':
            value = ','.join(trait for trait in value.split(',')
                             if trait not in lack.KEY_OF_TRAIT)
        ours = (suffixed and suffixed[2].startswith(prefixes)
                or name == 'same_subtree' and any(
                    suffix.startswith(prefixes)
                    for suffix in value.split(',')))
        if value and not ours and name != 'limit':
            found.append((name, value))
    return found


def _find_other_unmet_needs(rest: Sequence[tuple[str, str]],
                            cloud: CloudQueries) -> Iterator[Lack]:
    """Yield a reason for each part of a query that no host satisfies.

    Only the parts that ghsched has not added are tried, each by itself.

    :param rest: parameters of the allocation candidates query that ghsched has
        not added.
    """
    ask = cloud.ask
    variants = [rest]
    if cloud.has_pcpu_fallback:
        variants.append([(name, value.replace(f'{orc.PCPU}:', f'{orc.VCPU}:')
                          if name == 'resources' else value)
                         for name, value in rest])
    if not rest or any(ask([item for item in one if item[0] not in _BOUNDS])
                       for one in variants):
        return
    found = [*_find_missing_inventory(rest, cloud),
             *_find_missing_traits(rest, ask)]
    yield from found or [Lack(
        None, lack.COMBINATION, reason='no host has all that the request asks '
        'for beside the ghsched keys: CPUs, memory, disk, networks, devices '
        'and traits')]


def _find_missing_inventory(rest: Iterable[tuple[str, str]],
                            cloud: CloudQueries) -> Iterator[Lack]:
    for item in dict(rest).get('resources', '').split(','):
        if not item or cloud.ask([('resources', item)]):
            continue
        name, _, amount = item.partition(':')
        needed = int(amount)
        # The fallback leaves out the CPU of isolated emulator threads.
        if (name == orc.PCPU and cloud.has_pcpu_fallback and cloud.ask(
                [('resources', f'{orc.VCPU}:{max(1, needed - 1)}')])):
            continue
        word = lack.WORDS.get(name, name)
        yield Lack(
            None, word, needed=needed,
            reason=cloud.totals.describe_root_shortage(
                name, needed, f'{needed} {lack.get_resource_unit(word)}'),
            # Nova asks again with VCPU in place of PCPU.
            query=() if name == orc.PCPU else (('resources', item),))


def _find_missing_traits(rest: Iterable[tuple[str, str]],
                         ask: Ask) -> Iterator[Lack]:
    for name, value in rest:
        if name not in ('required', 'root_required'):
            continue
        for trait in value.split(','):
            if not _lacks_trait(trait, ask):
                continue
            if trait == f'!{os_traits.COMPUTE_STATUS_DISABLED}':
                yield Lack(None, 'compute service', reason='the compute '
                           'service of every host is disabled')
            else:
                have = 'every host has' if trait[0] == '!' else 'no host has'
                yield Lack(None, f'trait {trait}',
                           reason=f"{have} the trait {trait.lstrip('!')}")


def _make_combination_reason(policy: GuestPolicy, ask: Ask,
                             rest: Sequence[tuple[str, str]]) -> Lack:
    where = (' on the right NUMA nodes'
             if policy.vfs_locality == 'node' or policy.nodes else '')
    shared = (f'{_NO_GROUP}, and the hosts with one that the guest could '
              'share lack something else that it needs: CPUs, memory, '
              'networks or devices')
    if _needs_missing_group(policy, ask):
        return Lack(None, lack.COMBINATION, reason=shared)
    beside = ', and so can all else that the request asks for' if rest else ''
    return Lack(None, lack.COMBINATION, reason=(
        f'no host has all that the flavor needs{where}, though each of its '
        f'ghsched keys alone can be met{beside}'))
