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

"""A small host for tests of the planner."""

import uuid

from ghsched_placement.features.planner import hosts
from ghsched_placement.fit.capacity import Provider
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import tree

NIC = 'CUSTOM_NIC'


def host(name='one', nodes=2, vfs=(), groups=4, cells=True, used=None,
         memory=4096, bursts=None, promised=None, **offered):
    """Nodes of 4 CPUs; node N has a PF of ``vfs[N]`` VFs.

    :param used: amount by provider's name without the host's, and class.
    :param bursts: percent kept for them, by node.
    :param promised: how many of them may be promised on each node.
    :param offered: of HostDescription, what each node offers: ``l3_ways``,
        ``rt_permille``.
    """
    if promised is not None:
        offered['bursts'] = promised
    root, *numa = tree.build_providers(
        str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), name,
        described(nodes, groups, offered), tree.Config(bursts=bursts or {}))
    of_nova = {'VCPU': tree.make_inventory(4 * nodes),
               'MEMORY_MB': tree.make_inventory(memory * nodes),
               'DISK_GB': tree.make_inventory(100)}
    found = [Provider(root.uuid, name, None, root.uuid,
                      {**root.inventories, **of_nova}, {},
                      root.traits | {'OWNER_NOVA'})]
    found += [Provider(one.uuid, one.name, one.parent_uuid, root.uuid,
                       one.inventories, {}, one.traits)
              for one in numa]
    found += [Provider(
        str(uuid.uuid5(uuid.UUID(numa[node].uuid), 'pf')),
        f'{name}_0000:0{node}:00.0', numa[node].uuid, root.uuid,
        {NIC: tree.make_inventory(count)}, {}, frozenset({'OWNER_NOVA'}))
        for node, count in enumerate(vfs)]
    found = [Provider(
        one.uuid, one.name, one.parent, one.root, one.inventories,
        {key: amount for (suffix, key), amount in (used or {}).items()
         if one.name == name + suffix}, one.traits) for one in found]
    return hosts.PlannedHost(
        name, hosts.sort_providers_parents_first(found, root.uuid),
        tuple(
            NodeCapacity(node, cpus=4, memory=memory, socket=0)
            for node in range(nodes)) if cells else ())


def described(nodes, groups, offered):
    """The description of a host whose nodes offer the same amounts."""
    every = tuple(range(nodes))
    return HostDescription(
        nodes=every, numa_nodes=every, control_groups=groups,
        capabilities=frozenset({'MEM_BW_MIN'}),
        **{kind: dict.fromkeys(every, amount)
           for kind, amount in offered.items()})
