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

"""Part of a guest's policy about the L3 caches of its CPUs (pure)."""

from dataclasses import dataclass
from typing import Literal

from ghsched_placement.base.errors import PolicyError
from ghsched_placement.flavor import dedicated_cpus
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.parts import Feature
from ghsched_placement.flavor.parts import FlavorValues
from ghsched_placement.flavor.parts import PolicyPart

CAPABILITY = 'CPU_CACHE'

REQUIRE = 'require'

#: Scheduling classes whose time on shared CPUs is reserved.
_RESERVING = ('fifo', 'rr', 'deadline')


@dataclass(frozen=True)
class CachePart(PolicyPart):
    """L3 caches of a guest's CPUs.

    :param wish: whether each guest NUMA node should or must have CPUs that
        share as few L3 caches as possible; empty for neither.
    :param is_shared: whether the guest shares these CPUs with other guests.
    """

    wish: Literal['', 'prefer', 'require'] = ''
    is_shared: bool = False

    def get_needed_capabilities(self) -> frozenset[str]:
        return frozenset({CAPABILITY} if self.wish == REQUIRE else ())


def parse_cache_part(flavor: FlavorValues) -> CachePart:
    """Parse from a flavor whether its guests get CPUs of few L3 caches.

    :raises PolicyError: if the vCPUs have neither host CPUs of their own nor
        host NUMA nodes, or if the time of shared CPUs is reserved for them.
    """
    wish = flavor.values.get(keys.CPU_CACHE.name)
    if wish in (None, keys.NONE):
        return CachePart()
    is_shared = flavor.extra_specs.get(dedicated_cpus.CPU_POLICY) not in (
        'dedicated', 'mixed')
    if is_shared:
        _check_shared_cpus(flavor)
    return CachePart('require' if wish == REQUIRE else 'prefer', is_shared)


def _check_shared_cpus(flavor: FlavorValues) -> None:
    """Refuse a flavor whose shared vCPUs cannot be bound to L3 caches.

    :raises PolicyError: with the extra spec to set or to remove.
    """
    if not flavor.guest_nodes:
        raise PolicyError(
            keys.CPU_CACHE.extra_spec, 'needs vCPUs with CPUs of their own '
            f'({dedicated_cpus.CPU_POLICY}=dedicated or mixed), or a guest '
            f'NUMA topology; set {keys.NUMA_NODES}')
    if flavor.extra_specs.get(keys.VCPU_SCHEDULER.extra_spec) in _RESERVING:
        # Their time is counted by host NUMA node, and the kernel changes the
        # CPUs of no thread under SCHED_DEADLINE.
        raise PolicyError(
            keys.CPU_CACHE.extra_spec,
            f'cannot be combined with {keys.VCPU_SCHEDULER.extra_spec} of '
            f'{", ".join(_RESERVING)} on shared CPUs')


FEATURE = Feature('cpu_cache', (keys.CPU_CACHE,), CachePart, parse_cache_part,
                  are_keys_checked_together=True,
                  capabilities={CAPABILITY: keys.CPU_CACHE})
