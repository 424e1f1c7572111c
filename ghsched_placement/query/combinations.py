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


"""Limits of the combinations of providers that Placement goes through (pure).
"""

from collections.abc import Mapping
from collections import Counter
import math

from ghsched_placement.flavor import auto_nodes
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import parse_policy
from ghsched_placement.flavor.policy import PolicyError

#: Maximum number of combinations of providers of one host that Placement goes
#: through for a request: about a minute of a processor.
MAX_COMBINATIONS = 10 ** 6

#: The same if each group has a provider of its own, so that Placement can end
#: at [placement]max_allocation_candidates: about 10 s with 1000 of them.
MAX_ISOLATED_COMBINATIONS = 8 ** 8

#: Number of combinations that take Placement some 5 s of a processor.
SLOW_COMBINATIONS = 10 ** 5


def count_provider_combinations(policy: GuestPolicy, accounting: Accounting,
                                nodes: int, pfs: Mapping[str, int]) -> int:
    """Return how many combinations of providers Placement tries on one host.

    For each request group of a query, Placement tries every provider. Too many
    combinations would take too long.

    :param policy: policy of ghsched's extra specs in the guest's flavor.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param nodes: number of host NUMA nodes.
    :param pfs: number of PFs of the host, by PCI alias.
    """
    found: int = nodes ** len(policy.get_resources_by_node(accounting))
    return found * math.prod(pfs.get(need.alias, 0) for need in policy.vfs)


def check_flavor_combinations(extra_specs: Mapping[str, str],
                              policy: GuestPolicy, vcpus: int,
                              memory_mb: int) -> None:
    """Refuse a flavor for which Placement would search too long.

    If the scheduler chooses the number of guest NUMA nodes, the largest number
    counts that divides vCPUs and memory. The error then names ghsched:numa_max
    and its largest usable value.

    :param policy: policy of ghsched's extra specs in the flavor.
    :raises PolicyError: with the extra spec to change.
    """
    if not auto_nodes.is_node_count_undecided(extra_specs):
        check_combination_count(policy)
        return
    counts = auto_nodes.list_node_counts(extra_specs, vcpus, memory_mb)
    usable = [count for count in counts
              if _is_node_count_searchable(extra_specs, count)]
    if len(usable) < len(counts):
        raise PolicyError(
            keys.NUMA_MAX.extra_spec, f'{counts[-1]} guest NUMA nodes with '
            'these keys would keep Placement busy for minutes; the largest '
            f'usable value is {usable[-1] if usable else 0}')


def _is_node_count_searchable(extra_specs: Mapping[str, str],
                              count: int) -> bool:
    """Whether Placement can search for hosts with a number of guest nodes.

    :param count: number of guest NUMA nodes of a flavor that leaves it to the
        scheduler.
    """
    policy = parse_policy({**extra_specs, keys.NUMA_MAX.extra_spec:
                           str(count)}, count)
    try:
        check_combination_count(policy or GuestPolicy())
    except PolicyError:
        return False
    return True


def check_combination_count(policy: GuestPolicy,
                            accounting: Accounting = 'min') -> None:
    """Refuse a flavor with too many guest NUMA nodes and VFs for Placement.

    Placement would try every combination of providers, which would take
    minutes.

    :param policy: policy of ghsched's extra specs in the flavor.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :raises PolicyError: with the number of combinations to search.
    """
    pfs = Counter(need.alias for need in policy.vfs)
    if policy.vfs_locality != 'node':
        pfs = Counter(pfs.keys())
    counted = policy.get_resources_by_node(accounting).keys()
    with_vfs = {need.guest_node for need in policy.vfs}
    nodes = max(len(policy.nodes), *(node + 1 for node in (
        -1, *counted, *with_vfs)))
    found = count_provider_combinations(policy, accounting, nodes, pfs)
    limit = MAX_COMBINATIONS if policy.vfs else MAX_ISOLATED_COMBINATIONS
    if found > limit:
        raise PolicyError(
            keys.NUMA_NODES, f'{len(counted)} guest NUMA nodes have bandwidth '
            'or other resources of a host NUMA node, and '
            f'{len(with_vfs)} have VFs. Placement would go through at least '
            f'{found} combinations of NUMA nodes and PFs of each host for a '
            f'server, and {limit} are allowed: use fewer guest NUMA nodes, '
            'or set these keys for fewer of them')
