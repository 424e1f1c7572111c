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

"""Reasons why a guest does not fit: resource, place, amount and remedy.

The one type for it, its words, and the comparisons that make one. A host is
judged by what it has left (:func:`find_trait_mismatches` and
:func:`find_resource_shortage`), the cloud by asking Placement
(:mod:`ghsched_placement.fit.cloud_lack`). What no question
explains is not claimed: nova-scheduler's filters are named with what each of
them removed (:func:`explain_filtered_hosts`).

A tenant is shown :attr:`Lack.reason`, which names no host and gives no figures
of the cloud; an operator is shown all of it (``str``).
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import re

import os_traits

from ghsched_placement.base import cpulist
from ghsched_placement.fit.node_capacity import CPUS
from ghsched_placement.fit.node_capacity import DEDICATED
from ghsched_placement.fit.node_capacity import MEMORY
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.resources import BESIDE_BANDWIDTH
from ghsched_placement.flavor.resources import KEY_OF_CAPABILITY
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.providers import names

#: Names of missing resources that have no resource class of their own.
BANDWIDTH = '% of memory bandwidth'
GROUPS = 'control groups'
NUMA_NODES = 'NUMA nodes'

#: Name of the resource if each one is free somewhere, but not all of them on
#: the same host NUMA nodes.
COMBINATION = 'all on the same NUMA nodes'

#: Name of a missing resource in messages, by resource class.
WORDS = {names.RESCTRL_GROUP: GROUPS, names.MEM_BW_PCT: BANDWIDTH,
         **{name: one.word for name, one in BESIDE_BANDWIDTH.items()},
         'MEMORY_MB': 'memory', 'DISK_GB': 'disk'}

#: Units in messages, for resources whose name does not include the unit.
_UNITS = {'memory': 'MB of memory', 'disk': 'GB of disk', 'VCPU': 'vCPUs',
          'PCPU': 'dedicated CPUs'}

#: Name of a resource in a message about one NUMA node, by resource class.
ON_NODE = {names.MEM_BW_PCT: '% of its memory bandwidth',
           **{name: one.on_node for name, one in BESIDE_BANDWIDTH.items()}}

#: Extra spec that requests a capability, by the capability's trait.
KEY_OF_TRAIT = {names.CAPABILITY_TRAITS[name]: key
                for name, key in KEY_OF_CAPABILITY.items()}

#: Maximum number of host names in a log line.
NAMED_HOSTS = 5


@dataclass(frozen=True)
class Lack:
    """Reason for a refusal: a resource or trait that a host or a cloud lacks.

    :param node: number of the host NUMA node; None for a host as a whole, or
        for all hosts.
    :param resource: name of the missing resource.
    :param free: largest amount that one guest can get; 0 if unknown or not
        counted.
    :param needed: amount that one guest needs, on this node.
    :param reason: reason as a clause, without names of hosts and numbers of
        the cloud. If empty, the text is made of the free and the needed
        amount.
    :param detail: further facts for the operator.
    :param cure: remedy for the operator.
    :param query: parameters of a query for allocation candidates that proves
        the reason: as long as Placement has no candidate for it, no host can
        take the guest. Empty if no single query proves the reason.
    """

    node: int | None
    resource: str
    free: int = 0
    needed: int = 1
    reason: str = ''
    detail: str = ''
    cure: str = ''
    query: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    @property
    def text(self) -> str:
        """Reason of the refusal as text.

        This is the given reason, or else the free and the needed amount, such
        as "2 vCPUs free, 4 needed".
        """
        return self.reason or (
            f'{self.free} {get_resource_unit(self.resource)} free, '
            f'{self.needed} needed')

    def __str__(self) -> str:
        return '; '.join(filter(None, (self.text, self.detail, self.cure)))


def get_resource_unit(resource: str) -> str:
    """Return the unit in which amounts of a resource are printed.

    The unit is a word such as "vCPUs" or "MiB".

    :param resource: name of the resource, in words or as a resource class.
    """
    if resource.startswith('memory in '):
        return f'MB of {resource}'
    return _UNITS.get(resource, resource)


def describe_amount(number: int, resource: str) -> str:
    """Return an amount of a resource as text, such as "2 control groups"."""
    if number == 1:
        resource = {GROUPS: 'control group'}.get(resource, resource)
        resource = re.sub('^VFs ', 'VF ', resource)
        resource = re.sub('^NUMA nodes$', 'NUMA node', resource)
    return f'{number} {resource}'


# -- on one host --------------------------------------------------------------


def find_trait_mismatches(traits: frozenset[str], required: Iterable[str],
                          forbidden: Iterable[str]) -> Iterator[Lack]:
    """Yield a refusal reason for each trait in which a host does not match.

    The host lacks a trait that a guest requires, or has a trait that the guest
    forbids.

    :param traits: traits of the compute node's own provider.
    :param required: traits that the guest requires.
    :param forbidden: traits that the guest forbids.
    """
    if os_traits.COMPUTE_STATUS_DISABLED in traits:
        yield Lack(None, 'compute service', reason='the compute service is '
                   'disabled', cure='openstack compute service set --enable')
    for trait in sorted(set(required) - traits):
        key = KEY_OF_TRAIT.get(trait)
        yield Lack(None, f'trait {trait}', reason=(
            f'it cannot hold {key.extra_spec} (trait {trait})' if key
            else f'it lacks the trait {trait}'))
    for trait in sorted((traits & set(forbidden))
                        - {os_traits.COMPUTE_STATUS_DISABLED}):
        yield Lack(None, f'trait !{trait}',
                   reason=f'it has the trait {trait}')


def find_resource_shortage(resource: str, needed: int, free: int,
                           per_guest: int | None = None,
                           node: int | None = None,
                           key: str = '') -> Lack | None:
    """Return the reason that a host has too little of a resource for a guest.

    :param needed: amount that the guest needs.
    :param free: free amount on the host or host NUMA node.
    :param per_guest: largest amount that one guest may have; None if it may
        have all that is free.
    :param node: host NUMA node with the shortage; None for the whole host.
    :param key: name of the extra spec that requests the resource, for the
        text.
    :returns: None if the amount is free.
    """
    key = key or _get_requesting_key(resource)
    if resource.startswith('pages of ') and free < needed:
        found = Lack(node, resource, max(0, free), needed,
                     f'{max(0, free)} of {per_guest} {resource} free, '
                     f'{needed} needed')
    elif free < needed:
        found = Lack(node, resource, max(0, free), needed)
    elif per_guest is not None and per_guest < needed:
        found = Lack(node, f'{resource} for one guest', per_guest, needed,
                     f'at most {per_guest} {get_resource_unit(resource)} for '
                     f'one guest, {needed} needed')
    else:
        return None
    return replace(found, reason=f'{found.text} ({key})') if key else found


def _get_requesting_key(resource: str) -> str:
    """Return the extra spec that requests a resource; empty if unknown.

    :param resource: name of the resource in words.
    """
    if resource.startswith(('memory in ', 'pages of ')):
        return 'hw:mem_page_size'
    if resource.startswith(f'{DEDICATED} of '):
        return keys.CPU_CACHE.extra_spec
    return next((one.key.extra_spec for one in BESIDE_BANDWIDTH.values()
                 if one.word == resource), '')


def make_missing_inventory_reason(resource_class: str, needed: int) -> Lack:
    """Return the reason that a host NUMA node has none of a resource.

    :param resource_class: resource class of a NUMA node, such as bursts.
    :param needed: amount that the guest needs.
    """
    word = WORDS[resource_class]
    one = BESIDE_BANDWIDTH.get(resource_class)
    if one is None:
        return Lack(None, word, 0, needed,
                    'its bandwidth cannot be controlled')
    return Lack(None, word, 0, needed, f'it has 0 {one.on_node}, {needed} '
                f'needed ({one.key.extra_spec})', cure=one.cure)


def make_unstated_reason(resource_class: str, needed: int, key: str,
                         node: int | None = None) -> Lack:
    """Return the reason that a host file does not give an amount.

    :param key: key of the host file that would give it.
    """
    word = WORDS[resource_class]
    return Lack(node, word, 0, needed, 'the host file does not say how many '
                f'{word} guests can have ({key}), {needed} needed '
                f'({_get_requesting_key(word)})')


def describe_guest_node(amounts: Mapping[str, int], guest: GuestNode,
                        vfs: Mapping[str, int]) -> str:
    """Return in words what a guest NUMA node needs of a host NUMA node.

    :param amounts: amounts by resource class.
    :param guest: CPUs and memory; all 0 if they are not counted.
    :param vfs: number of VFs by their name, such as "VFs of nic".
    """
    found = [(amount, WORDS[name]) for name, amount in sorted(
        amounts.items(), key=lambda item: (item[0] != names.MEM_BW_PCT,
                                           item[0]))]
    found += [(guest.shared, CPUS), (guest.pinned, DEDICATED),
              (guest.memory, MEMORY)]
    found += [(count, word) for word, count in sorted(vfs.items())]
    return ', '.join(f'{amount} {get_resource_unit(word)}'
                     for amount, word in found if amount) or 'nothing else'


def find_node_count_shortage(host_nodes: int, guest_nodes: int) -> Lack | None:
    """Return the reason that a guest has more NUMA nodes than a host.

    :returns: None if the host has as many.
    """
    if guest_nodes <= host_nodes:
        return None
    return Lack(None, NUMA_NODES, host_nodes, guest_nodes,
                f'it has {describe_amount(host_nodes, NUMA_NODES)}, the '
                f'guest has {guest_nodes}')


def make_too_few_nodes_reason(needed: Sequence[str],
                              fitting: Sequence[Collection[int]],
                              suffix: str = '') -> Lack:
    """Return the refusal reason of a host with too few NUMA nodes for a guest.

    Each guest NUMA node would fit alone, but the host does not have enough
    suitable NUMA nodes for all of them.

    :param needed: needs of each guest NUMA node, in words.
    :param fitting: numbers of the host NUMA nodes that have room for each
        guest NUMA node.
    :param suffix: text to append, on what the nodes need besides resources.
    """
    parts = ', '.join(
        f'guest NUMA node {number} ({what}) fits on '
        + (f'host {format_numa_nodes(nodes)}' if nodes
           else 'no host NUMA node') for number, (what, nodes)
        in enumerate(zip(needed, fitting, strict=True)))
    return Lack(None, COMBINATION, reason=(
        f'the {len(needed)} guest NUMA nodes need a host NUMA node '
        f'each{suffix}: {parts}'))


def format_numa_nodes(numbers: Collection[int]) -> str:
    """Return numbers of nodes in words, such as "NUMA nodes 0-1"."""
    return (f'NUMA node{"" if len(numbers) == 1 else "s"} '
            f'{cpulist.render_cpu_list(numbers)}')


class GroupedReasons:
    """Reasons why hosts were refused for one request, grouped for the log."""

    def __init__(self) -> None:
        self._hosts: dict[Lack, list[str]] = {}

    def add_reason(self, host: str, lack: Lack) -> None:
        self._hosts.setdefault(lack, []).append(host)

    def list_reasons_by_frequency(self) -> list[Lack]:
        """Return why hosts refused a guest, the most frequent reason first."""
        return sorted(self._hosts, key=lambda lack: -len(self._hosts[lack]))

    def format_log_lines(self, prefix: str,
                         verb: str = 'refused') -> list[str]:
        """Return a log line for each reason why hosts refused a guest.

        Each line names the hosts that refused for this reason.

        :param prefix: text on the flavor, with which each line begins.
        :param verb: participle such as ``refused``, for the text "refused on
            host h".
        """
        return [f'{prefix} {verb} on '
                f'{_format_host_count(len(hosts := self._hosts[lack]))} '
                f'({format_host_names(hosts)}): {lack}'
                for lack in self.list_reasons_by_frequency()]


def format_host_names(hosts: Sequence[str]) -> str:
    """Format a list of host names as a short text.

    Only the first few hosts are named; the others are counted.
    """
    shown = ', '.join(hosts[:NAMED_HOSTS])
    if len(hosts) > NAMED_HOSTS:
        shown += f' and {len(hosts) - NAMED_HOSTS} more'
    return shown


def _format_host_count(hosts: int) -> str:
    return f'{hosts} host' + ('' if hosts == 1 else 's')


# -- filters of nova-scheduler ------------------------------------------------

#: What to look at where a filter of Nova's removed the hosts.
_CURES = {
    'ComputeFilter': 'nova-compute of these hosts is down or disabled: see '
                     'openstack compute service list',
    'PciPassthroughFilter': 'see the free devices of the hosts and '
                            '[pci]alias',
}


@dataclass(frozen=True)
class FilterResult:
    """Number of hosts before and after a filter of nova-scheduler.

    :param name: name of the filter.
    """

    name: str
    before: int
    after: int


def explain_filtered_hosts(filtered: Sequence[FilterResult], hosts: int,
                           ghsched_reasons: Mapping[str, Sequence[Lack]]
                           ) -> list[Lack]:
    """Return the reasons why scheduler filters left no host for a guest.

    :param filtered: number of hosts before and after each filter, in the order
        of the filters.
    :param hosts: number of hosts among Placement's candidates.
    :param ghsched_reasons: reasons that ghsched's own filters gave, by filter
        name.
    """
    removing = [one for one in filtered if one.after < one.before]
    if filtered and filtered[-1].after:
        return [Lack(None, 'host', reason='other guests took the last hosts '
                     'at the same time', cure='try again')]
    if not removing:
        return [Lack(None, 'host', reason=(
            f'Placement has room on {_format_host_count(hosts)}, which the '
            'request excludes or nova-scheduler does not know'))]
    lacks = [lack for one in removing
             for lack in ghsched_reasons.get(one.name, ())]
    removed = ', '.join(f'{one.name} removed {one.before - one.after}'
                        for one in removing)
    why = ''.join(f': {lack.reason}' for lack in lacks[:1])
    return [Lack(
        None, 'host',
        reason=f'of {_format_host_count(removing[0].before)} with room in '
        f"Placement, nova-scheduler's {removed}{why}",
        detail='; '.join(filter(None, (lack.detail for lack in lacks))),
        cure='; '.join(_CURES[one.name] for one in removing
                       if one.name in _CURES))]
