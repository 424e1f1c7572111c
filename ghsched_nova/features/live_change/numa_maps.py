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

"""NUMA binding of the memory of a running QEMU, and its changes (pure).

QEMU binds the memory of each guest NUMA node with mbind(2). While QEMU runs,
only a change of ``cpuset.mems`` binds it elsewhere: the kernel maps the nodes
of a policy as it maps the old set of allowed nodes to the new one, the n-th to
the n-th (``mpol_rebind_nodemask`` of mm/mempolicy.c, ``bitmap_remap`` of
lib/bitmap.c). Therefore not every move of a guest with several nodes is
possible.

While both the old and the new nodes are allowed, pages are moved in pieces,
which limits the rate; the last change of ``cpuset.mems`` moves the rest.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
import re

from ghsched_placement.base import cpulist

Nodes = frozenset[int]

_BOUND = re.compile(r'([0-9a-f]+) bind(?:=[a-z+]+)?:([0-9,-]+)(?: |$)')
_PAGES = re.compile(r' N([0-9]{1,4})=([0-9]{1,20})')
_PAGE_SIZE = re.compile(r' kernelpagesize_kB=([0-9]{1,10})')
_RANGE = re.compile(r'([0-9a-f]+)-([0-9a-f]+) ')


#: Maximum number of bound areas of a process; QEMU has one or a few for each
#: guest NUMA node.
MAX_AREAS = 16384


class MemoryMoveError(Exception):
    """Reason why a guest's memory cannot be moved to other NUMA nodes."""


@dataclass(frozen=True)
class Area:
    """Memory area of a process that is bound to one NUMA node.

    :param first: start address.
    :param last: end address, exclusive.
    :param page_size: bytes.
    :param pages: number of pages on each node.
    """

    first: int
    last: int
    node: int
    page_size: int
    pages: Mapping[int, int]

    @property
    def stray_pages(self) -> int:
        """Number of pages on other NUMA nodes than the area is bound to."""
        return sum(count for node, count in self.pages.items()
                   if node != self.node)


def parse_bound_areas(
        numa_maps: Iterable[str], maps: Iterable[str]) -> list[Area]:
    """Parse a process's memory areas that are bound to one NUMA node each.

    :param numa_maps: lines of ``/proc/PID/numa_maps``, proc(5).
    :param maps: lines of ``/proc/PID/maps``, which have the end addresses.
    :raises MemoryMoveError: if there are more than :data:`MAX_AREAS`.
    """
    starts = {}
    for line in numa_maps:
        area = _parse_bound_area(line)
        if area is not None:
            starts[area.first] = area
        if len(starts) > MAX_AREAS:
            raise MemoryMoveError(
                f'its memory is in more than {MAX_AREAS} parts')
    ends = {first: int(found[2], 16) for found in map(_RANGE.match, maps)
            if found and (first := int(found[1], 16)) in starts}
    return [replace(area, last=ends[first])
            for first, area in starts.items() if first in ends]


def _parse_bound_area(line: str) -> Area | None:
    """Parse the memory area in a line of ``numa_maps``.

    The end address of the area is not in this file.

    :returns: None if the area is not bound to one node.
    """
    found, size = _BOUND.match(line), _PAGE_SIZE.search(line)
    try:
        nodes = cpulist.parse_cpu_list(found[2]) if found else frozenset()
    except cpulist.CpuListError:
        return None
    if not found or len(nodes) != 1:
        return None
    first = int(found[1], 16)
    return Area(first, first, min(nodes),
                (int(size[1]) if size else 4) * 1024,
                {int(node): int(count)
                 for node, count in _PAGES.findall(line)})


def predict_rebound_node(node: int, old: Nodes, new: Nodes) -> int:
    """Return the node to which the kernel will rebind memory of a NUMA node.

    The kernel rebinds memory that is bound to one node when the allowed nodes
    (``cpuset.mems``) change.

    :param node: node to which the memory is bound.
    :param old: nodes allowed before the change.
    :param new: nodes allowed after the change.
    """
    if node not in old or not new:
        return node
    return sorted(new)[sorted(old).index(node) % len(new)]


def plan_cpuset_mems(
    new_nodes: Mapping[int, int], old_nodes: Iterable[int]
) -> tuple[Nodes, ...]:
    """Return ``cpuset.mems`` values that move a guest's memory to other nodes.

    The kernel moves memory when the allowed nodes in this file change.

    :param new_nodes: new host node by old one.
    :param old_nodes: all host nodes of the guest before the move.
    :returns: values to write, one after the other.
    :raises MemoryMoveError: if the kernel would bind memory to wrong nodes.
    """
    wanted = {node: new_nodes.get(node, node) for node in old_nodes}
    old, new = frozenset(wanted), frozenset(wanted.values())
    back = {after: before for before, after in wanted.items()}
    both = old | new
    kept = {node: node for node in old}
    if len(old) == 1 or all(
            _moves_to_wanted_nodes(way, want) for way, want in (
                ((old, both), kept), ((both, new), wanted),
                ((both, old), kept), ((new, both, old), back))):
        return (both, new)
    if old != new and _moves_to_wanted_nodes((old, new), wanted) and (
            _moves_to_wanted_nodes((new, old), back)):
        return (new,)
    raise MemoryMoveError(
        'the kernel keeps the order of NUMA nodes when it moves memory, so it '
        f'cannot move {_text(wanted)}')


def _moves_to_wanted_nodes(
        steps: Sequence[Nodes], wanted: Mapping[int, int]) -> bool:
    """Whether values of ``cpuset.mems`` move a guest's memory as wanted.

    :param steps: values in the order in which they are written.
    :param wanted: wanted node by present node.
    """
    for node, target in wanted.items():
        for old, new in zip(steps, steps[1:], strict=False):
            node = predict_rebound_node(node, old, new)
        if node != target:
            return False
    return True


def _text(wanted: Mapping[int, int]) -> str:
    return ', '.join(f'{old} to {new}' for old, new in sorted(wanted.items()))


def split_area_into_pieces(
        area: Area, max_size: int) -> Iterator[tuple[int, int]]:
    """Yield address ranges that divide a memory area into pieces.

    The length of each piece is a multiple of the page size.

    :param max_size: maximum bytes of a piece. A piece has at least one page.
    """
    step = max(area.page_size, max_size // area.page_size * area.page_size)
    for first in range(area.first, area.last, step):
        yield first, min(first + step, area.last)
