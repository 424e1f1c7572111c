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

"""Why Placement has no candidate: which of our needs no host can meet.

Placement answers a query that nothing satisfies with an empty list and no
reason. The parts of the request are therefore asked for one by one, after
the fact, so that a request that succeeds costs nothing more.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TypeAlias

from ghsched_placement import keys
from ghsched_placement import names
from ghsched_placement.policy import Accounting
from ghsched_placement.policy import GuestPolicy
from ghsched_placement.policy import Vfs
from ghsched_placement import vfs

#: Query parameters of GET /allocation_candidates -> whether any host fits.
Ask: TypeAlias = Callable[[list[tuple[str, str]]], bool]

#: The key that asks for a capability, by its name.
HELD_BY_KEY = {
    'MEM_BW_MIN': keys.MEM_BW_MIN, 'MEM_BW_MAX': keys.MEM_BW_MAX,
    'MEM_BW_HARDLIMIT': keys.MEM_BW_HARDLIMIT,
    'MEM_BW_SOFTLIMIT': keys.MEM_BW_HARDLIMIT,
    'MEM_BW_PRIORITY': keys.MEM_BW_PRIORITY,
    'MEM_BW_MONITOR': keys.MONITOR,
    'DEVICE_NUMA': keys.DEVICE_NUMA,
}


#: Steps of guaranteed shares that there are, percent.
_STEPS = (2, 4, 5, 7, 10)

_NO_GROUP = 'no host has a resctrl control group left'


class Shortage:
    """One need that no host meets.

    :param reason: without figures of the cloud, fit for a tenant's eyes.
    :param detail: what an admin wants to know beside it, may be empty.
    """

    def __init__(self, reason: str, detail: str = '') -> None:
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f'{self.reason}{self.detail}'


def find(policy: GuestPolicy, accounting: Accounting, ask: Ask,
         pfs: Mapping[str, Sequence[vfs.Pf]] | None = None,
         joins: bool = False,
         nodes: Callable[[], Sequence[vfs.Pf]] = tuple) -> list[Shortage]:
    """Every need of a policy that no host can meet by itself, now.

    :param pfs: the PFs of each alias in the policy's VFs.
    :param joins: whether some host has a control group that the guest could
        share, if all else that it needs were there.
    :param nodes: gives the host NUMA nodes with memory bandwidth left; called
        only for a guest with bandwidth on several nodes.

    When each can be met alone, it is their combination or something that is
    not ours (CPUs, memory, traits of the image, ...), which is then said.
    Empty for a guest that has neither VFs nor a control group.
    """
    missing = list(_capabilities(policy, ask))
    if missing:
        return missing
    missing += [*_bandwidth(policy, accounting, ask, nodes),
                *_vfs(policy, pfs or {})]
    if _no_group(policy, ask):
        if not joins:
            missing.append(Shortage(_NO_GROUP))
        elif not missing:
            missing.append(_not_joined(policy, accounting, ask))
    if not missing and (policy.vfs or policy.controlled):
        where = (' on the right NUMA nodes'
                 if policy.vfs_locality == 'node' or policy.nodes else '')
        missing.append(Shortage(
            f'no host has all that the flavor needs{where}, though each of '
            'its ghsched keys alone can be met'))
    return missing


def _vfs(policy: GuestPolicy, pfs: Mapping[str, Sequence[vfs.Pf]],
         ) -> Iterator[Shortage]:
    for alias, of_alias in pfs.items():
        needs = [need for need in policy.vfs if need.alias == alias]
        if policy.vfs_locality != 'node':
            # What is near may be out; what is far must be there at least.
            total = sum(need.count for need in needs)
            most = max(map(sum, vfs.by_place(of_alias, 'any').values()),
                       default=0)
            if total > most:
                yield Shortage(
                    f'no host has {total} VFs of {alias} left '
                    f'({keys.VFS.extra_spec})',
                    f'; the most left on one host is {most}')
        else:
            yield from _local_vfs(alias, needs, of_alias)


def _local_vfs(alias: str, needs: Sequence[Vfs],
               of_alias: Sequence[vfs.Pf]) -> Iterator[Shortage]:
    free = {place: sum(left) for place, left
            in vfs.by_place(of_alias, 'node').items()}
    most = max(free.values(), default=0)
    for need in needs:
        if need.count > most:
            yield Shortage(
                f'no host NUMA node has {need.count} VFs of {alias} left, '
                f'which guest NUMA node {need.guest_node} needs '
                f'({keys.VFS.extra_spec})',
                f'; the most left on one node is {most}')
            return
    counts = {need.guest_node: need.count for need in needs}
    if not any(_each_has_a_node(counts.values(), nodes)
               for nodes in _nodes_of_hosts(of_alias, free)):
        yield Shortage(
            f'no host has {len(counts)} NUMA nodes with VFs of {alias} left, '
            f'{_by_guest_node(counts)} ({keys.VFS.extra_spec} with '
            f'{keys.VFS_LOCALITY.extra_spec}=node)')


def _nodes_of_hosts(of_alias: Sequence[vfs.Pf],
                    free: Mapping[str, int]) -> Iterator[list[int]]:
    """Free VFs of the nodes of each host, the most first."""
    hosts: dict[str, set[str]] = {}
    for pf in of_alias:
        hosts.setdefault(pf.root, set()).add(pf.parent)
    for nodes in hosts.values():
        yield sorted((free[node] for node in nodes), reverse=True)


def _each_has_a_node(counts: Iterable[int], nodes: Sequence[int]) -> bool:
    """Whether there is a node for each count.

    :param nodes: what each has, the most first.
    """
    needed = sorted(counts, reverse=True)
    return len(needed) <= len(nodes) and all(
        count <= node for count, node in zip(needed, nodes, strict=False))


def _by_guest_node(counts: Mapping[int, int], unit: str = '') -> str:
    return (' and '.join(f'{count}{unit}' for count in counts.values())
            + ' for the guest NUMA nodes ' + ' and '.join(map(str, counts)))


def _capabilities(policy: GuestPolicy, ask: Ask) -> Iterator[Shortage]:
    for capability in sorted(policy.capabilities()):
        trait = names.CAPABILITY_TRAITS[capability]
        # A query must ask for a resource; every compute node has memory.
        if not ask([('resources', 'MEMORY_MB:1'),
                    ('root_required', trait)]):
            yield Shortage(
                f'no host can hold {HELD_BY_KEY[capability].extra_spec}',
                f' (none has the trait {trait})')


def _bandwidth(policy: GuestPolicy, accounting: Accounting, ask: Ask,
               nodes: Callable[[], Sequence[vfs.Pf]]) -> Iterator[Shortage]:
    demand = dict(sorted(policy.demand(accounting).items()))
    each_alone = True
    for share in sorted(set(demand.values())):
        if not _some_node_has(share, ask):
            each_alone = False
            step = _next_step(share, ask)
            if step:
                yield Shortage(
                    f'no host NUMA node with {share} % of its memory '
                    'bandwidth left can hold that share exactly '
                    f'({_counted(accounting)})',
                    f'; one can hold {step} %')
                continue
            most = _most_on_one_node(share, ask)
            yield Shortage(
                f'no host NUMA node has {share} % of its memory bandwidth '
                f'left ({_counted(accounting)})',
                f'; the most left on one node is {most} %')
    if each_alone and len(demand) > 1 and not any(
            _each_has_a_node(demand.values(), left)
            for left in vfs.by_place(nodes(), 'any').values()):
        yield Shortage(
            f'no host has {len(demand)} NUMA nodes with enough of their '
            f'memory bandwidth left, {_by_guest_node(demand, " %")} '
            f'({_counted(accounting)})')


def _counted(accounting: Accounting) -> str:
    """The key whose share is counted."""
    key = keys.MEM_BW_MIN if accounting == 'min' else keys.MEM_BW_MAX
    return key.extra_spec


def _no_group(policy: GuestPolicy, ask: Ask) -> bool:
    return policy.controlled and not ask(
        [('resources', f'{names.RESCTRL_GROUP}:1')])


def _not_joined(policy: GuestPolicy, accounting: Accounting,
                ask: Ask) -> Shortage:
    """What keeps a guest from the control groups that it could share."""
    for node, share in sorted(policy.demand(accounting).items()):
        trait = names.shares_trait(policy.fingerprint, node)
        if not _some_node_has(share, ask, trait):
            return Shortage(
                f'{_NO_GROUP}, and no host NUMA node with one that the guest '
                f'could share has {share} % of its memory bandwidth left '
                f'({_counted(accounting)})')
    return Shortage(
        f'{_NO_GROUP}, and the hosts with one that the guest could share '
        'lack something else that it needs: CPUs, memory, networks or '
        'devices')


def _some_node_has(share: int, ask: Ask,
                   trait: str = names.NUMA_NODE_TRAIT) -> bool:
    return ask([('resources', f'{names.MEM_BW_PCT}:{share}'),
                ('required', trait)])


def _next_step(share: int, ask: Ask) -> int:
    """The next share that some node holds in its steps; 0 without one."""
    larger = sorted({share + -share % step for step in _STEPS} - {share})
    return next((one for one in larger
                 if one <= 100 and _some_node_has(one, ask)), 0)


def _most_on_one_node(below: int, ask: Ask) -> int:
    """Largest share that some node has left, by bisection."""
    low, high = 0, below - 1
    while low < high:
        middle = (low + high + 1) // 2
        if _some_node_has(middle, ask):
            low = middle
        else:
            high = middle - 1
    return low
