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


"""A flavor's CPUs and RAM on guest NUMA nodes, as Nova splits them (pure).

A second telling of nova.virt.hardware.numa_get_constraints, for the dry run
that must work without Nova. Properties of the image are not known here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import re

from ghsched_placement import cpulist

#: nova.objects.ImageMetaProps.NUMA_NODES_MAX
_MOST_NODES = 128

#: Each gives a guest a NUMA topology of one node if hw:numa_nodes is absent.
_MAKES_TOPOLOGY = ('hw:mem_page_size', 'hw:pmem')

#: The older way to say hw:cpu_policy=dedicated.
_PCPU = re.compile(r'resources([1-9][0-9]*)?:PCPU')


class TopologyError(ValueError):
    """A flavor that Nova refuses; names the extra spec and the reason."""


@dataclass(frozen=True)
class Cell:
    """One guest NUMA node.

    :param vcpus: guest CPU numbers.
    :param memory_mb: MiB of RAM.
    """

    vcpus: frozenset[int]
    memory_mb: int


@dataclass(frozen=True)
class Guest:
    """A guest's CPUs and RAM.

    :param vcpus: number of guest CPUs.
    :param memory_mb: MiB of RAM.
    :param cells: guest NUMA nodes; empty for a guest without a topology.
    :param pcpus: host CPUs of its own, with the one of isolated emulator
        threads.
    :param shared: guest CPUs that share host CPUs.
    :param dedicated: guest CPU numbers with a host CPU of their own.
    """

    vcpus: int
    memory_mb: int
    cells: tuple[Cell, ...]
    pcpus: int
    shared: int
    dedicated: frozenset[int] = frozenset()


def split(vcpus: int, memory_mb: int,
          extra_specs: Mapping[str, str]) -> Guest:
    """Split a flavor as Nova does.

    :raises TopologyError: when Nova would refuse the flavor.
    """
    dedicated = _dedicated(vcpus, extra_specs)
    isolated = extra_specs.get('hw:emulator_threads_policy') == 'isolate'
    pinned = dedicated or any(map(_PCPU.fullmatch, extra_specs))
    if isolated and not pinned:
        raise TopologyError('hw:emulator_threads_policy: isolate needs '
                            'hw:cpu_policy=dedicated')
    if extra_specs.get('hw:cpu_thread_policy') and not pinned:
        raise TopologyError('hw:cpu_thread_policy: needs '
                            'hw:cpu_policy=dedicated')
    nodes = _node_count(extra_specs)
    if nodes == 0 and (pinned or not extra_specs.keys().isdisjoint(
            _MAKES_TOPOLOGY)):
        nodes = 1
    return Guest(
        vcpus, memory_mb, _cells(nodes, vcpus, memory_mb, extra_specs),
        pcpus=len(dedicated) + isolated if dedicated else 0,
        shared=vcpus - len(dedicated), dedicated=dedicated)


def _dedicated(vcpus: int, extra_specs: Mapping[str, str]) -> frozenset[int]:
    everything = frozenset(range(vcpus))
    policy = extra_specs.get('hw:cpu_policy', 'shared')
    mask = extra_specs.get('hw:cpu_dedicated_mask')
    if policy not in ('shared', 'dedicated', 'mixed'):
        raise TopologyError(f'hw:cpu_policy: {policy!r} is none of shared, '
                            'dedicated and mixed')
    if policy != 'mixed':
        if mask:
            raise TopologyError('hw:cpu_dedicated_mask: needs '
                                'hw:cpu_policy=mixed')
        return everything if policy == 'dedicated' else frozenset()
    mask = mask or extra_specs.get('hw:cpu_realtime_mask', '')
    listed = _cpus('hw:cpu_dedicated_mask',
                   f'0-{vcpus - 1},{mask}' if mask.strip().startswith('^')
                   else mask)
    if not listed or not listed < everything:
        raise TopologyError('hw:cpu_dedicated_mask: must name some of the '
                            f'{vcpus} vCPUs and not all')
    return listed


def _node_count(extra_specs: Mapping[str, str]) -> int:
    text = extra_specs.get('hw:numa_nodes')
    if text is None:
        return 0
    if not re.fullmatch('[0-9]{1,4}', text) or not (
            1 <= int(text) <= _MOST_NODES):
        raise TopologyError(f'hw:numa_nodes: {text!r} is not a number from 1 '
                            f'to {_MOST_NODES}')
    return int(text)


def _cells(nodes: int, vcpus: int, memory_mb: int,
           extra_specs: Mapping[str, str]) -> tuple[Cell, ...]:
    cpus = _listed('hw:numa_cpus', extra_specs)
    memory = _listed('hw:numa_mem', extra_specs)
    if nodes == 0:
        return ()
    if not cpus and not memory:
        return _even(nodes, vcpus, memory_mb)
    if len(cpus) != nodes or len(memory) != nodes:
        raise TopologyError(
            'hw:numa_cpus.N, hw:numa_mem.N: each must be there for every N '
            f'from 0 to {nodes - 1}, or none at all')
    return _manual(vcpus, memory_mb, cpus, memory)


def _listed(key: str, extra_specs: Mapping[str, str]) -> list[str]:
    """Values of key.0, key.1, ... up to the first that is absent."""
    values: list[str] = []
    while f'{key}.{len(values)}' in extra_specs:
        values.append(extra_specs[f'{key}.{len(values)}'])
    return values


def _even(nodes: int, vcpus: int, memory_mb: int) -> tuple[Cell, ...]:
    for amount, what in ((vcpus, 'vCPUs'), (memory_mb, 'MB of RAM')):
        if amount % nodes:
            raise TopologyError(
                f'hw:numa_nodes: {amount} {what} can not be split evenly over '
                f'{nodes} guest NUMA nodes; set hw:numa_cpus.N and '
                'hw:numa_mem.N')
    each = vcpus // nodes
    return tuple(Cell(frozenset(range(node * each, (node + 1) * each)),
                      memory_mb // nodes) for node in range(nodes))


def _manual(vcpus: int, memory_mb: int, cpus: list[str],
            memory: list[str]) -> tuple[Cell, ...]:
    cells = []
    left = frozenset(range(vcpus))
    for node, (cpu_text, memory_text) in enumerate(
            zip(cpus, memory, strict=True)):
        mine = _cpus(f'hw:numa_cpus.{node}', cpu_text)
        if not mine <= left:
            raise TopologyError(
                f'hw:numa_cpus.{node}: vCPU {cpulist.render(mine - left)} is '
                'on another node or beyond the vCPUs of the guest')
        left -= mine
        if not re.fullmatch('[0-9]{1,12}', memory_text):
            raise TopologyError(f'hw:numa_mem.{node}: {memory_text!r} is not '
                                'a number of MB')
        cells.append(Cell(mine, int(memory_text)))
    if left:
        raise TopologyError(f'hw:numa_cpus.N: vCPU {cpulist.render(left)} is '
                            'on no guest NUMA node')
    total = sum(cell.memory_mb for cell in cells)
    if total != memory_mb:
        raise TopologyError(f'hw:numa_mem.N: {total} MB in all, but the guest '
                            f'has {memory_mb} MB')
    return tuple(cells)


def _cpus(key: str, text: str) -> frozenset[int]:
    try:
        return cpulist.parse(text)
    except cpulist.CpuListError as error:
        raise TopologyError(f'{key}: {error}') from None
