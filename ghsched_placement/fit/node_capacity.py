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

"""CPUs and memory of host NUMA nodes in Nova's account, and what fits (pure).

Placement counts CPUs and memory by host. Nova counts them by NUMA node as
well, for guests with a NUMA topology, and refuses a guest node that does not
fit (``nova.virt.hardware._numa_fit_instance_cell``). nova-compute publishes
this account with the diagnostics of each guest, because no API of Nova has it.

The siblings of ``hw:cpu_thread_policy`` are not part of the account.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
import dataclasses
from dataclasses import dataclass
import itertools
import math
from typing import Any
from typing import NamedTuple

from ghsched_placement.base import cpulist
from ghsched_placement.base import wire
from ghsched_placement.fit import parts
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.flavor.topology import PageSize

KEY = 'ghsched_node_rooms'
#: Version of the record's format. A new field does not change it, a new
#: meaning of a field does.
VERSION = 1

#: Names of resources, as in :mod:`ghsched_placement.fit.lack`.
CPUS, DEDICATED, MEMORY = 'CPUs', 'dedicated CPUs', 'memory'


#: Maximum number of L3 caches of a host NUMA node in a record.
MAX_CACHES = 512

#: Units of page sizes, by their number of KiB, the largest first.
_UNITS_OF_PAGES = {1024 ** 2: 'GB', 1024: 'MB', 1: 'KB'}


def make_pages_word(size_kb: int) -> str:
    """Return the name of memory pages of a size, such as "pages of 1 GB"."""
    unit = next(one for one in _UNITS_OF_PAGES if size_kb % one == 0)
    return f'pages of {size_kb // unit} {_UNITS_OF_PAGES[unit]}'


#: Note on hosts that do not report their huge pages.
PAGES_UNKNOWN = ('huge pages of {} are not known: guests with '
                 'hw:mem_page_size are counted by memory there')


def needs_huge_pages(page_size: PageSize) -> bool:
    """Whether a guest needs pages of another size than the smallest."""
    return page_size not in (None, 'small', 'any')


@dataclass(frozen=True)
class Pages:
    """Memory pages of one size on a host NUMA node.

    :param size_kb: size of a page in KiB.
    :param total: number of pages.
    :param used: number of pages used by guests with a NUMA topology.
    :param reserved: number of pages that guests cannot use.
    """

    size_kb: int
    total: int
    used: int = 0
    reserved: int = 0

    @property
    def total_mb(self) -> int:
        """MiB of all memory pages of this size on the host NUMA node."""
        return self.total * self.size_kb // 1024

    @property
    def usable(self) -> int:
        """Number of pages of this size that guests use or can use."""
        return self.total - self.reserved

    @property
    def free(self) -> int:
        """Number of free memory pages of this size on the host NUMA node."""
        return self.usable - self.used

    @property
    def free_mb(self) -> int:
        """MiB of free memory pages of this size on the host NUMA node."""
        return self.free * self.size_kb // 1024


def make_caches_word(caches: int) -> str:
    """Return the name of dedicated CPUs that share some L3 caches."""
    return f'{DEDICATED} of ' + ('one L3 cache' if caches == 1
                                 else f'{caches} L3 caches')


@dataclass(frozen=True)
class CacheCpus:
    """Dedicated CPUs of a host NUMA node that share an L3 cache.

    :param total: number of the CPUs.
    :param used: number of these CPUs that guests use.
    :param cpus: list of the CPUs, such as ``0-7``; empty if unknown.
    """

    total: int
    used: int = 0
    cpus: str = dataclasses.field(default='', compare=False)

    @property
    def free(self) -> int:
        """Number of the CPUs that no guest uses."""
        return max(0, self.total - self.used)

    def use(self, number: int) -> 'CacheCpus':
        """Return the cache with more of its CPUs used.

        :param number: number of CPUs; negative for CPUs that get free.
        """
        return dataclasses.replace(self, used=max(0, self.used + number))


def make_cache_cpus(dedicated: Set[int], pinned: Set[int],
                    caches: Iterable[Set[int]]) -> tuple[CacheCpus, ...]:
    """Return the dedicated CPUs of a host NUMA node by L3 cache.

    :param dedicated: dedicated CPUs of the node.
    :param pinned: CPUs that guests use.
    :param caches: CPUs of each L3 cache.
    :returns: in the order of the CPUs; empty if all share one cache, or if the
        cache of a CPU is unknown.
    """
    found = sorted(filter(None, (dedicated & one for one in caches)), key=min)
    if len(found) < 2 or not dedicated <= set().union(*found):
        return ()
    return tuple(CacheCpus(len(one), len(one & pinned),
                           cpulist.render_cpu_list(one)) for one in found)


def take_first_cpus(caches: Sequence[CacheCpus],
                    number: int) -> tuple[CacheCpus, ...]:
    """Return L3 caches of which the first free CPUs are taken.

    :param number: number of CPUs.
    """
    before = itertools.accumulate((one.free for one in caches), initial=0)
    return tuple(one.use(max(0, min(one.free, number - taken)))
                 for one, taken in zip(caches, before, strict=False))


class Shortage(NamedTuple):
    """CPUs or memory of which a host node has too little for a guest node.

    Amounts of huge pages are numbers of pages, those of memory are in MiB.

    :param resource: name of the resource.
    :param needed: amount that the guest node needs.
    :param free: free amount on the host node.
    :param at_once: largest amount that a single guest node may have there.
    """

    resource: str
    needed: int
    free: int
    at_once: int


@dataclass(frozen=True)
class NodeCapacity:
    """CPUs and memory of one host NUMA node, and their use by guests.

    :param node: number of the host NUMA node.
    :param cpus: number of host CPUs that guests share.
    :param vcpus_used: number of vCPUs of guests that are bound to these CPUs.
    :param cpu_ratio: maximum number of vCPUs per shared host CPU.
    :param dedicated: number of host CPUs for guests with dedicated CPUs.
    :param dedicated_used: number of these CPUs that guests use.
    :param memory: memory in MiB, with huge pages.
    :param memory_used: memory in MiB used by guests with a NUMA topology.
    :param ram_ratio: maximum MiB of guest memory per MiB of the node.
    :param pages: memory pages by size, the smallest first; empty if the host
        does not report them. Guests with huge pages then take them from all
        memory, without overcommitment.
    :param socket: number of the CPU socket; None if unknown.
    :param caches: dedicated CPUs by L3 cache; empty if all share one, or if
        unknown.
    """

    node: int
    cpus: int = 0
    vcpus_used: int = 0
    cpu_ratio: float = 1.0
    dedicated: int = 0
    dedicated_used: int = 0
    memory: int = 0
    memory_used: int = 0
    ram_ratio: float = 1.0
    pages: tuple[Pages, ...] = ()
    socket: int | None = None
    caches: tuple[CacheCpus, ...] = ()

    @property
    def vcpus(self) -> int:
        """Number of vCPUs that guests may have on the node's shared host CPUs.
        """
        return math.floor(self.cpus * self.cpu_ratio)

    @property
    def vcpus_free(self) -> int:
        """Number of further vCPUs that the node's shared host CPUs can have.
        """
        return self.vcpus - self.vcpus_used

    @property
    def dedicated_free(self) -> int:
        """Number of dedicated CPUs of the host NUMA node that no guest uses.
        """
        return self.dedicated - self.dedicated_used

    def list_free_by_cache(self) -> list[int]:
        """Return the numbers of free dedicated CPUs of the L3 caches.

        The largest number is first. The result is empty if all CPUs share one
        cache, or if it is unknown which do.
        """
        return sorted((one.free for one in self.caches), reverse=True)

    def count_by_cache(self, cpus: Set[int]) -> tuple[int, ...]:
        """Return how many of some CPUs each L3 cache of the node has."""
        return tuple(len(cpulist.parse_cpu_list(one.cpus) & cpus)
                     for one in self.caches)

    @property
    def memory_capacity(self) -> int:
        """MiB of memory that guests may have in total.

        The allocation ratio is included.
        """
        return math.floor(self.memory * self.ram_ratio)

    @property
    def memory_free(self) -> int:
        """MiB of memory of the host NUMA node that further guests can have."""
        return self.memory_capacity - self.memory_used

    def find_shortages(self, guest: GuestNode,
                       page_size: PageSize = None) -> list[Shortage]:
        """Return which CPUs and memory the host node lacks for a guest node.

        The result is for reasons. Whether the guest node fits, and how often,
        is counted by :mod:`ghsched_placement.fit.room`.

        :param page_size: memory page size that the guest asks for.
        """
        wanted = (Shortage(CPUS, guest.shared, self.vcpus_free, self.cpus),
                  Shortage(DEDICATED, guest.pinned, self.dedicated_free,
                           self.dedicated),
                  self.make_cache_shortage(guest),
                  self._make_memory_shortage(guest, page_size))
        return [one for one in wanted
                if one.needed > max(0, min(one.free, one.at_once))]

    def subtract_guest_node(self, guest: GuestNode,
                            page_size: PageSize = None) -> 'NodeCapacity':
        """Return the host node's capacity after a guest node is placed.

        :param page_size: memory page size that the guest asks for.
        """
        return self._add_or_remove_guest_node(
            guest, self._choose_pages(guest, page_size), 1)

    def release_guest_node(self, guest: GuestNode,
                           page_size: PageSize = None,
                           by_cache: Sequence[int] = ()) -> 'NodeCapacity':
        """Return the host node's capacity after a guest NUMA node is removed.

        :param page_size: memory page size that the guest asks for. Pages of
            this size in KiB are freed, and pages of the smallest size if it is
            None. For other values, such as ``large``, the size of the guest's
            pages is unknown, and no pages are freed.
        :param by_cache: number of the guest node's dedicated CPUs of each L3
            cache; empty if unknown: no CPUs of caches are freed then.
        """
        after = self._add_or_remove_guest_node(guest, next(
            (one for one in self.pages
             if page_size in (None, one.size_kb)), None), -1)
        return dataclasses.replace(after, caches=tuple(
            one.use(-number) for one, number
            in zip(self.caches, by_cache, strict=True))) if by_cache else after

    def _add_or_remove_guest_node(self, guest: GuestNode, chosen: Pages | None,
                                  sign: int) -> 'NodeCapacity':
        """Return the host node's capacity with a guest node added or removed.

        :param guest: guest NUMA node that is added or removed.
        :param chosen: memory pages of the guest node.
        :param sign: 1 to add the guest node, -1 to remove it.
        """
        return dataclasses.replace(
            self, vcpus_used=self.vcpus_used + sign * guest.shared,
            dedicated_used=self.dedicated_used + sign * guest.pinned,
            caches=self._take_cache_cpus(guest) if sign > 0 else self.caches,
            memory_used=self.memory_used + sign * guest.memory,
            pages=tuple(dataclasses.replace(
                one, used=one.used + sign * (
                    guest.memory * 1024 // one.size_kb))
                if one is chosen else one for one in self.pages))

    def _take_cache_cpus(self, guest: GuestNode) -> tuple[CacheCpus, ...]:
        """Return the CPUs of each L3 cache after a guest node is placed.

        Without ``ghsched:cpu_cache`` Nova takes the first CPUs that are free.
        """
        if not guest.cpu_cache:
            return take_first_cpus(self.caches, guest.pinned)
        left = parts.take_amounts([one.free for one in self.caches],
                                  guest.pinned, len(self.caches))
        return tuple(cache.use(cache.free - free) for cache, free
                     in zip(self.caches, left, strict=True))

    def make_cache_shortage(self, guest: GuestNode) -> Shortage:
        """Return how many CPUs of few L3 caches a host node lacks for a guest.

        No CPUs are needed if the guest does not require few caches, or if the
        host node has too few for it anyway.
        """
        caches = parts.count_least_parts(
            [one.total for one in self.caches], guest.pinned)
        word = make_caches_word(caches)
        if (guest.cpu_cache != 'require' or not caches
                or self.dedicated_free < guest.pinned):
            return Shortage(word, 0, 0, 0)
        free, total = (sum(sorted(amounts, reverse=True)[:caches])
                       for amounts in ([one.free for one in self.caches],
                                       [one.total for one in self.caches]))
        return Shortage(word, guest.pinned, free, total)

    def _make_memory_shortage(self, guest: GuestNode,
                              page_size: PageSize) -> Shortage:
        """Return how much memory the host node lacks for a guest node.

        The result has the needed and the free memory in MiB, or the numbers
        of huge pages.
        """
        counted = self.memory_free if guest.shared else self.memory
        # Huge pages that nobody reports are not counted apart.
        if page_size is not None and self.pages:
            best = self.find_freest_pages(guest, page_size)
            if counted < min(guest.memory, best.free_mb):
                return Shortage(MEMORY, guest.memory, counted, counted)
            size = best.size_kb or page_size
            if isinstance(size, int) and needs_huge_pages(page_size):
                return Shortage(make_pages_word(size),
                                -(-guest.memory * 1024 // size), best.free,
                                best.usable)
            return Shortage(f'{MEMORY} in {page_size} pages', guest.memory,
                            best.free_mb, best.total_mb)
        # Without overcommitment, beside dedicated CPUs.
        small = self.pages[:1] or (Pages(1024, self.memory,
                                         self.memory_used),)
        most = (small[0].free_mb if guest.pinned or page_size is not None
                else small[0].total_mb)
        return Shortage(MEMORY, guest.memory, min(counted, most), most)

    def find_freest_pages(self, guest: GuestNode, size: PageSize) -> Pages:
        """Return the pages with most free memory that a guest node may use.

        :param size: page size that the guest asks for.
        :returns: no pages at all if the guest can use none of this node.
        """
        return max(self._list_usable_pages(guest, size),
                   key=lambda one: one.free_mb, default=Pages(0, 0))

    def _choose_pages(self, guest: GuestNode,
                      page_size: PageSize) -> Pages | None:
        """Return the memory pages that Nova takes for a guest node.

        :param page_size: memory page size that the guest asks for.
        :returns: None if no size has enough free pages.
        """
        if page_size is None:
            return self.pages[0] if self.pages else None
        return next((one for one in self._list_usable_pages(guest, page_size)
                     if guest.memory <= one.free_mb), None)

    def _list_usable_pages(self, guest: GuestNode,
                           size: PageSize) -> Iterator[Pages]:
        """Yield the memory pages a guest node may use, largest size first.

        :param size: page size that the guest asks for.
        """
        sizes = {'small': self.pages[:1], 'large': self.pages[1:],
                 'any': self.pages, None: ()}
        found = (tuple(one for one in self.pages if one.size_kb == size)
                 if isinstance(size, int) else sizes[size])
        for one in reversed(found):
            if guest.memory * 1024 % one.size_kb == 0:
                yield one


# -- the published record -----------------------------------------------------


def to_diagnostics(capacities: Iterable[NodeCapacity]) -> dict[str, str]:
    """Return CPUs and memory of a host's NUMA nodes as a field of diagnostics.

    nova-compute adds the field, a JSON text under :data:`KEY`, to Nova's
    diagnostics of each guest of the host.
    """
    return FORMAT.make_field(tuple(capacities))


def _make_fields(capacities: tuple[NodeCapacity, ...]) -> dict[str, Any]:
    return {'nodes': [dataclasses.asdict(room) for room in capacities]}


def from_diagnostics(diagnostics: Mapping[str, Any]
                     ) -> tuple[NodeCapacity, ...]:
    """Parse CPUs and memory of a host's NUMA nodes from a guest's diagnostics.

    The result is empty if the field is missing or malformed.
    """
    return FORMAT.parse(diagnostics) or ()


def _parse_node_capacities(
        found: Mapping[str, Any]) -> tuple[NodeCapacity, ...]:
    """Parse the CPUs and memory of a host's NUMA nodes, in their order.

    :raises MALFORMED: if a value has the wrong type or is out of range, or a
        node is reported twice.
    """
    capacities = sorted(map(_parse_node_capacity,
                            wire.check_list(found['nodes'])),
                        key=lambda capacity: capacity.node)
    if len({one.node for one in capacities}) < len(capacities):
        raise ValueError('a NUMA node is reported twice')
    return tuple(capacities)


def _parse_node_capacity(mapping: Any) -> NodeCapacity:
    values = wire.check_fields(NodeCapacity, mapping)
    for name in ('cpu_ratio', 'ram_ratio'):
        wire.check_number(values.get(name, 1.0), wire.MAX_LOAD)
    return NodeCapacity(**{'node': 0, **values}, pages=tuple(sorted(
        map(_parse_pages, wire.check_list(mapping.get('pages', ()))),
        key=lambda one: one.size_kb)), caches=tuple(map(
            _parse_cache, wire.check_list(mapping.get('caches', ()),
                                          MAX_CACHES))))


def _parse_cache(mapping: Any) -> CacheCpus:
    cache = CacheCpus(**{'total': 0,
                         **wire.check_fields(CacheCpus, mapping)})
    cpulist.parse_cpu_list(cache.cpus)
    return cache


def _parse_pages(mapping: Any) -> Pages:
    pages = Pages(**wire.check_fields(Pages, mapping))
    wire.check_integer(pages.size_kb, minimum=1)
    return pages


FORMAT = wire.Format(KEY, VERSION, _parse_node_capacities, _make_fields)
