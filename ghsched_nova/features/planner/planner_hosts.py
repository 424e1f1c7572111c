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

"""Resource providers and capacities of described hosts (pure)."""

from dataclasses import replace
import math
import uuid

import os_resource_classes as orc

from ghsched_nova.features.planner import host_pfs
from ghsched_nova.features.planner.hostfile import DescribedNode
from ghsched_nova.features.planner.hostfile import HostFile
from ghsched_placement.features.planner import hosts
from ghsched_placement.features.real_time import scheduling
from ghsched_placement.fit.capacity import Provider
from ghsched_placement.fit.node_capacity import make_cache_cpus
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit.node_capacity import Pages
from ghsched_placement.providers import names
from ghsched_placement.providers import tree

_NAMESPACE = uuid.UUID('7c2c2e0b-27a0-5a0e-9f43-6f4d6a0c5b7e')

#: Disk space in GiB of hosts whose host file gives none: always enough.
_ENOUGH = 10 ** 9

#: Size of the smallest pages in KiB.
_SMALL_PAGE_KIB = 4


def make_providers(host: HostFile, name: str
                   ) -> tuple[tree.WantedProvider, ...]:
    """Return the resource providers that ghsched would report for a host.

    The root provider is first.

    :param name: name of the compute node.
    """
    resctrl = host.resctrl.make_description(host.reserved_groups)
    found = tree.build_providers(
        str(uuid.uuid5(_NAMESPACE, name)), name,
        replace(resctrl, numa_nodes=tuple(node.id for node in host.nodes),
                nearest=host.nearest_nodes_with_cpus,
                bursts={
                    node.id: math.floor(
                        host.burst_ratio * tree.get_burst_reserve(
                            node.id, resctrl, host.tree_config))
                    for node in host.nodes},
                # Linux has them; a file cannot say what is refused on a host.
                rt_permille={
                    node.id: scheduling.compute_rt_capacity(
                        len(node.cpus - host.compute.dedicated), 950000,
                        1000000, 100) for node in host.nodes},
                capabilities=resctrl.capabilities | {
                    'VCPU_REALTIME', 'VCPU_DEADLINE', 'VCPU_DEADLINE_SHARED',
                    'CPU_CACHE', 'IRQ_BYPASS',
                    *(['PV_HINTS'] if host.resctrl.dialect.x86 else [])}),
        host.tree_config)
    return (*found, *host_pfs.make_pf_providers(found[0], host.pfs))


def make_planner_host(host: HostFile, name: str) -> hosts.PlannedHost:
    """Convert a host file to a host without guests for the capacity planner.

    The host has the resources that Nova and ghsched would report to Placement.

    :param name: name of the compute node.
    """
    known = make_providers(host, name)
    root, *others = (
        Provider(provider.uuid, provider.name, provider.parent_uuid,
                 known[0].uuid, provider.inventories, {}, provider.traits)
        for provider in known)
    root = replace(
        root,
        inventories={**root.inventories, **_make_nova_inventories(host)},
        traits=root.traits | {names.OWNER_TRAIT},
    )
    return hosts.PlannedHost(
        name, hosts.sort_providers_parents_first([root, *others], root.uuid),
        _make_node_capacities(host),
        {} if host.resctrl.cache else {names.L3_WAYS: 'resctrl.ways'},
        host.compute.device_cells)


def _make_nova_inventories(host: HostFile) -> dict[str, tree.Inventory]:
    """Return the inventories that Nova's libvirt driver reports for a host."""
    compute = host.compute
    cpus = sum(len(node.cpus) for node in host.nodes)
    dedicated = len(compute.dedicated)
    found = {
        orc.VCPU: tree.make_inventory(cpus - dedicated,
                                      allocation_ratio=compute.cpu_ratio),
        orc.PCPU: tree.make_inventory(dedicated),
        orc.MEMORY_MB: tree.make_inventory(
            sum(node.memory_mb for node in host.nodes),
            allocation_ratio=compute.ram_ratio),
        orc.DISK_GB: tree.make_inventory(
            _ENOUGH if compute.disk_gb is None else compute.disk_gb)}
    return {name: record for name, record in found.items()
            if record['total']}


def _make_node_capacities(host: HostFile) -> tuple[NodeCapacity, ...]:
    """Return the free CPUs and memory of each NUMA node of an empty host."""
    compute = host.compute
    return tuple(NodeCapacity(
        node.id, cpus=len(node.cpus - compute.dedicated),
        cpu_ratio=compute.cpu_ratio,
        # Without [compute]cpu_dedicated_set Nova pins to shared CPUs.
        dedicated=len(node.cpus & (compute.dedicated or node.cpus)),
        memory=node.memory_mb,
        ram_ratio=compute.ram_ratio, pages=_make_pages(node),
        socket=node.socket, caches=make_cache_cpus(
            node.cpus & (compute.dedicated or node.cpus), frozenset(),
            node.caches))
        for node in host.nodes)


def _make_pages(node: DescribedNode) -> tuple[Pages, ...]:
    """Return the memory pages of a NUMA node, the smallest first.

    Memory that is not in huge pages is in pages of 4 KiB. The result is empty
    if the host file does not give the huge pages.
    """
    if node.pages is None:
        return ()
    huge = [Pages(size, count) for size, count in sorted(node.pages.items())]
    rest = node.memory_mb - sum(one.total_mb for one in huge)
    return (Pages(_SMALL_PAGE_KIB, rest * 1024 // _SMALL_PAGE_KIB), *huge)
