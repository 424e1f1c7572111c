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

"""Choice of shared CPUs that share few L3 caches (pure)."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools

from ghsched_placement.fit import parts

#: Maximum number of ways to choose equally many caches that are compared.
_MOST_TRIED = 64
#: Decimals of vCPUs per CPU. A smaller difference moves no guest.
_DECIMALS = 6


def choose_shared_cpus(caches: Sequence[frozenset[int]],
                       load: Mapping[int, float], vcpus: int,
                       current: frozenset[int],
                       ratio: float | None) -> frozenset[int]:
    """Return the CPUs of the least loaded of few L3 caches.

    The caches are as few as have a CPU for each vCPU. More are chosen only if
    an allocation ratio is given that so few would exceed.

    :param caches: shared CPUs of a host NUMA node by L3 cache.
    :param load: number of vCPUs of other guests on each CPU.
    :param vcpus: number of shared vCPUs of the guest NUMA node.
    :param current: CPUs to which the vCPUs are bound now. They are returned if
        no others are better.
    :param ratio: maximum number of vCPUs per CPU; None for no limit.
    :returns: all CPUs if no caches suffice.
    """
    density = {cache: sum(load.get(cpu, 0) for cpu in cache) / len(cache)
               for cache in caches}

    def rank(way: Sequence[frozenset[int]]) -> tuple[float, bool]:
        cpus = frozenset().union(*way)
        return (round(max(density[cache] for cache in way)
                      + vcpus / len(cpus), _DECIMALS), cpus != current)

    by_load = sorted(caches, key=lambda cache: (density[cache], min(cache)))
    least = parts.count_least_parts(map(len, caches), vcpus)
    for number in range(least, len(caches) + 1) if least else ():
        best = min((way for way in _iterate_ways(by_load, current, number)
                    if sum(map(len, way)) >= vcpus), key=rank)
        if ratio is None or rank(best)[0] <= ratio:
            return frozenset().union(*best)
    return frozenset().union(*caches)


def _iterate_ways(by_load: Sequence[frozenset[int]], current: frozenset[int],
                  number: int) -> Iterator[Sequence[frozenset[int]]]:
    """Yield sets of L3 caches to choose from, those with the least load first.

    The set of the largest caches, which has CPUs enough, and that of the
    current ones are always yielded.

    :param current: CPUs to which the guest node is bound now.
    :param by_load: shared CPUs by L3 cache, the least loaded cache first.
    :param number: number of caches to choose.
    """
    yield from itertools.islice(itertools.combinations(by_load, number),
                                _MOST_TRIED)
    yield sorted(by_load, key=len, reverse=True)[:number]
    held = [cache for cache in by_load if cache <= current]
    if len(held) == number and frozenset().union(*held) == current:
        yield held
