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


"""The PFs of a described host, and what VFs of them are for Placement (pure).
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import uuid

import os_traits

from ghsched_placement import keys
from ghsched_placement import names
from ghsched_placement import policy as policies
from ghsched_placement import request
from ghsched_placement import tree

#: What nova.compute.pci_placement_translator gives a provider of devices.
_TRAITS = frozenset({os_traits.COMPUTE_MANAGED_PCI_DEVICE,
                     os_traits.OWNER_NOVA})

#: What Nova asks of one: nova.scheduler.request_filter.owner_nova_filter.
_REQUIRED = frozenset({os_traits.OWNER_NOVA})


@dataclass(frozen=True)
class HostPf:
    """One PF whose VFs guests may have.

    :param address: PCI address.
    :param node: host NUMA node.
    :param vfs: how many VFs it has.
    :param alias: Nova's [pci]alias for them.
    :param resource_class: what they are in Placement.
    """

    address: str
    node: int
    vfs: int
    alias: str
    resource_class: str


def providers(root: tree.Provider,
              pfs: Sequence[HostPf]) -> Iterator[tree.Provider]:
    """The providers that Nova makes of the PFs."""
    for pf in pfs:
        name = f'{root.name}_{pf.address.upper()}'
        yield tree.Provider(
            uuid=str(uuid.uuid5(uuid.UUID(root.uuid), name)), name=name,
            parent_uuid=names.numa_provider_uuid(root.uuid, pf.node),
            inventories={pf.resource_class: tree.inventory(pf.vfs)},
            traits=_TRAITS)


def devices(policy: policies.GuestPolicy,
            pfs: Sequence[HostPf]) -> list[request.Devices]:
    """What nova-scheduler asks for at first: all of one PF, and near.

    Nova's request ids are random; here they are made of alias and node.

    :raises PolicyError: for an alias that the host has no PF of.
    """
    classes = {pf.alias: pf.resource_class for pf in pfs}
    for vfs in policy.vfs:
        if vfs.alias not in classes:
            raise policies.PolicyError(
                keys.VFS.extra_spec,
                f'the host file has no PF of the alias {vfs.alias!r}')
    return [request.Devices(
        guest_node=vfs.guest_node,
        request_id=f'vfs-{classes[vfs.alias]}-node{vfs.guest_node}',
        resource_class=classes[vfs.alias], sizes=(vfs.count,),
        required=_REQUIRED) for vfs in policy.vfs]


def short(policy: policies.GuestPolicy, pfs: Sequence[HostPf],
          guest_node: int, host_node: int) -> str | None:
    """Why a host node has not the VFs that must be there for a guest node."""
    if policy.vfs_locality != 'node':
        return None
    for vfs in policy.vfs:
        if vfs.guest_node != guest_node:
            continue
        have = sum(pf.vfs for pf in pfs
                   if (pf.alias, pf.node) == (vfs.alias, host_node))
        if have < vfs.count:
            return (f'has {have} VFs of {vfs.alias}, {vfs.count} are needed')
    return None


def distance(policy: policies.GuestPolicy, pfs: Sequence[HostPf],
             nodes: Sequence[int],
             sockets: Mapping[int, int | None]) -> tuple[int, int] | None:
    """How far the VFs of an otherwise empty host are.

    :param nodes: host NUMA node of each guest NUMA node.
    :returns: how many are off their socket, and off their node; None when
        there are too few that are near enough.
    """
    free = [pf.vfs for pf in pfs]
    far = [0, 0, 0]
    reach = request.LOCALITIES.index(policy.vfs_locality)
    for vfs in policy.vfs:
        left = vfs.count
        order = sorted(
            (request.distance(nodes[vfs.guest_node], pf.node, sockets),
             place)
            for place, pf in enumerate(pfs) if pf.alias == vfs.alias)
        for apart, place in order:
            if apart <= reach:
                taken = min(left, free[place])
                free[place] -= taken
                left -= taken
                far[apart] += taken
        if left:
            return None
    return far[2], far[1] + far[2]
