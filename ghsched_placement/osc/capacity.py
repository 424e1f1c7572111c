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

"""``openstack ghsched capacity show``."""

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from ghsched_placement.fit import capacity
from ghsched_placement.osc import base
from ghsched_placement.osc import client
from ghsched_placement.osc import columns
from ghsched_placement.osc import node_capacities
from ghsched_placement.osc import node_classes

COLUMNS = (
    'Host', 'NUMA Node', 'BW Total (%)', 'BW Reserved (%)', 'BW Used (%)',
    'BW Free (%)', 'Largest Guarantee (%)', 'VFs Free', 'Groups Free',
    'Fragmentation (%)', 'Bursts Kept (%)', 'Bursts Promised (%)',
    'Bursts Free (%)', 'vCPUs Free', 'Dedicated CPUs Free',
    'Memory Free (MiB)', 'Dedicated CPUs Free by L3', *node_classes.COLUMNS)


class ShowCapacity(base.Lister):
    """Show the free resources of hosts, by NUMA node.

    CPUs and memory are those that Nova has left for guests with a NUMA
    topology. A host reports them with any server that runs there. Bandwidth
    (BW) is in percent of the theoretical bandwidth of a NUMA node. Control
    groups and fragmentation are those of the whole host. Fragmentation is the
    percent of the host's free bandwidth that is on NUMA nodes which guests use
    already. The largest guarantee is that of a guest with a control group of
    its own. Bursts are bandwidth promised above guarantees. If they are
    overcommitted, more is promised than is reserved; "openstack ghsched host
    show" shows how likely they are to be short. L3 ways are those that guests
    can have exclusively in each L3 cache of a node. Real time is the CPU time
    that real-time vCPUs can use of the shared CPUs.
    """

    nothing = base.NO_HOSTS
    KEYS = 2
    SHORT = ('Host', 'NUMA Node', 'vCPUs Free', 'Memory Free (MiB)',
             'BW Free (%)', 'VFs Free', 'Groups Free')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('hosts', nargs='*', metavar='<host>',
                            help='Show these compute hosts only')
        return parser

    def take_action(self, parsed_args: argparse.Namespace
                    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        cloud = client.get_client(self.app)
        found = cloud.list_hosts(parsed_args.hosts)
        rooms = node_capacities.read_free_node_resources(
            cloud, found, cloud.list_compute_nodes())
        for note in rooms.describe_hosts_with_uncertain_cpus():
            self.log.warning(note)
        return COLUMNS, [row for host in rooms.add_free_node_resources(found)
                         for row in list_node_rows(host)]


def list_node_rows(host: capacity.HostInventory) -> Iterator[tuple[Any, ...]]:
    """Yield a table row with the free resources of each NUMA node of a host.

    PFs that belong to no NUMA node have a row of their own.
    """
    of_host = (columns.mark_unknown(host.groups.free if host.groups else None),
               columns.mark_unknown(capacity.compute_fragmentation(host)))
    for node in host.nodes:
        stock = node.bandwidth
        figures: tuple[int | None, ...] = (None,) * 5
        if stock is not None:
            figures = (stock.total, stock.reserved, stock.used, stock.free,
                       host.get_largest_guarantee(node))
        yield (host.name, columns.mark_unknown(node.number),
               *map(columns.mark_unknown, figures),
               columns.VfsCell(list_vfs_by_pf(node.pfs)),
               *of_host, *map(columns.mark_unknown, (
                   *_get_burst_figures(node), *_get_free_cpus_and_memory(node),
                   *node_classes.yield_l3_and_cpu_amounts(node))))
    if host.elsewhere or not host.nodes:
        yield (host.name, *(columns.mark_unknown(None), ) * 6,
               columns.VfsCell(list_vfs_by_pf(host.elsewhere)), *of_host,
               *(columns.mark_unknown(None), ) *
               (7 + len(node_classes.COLUMNS)))


def _get_burst_figures(node: capacity.NodeInventory) -> tuple[int | None, ...]:
    stock = node.bursts
    if stock is None:
        return (None,) * 3
    return stock.total, stock.used, stock.free


def _get_free_cpus_and_memory(node: capacity.NodeInventory
                              ) -> tuple[Any, ...]:
    room = node.room
    if room is None:
        return (None,) * 4
    return (*(max(0, free) for free in (
        room.vcpus_free, room.dedicated_free, room.memory_free)),
        columns.CommaListCell(room.list_free_by_cache())
        if room.caches else None)


def list_vfs_by_pf(pfs: Iterable[capacity.PfInventory]
                   ) -> list[dict[str, Any]]:
    """Return how many VFs each PF has in total, in use and free, for JSON."""
    return [{'pf': pf.address, 'resource_class': pf.resource_class,
             'total': pf.stock.total, 'used': pf.stock.used,
             'free': pf.stock.free} for pf in pfs]
