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

A copy of nova.virt.hardware.numa_get_constraints, for the dry run
that must work without Nova. Properties of the image are not known here.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import re
from typing import Literal
from typing import TypeAlias

from oslo_utils import strutils

from ghsched_placement.base import cpulist
from ghsched_placement.base import decimals
from ghsched_placement.flavor import keys

#: KiB of a page, or a kind of pages whose size the host knows; None: the
#: flavor asks for no page size.
PageSize: TypeAlias = int | Literal['small', 'large', 'any'] | None

#: Value of ``ghsched:cpu_cache``; empty for ``none``.
CpuCache: TypeAlias = Literal['', 'prefer', 'require']

#: nova.objects.ImageMetaProps.NUMA_NODES_MAX
_MOST_NODES = 128

#: Another way to say hw:cpu_policy=dedicated, or shared.
_RESOURCES = re.compile(r'resources(?:[1-9][0-9]*)?:([PV]CPU)')

#: Another way to say hw:cpu_thread_policy.
_THREADS = re.compile(r'trait([1-9][0-9]*)?:HW_CPU_HYPERTHREADING')


class TopologyError(ValueError):
    """Raised for a flavor that Nova refuses; names the extra spec."""


@dataclass(frozen=True)
class CellShape:
    """vCPUs and memory of one guest NUMA node.

    :param vcpus: numbers of the vCPUs.
    :param memory_mb: memory in MiB.
    """

    vcpus: frozenset[int]
    memory_mb: int


@dataclass(frozen=True)
class GuestNode:
    """CPUs and memory that one NUMA node of a guest needs.

    :param pinned: number of dedicated host CPUs.
    :param shared: number of vCPUs that run on the shared CPUs of the host
        node.
    :param memory: memory in MiB.
    :param cpu_cache: whether the dedicated CPUs should (``prefer``) or must
        (``require``) share few L3 caches; empty for neither.
    """

    pinned: int = 0
    shared: int = 0
    memory: int = 0
    cpu_cache: CpuCache = ''


@dataclass(frozen=True)
class GuestShape:
    """vCPUs and memory of a guest, and its NUMA topology.

    :param vcpus: number of vCPUs.
    :param memory_mb: memory in MiB.
    :param cells: guest NUMA nodes; empty for a guest without a NUMA topology.
    :param pcpus: number of dedicated host CPUs, including the one for isolated
        emulator threads.
    :param shared: number of vCPUs that share host CPUs.
    :param dedicated: numbers of the vCPUs that have a dedicated host CPU.
    :param page_size: size of the memory pages that the guest requests.
    :param cpu_cache: as in :class:`GuestNode`.
    """

    vcpus: int
    memory_mb: int
    cells: tuple[CellShape, ...]
    pcpus: int
    shared: int
    dedicated: frozenset[int] = frozenset()
    page_size: PageSize = None
    cpu_cache: CpuCache = ''

    @property
    def needs(self) -> tuple[GuestNode, ...]:
        """CPUs and memory that each guest NUMA node needs on its host node."""
        isolated = self.pcpus - len(self.dedicated)
        return tuple(GuestNode(
            pinned=(len(cell.vcpus & self.dedicated)
                    + (isolated if not number else 0)),
            shared=len(cell.vcpus - self.dedicated), memory=cell.memory_mb,
            cpu_cache=self.cpu_cache)
            for number, cell in enumerate(self.cells))


def split_guest(vcpus: int, memory_mb: int,
                extra_specs: Mapping[str, str]) -> GuestShape:
    """Split a flavor's vCPUs and memory among guest NUMA nodes as Nova does.

    :param vcpus: number of vCPUs.
    :raises TopologyError: when Nova would refuse the flavor.
    """
    isolated = _get_fixed_choice('hw:emulator_threads_policy', extra_specs,
                                 ('share', 'isolate')) == 'isolate'
    dedicated = _list_dedicated_vcpus(vcpus, isolated, extra_specs)
    if isolated and not dedicated:
        raise TopologyError('hw:emulator_threads_policy: isolate needs '
                            'hw:cpu_policy=dedicated')
    if _has_thread_policy(extra_specs) and not dedicated:
        raise TopologyError('hw:cpu_thread_policy: needs '
                            'hw:cpu_policy=dedicated')
    nodes = _parse_node_count(extra_specs)
    pages = _parse_page_size(extra_specs)
    if nodes == 0 and (dedicated or pages is not None
                       or extra_specs.get('hw:pmem')):
        nodes = 1
    cells = _make_cells(nodes, vcpus, memory_mb, extra_specs)
    _check_pages(cells, pages)
    return GuestShape(
        vcpus, memory_mb, cells,
        pcpus=len(dedicated) + isolated if dedicated else 0,
        shared=vcpus - len(dedicated), dedicated=dedicated, page_size=pages,
        cpu_cache=parse_cpu_cache(extra_specs))


def parse_cpu_cache(extra_specs: Mapping[str, str]) -> CpuCache:
    """Return the value of ``ghsched:cpu_cache`` of a flavor.

    :returns: empty for ``none``, and if the flavor does not have the key.
    """
    wishes: Mapping[str, CpuCache] = {'prefer': 'prefer', 'require': 'require'}
    return wishes.get(extra_specs.get(keys.CPU_CACHE.extra_spec, ''), '')


def _get_fixed_choice(key: str, extra_specs: Mapping[str, str],
                      choices: Sequence[str]) -> str:
    """Return the value of an extra spec that has fixed choices.

    The result is an empty text if the extra spec is not set.

    :param key: name of the extra spec.
    :param choices: values that are allowed.
    :raises TopologyError: for any other value.
    """
    value = extra_specs.get(key, '')
    if value and value not in choices:
        raise TopologyError(f'{key}: {value!r} is not one of '
                            + ', '.join(choices))
    return value


# -- CPUs ---------------------------------------------------------------------


def _list_dedicated_vcpus(vcpus: int, isolated: bool,
                          extra_specs: Mapping[str, str]) -> frozenset[int]:
    """Return which vCPUs of a flavor get a dedicated host CPU.

    :param vcpus: number of vCPUs.
    :param isolated: whether the emulator threads have a dedicated CPU, too.
    """
    policy = _get_fixed_choice('hw:cpu_policy', extra_specs,
                               ('shared', 'dedicated', 'mixed'))
    if _has_pcpu_request(vcpus, isolated, policy, extra_specs):
        policy = 'dedicated'
    realtime = _list_realtime_vcpus(vcpus, extra_specs)
    mask = extra_specs.get('hw:cpu_dedicated_mask')
    if policy == 'mixed':
        return _list_mixed_vcpus(vcpus, mask, realtime)
    if mask:
        raise TopologyError('hw:cpu_dedicated_mask: needs '
                            'hw:cpu_policy=mixed')
    if policy == 'dedicated':
        return frozenset(range(vcpus))
    if realtime:
        raise TopologyError('hw:cpu_realtime: needs hw:cpu_policy=dedicated '
                            'or mixed')
    return frozenset()


def _has_pcpu_request(vcpus: int, isolated: bool, policy: str,
                      extra_specs: Mapping[str, str]) -> bool:
    """Whether a flavor requests dedicated CPUs by ``resources:PCPU``.

    :param vcpus: number of vCPUs.
    :param isolated: whether emulator threads have a dedicated CPU, too.
    :param policy: value of hw:cpu_policy.
    """
    asked = {'VCPU': 0, 'PCPU': 0}
    for key, value in extra_specs.items():
        match = _RESOURCES.fullmatch(key)
        # Nova passes over what it cannot read.
        if match and re.fullmatch('[0-9]{1,9}', value.strip()):
            asked[match[1]] += int(value)
    pcpus = asked['PCPU']
    if any(asked.values()) and (policy or all(asked.values())):
        raise TopologyError('resources:VCPU, resources:PCPU, hw:cpu_policy: '
                            'only one of them can be set')
    if pcpus and pcpus != vcpus + isolated:
        raise TopologyError(f'resources:PCPU: {pcpus} for a guest that needs '
                            f'{vcpus + isolated}')
    return pcpus > 0


def _list_mixed_vcpus(vcpus: int, mask: str | None,
                      realtime: frozenset[int]) -> frozenset[int]:
    if bool(mask) == bool(realtime):
        raise TopologyError(
            'hw:cpu_policy: mixed needs hw:cpu_dedicated_mask, or '
            'hw:cpu_realtime with hw:cpu_realtime_mask, and not both')
    if not mask:
        return realtime
    listed = _parse_vcpu_mask('hw:cpu_dedicated_mask', vcpus, mask)
    if not listed < frozenset(range(vcpus)):
        raise TopologyError('hw:cpu_dedicated_mask: must name some of the '
                            f'{vcpus} vCPUs and not all')
    return listed


def _list_realtime_vcpus(vcpus: int,
                         extra_specs: Mapping[str, str]) -> frozenset[int]:
    """Return the vCPUs that Nova gives real-time scheduling.

    The extra specs are ``hw:cpu_realtime`` and ``hw:cpu_realtime_mask``. The
    result is empty if no vCPU gets it.

    :param vcpus: number of vCPUs.
    """
    if not strutils.bool_from_string(extra_specs.get('hw:cpu_realtime')):
        return frozenset()
    everything = listed = frozenset(range(vcpus))
    mask = extra_specs.get('hw:cpu_realtime_mask')
    if mask:
        listed = _parse_vcpu_mask('hw:cpu_realtime_mask', vcpus, mask)
    if not listed <= everything:
        raise TopologyError('hw:cpu_realtime_mask: the guest has no vCPU '
                            + cpulist.render_cpu_list(listed - everything))
    if listed == everything and not extra_specs.get(
            'hw:emulator_threads_policy'):
        raise TopologyError(
            'hw:cpu_realtime: leave a vCPU out by hw:cpu_realtime_mask, or '
            'set hw:emulator_threads_policy')
    return listed


def _parse_vcpu_mask(key: str, vcpus: int, mask: str) -> frozenset[int]:
    """Parse a mask of vCPUs into a set of vCPU numbers.

    The mask lists the vCPUs, or begins with ``^`` and excludes vCPUs.

    :param key: name of the extra spec, for the error.
    :param vcpus: number of vCPUs.
    """
    listed = _parse_cpus(key, f'0-{vcpus - 1},{mask}'
                         if mask.strip().startswith('^') else mask)
    if not listed:
        raise TopologyError(f'{key}: {mask!r} leaves no vCPU')
    return listed


def _has_thread_policy(extra_specs: Mapping[str, str]) -> bool:
    """Whether a flavor sets a CPU thread policy, which needs dedicated CPUs.

    The policy decides whether vCPUs may share a core.
    """
    policy = _get_fixed_choice('hw:cpu_thread_policy', extra_specs,
                               ('prefer', 'isolate', 'require'))
    trait = next((value for key, value in extra_specs.items()
                  if _THREADS.fullmatch(key)), '')
    if policy and trait:
        raise TopologyError('hw:cpu_thread_policy: cannot go with '
                            'trait:HW_CPU_HYPERTHREADING')
    return bool(policy) or trait in ('required', 'forbidden')


# -- memory -------------------------------------------------------------------


def _parse_page_size(extra_specs: Mapping[str, str]) -> PageSize:
    """Parse the memory page size that a flavor requests.

    :returns: None if the flavor requests no page size.
    :raises TopologyError: for a value that is no page size.
    """
    text = extra_specs.get('hw:mem_page_size')
    if not text and strutils.bool_from_string(
            extra_specs.get('hw:locked_memory')):
        raise TopologyError('hw:locked_memory: needs hw:mem_page_size')
    if not text:
        return None
    kinds: dict[str, PageSize] = {
        'small': 'small', 'large': 'large', 'any': 'any'}
    if text in kinds:
        return kinds[text]
    try:
        number = decimals.parse_decimal(text)
        if number is not None:
            return number or None
        size: int = strutils.string_to_bytes(text, return_int=True) // 1024
    except ValueError:
        size = -1
    if size < 0:
        raise TopologyError(
            f'hw:mem_page_size: {text!r} is not one of small, large and any, '
            'and not a size such as 2048 (KiB), 2MB or 1GB')
    return size


def _check_pages(cells: Sequence[CellShape], size: PageSize) -> None:
    for node, cell in enumerate(cells):
        if isinstance(size, int) and size and cell.memory_mb * 1024 % size:
            raise TopologyError(
                f'hw:mem_page_size: {cell.memory_mb} MB of RAM on guest NUMA '
                f'node {node} are not a multiple of {size} KiB')


# -- NUMA nodes ---------------------------------------------------------------


def _parse_node_count(extra_specs: Mapping[str, str]) -> int:
    text = extra_specs.get('hw:numa_nodes')
    if not text:
        return 0
    if not re.fullmatch('[1-9][0-9]{0,3}', text) or (
            int(text) > _MOST_NODES):
        raise TopologyError(f'hw:numa_nodes: {text!r} is not a number from 1 '
                            f'to {_MOST_NODES}')
    return int(text)


def _make_cells(nodes: int, vcpus: int, memory_mb: int,
                extra_specs: Mapping[str, str]) -> tuple[CellShape, ...]:
    cpus = _list_numbered_values('hw:numa_cpus', extra_specs)
    memory = _list_numbered_values('hw:numa_mem', extra_specs)
    if nodes == 0:
        return ()
    if not cpus and not memory:
        return _make_even_cells(nodes, vcpus, memory_mb)
    if len(cpus) != nodes or len(memory) != nodes:
        raise TopologyError(
            'hw:numa_cpus.N, hw:numa_mem.N: set both for every N '
            f'from 0 to {nodes - 1}, or none of them')
    return _make_manual_cells(vcpus, memory_mb, cpus, memory)


def list_vcpus_by_node(nodes: int, vcpus: int, extra_specs: Mapping[str, str]
                       ) -> tuple[frozenset[int], ...]:
    """Return the vCPU numbers of each guest NUMA node of a flavor.

    :param nodes: number of guest NUMA nodes.
    :param vcpus: number of vCPUs.
    :raises TopologyError: when Nova would refuse the flavor's hw:numa_cpus.
    """
    listed = _list_numbered_values('hw:numa_cpus', extra_specs)
    if not listed:
        return tuple(cell.vcpus for cell in _make_even_cells(nodes, vcpus, 0))
    return tuple(_parse_cpus(f'hw:numa_cpus.{node}', text)
                 for node, text in enumerate(listed))


def _list_numbered_values(key: str,
                          extra_specs: Mapping[str, str]) -> list[str]:
    """Return the values of the extra specs ``key.0``, ``key.1`` and so on.

    The list ends before the first number for which there is no extra spec.

    :param key: name of the extra specs without the number.
    """
    values: list[str] = []
    while f'{key}.{len(values)}' in extra_specs:
        values.append(extra_specs[f'{key}.{len(values)}'])
    return values


def _make_even_cells(nodes: int, vcpus: int,
                     memory_mb: int) -> tuple[CellShape, ...]:
    for amount, what in ((vcpus, 'vCPUs'), (memory_mb, 'MB of RAM')):
        if amount % nodes:
            raise TopologyError(
                f'hw:numa_nodes: {amount} {what} cannot be split evenly over '
                f'{nodes} guest NUMA nodes; set hw:numa_cpus.N and '
                'hw:numa_mem.N')
    each = vcpus // nodes
    return tuple(CellShape(frozenset(range(node * each, (node + 1) * each)),
                           memory_mb // nodes) for node in range(nodes))


def _make_manual_cells(vcpus: int, memory_mb: int, cpus: list[str],
                       memory: list[str]) -> tuple[CellShape, ...]:
    cells = []
    left = frozenset(range(vcpus))
    for node, (cpu_text, memory_text) in enumerate(
            zip(cpus, memory, strict=True)):
        mine = _parse_cpus(f'hw:numa_cpus.{node}', cpu_text)
        if not mine <= left:
            raise TopologyError(
                f'hw:numa_cpus.{node}: vCPU '
                f'{cpulist.render_cpu_list(mine - left)} is on another node '
                'or beyond the vCPUs of the guest')
        left -= mine
        if not re.fullmatch('[0-9]{1,12}', memory_text):
            raise TopologyError(f'hw:numa_mem.{node}: {memory_text!r} is not '
                                'a number of MB')
        cells.append(CellShape(mine, int(memory_text)))
    if left:
        raise TopologyError(
            f'hw:numa_cpus.N: vCPU {cpulist.render_cpu_list(left)} is '
            'on no guest NUMA node')
    total = sum(cell.memory_mb for cell in cells)
    if total != memory_mb:
        raise TopologyError(f'hw:numa_mem.N: {total} MB in all, but the guest '
                            f'has {memory_mb} MB')
    return tuple(cells)


def _parse_cpus(key: str, text: str) -> frozenset[int]:
    try:
        return cpulist.parse_cpu_list(text)
    except cpulist.CpuListError as error:
        raise TopologyError(f'{key}: {error}') from None
