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

"""vCPU classes: sets of a guest's vCPUs with bandwidth of their own (pure).

``ghsched:vcpu_classes=latency:0-15,batch:64-79`` names sets of vCPUs. A
bandwidth key with the name of a class, such as ``ghsched:mem_bw_min.latency``,
is for this class alone; without a name it is for the class ``default``, which
has the other vCPUs. Each class with bandwidth keys is a control group.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
from dataclasses import dataclass
import itertools
import re

from ghsched_placement.base import cpulist
from ghsched_placement.base.errors import PolicyError
from ghsched_placement.flavor.bandwidth import NodePolicy
from ghsched_placement.flavor import keys

#: Class of the vCPUs that no other class has, and of QEMU's other threads.
DEFAULT = 'default'

#: Classes that a flavor may name, without :data:`DEFAULT`.
MAX_CLASSES = 4

_NAME = re.compile('[a-z][a-z0-9_]{0,15}')

#: Names and vCPUs of the classes of a flavor, in its order.
NamedVcpus = tuple[tuple[str, frozenset[int]], ...]

_KEY = keys.VCPU_CLASSES.extra_spec


@dataclass(frozen=True)
class VcpuClass:
    """vCPUs of a guest that share a control group, and their bandwidth.

    :param name: name in the flavor; empty for a guest without classes.
    :param vcpus: numbers of the vCPUs; None for all vCPUs of the guest.
    :param nodes: bandwidth of the class on each guest NUMA node; empty if the
        flavor requests none for the class, which then has no control group.
    :param moved: all vCPUs of the class since the guest last moved some; None
        if they are those of the flavor.
    """

    name: str
    vcpus: frozenset[int] | None
    nodes: tuple[NodePolicy, ...] = ()
    moved: frozenset[int] | None = None

    @property
    def current(self) -> frozenset[int] | None:
        """Numbers of the vCPUs in the class now; None for all vCPUs."""
        return self.vcpus if self.moved is None else self.moved

    def __str__(self) -> str:
        return f'{self.name}:{cpulist.render_cpu_list(self.vcpus or ())}'


def has_other_threads(name: str) -> bool:
    """Whether threads of QEMU that are no vCPUs belong to a class.

    :param name: name of the class; empty for a guest without classes.
    """
    return name in ('', DEFAULT)


def is_class_name(text: str) -> bool:
    """Whether a class of vCPUs can have this name."""
    return bool(_NAME.fullmatch(text))


def parse_vcpu_classes(text: str) -> NamedVcpus:
    """Parse the value of ``ghsched:vcpu_classes``.

    :raises PolicyError: for a malformed value, more than four classes, or
        classes that overlap.
    """
    named = _split_by_name(text)
    if len(named) > MAX_CLASSES:
        raise PolicyError(_KEY, f'{len(named)} classes are named, and at most '
                                f'{MAX_CLASSES} can be')
    try:
        found = tuple((name, cpulist.parse_cpu_list(','.join(vcpus)))
                      for name, vcpus in named.items())
    except cpulist.CpuListError as error:
        raise PolicyError(_KEY, str(error)) from None
    for name, mine in found:
        if not mine:
            raise PolicyError(_KEY, f'the class {name} has no vCPU')
    for (name, mine), (other, theirs) in itertools.combinations(found, 2):
        if mine & theirs:
            raise PolicyError(
                _KEY, f'vCPU {cpulist.render_cpu_list(mine & theirs)} is in '
                      f'the classes {name} and {other}')
    return found


def _split_by_name(text: str) -> dict[str, list[str]]:
    """Return the parts of the vCPU list of each class, by class name."""
    named: dict[str, list[str]] = {}
    for part in text.split(','):
        name, colon, vcpus = part.strip().rpartition(':')
        if colon:
            name = name.strip()
            _check_name(name, named)
            named[name] = []
        elif not named:
            raise PolicyError(_KEY, f'{part.strip()!r} is not NAME:VCPUS, '
                                    'such as latency:0-15')
        named[next(reversed(named))].append(vcpus)
    return named


def _check_name(name: str, others: Iterable[str]) -> None:
    if not is_class_name(name):
        raise PolicyError(
            _KEY, f'{name!r} is not a name of 1 to 16 lower-case letters, '
                  'digits and underscores that begins with a letter')
    if name == DEFAULT:
        raise PolicyError(_KEY, f'{DEFAULT} is the class of the vCPUs that '
                                'are not named')
    if name in others:
        raise PolicyError(_KEY, f'the class {name} is named twice')


def make_classes(
    named: NamedVcpus, given: Set[str], guest_nodes: int,
    on_node: Sequence[frozenset[int]],
    make_node_policy: Callable[[str, int], NodePolicy]
) -> tuple[VcpuClass, ...]:
    """Return the classes of a guest, with their bandwidth.

    :param named: names and vCPUs of the classes in the flavor.
    :param given: names of the classes for which the flavor has bandwidth keys.
    :param guest_nodes: number of guest NUMA nodes.
    :param on_node: vCPUs of each guest NUMA node. If it is empty, each class
        is taken to have vCPUs on all of them.
    :param make_node_policy: function that returns the bandwidth of a class,
        by its name, on a guest NUMA node.
    :returns: the class of the other vCPUs comes last; it is left out if there
        are none.
    :raises PolicyError: for a vCPU that the guest does not have, or keys
        without effect.
    """
    if not guest_nodes:
        raise PolicyError(
            _KEY, f'needs a guest NUMA topology; set {keys.NUMA_NODES}')
    every = frozenset[int]().union(*on_node)
    rest = every.difference(*(mine for _name, mine in named))
    if on_node:
        _check_vcpus(named, every)
        if DEFAULT in given and not rest:
            raise PolicyError(
                _KEY, 'names every vCPU, so that bandwidth keys without the '
                      'name of a class have no effect')
    found = []
    for name, mine in (*named, (DEFAULT, rest)):
        nodes = tuple(
            make_node_policy(name, node)
            if not on_node or mine & on_node[node] else NodePolicy()
            for node in range(guest_nodes)) if name in given else ()
        if mine or nodes:
            found.append(VcpuClass(name, mine, nodes))
    return tuple(found)


def list_vcpus_by_node(guest_nodes: int, vcpus: int,
                       extra_specs: Mapping[str, str]
                       ) -> tuple[frozenset[int], ...]:
    """Return the vCPUs of each guest NUMA node.

    :param vcpus: number of vCPUs; 0 if unknown.
    :returns: empty if the number of vCPUs is unknown, or without NUMA nodes.
    :raises PolicyError: if the vCPUs cannot be split as the flavor says.
    """
    if not vcpus or not guest_nodes:
        return ()
    # Imported here because it is slow to import and rarely needed.
    from ghsched_placement.flavor import topology

    try:
        return topology.list_vcpus_by_node(guest_nodes, vcpus, extra_specs)
    except topology.TopologyError as error:
        raise PolicyError(_KEY, str(error)) from None


def _check_vcpus(named: NamedVcpus, every: frozenset[int]) -> None:
    for name, vcpus in named:
        if not vcpus <= every:
            raise PolicyError(
                _KEY, f'{name} has vCPU {max(vcpus - every)}, and the guest '
                      f'has {len(every)} (counted from 0)')


def add_up_classes(classes: Sequence[VcpuClass],
                   vcpus_by_node: Sequence[frozenset[int]]
                   ) -> tuple[NodePolicy, ...]:
    """Return the summed guarantees and caps of all classes, by guest node.

    vCPUs of a class without limits can use all of the bandwidth.

    :param vcpus_by_node: vCPUs of each guest NUMA node; empty if unknown.
    :returns: empty if no class requests bandwidth.
    :raises PolicyError: if the guarantees on a guest NUMA node are more than
        100 percent.
    """
    count = max((len(one.nodes) for one in classes), default=0)
    return tuple(
        _add_up(number, [
            one.nodes[number] if one.nodes else NodePolicy()
            for one in classes if not vcpus_by_node
            or one.vcpus is None or one.vcpus & vcpus_by_node[number]])
        for number in range(count))


def _add_up(number: int, nodes: Sequence[NodePolicy]) -> NodePolicy:
    minimum = sum(node.minimum for node in nodes)
    if minimum > 100:
        raise PolicyError(
            keys.MEM_BW_MIN.extra_spec, 'the guarantees of the classes of '
            f'{_KEY} add up to {minimum} % on guest NUMA node {number}; the '
            'limit is 100 %')
    return NodePolicy(
        minimum=minimum,
        maximum=min(100, sum(node.maximum for node in nodes)),
        hardlimit=all(node.hardlimit for node in nodes if node.is_capped))


def refuse_unknown_classes(extra_specs: Iterable[tuple[str, str]],
                           named: NamedVcpus) -> None:
    """Refuse extra specs for vCPU classes that the flavor does not name.

    :param extra_specs: pairs of extra spec and the class after its dot.
    :param named: classes that the flavor names, with their vCPUs.
    :raises PolicyError: for the first such extra spec.
    """
    known = [name for name, _vcpus in named]
    for extra_spec, name in extra_specs:
        if name == DEFAULT:
            raise PolicyError(
                extra_spec, f'set {extra_spec.removesuffix("." + name)} '
                            f'without a class, for the class {DEFAULT}')
        if name not in known:
            raise PolicyError(extra_spec, f'{_KEY} has no class {name}' + (
                f', it has {", ".join(known)}' if known else ''))
