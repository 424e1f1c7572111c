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

"""Flavors that leave the number of guest NUMA nodes to the scheduler (pure).
"""

from collections.abc import Mapping
import itertools

from ghsched_placement.base.errors import PolicyError
from ghsched_placement.flavor import key_names
from ghsched_placement.flavor import keys

#: Default of ghsched:numa_max.
DEFAULT_MAX = 2

#: Keys of this module.
KEYS = (keys.NUMA, keys.NUMA_MAX, keys.NUMA_KEEP)

#: Extra specs of Nova that set what is on each guest NUMA node.
_BY_NODE = ('hw:numa_cpus.', 'hw:numa_mem.')


def is_node_count_undecided(extra_specs: Mapping[str, str]) -> bool:
    """Whether the scheduler has yet to choose the number of guest NUMA nodes.

    This is the case for a flavor with ghsched:numa=auto and without
    hw:numa_nodes. The scheduler adds hw:numa_nodes once it has chosen.
    """
    return (keys.NUMA.extra_spec in extra_specs
            and keys.NUMA_NODES not in extra_specs)


def has_chosen_node_count(extra_specs: Mapping[str, str]) -> bool:
    """Whether a flavor with ghsched:numa=auto already has a node count.

    The scheduler sets hw:numa_nodes once it has chosen the number of guest
    NUMA nodes.
    """
    return (keys.NUMA.extra_spec in extra_specs
            and keys.NUMA_NODES in extra_specs)


def list_node_counts(extra_specs: Mapping[str, str], vcpus: int,
                     memory_mb: int) -> tuple[int, ...]:
    """Return the possible numbers of guest NUMA nodes for a flavor, ascending.

    For a flavor with ghsched:numa=auto, the scheduler chooses one of them.
    Only numbers that divide both vCPUs and memory evenly are returned.
    """
    most = min(get_max_node_count(extra_specs), vcpus)
    return tuple(count for count in range(1, most + 1)
                 if not vcpus % count and not memory_mb % count)


def list_server_node_counts(extra_specs: Mapping[str, str], vcpus: int,
                            memory_mb: int, current: int,
                            is_fixed: bool) -> tuple[int, ...]:
    """Return the numbers of guest NUMA nodes to try for an existing server.

    The numbers are in ascending order. If the server must keep its present
    number, only this number is returned.

    :param current: number that the server has; 0 if it has never run.
    :param is_fixed: whether the number cannot change now, such as during a
        live migration.
    """
    if current and (is_fixed or keeps_node_count(extra_specs)):
        return (current,)
    return list_node_counts(extra_specs, vcpus, memory_mb)


def get_max_node_count(extra_specs: Mapping[str, str]) -> int:
    """Return the largest number of guest NUMA nodes that a flavor allows.

    The scheduler chooses the number for a flavor with ghsched:numa=auto.
    """
    return int(extra_specs.get(keys.NUMA_MAX.extra_spec, DEFAULT_MAX))


def keeps_node_count(extra_specs: Mapping[str, str]) -> bool:
    """Whether a server of a flavor keeps its number of NUMA nodes when moved.

    Otherwise the scheduler may choose another number of guest NUMA nodes when
    the server is resized, migrated, evacuated or unshelved. The extra spec
    ``ghsched:numa_keep`` decides.
    """
    # Slow to import; few flavors need it.
    from oslo_utils import strutils

    return bool(strutils.bool_from_string(
        extra_specs.get(keys.NUMA_KEEP.extra_spec)))


def copy_with_node_count(extra_specs: Mapping[str, str],
                         count: int) -> dict[str, str]:
    """Return a copy of a flavor's extra specs with a number of NUMA nodes.

    :param count: number of guest NUMA nodes, the value of ``hw:numa_nodes`` in
        the copy.
    """
    return {**extra_specs, keys.NUMA_NODES: str(count)}


def divide_vfs(total: int, max_node_count: int) -> list[tuple[int, int]]:
    """Divide VFs into parts that no choice of the guest's NUMA nodes splits.

    nova-scheduler may choose 1 to ``max_node_count`` guest NUMA nodes. For any
    of these numbers, all VFs of a part are on the same guest node. So the
    parts can be requested from Placement before the number is chosen.

    :param total: number of VFs of a PCI alias.
    :param max_node_count: largest number of guest NUMA nodes.
    :returns: for each part, the index of its first VF and its number of VFs.
    """
    parts = itertools.groupby(range(total), lambda index: [
        find_node_of_vf(index, total, count)
        for count in range(1, max_node_count + 1)])
    return [(indexes[0], len(indexes))
            for indexes in (list(group) for _nodes, group in parts)]


def find_node_of_vf(index: int, total: int, node_count: int) -> int:
    """Return the guest NUMA node of a VF of a flavor with ghsched:numa=auto.

    The VFs of a PCI alias are spread evenly over the guest NUMA nodes. If they
    cannot be, the first guest nodes get one VF more than the others.

    :param index: index of the VF, from 0.
    :param total: number of VFs of the alias.
    :param node_count: number of guest NUMA nodes.
    """
    least, larger = divmod(total, node_count)
    in_larger = larger * (least + 1)
    if index < in_larger:
        return index // (least + 1)
    return larger + (index - in_larger) // least


def refuse_auto_with_fixed_node_count(extra_specs: Mapping[str, str]) -> None:
    """Refuse a flavor with both ghsched:numa=auto and hw:numa_nodes.

    :param extra_specs: extra specs as the admin set them.
    :raises PolicyError: when both are set; the error names both keys.
    """
    if has_chosen_node_count(extra_specs):
        raise PolicyError(
            keys.NUMA.extra_spec, f'cannot be combined with {keys.NUMA_NODES}:'
            ' both set the number of guest NUMA nodes')


def refuse_auto_conflicts(extra_specs: Mapping[str, str]) -> None:
    """Refuse a flavor with extra specs that conflict with ghsched:numa=auto.

    :raises PolicyError: for the first extra spec that must be removed.
    """
    if keys.NUMA.extra_spec not in extra_specs:
        for key in (keys.NUMA_MAX, keys.NUMA_KEEP):
            if key.extra_spec in extra_specs:
                raise PolicyError(key.extra_spec, 'needs '
                                  f'{keys.NUMA.extra_spec}={keys.AUTO}')
        return
    if keys.VCPU_CLASSES.extra_spec in extra_specs:
        raise PolicyError(
            keys.NUMA.extra_spec, 'cannot be combined with '
            f'{keys.VCPU_CLASSES.extra_spec}: the guest NUMA node of a vCPU '
            'would not be known')
    for extra_spec in sorted(extra_specs):
        named = key_names.BY_NAME.get(
            extra_spec.partition(':')[2].partition('.')[0])
        if extra_spec.startswith(_BY_NODE):
            raise PolicyError(
                keys.NUMA.extra_spec, f'cannot be combined with {extra_spec}: '
                'CPUs and memory are split evenly')
        if not extra_spec.startswith(keys.NAMESPACE + ':') or named is None:
            continue
        if named.per_node and extra_spec != named.extra_spec:
            raise PolicyError(
                extra_spec, f'with {keys.NUMA.extra_spec}={keys.AUTO} the '
                f'guest NUMA nodes are all alike; set {named.extra_spec}')
