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

"""Domains of the MB line of schemata, by host NUMA node."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl.errors import ResctrlUnavailable
from ghsched_nova.resctrl import sysfs as sysfs_files

_NodeMap = tuple[dict[int, tuple[int, ...]], dict[int, str]]


def map_domains(
    dialect: dialects.Dialect, domains: frozenset[int], sysfs: Path
) -> _NodeMap:
    """Return the resctrl domains that belong to each host NUMA node.

    With sub-NUMA clusters several nodes have the same domain.

    :param domains: ids of the domains in the MB schemata line.
    :returns: domains by node, and the reason for each node that cannot have
        limits. Such a node has no CPUs, memory or domains, or has CPUs whose
        domain is unknown.
    :raises ResctrlUnavailable: if it is unknown what the domain ids mean.
    """
    if dialect.domain_kind != 'either':
        return _map_domains_of_kind(dialect.domain_kind, domains, sysfs)
    # A kind fits when each node with CPUs has its domains, and each domain is
    # something of that kind.
    kinds = (
        (
            _map_domains_of_kind('numa', domains, sysfs),
            {node for node, _path in sysfs_files.iterate_numa_nodes(sysfs)},
        ),
        (
            _map_domains_of_kind('l3', domains, sysfs),
            _list_all_l3_domains(sysfs),
        ),
    )
    maps = [mapped for mapped, ids in kinds
            if mapped[0] and domains <= ids
            and set(mapped[1].values()) <= {_NO_CPU, _NO_MEMORY}]
    if len(maps) == 2 and maps[0][0] != maps[1][0]:
        raise ResctrlUnavailable(
            'it is unknown whether the domains of the MB line are NUMA nodes '
            'or L3 caches, because both are possible on this machine')
    return maps[0] if maps else _map_domains_of_kind('numa', domains, sysfs)


_NO_CPU = 'it has no CPU'
_NO_MEMORY = 'it has no memory'


def _map_domains_of_kind(
    kind: Literal['numa', 'l3'], domains: frozenset[int], sysfs: Path
) -> _NodeMap:
    by_node: dict[int, tuple[int, ...]] = {}
    left_out: dict[int, str] = {}
    with_memory = sysfs_files.read_nodes_with_memory(sysfs)
    for node, path in sysfs_files.iterate_numa_nodes(sysfs):
        cpus = sysfs_files.read_node_cpus(path)
        if not cpus:
            left_out[node] = _NO_CPU
            continue
        if with_memory is not None and node not in with_memory:
            left_out[node] = _NO_MEMORY
            continue
        found = {node} if kind == 'numa' else _list_l3_domains(sysfs, cpus)
        if found is None:
            left_out[node] = 'a CPU of it has no cache/index3/id in sysfs'
        elif not found <= domains:
            missing = ', '.join(str(d) for d in sorted(found - domains))
            left_out[node] = f'the MB line has no domain {missing}'
        else:
            by_node[node] = tuple(sorted(found))
    return by_node, left_out


def _list_all_l3_domains(sysfs: Path) -> set[int]:
    found: set[int] = set()
    for _node, path in sysfs_files.iterate_numa_nodes(sysfs):
        cpus = sysfs_files.read_node_cpus(path)
        found |= _list_l3_domains(sysfs, cpus) or set()
    return found


def describe_no_domains(left_out: Mapping[int, str]) -> str:
    reasons = '; '.join(f'node {node}: {reason}'
                        for node, reason in sorted(left_out.items()))
    return ('no host NUMA node has a domain of the MB line '
            f'({reasons or "there is no node"})')


def _list_l3_domains(sysfs: Path, cpus: frozenset[int]) -> set[int] | None:
    """Return the L3 cache ids of some CPUs.

    Returns None if one of the ids is unknown.
    """
    found: set[int] = set()
    for number, _cpus in sysfs_files.iterate_l3_caches(sysfs, cpus):
        if number is None:
            return None
        found.add(number)
    return found
