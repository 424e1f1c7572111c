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

"""Hosts of a cloud, as Placement reports them."""

import uuid

from ghsched_placement import capacity
from ghsched_placement import names
from ghsched_placement import tree

VF = 'CUSTOM_PCI_8086_1515'

ALL_TRAITS = frozenset(names.CAPABILITY_TRAITS.values())
NODE_TRAITS = ALL_TRAITS | {names.NUMA_NODE_TRAIT, names.NUMA_ROOT_TRAIT,
                            names.OWNER_TRAIT}


def root_uuid(name):
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def node_uuid(name, number):
    return names.numa_provider_uuid(root_uuid(name), number)


def root(name='a', groups=31, groups_used=0, traits=ALL_TRAITS, used=None,
         **amounts):
    """A compute node; VCPU=16 and so on are its other resources."""
    inventories = {one: tree.inventory(amount)
                   for one, amount in amounts.items()}
    if groups:
        inventories[names.RESCTRL_GROUP] = tree.inventory(groups)
    return capacity.Provider(
        root_uuid(name), name, None, root_uuid(name), inventories,
        {names.RESCTRL_GROUP: groups_used, **(used or {})},
        frozenset(traits))


def node(number, used=0, reserved=0, name='a', traits=NODE_TRAITS,
         bandwidth=100, ratio=1.0, bursts=0, bursts_used=0):
    """A host NUMA node; no bandwidth: it cannot be controlled."""
    inventories = {}
    if bandwidth:
        inventories[names.MEM_BW_PCT] = tree.inventory(
            bandwidth, reserved, ratio)
    if bursts:
        inventories[names.MEM_BW_BURST_PCT] = tree.inventory(bursts)
    return capacity.Provider(
        node_uuid(name, number), f'{name}_NUMA{number}', root_uuid(name),
        root_uuid(name), inventories,
        {names.MEM_BW_PCT: used, names.MEM_BW_BURST_PCT: bursts_used},
        frozenset(traits))


def pf(address, number, total=8, used=0, name='a'):
    """A PF on a NUMA node; None: below the compute node."""
    parent = root_uuid(name) if number is None else node_uuid(name, number)
    return capacity.Provider(
        str(uuid.uuid5(uuid.NAMESPACE_DNS, name + address)),
        f'{name}_{address}', parent, root_uuid(name),
        {VF: tree.inventory(total)}, {VF: used},
        frozenset({names.OWNER_TRAIT}))


def host(*providers, **of_root):
    """The one host that some providers make."""
    found, = capacity.hosts([root(**of_root), *providers])
    return found
