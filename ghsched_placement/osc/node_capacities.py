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

"""CPUs and memory by host NUMA node, from reports of nova-compute.

nova-compute reports them in the diagnostics of a running server, so a host
without running servers reports nothing. It is assumed to have the CPUs and
memory of a similar host, or, if none is known, CPUs and memory that are spread
evenly over its NUMA nodes.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ghsched_placement.fit import capacity
from ghsched_placement.fit import lack
from ghsched_placement.fit import node_capacity
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.osc import nova_reader

#: Servers of one host that are asked, one after the other, until one answers.
SERVERS_ASKED = 3


@dataclass(frozen=True)
class NodeCapacities:
    """CPUs and memory of the NUMA nodes of hosts.

    :param by_host: by UUID of the compute node. A host that does not report
        them is missing.
    :param spread: names of hosts whose CPUs and memory are assumed to be
        spread evenly over their NUMA nodes.
    :param unknown: names of hosts that do not report them.
    """

    by_host: Mapping[str, tuple[NodeCapacity, ...]]
    spread: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def add_free_node_resources(self, hosts: Iterable[capacity.HostInventory]
                                ) -> tuple[capacity.HostInventory, ...]:
        """Return copies of hosts with the free resources of each NUMA node.

        The free resources are CPUs and memory.
        """
        return tuple(capacity.set_node_capacity(
            host, self.by_host.get(host.uuid, ())) for host in hosts)

    def describe_hosts_with_assumed_cpus(self) -> list[str]:
        """Return a note on the hosts whose CPUs per NUMA node are assumed.

        A host without servers does not report its CPUs and memory. They are
        assumed to be spread evenly over its NUMA nodes.

        :returns: list of one sentence; empty if there is no such host.
        """
        return [
            f'CPUs and memory of {lack.format_host_names(self.spread)} are '
            'taken as spread evenly over the NUMA nodes: a host reports them '
            'with a server that runs there'] if self.spread else []

    def describe_hosts_with_uncertain_cpus(self) -> list[str]:
        """Return sentences on hosts whose CPUs per NUMA node are uncertain.

        CPUs and memory of these hosts are assumed or unknown. The list is
        empty if there is no such host.
        """
        assumed = self.describe_hosts_with_assumed_cpus()
        return assumed + ([
            'CPUs and memory are not counted by NUMA node on '
            f'{lack.format_host_names(self.unknown)}: nova-compute does not '
            'report them, and Nova may refuse a guest that fits here']
            if self.unknown else [])


def read_free_node_resources(
        client: nova_reader.NovaReader,
        hosts: Sequence[capacity.HostInventory],
        compute_nodes: Mapping[str, Mapping[str, Any]],
        known: Iterable[capacity.HostInventory] = ()) -> NodeCapacities:
    """Read the free CPUs and memory of each NUMA node of hosts from Nova.

    A host reports them with the diagnostics of each of its servers.

    :param compute_nodes: Nova's compute nodes by UUID; compute nodes that are
        down are not asked.
    :param known: hosts with CPUs and memory as they were read before.
    :returns: the free resources, and the names of hosts for which they are
        assumed or unknown.
    """
    answers = client.map_in_parallel(lambda host: _read_free_host_resources(
        client, host.name, compute_nodes.get(host.uuid, {})), hosts)
    by_shape = {capacity.make_hardware_key(host): rooms for host, rooms in (
        *((host, tuple(node.room for node in host.nodes if node.room))
          for host in known), *zip(hosts, answers, strict=True)) if rooms}
    found: dict[str, tuple[NodeCapacity, ...]] = {}
    spread, unknown = [], []
    for host, rooms in zip(hosts, answers, strict=True):
        if rooms is None:
            like = by_shape.get(capacity.make_hardware_key(host), ())
            if not like:
                spread.append(host.name)
            rooms = capacity.estimate_node_capacity(host, like)
        elif not rooms:
            unknown.append(host.name)
        found[host.uuid] = rooms
    return NodeCapacities(
        {uuid: rooms for uuid, rooms in found.items() if rooms},
        tuple(spread), tuple(unknown))


def _read_free_host_resources(
        client: nova_reader.NovaReader, name: str,
        node: Mapping[str, Any]) -> tuple[NodeCapacity, ...] | None:
    """Read the free CPUs and memory of the NUMA nodes of a host from Nova.

    :param name: name of the host.
    :param node: Nova's record of the compute node; empty if unknown.
    :returns: None if the host has no servers; empty if the host is down or
        does not report the resources.
    """
    if node.get('state') != 'up':
        return ()
    servers = client.list_active_servers(str(node['service']['host']),
                                         SERVERS_ASKED)
    if not servers:
        return None
    return next(filter(None, (node_capacity.from_diagnostics(
        client.get_diagnostics(uuid, name)) for uuid in servers)), ())
