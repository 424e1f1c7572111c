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

"""CPUs and memory of NUMA nodes of hosts and guests, as Nova records them."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Literal
from typing import TypeAlias

ThreadPolicy = Literal['prefer', 'isolate', 'require']


@dataclass(frozen=True)
class HostCell:
    """Free CPUs and memory of a host NUMA node.

    :param free: dedicated CPUs that no guest uses.
    :param cores: dedicated CPUs grouped by core.
    :param shared: CPUs that guests without dedicated CPUs share.
    :param memory_free: free memory in MiB, in pages of the smallest size.
    :param pages_free: number of free huge pages by size in KiB.
    :param caches: CPUs of each L3 cache; empty if all share one.
    """

    free: frozenset[int] = frozenset()
    cores: tuple[frozenset[int], ...] = ()
    shared: frozenset[int] = frozenset()
    memory_free: int = 0
    pages_free: Mapping[int, int] = field(default_factory=dict)
    caches: tuple[frozenset[int], ...] = ()


#: Sets of dedicated CPUs of a host NUMA node to try for a guest NUMA node, the
#: best first, by the host node, the number of CPUs and the thread policy.
CpuChoice: TypeAlias = Callable[[HostCell, int, ThreadPolicy],
                                Iterator[frozenset[int]]]


@dataclass(frozen=True)
class GuestCell:
    """NUMA node of a guest, with the host CPUs that Nova has assigned to it.

    :param host_node: number of the host NUMA node.
    :param vcpus: vCPUs without a dedicated CPU.
    :param pins: dedicated host CPU by vCPU.
    :param reserved: dedicated host CPUs of the emulator threads.
    :param memory: memory in MiB.
    :param page_size: page size in KiB; None for pages of the smallest size.
    :param threads: Nova's CPU thread policy.
    """

    host_node: int
    vcpus: frozenset[int] = frozenset()
    pins: Mapping[int, int] = field(default_factory=dict)
    reserved: frozenset[int] = frozenset()
    memory: int = 0
    page_size: int | None = None
    threads: ThreadPolicy = 'prefer'

    @property
    def dedicated_cpus(self) -> frozenset[int]:
        """Dedicated host CPUs that the guest NUMA node has before the move."""
        return frozenset(self.pins.values()) | self.reserved
