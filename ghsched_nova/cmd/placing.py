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


"""Which host NUMA nodes a guest would get on an empty host (pure)."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import itertools

from ghsched_nova.cmd import host_pfs
from ghsched_nova.cmd.hostfile import HostFile
from ghsched_nova.resctrl import plan
from ghsched_placement import cpulist
from ghsched_placement import keys
from ghsched_placement import names
from ghsched_placement.policy import Accounting
from ghsched_placement.policy import GuestPolicy
from ghsched_placement import topology
from ghsched_placement import tree


#: With more than this many ways to place a guest, the nearest VFs are looked
#: for among so many.
_MOST_CHOICES = 10000


class Refused(Exception):  # noqa: N818
    """The host can not take the guest; says why."""


@dataclass(frozen=True)
class Wish:
    """All that decides where a guest goes.

    :param host: the host, taken to be empty.
    :param providers: its provider tree.
    :param guest: the guest's CPUs and RAM.
    :param policy: what it asks of ghsched.
    :param accounting: what Placement counts.
    """

    host: HostFile
    providers: Sequence[tree.Provider]
    guest: topology.Guest
    policy: GuestPolicy
    accounting: Accounting


def place(wish: Wish, nodes: Sequence[int] | None) -> tuple[int, ...]:
    """The host NUMA node of each guest NUMA node.

    :param nodes: where the caller wants them; None takes the first that fit,
        in the order in which Nova tries them.
    :raises Refused: when there is none, or when those wanted do not fit.
    """
    _check_host(wish)
    if nodes is not None:
        _check_wanted(wish, nodes)
        return _nearest(wish, [tuple(nodes)])
    cells = wish.guest.cells
    known = [node.id for node in wish.host.nodes]
    if len(cells) > len(known):
        raise Refused(f'the guest has {len(cells)} NUMA nodes and the host '
                      f'has {len(known)}')
    fitting = [_fitting(wish, guest_node) for guest_node in range(len(cells))]
    chosen = list(itertools.islice(_choices(fitting, ()), _MOST_CHOICES))
    if not chosen:
        raise Refused(f'the {len(cells)} guest NUMA nodes need a host NUMA '
                      'node each, and too few have room for them')
    return _nearest(wish, chosen)


def _nearest(wish: Wish,
             choices: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The first choice with the nearest VFs."""
    found = [(far, place) for place, nodes in enumerate(choices)
             if (far := _far(wish, nodes)) is not None]
    if not found:
        raise Refused('the host has too few VFs that are near enough '
                      f'({keys.VFS.extra_spec}, {keys.VFS_LOCALITY.extra_spec}'
                      f'={wish.policy.vfs_locality})')
    return choices[min(found)[1]]


def _far(wish: Wish, nodes: Sequence[int]) -> tuple[int, int] | None:
    return host_pfs.distance(wish.policy, wish.host.pfs, nodes,
                             wish.host.sockets)


def _check_host(wish: Wish) -> None:
    held = wish.host.resctrl.capabilities()
    if wish.policy.monitor and 'MEM_BW_MONITOR' not in held:
        raise Refused('ghsched:monitor=true can not be held: this host does '
                      'not report memory bandwidth')
    root = wish.providers[0].inventories
    if wish.policy.controlled and not tree.free(
            root.get(names.RESCTRL_GROUP, tree.inventory(0)), 0):
        raise Refused('the host has no resctrl control group for guests')


def _check_wanted(wish: Wish, nodes: Sequence[int]) -> None:
    if len(nodes) != len(wish.guest.cells):
        raise Refused(f'the guest has {len(wish.guest.cells)} NUMA nodes, and '
                      f'host NUMA nodes are given for {len(nodes)}')
    for guest_node, host_node in enumerate(nodes):
        if wish.host.node(host_node) is None:
            known = cpulist.render(node.id for node in wish.host.nodes)
            raise Refused(f'the host has no NUMA node {host_node}, it has '
                          f'{known}')
        if host_node in nodes[:guest_node]:
            raise Refused(f'host NUMA node {host_node} is given twice; each '
                          'guest NUMA node needs its own')
        reason = _misfit(wish, guest_node, host_node)
        if reason:
            raise Refused(f'guest NUMA node {guest_node} does not fit on host '
                          f'NUMA node {host_node}: {reason}')


def _fitting(wish: Wish, guest_node: int) -> tuple[int, ...]:
    """Host nodes that can take one guest node.

    :raises Refused: when there is none, with the reason of each.
    """
    reasons = {node.id: _misfit(wish, guest_node, node.id)
               for node in wish.host.nodes}
    fitting = tuple(node for node, reason in reasons.items() if not reason)
    if not fitting:
        raise Refused(f'no host NUMA node can take guest NUMA node '
                      f'{guest_node}: {_by_reason(reasons)}')
    return fitting


def _by_reason(reasons: Mapping[int, str | None]) -> str:
    nodes: dict[str, list[int]] = {}
    for node, reason in reasons.items():
        nodes.setdefault(reason or '', []).append(node)
    return '; '.join(f'{reason} (node {cpulist.render(numbers)})'
                     for reason, numbers in nodes.items())


def _misfit(wish: Wish, guest_node: int, host_node: int) -> str | None:
    """Why a guest node does not fit on a host node; None when it does."""
    cell, node = wish.guest.cells[guest_node], wish.host.node(host_node)
    assert node is not None  # noqa: S101
    if len(cell.vcpus) > len(node.cpus):
        return f'has {len(node.cpus)} CPUs, {len(cell.vcpus)} are needed'
    if cell.memory_mb > node.memory_mb:
        return (f'has {node.memory_mb} MB of RAM, {cell.memory_mb} MB are '
                'needed')
    short = host_pfs.short(wish.policy, wish.host.pfs, guest_node, host_node)
    if short or not wish.policy.nodes:
        return short
    return (_unheld(wish, guest_node, host_node)
            or _bandwidth_short(wish, guest_node, host_node))


def _unheld(wish: Wish, guest_node: int, host_node: int) -> str | None:
    alone = GuestPolicy((wish.policy.nodes[guest_node],))
    try:
        plan.resolve(wish.host.resctrl, alone, (host_node,))
    except plan.PolicyNotHeld as error:
        return error.reason
    return None


def _bandwidth_short(wish: Wish, guest_node: int,
                     host_node: int) -> str | None:
    need = wish.policy.demand(wish.accounting).get(guest_node, 0)
    uuid = names.numa_provider_uuid(wish.providers[0].uuid, host_node)
    free = next((tree.free(provider.inventories[names.MEM_BW_PCT], 0)
                 for provider in wish.providers if provider.uuid == uuid), 0)
    if need > free:
        return (f'has {free} % of its memory bandwidth for guests, {need} % '
                'are needed')
    return None


def _choices(fitting: Sequence[Sequence[int]],
             chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every way to give each guest node a host node of its own."""
    if len(chosen) == len(fitting):
        yield chosen
        return
    left = {node for nodes in fitting[len(chosen):] for node in nodes}
    if len(left.difference(chosen)) < len(fitting) - len(chosen):
        return
    for node in fitting[len(chosen)]:
        if node not in chosen:
            yield from _choices(fitting, (*chosen, node))
