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
the host (:func:`list_page_sizes`).
"""

from collections.abc import Iterable
from collections.abc import Sequence

from ghsched_placement.fit import model
from ghsched_placement.fit.node_capacity import CPUS
from ghsched_placement.fit.node_capacity import DEDICATED
from ghsched_placement.fit.node_capacity import make_pages_word
from ghsched_placement.fit.node_capacity import MEMORY
from ghsched_placement.fit.node_capacity import needs_huge_pages
from ghsched_placement.fit.node_capacity import NodeCapacity
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


def read_free_amounts(room: NodeCapacity | None, sizes: Sequence[int]
                      ) -> tuple[model.Amounts, model.Amounts]:
    """Return the free CPUs and memory of a host NUMA node, by position.

    :param room: CPUs and memory of the node; None if unknown, which counts as
        enough.
    :param sizes: page sizes of the host in KiB.
    :returns: free amounts, and the largest amounts of one guest node.
    """
    if room is None:
        enough = (model.UNCOUNTED,) * (len(RESOURCES) + len(sizes))
        return enough, enough
    small = room.pages[0] if room.pages else None
    unpaged = room.memory - room.memory_used
    by_size = {one.size_kb: one.free_mb for one in room.pages}
    return ((room.vcpus_free, room.dedicated_free, room.memory_free,
             model.UNCOUNTED, model.UNCOUNTED,
             small.free_mb if small else unpaged, 0 if small else unpaged,
             *(by_size.get(size, 0) for size in sizes)),
            (room.cpus, room.dedicated,
             model.UNCOUNTED if small else room.memory, room.memory,
             small.total_mb if small else model.UNCOUNTED,
             *(model.UNCOUNTED for _size in (0, 0, *sizes))))


def make_need(part: GuestNode, sizes: Sequence[int], page_size: PageSize,
              before: model.Amounts = ()) -> model.NodeNeed:
    """Return what a guest NUMA node needs of a host NUMA node, by position.

    :param sizes: page sizes of the host in KiB.
    :param page_size: memory page size that the guest asks for.
    :param before: amounts of other resources, whose positions come first.
    """
    overcommitted = part.memory if part.shared else 0
    amounts = (part.shared, part.pinned, overcommitted,
               part.memory - overcommitted,
               overcommitted if page_size is None else 0,
               part.memory if part.pinned and page_size is None else 0, 0,
               *(0 for _size in sizes))
    if page_size is None:
        return model.NodeNeed((*before, *amounts))
    usable = {'small': sizes[:1], 'large': sizes[1:], 'any': sizes}.get(
        str(page_size), [size for size in sizes if size == page_size])
    first = len(before) + len(RESOURCES)
    pages = [first + sizes.index(size) for size in reversed(usable)
             if part.memory * 1024 % size == 0]
    return model.NodeNeed((*before, *amounts), part.memory,
                          (*pages, first - 1))


def name_resources(sizes: Sequence[int],
                   page_size: PageSize) -> list[str]:
    """Return the names of CPUs and memory in reasons, by position.

    :param sizes: page sizes of the host in KiB.
    :param page_size: memory page size that the guest asks for.
    """
    of_memory = [MEMORY] * (len(RESOURCES) - 2)
    return [CPUS, DEDICATED, *of_memory, *(
        make_pages_word(size) if needs_huge_pages(page_size)
        else f'{MEMORY} in {page_size} pages' for size in sizes)]


def count_guest_nodes(room: NodeCapacity, part: GuestNode,
                      page_size: PageSize) -> int:
    """Return how many guest NUMA nodes fit on a host NUMA node.

    Only CPUs and memory are compared.

    :param part: CPUs and memory of each of the guest nodes.
    :param page_size: memory page size that the guest asks for.
    """
    sizes = list_page_sizes([room])
    free, most = read_free_amounts(room, sizes)
    ones = (1,) * len(free)
    return model.Node(room.node, free, model.Units(
        most, ones, ones)).count_guest_nodes(make_need(part, sizes, page_size))
