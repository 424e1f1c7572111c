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

"""Resources that one guest needs of a host (pure).

The demand is read from a flavor's policy and NUMA topology, and from the query
with which nova-scheduler asks Placement for the guest.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property

import os_resource_classes as orc

from ghsched_placement.fit import capacity
from ghsched_placement.fit import lack
from ghsched_placement.fit import model
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit.node_capacity import Shortage
from ghsched_placement.fit import room
from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor import topology
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.flavor.topology import PageSize
from ghsched_placement.providers import names
from ghsched_placement.query import request

#: Resource classes that every guest takes of the compute node as a whole.
HOST_CLASSES = frozenset({orc.VCPU, orc.PCPU, orc.MEMORY_MB, orc.DISK_GB})


@dataclass(frozen=True)
class GuestDemand:
    """Resources and traits that one guest needs of a host.

    :param policy: bandwidth, VFs and other things that the flavor's ghsched
        extra specs request.
    :param guest_nodes: number of guest NUMA nodes; 0 for a guest without a
        NUMA topology.
    :param amounts: amounts from the compute node's own provider, by resource
        class.
    :param required: traits that the compute node must have.
    :param forbidden: traits that the compute node must not have.
    :param classes: resource class of the VFs by PCI alias. VFs of aliases that
        are missing here are not counted.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param needs: CPUs and memory of each guest NUMA node; if empty, they are
        not checked for each NUMA node.
    :param page_size: size of the memory pages that the guest requests.
    :param fallback_vcpus: number of VCPU that a guest with dedicated CPUs
        allocates on a host that reports no PCPU; 0 if Nova tries no such host.
    """

    policy: GuestPolicy
    guest_nodes: int = 0
    amounts: Mapping[str, int] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    classes: Mapping[str, str] = field(default_factory=dict)
    accounting: Accounting = 'min'
    needs: tuple[GuestNode, ...] = ()
    page_size: PageSize = None
    fallback_vcpus: int = 0

    def uses_fallback_vcpus(self, host: capacity.HostInventory) -> bool:
        """Whether the guest's dedicated CPUs are counted as VCPU on a host.

        Nova counts them so on a host without [compute]cpu_dedicated_set, which
        reports no PCPU.
        """
        return (self.fallback_vcpus > 0
                and orc.PCPU not in host.root.inventories)

    def get_root_amounts(self, host: capacity.HostInventory
                         ) -> Mapping[str, int]:
        """Return the amounts that the guest allocates from a compute node.

        The amounts are those of the node's own provider, by resource class.
        """
        if not self.uses_fallback_vcpus(host):
            return self.amounts
        return {**{name: amount for name, amount in self.amounts.items()
                   if name != orc.PCPU}, orc.VCPU: self.fallback_vcpus}

    def count_vfs(self, guest_node: int | None = None) -> dict[str, int]:
        """Return the number of requested VFs by resource class.

        :param guest_node: guest NUMA node whose VFs are counted; None for all.
        """
        found: dict[str, int] = {}
        for need in self.policy.vfs:
            known = self.classes.get(need.alias)
            if known and guest_node in (None, need.guest_node):
                found[known] = found.get(known, 0) + need.count
        return found

    def get_node_amounts(self, guest_node: int) -> dict[str, int]:
        """Return the amounts to allocate for a guest NUMA node.

        :param guest_node: number of the guest NUMA node.
        :returns: amount by resource class, such as percent of bandwidth.
        """
        return self._amounts_by_node.get(guest_node, {})

    @cached_property
    def _amounts_by_node(self) -> dict[int, dict[str, int]]:
        return self.policy.get_resources_by_node(self.accounting)

    def make_need(self, host: capacity.HostInventory,
                  shares_group: bool = False) -> model.Need:
        """Return the amounts that one guest needs, by position.

        :param host: host whose table has the positions.
        :param shares_group: whether the guest shares a control group of other
            guests.
        """
        key = host.table, shares_group
        if key not in self._needs:
            self._needs[key] = self._read_need(host, shares_group)
        return self._needs[key]

    @cached_property
    def _needs(self) -> dict[tuple[capacity.ResourceTable, bool], model.Need]:
        return {}

    def _read_need(self, host: capacity.HostInventory,
                   shares_group: bool) -> model.Need:
        table, amounts, vfs = (host.table, self.get_root_amounts(host),
                               self.count_vfs())
        return model.Need(
            (0 if shares_group else len(self.policy.groups),
             *(vfs.get(name, 0) for name in table.vfs),
             *(amounts.get(name, 0) for name in table.classes),
             int(bool(self._list_missing_classes(host)))),
            tuple(self._read_node_need(number, table, shares_group)
                  for number in range(self.guest_nodes)))

    def _list_missing_classes(self, host: capacity.HostInventory) -> list[str]:
        """Return the names of needed resources that a host does not have."""
        # Disks may be of a provider that is shared.
        classes = (self.get_root_amounts(host).keys()
                   - {*host.table.classes, orc.DISK_GB})
        return [*(lack.WORDS.get(name, name) for name in sorted(classes)),
                *map(self.describe_vfs, sorted(
                    self.count_vfs().keys() - set(host.table.vfs)))]

    @cached_property
    def sharing_traits(self) -> Mapping[int, frozenset[str]]:
        """Traits of host nodes on which a guest node can share a group."""
        return request.compute_sharing_traits(self.policy)

    def _read_node_need(self, guest_node: int, table: capacity.ResourceTable,
                        shares_group: bool) -> model.NodeNeed:
        amounts, vfs = (self.get_node_amounts(guest_node),
                        self.count_vfs(guest_node))
        found = room.make_need(
            self.needs[guest_node] if self.needs else GuestNode(),
            table.sizes, self.page_size if self.needs else None,
            tuple(amounts.get(name, 0) for name in capacity.NODE_CLASSES),
            len(table.caches))
        return replace(
            found, amounts=(*found.amounts, *(
                vfs.get(name, 0) if self.policy.vfs_locality == locality else 0
                for locality in ('node', 'socket') for name in table.vfs)),
            traits=self.sharing_traits.get(guest_node, frozenset())
            if shares_group else frozenset())

    def name_used_up_resources(self, host: capacity.HostInventory,
                               count: model.Count) -> frozenset[str]:
        """Return the names of the resources that one guest more lacks.

        :param count: number of guests that fit, and what is used up then.
        """
        if host.table not in self._names:
            self._names[host.table] = self._name_resources(host)
        of_host, of_nodes = self._names[host.table]
        return frozenset([*map(of_host.__getitem__, count.of_host),
                          *map(of_nodes.__getitem__, count.of_nodes)])

    @cached_property
    def _names(self) -> dict[capacity.ResourceTable, tuple[Sequence[str],
                                                           Sequence[str]]]:
        return {}

    def _name_resources(self, host: capacity.HostInventory
                        ) -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of a host's and a host node's resources."""
        table = host.table
        vfs = [self.describe_vfs(name) for name in table.vfs]
        return (
            (lack.GROUPS, *vfs,
             *(lack.WORDS.get(name, name) for name in table.classes),
             *self._list_missing_classes(host)[:1]),
            (*(lack.WORDS[name] for name in capacity.NODE_CLASSES),
             *room.name_resources(table.sizes, self.page_size, self.needs,
                                  table.caches), *vfs, *vfs,
             # model.TOO_FEW_NODES, model.TRAIT
             lack.NUMA_NODES, lack.GROUPS))

    def describe_guest_node(self, guest_node: int) -> str:
        """Return in words what a guest NUMA node needs of a host NUMA node."""
        vfs = (self.count_vfs(guest_node)
               if self.policy.vfs_locality != 'any' else {})
        return lack.describe_guest_node(
            self.get_node_amounts(guest_node),
            self.needs[guest_node] if self.needs else GuestNode(),
            {self.describe_vfs(name): count for name, count in vfs.items()})

    def describe_vfs(self, resource_class: str) -> str:
        """Return VFs of a resource class in the words of the flavor."""
        aliases = {need.alias for need in self.policy.vfs
                   if self.classes.get(need.alias) == resource_class}
        return f'VFs of {" and ".join(sorted(aliases))}'

    def find_shortages(self, node_capacity: NodeCapacity | None,
                       guest_node: int) -> list[Shortage]:
        """Return the CPUs and memory that a host node lacks for a guest node.

        :param node_capacity: CPUs and memory of the host NUMA node; None if
            the host does not report them, which counts as enough.
        :param guest_node: number of the guest NUMA node.
        """
        if node_capacity is None or not self.needs:
            return []
        return node_capacity.find_shortages(
            self.needs[guest_node], self.page_size)


def make_guest_demand(policy: GuestPolicy, guest: topology.GuestShape,
                      query: Iterable[tuple[str, str]],
                      classes: Mapping[str, str], accounting: Accounting,
                      fallback: Iterable[tuple[str, str]] | None = None,
                      counted: Collection[str] | None = HOST_CLASSES
                      ) -> GuestDemand:
    """Return the resources that a guest of a flavor needs from a host.

    :param policy: bandwidth, VFs and other things that the flavor's ghsched
        extra specs request.
    :param guest: the flavor's vCPUs and memory by guest NUMA node.
    :param query: parameters of nova-scheduler's Placement query.
    :param classes: resource class of the VFs of each PCI alias.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param fallback: parameters of nova-scheduler's query for hosts that report
        no PCPU; None if it sends none.
    :param counted: resource classes that are counted of those that the query
        requests of no certain provider; None for all.
    """
    parameters = dict(query)
    return GuestDemand(
        policy, len(guest.cells), {
            name: amount for name, amount
            in parse_amounts(parameters.get('resources', '')).items()
            if name != names.RESCTRL_GROUP
            and (counted is None or name in counted)},
        *parse_traits(parameters.get('root_required', '')), classes,
        accounting, guest.needs, guest.page_size, parse_amounts(
            dict(fallback or ()).get('resources', '')).get(orc.VCPU, 0))


def parse_traits(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Parse the required and the forbidden traits of a query's parameter.

    :param text: traits such as ``A,!B``, with forbidden ones marked by ``!``.
    """
    traits = frozenset(filter(None, text.split(',')))
    required = frozenset(one for one in traits if not one.startswith('!'))
    return required, frozenset(one[1:] for one in traits - required)


def parse_amounts(text: str) -> dict[str, int]:
    """Parse amounts such as ``VCPU:2,MEMORY_MB:512`` by resource class."""
    return {name: int(amount) for name, _, amount in (
        part.partition(':') for part in text.split(',') if part)}
