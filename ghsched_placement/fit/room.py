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

"""CPUs and memory of host NUMA nodes as amounts by position (pure).

The positions are those of :data:`RESOURCES`, then one for each page size of
the host (:func:`list_page_sizes`), then one for each L3 cache of a host NUMA
node (:func:`list_cache_totals`).
"""

from collections.abc import Iterable
from collections.abc import Sequence
import itertools

from ghsched_placement.fit import model
from ghsched_placement.fit.node_capacity import CacheCpus
from ghsched_placement.fit.node_capacity import CPUS
from ghsched_placement.fit.node_capacity import DEDICATED
from ghsched_placement.fit.node_capacity import make_caches_word
from ghsched_placement.fit.node_capacity import make_pages_word
from ghsched_placement.fit.node_capacity import MEMORY
from ghsched_placement.fit.node_capacity import needs_huge_pages
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit.parts import count_least_parts
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.flavor.topology import PageSize

#: CPUs and memory of a host NUMA node, by position: shared CPUs, dedicated
#: CPUs, memory that may be overcommitted, memory of one guest node without
#: shared CPUs and of one with them, small pages, and memory of a node that
#: reports no pages.
RESOURCES = (CPUS, DEDICATED, MEMORY, 'memory of one guest node',
             'small pages of one guest node', 'memory in small pages',
             'memory in unknown pages')


def list_page_sizes(
        capacities: Iterable[NodeCapacity | None]) -> tuple[int, ...]:
    """Return the page sizes of a host in KiB, the smallest first."""
    return tuple(sorted({pages.size_kb for one in capacities if one
                         for pages in one.pages}))


def list_cache_totals(
        capacities: Iterable[NodeCapacity | None]) -> tuple[int, ...]:
    """Return the dedicated CPUs of L3 caches of a host, the largest first.

    There are as many as the host NUMA node with most caches has; each is the
    largest at its place of all host nodes.
    """
    return tuple(map(max, itertools.zip_longest(*(
        sorted((cache.total for cache in one.caches), reverse=True)
        for one in capacities if one), fillvalue=0)))


def read_free_amounts(room: NodeCapacity | None, sizes: Sequence[int],
                      caches: int = 0
                      ) -> tuple[model.Amounts, model.Amounts]:
    """Return the free CPUs and memory of a host NUMA node, by position.

    :param room: CPUs and memory of the node; None if unknown, which counts as
        enough.
    :param sizes: page sizes of the host in KiB.
    :param caches: number of L3 caches of the largest host node.
    :returns: free amounts, and the largest amounts of one guest node.
    """
    if room is None:
        enough = (model.UNCOUNTED,) * (len(RESOURCES) + len(sizes) + caches)
        return enough, enough
    small = room.pages[0] if room.pages else None
    unpaged = room.memory - room.memory_used
    by_size = {one.size_kb: one.free_mb for one in room.pages}
    of_caches = read_cache_amounts(room.caches, caches)
    return ((room.vcpus_free, room.dedicated_free, room.memory_free,
             model.UNCOUNTED, model.UNCOUNTED,
             small.free_mb if small else unpaged, 0 if small else unpaged,
             *(by_size.get(size, 0) for size in sizes), *of_caches[0]),
            (room.cpus, room.dedicated,
             model.UNCOUNTED if small else room.memory, room.memory,
             small.total_mb if small else model.UNCOUNTED,
             *(model.UNCOUNTED for _size in (0, 0, *sizes)), *of_caches[1]))


def read_cache_amounts(caches: Iterable[CacheCpus], number: int
                       ) -> tuple[model.Amounts, model.Amounts]:
    """Return the dedicated CPUs of the L3 caches of a host NUMA node.

    :param caches: the node's caches; empty if all its CPUs share one, or if
        they are unknown, which counts as enough.
    :param number: number of L3 caches of the largest host node.
    :returns: number of free CPUs of each cache, the largest cache first, and
        the most that one guest node may have of it.
    """
    amounts = [(one.free, one.total) for one in sorted(
        caches, key=lambda one: (-one.total, one.used))] or [
            (model.UNCOUNTED, model.UNCOUNTED)]
    amounts += [(0, 0)] * (number - len(amounts))
    free, most = list(zip(*amounts[:number], strict=True)) or [(), ()]
    return free, most


def make_need(part: GuestNode, sizes: Sequence[int], page_size: PageSize,
              before: model.Amounts = (),
              caches: int = 0) -> model.NodeNeed:
    """Return what a guest NUMA node needs of a host NUMA node, by position.

    :param sizes: page sizes of the host in KiB.
    :param page_size: memory page size that the guest asks for.
    :param before: amounts of other resources, whose positions come first.
    :param caches: number of L3 caches of the largest host node.
    """
    overcommitted = part.memory if part.shared else 0
    amounts = (part.shared, part.pinned, overcommitted,
               part.memory - overcommitted,
               overcommitted if page_size is None else 0,
               part.memory if part.pinned and page_size is None else 0, 0,
               *(0 for _position in range(len(sizes) + caches)))
    first = len(before) + len(RESOURCES)
    choices = []
    if caches and part.cpu_cache == 'require':
        choices = [model.StockChoice(part.pinned, tuple(range(
            first + len(sizes), first + len(sizes) + caches)), may_span=True)]
    if page_size is None:
        return model.NodeNeed((*before, *amounts), tuple(choices))
    usable = {'small': sizes[:1], 'large': sizes[1:], 'any': sizes}.get(
        str(page_size), [size for size in sizes if size == page_size])
    pages = [first + sizes.index(size) for size in reversed(usable)
             if part.memory * 1024 % size == 0]
    return model.NodeNeed((*before, *amounts), (
        model.StockChoice(part.memory, (*pages, first - 1)), *choices))


def name_resources(sizes: Sequence[int], page_size: PageSize,
                   parts: Iterable[GuestNode] = (),
                   caches: Sequence[int] = ()) -> list[str]:
    """Return the names of CPUs and memory in reasons, by position.

    :param sizes: page sizes of the host in KiB.
    :param page_size: memory page size that the guest asks for.
    :param parts: CPUs and memory of each guest NUMA node.
    :param caches: dedicated CPUs of each L3 cache, see
        :func:`list_cache_totals`.
    """
    of_memory = [MEMORY] * (len(RESOURCES) - 2)
    return [CPUS, DEDICATED, *of_memory, *(
        make_pages_word(size) if needs_huge_pages(page_size)
        else f'{MEMORY} in {page_size} pages' for size in sizes),
        *[make_caches_word(count_least_parts(caches, max(
            (part.pinned for part in parts), default=0)))] * len(caches)]


def count_guest_nodes(room: NodeCapacity, part: GuestNode,
                      page_size: PageSize) -> int:
    """Return how many guest NUMA nodes fit on a host NUMA node.

    Only CPUs and memory are compared.

    :param part: CPUs and memory of each of the guest nodes.
    :param page_size: memory page size that the guest asks for.
    """
    sizes, caches = list_page_sizes([room]), len(room.caches)
    free, most = read_free_amounts(room, sizes, caches)
    ones = (1,) * len(free)
    return model.Node(room.node, free, model.Units(
        most, ones, ones)).count_guest_nodes(make_need(
            part, sizes, page_size, caches=caches))
