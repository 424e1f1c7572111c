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

"""Choice of dedicated CPUs that share few L3 caches (pure).

The choice is a sequence of sets of CPUs to try. Nova's own fit decides whether
a guest NUMA node fits on the CPUs of a set.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import itertools
from typing import NamedTuple

from ghsched_placement.features.cpu_cache import cache_part
from ghsched_placement.fit.cells import CpuChoice
from ghsched_placement.fit.cells import HostCell
from ghsched_placement.fit.cells import ThreadPolicy
from ghsched_placement.fit import parts
from ghsched_placement.flavor import keys


class L3Cache(NamedTuple):
    """L3 cache of a host NUMA node.

    :param cpus: dedicated CPUs of the node that share the cache.
    :param total: number of vCPUs that these CPUs can have.
    :param room: number of further vCPUs that they can have at most.
    :param free: number of these CPUs that no guest uses.
    """

    cpus: frozenset[int]
    total: int
    room: int
    free: int


#: Maximum number of ways to choose some caches that are tried.
_MOST_TRIED = 64


def make_cpu_choice(extra_specs: Mapping[str, str]) -> CpuChoice | None:
    """Return the function that chooses CPUs by ``ghsched:cpu_cache``.

    :param extra_specs: all extra specs of the flavor.
    :returns: None if the flavor does not have this extra spec.
    """
    wish = extra_specs.get(keys.CPU_CACHE.extra_spec)
    if wish in (None, keys.NONE):
        return None
    return functools.partial(_yield_cpus,
                             is_required=wish == cache_part.REQUIRE)


def _yield_cpus(host_node: HostCell, needed: int, threads: ThreadPolicy,
                is_required: bool) -> Iterator[frozenset[int]]:
    """Yield sets of CPUs to try for a guest NUMA node, fewest caches first.

    :param needed: number of dedicated CPUs of the guest NUMA node.
    :param is_required: whether to yield only sets from as few caches as the
        guest node needs on an empty host node.
    """
    dedicated = frozenset().union(*host_node.cores)
    if not dedicated <= frozenset().union(*host_node.caches):
        yield dedicated
        return
    caches = list_l3_caches(host_node, threads)
    most = _count_needed_caches(caches, needed) if is_required else len(caches)
    yield from _yield_cache_choices(caches, needed, most)


def list_l3_caches(host_node: HostCell,
                   threads: ThreadPolicy) -> tuple[L3Cache, ...]:
    """Return the L3 caches of a host NUMA node, for guests of a thread policy.

    Caches without dedicated CPUs are left out.
    """
    found = []
    for cpus in host_node.caches:
        own = [core for core in host_node.cores if core <= cpus]
        found.append(L3Cache(
            frozenset().union(*own),
            sum(_count_vcpus(core, core, threads) for core in own),
            sum(_count_vcpus(core, core & host_node.free, threads)
                for core in own),
            sum(len(core & host_node.free) for core in own)))
    return tuple(one for one in found if one.cpus)


def _count_vcpus(core: frozenset[int], free: frozenset[int],
                 threads: ThreadPolicy) -> int:
    """Return the number of vCPUs that can run on the free CPUs of a core."""
    if threads == 'isolate':
        return int(free == core)
    if threads == 'require' and len(free) < 2:
        return 0
    return len(free)


def _count_needed_caches(caches: Iterable[L3Cache], needed: int) -> int:
    """Return the fewest L3 caches that hold a guest node on an empty host.

    :param needed: number of dedicated CPUs of the guest NUMA node.
    :returns: 0 if the host NUMA node is too small.
    """
    return parts.count_least_parts((one.total for one in caches), needed)


def _yield_cache_choices(caches: Sequence[L3Cache], needed: int,
                         most: int) -> Iterator[frozenset[int]]:
    """Yield the CPUs of one L3 cache, then of two, and so on.

    Of sets with equally many caches, the set that the guest node fills best
    comes first, to keep empty caches for other guests. The sets with the most
    free vCPUs follow. The number of sets is limited.

    :param needed: number of dedicated CPUs of the guest NUMA node.
    :param most: maximum number of caches.
    """
    by_room = sorted(caches, key=lambda one: (-one.room, min(one.cpus)))
    for number in range(1, most + 1):
        ways = itertools.islice(itertools.combinations(by_room, number),
                                _MOST_TRIED)
        tight = tuple(by_room[place] for place in parts.choose_parts(
            [one.room for one in by_room], needed, number))
        for way in dict.fromkeys((tight, *ways)):
            if sum(one.free for one in way) >= needed:
                yield frozenset().union(*(one.cpus for one in way))
