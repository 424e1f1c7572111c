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

"""Resource providers that a host should have in Placement (pure).

::

    <compute node>         CUSTOM_RESCTRL_GROUP, capability traits
     +- <node>_NUMA0       CUSTOM_MEM_BW_PCT, CUSTOM_MEM_BW_BURST_PCT,
     |   |                 CUSTOM_L3_WAYS,
     |   |                 CUSTOM_RT_CPU_PERMILLE, HW_NUMA_ROOT, ...
     |   +- <node>_<PF>    VFs, filled by Nova
     |   +- <node>_NUMA2   node without CPUs, nearest to node 0
     |       +- <node>_<PF>
     +- <node>_NUMA1       ...

Two rules determine the result. An inventory is never smaller than its usage:
an amount that a host no longer offers is *reserved* while it is allocated, and
removed only when it is free. And the result depends only on its arguments, so
that an unchanged host has an unchanged tree, which Nova's report client does
not write.

Bandwidth is counted as the hardware can guarantee it. If guarantees are
multiples of a step, the inventory has this step size and the smallest
guarantee as its min_unit, so that Placement allocates nothing else. Rounding
up on the host alone would let the guarantees exceed the bandwidth of the node.
The requested amount cannot be rounded up instead, because one query goes to
all hosts, and their steps differ. If the hardware skips some multiples,
bandwidth that guests get beyond their allocations is reserved, and so is the
rest of the node that no further guest could get.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
import math

from ghsched_placement.flavor.resources import ANY_HOST
from ghsched_placement.flavor.resources import BESIDE_BANDWIDTH
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import names

#: An inventory record as Placement's API spells it.
Inventory = Mapping[str, int | float]

#: Percent of a node's theoretical bandwidth is what is counted.
WHOLE_NODE = 100

#: Percent of the theoretical bandwidth that no memory delivers. With 20 % of
#: writes, the published curves of the contention model end at 79 and 83 %
#: (Mess, MICRO 2024).
UNDELIVERED = 20
DELIVERED = WHOLE_NODE - UNDELIVERED
#: Part of what a node can deliver from which on the node counts as full.
FULL = 0.95
#: Key in an option for all NUMA nodes that the option does not list.
ELSEWHERE = '*'


@dataclass(frozen=True)
class Config:
    """Configuration options on which the providers of a host depend.

    :param reserved_bandwidth: percent of bandwidth that cannot be guaranteed
        to guests, by NUMA node: what the memory does not deliver, and what the
        host itself uses.
    :param allocation_ratio: maximum ratio of guaranteed bandwidth to
        bandwidth.
    :param bursts: percent of bandwidth reserved for bursts, by NUMA node.
    :param reserved_elsewhere: percent like ``reserved_bandwidth``, for nodes
        that it does not list.
    """

    reserved_bandwidth: Mapping[int, int] = field(default_factory=dict)
    allocation_ratio: float = 1.0
    bursts: Mapping[int, int] = field(default_factory=dict)
    reserved_elsewhere: int = 0

    def get_reserved_percent(self, node: int) -> int:
        """Return the percent of a node's bandwidth that the operator reserves.
        """
        return self.reserved_bandwidth.get(node, self.reserved_elsewhere)


@dataclass(frozen=True)
class CurrentInventory:
    """Current inventory and usage of a resource class in Placement.

    :param total: total of the inventory; 0 if there is none.
    :param used: allocated amount.
    :param holders: UUIDs of the consumers; filled for control groups only.
    :param amounts: allocated amount of each consumer. It is filled only for
        bandwidth that the host may have to round up to its steps.
    """

    total: int = 0
    used: int = 0
    holders: frozenset[str] = frozenset()
    amounts: tuple[int, ...] = ()


@dataclass(frozen=True)
class WantedProvider:
    """Resource provider as ghsched wants it to be in Placement.

    :param parent_uuid: UUID of the parent; None for the compute node itself.
    :param inventories: inventories of ghsched's resource classes. A class of
        ghsched that is missing here is removed from the provider.
    :param traits: traits that ghsched maintains; other traits are kept.
    """

    uuid: str
    name: str
    parent_uuid: str | None
    inventories: Mapping[str, Inventory]
    traits: frozenset[str]


def build_providers(root_uuid: str, root_name: str, host: HostDescription,
                    config: Config,
                    current: Mapping[str, CurrentInventory] | None = None,
                    shrinking: Mapping[tuple[str, str],
                                       CurrentInventory] | None = None,
                    ) -> tuple[WantedProvider, ...]:
    """Return the resource providers that a host should have in Placement.

    The compute node's provider comes first, then one for each NUMA node.

    :param root_uuid: UUID of the compute node's provider.
    :param root_name: name of the compute node's provider.
    :param host: properties of the host.
    :param config: options of the host.
    :param current: inventories and usages in Placement, by provider UUID.
    :param shrinking: current inventory and usage of each resource of which the
        host now offers less than before, by provider UUID and resource class.
    """
    current = current or {}
    capabilities = frozenset(
        names.CAPABILITY_TRAITS[capability]
        for capability in host.capabilities | ANY_HOST)
    root = WantedProvider(
        uuid=root_uuid, name=root_name, parent_uuid=None,
        inventories=_make_group_inventory(host,
                                          current.get(root_uuid,
                                                      CurrentInventory())),
        traits=capabilities)
    offered = [
        _make_numa_provider(root, node, host, config, current, shrinking or {})
        for node in sorted({*host.nodes, *host.numa_nodes})]
    # Providers without CPUs are below others, which must exist before.
    return (root, *sorted(
        offered, key=lambda provider: provider.parent_uuid != root_uuid))


def make_inventory(total: int, reserved: int = 0,
                   allocation_ratio: float = 1.0,
                   step: int = 1) -> dict[str, int | float]:
    """Return an inventory record in the form of Placement's API.

    :param step: number of which each allocated amount must be a multiple.
    """
    return {
        'total': total, 'reserved': reserved, 'min_unit': 1,
        'max_unit': total, 'step_size': step,
        'allocation_ratio': allocation_ratio,
    }


def compute_free_amount(record: Inventory, used: int) -> int:
    """Return the free amount of an inventory, as Placement computes it.

    :param record: inventory record of Placement's API.
    :param used: amount that is allocated.
    """
    capacity = ((record['total'] - record['reserved'])
                * record['allocation_ratio'])
    return max(0, math.floor(capacity) - used)


def _make_numa_provider(root: WantedProvider, node: int, host: HostDescription,
                        config: Config,
                        current: Mapping[str, CurrentInventory],
                        shrinking: Mapping[tuple[str, str], CurrentInventory]
                        ) -> WantedProvider:
    uuid = names.make_numa_provider_uuid(root.uuid, node)
    offered = {
        names.MEM_BW_PCT: make_bandwidth_inventory(
            node, host, config, current.get(uuid, CurrentInventory())),
        names.MEM_BW_BURST_PCT: _make_burst_inventory(
            node, host, config,
            shrinking.get((uuid, names.MEM_BW_BURST_PCT), CurrentInventory())),
        **{name: _make_offered_inventory(
            amount, least, shrinking.get((uuid, name), CurrentInventory()))
           for name, (amount, least) in get_offered_amounts(
               host, node).items()}}
    return WantedProvider(
        uuid=uuid,
        name=names.make_numa_provider_name(root.name, node),
        parent_uuid=(names.make_numa_provider_uuid(root.uuid,
                                                   host.nearest[node])
                     if node in host.nearest else root.uuid),
        inventories={name: record for name, record in offered.items()
                     if record},
        traits=root.traits | host.shares.get(node, frozenset())
        | {names.NUMA_NODE_TRAIT, names.NUMA_ROOT_TRAIT, names.OWNER_TRAIT})


def make_bandwidth_inventory(node: int, host: HostDescription, config: Config,
                             current: CurrentInventory) -> dict[str,
                                                                int | float]:
    """Return the memory bandwidth inventory of a host NUMA node.

    The reserved amount is limited by what is allocated, since Placement would
    otherwise refuse to change allocations. The step size divides every
    existing allocation, so that migrations can move them.

    :param node: number of the host NUMA node.
    :param config: options of the host.
    :param current: usage and allocations of the inventory in Placement.
    :returns: empty if the node has no bandwidth control and the inventory is
        not in use.
    """
    if node not in host.nodes:
        return make_closed_inventory(current)
    step = math.gcd(host.guarantee_step, *current.amounts)
    least = min((host.round_up_guarantee(1), *current.amounts))
    reserved = (_get_unavailable_percent(node, host, config)
                + get_burst_reserve(node, host, config))
    if (not host.has_uniform_guarantee_steps
            or (step, least) != (host.guarantee_step,
                                 host.round_up_guarantee(1))):
        reserved += _compute_unusable_bandwidth(host, current.amounts,
                                                (WHOLE_NODE - reserved)
                                                * config.allocation_ratio,
                                                config.allocation_ratio)
    unused = WHOLE_NODE - math.ceil(current.used / config.allocation_ratio)
    return {**make_inventory(WHOLE_NODE,
                             reserved=max(0, min(unused, reserved)),
                             allocation_ratio=config.allocation_ratio,
                             step=step),
            'min_unit': least}


def _compute_unusable_bandwidth(host: HostDescription, amounts: Sequence[int],
                                capacity: float, ratio: float) -> int:
    """Return the percent of a node's bandwidth lost by rounding guarantees.

    The hardware can guarantee bandwidth only in steps. Guests therefore get
    more than they have allocated, and a rest that is smaller than a step is of
    no use.

    :param amounts: percent allocated to each guest.
    :param capacity: percent that can be allocated in total.
    :param ratio: allocation ratio of the inventory.
    """
    allocated = sum(amounts)
    held = sum(map(host.round_up_guarantee, amounts))
    room = max(0, math.floor(capacity) - held)
    unusable = (room - host.round_down_guarantee(room) if room < WHOLE_NODE
                else 0)
    return math.ceil((held - allocated + unusable) / ratio)


def get_offered_amounts(host: HostDescription,
                        node: int) -> dict[str, tuple[int, int]]:
    """Return the amounts of declared resources that a host NUMA node offers.

    Bursts are left out; they depend on options of the host.

    :param node: number of the host NUMA node.
    :returns: offered amount and smallest amount that a guest can request, by
        resource class.
    """
    return {name: resource.offer(host, node)
            for name, resource in BESIDE_BANDWIDTH.items() if resource.offer}


def _make_offered_inventory(amount: int, least: int,
                            current: CurrentInventory) -> dict[str,
                                                               int | float]:
    """Return a host NUMA node's inventory of a declared resource.

    Placement would refuse a total below the usage. If more is used than the
    host offers, the total is the usage and the excess is reserved.

    :param amount: amount that the host offers.
    :param least: smallest amount that one allocation can have.
    :param current: usage of the inventory in Placement.
    """
    if not amount:
        return make_closed_inventory(current)
    total = max(amount, current.used)
    return {**make_inventory(total, reserved=total - amount),
            'min_unit': min(least, total)}


def get_burst_reserve(node: int, host: HostDescription, config: Config) -> int:
    """Return the percent of a host node's bandwidth reserved for bursts.

    A burst is bandwidth above a guest's guarantee, which the guest gets nearly
    all of the time. The result is 0 if the host cannot enforce guarantees.

    :param node: number of the host NUMA node.
    :param config: options of the host.
    """
    if node not in host.nodes or 'MEM_BW_MIN' not in host.capabilities:
        return 0
    return min(config.bursts.get(node, 0),
               WHOLE_NODE - _get_unavailable_percent(node, host, config))


def _get_unavailable_percent(node: int, host: HostDescription,
                             config: Config) -> int:
    """Return the percent of a host node's bandwidth that no guest can get.

    The configuration reserves this bandwidth, or the kernel's own control
    groups use it.

    :param node: number of the host NUMA node.
    :param config: options of the host.
    """
    return max(config.get_reserved_percent(node), host.kept_share)


def get_promisable_burst_percent(node: int, host: HostDescription,
                                 config: Config) -> int:
    """Return the percent of a host node's bandwidth to promise as bursts.

    A burst is bandwidth above a guest's guarantee, which the guest gets nearly
    all of the time. All guests together may be promised more bursts than are
    reserved, because they rarely use them at the same time.

    :param node: number of the host NUMA node.
    :param config: options of the host.
    """
    pool = get_burst_reserve(node, host, config)
    return host.bursts.get(node, pool) if pool else 0


def _make_burst_inventory(node: int, host: HostDescription, config: Config,
                          current: CurrentInventory) -> dict[str, int | float]:
    """Return the inventory of bandwidth bursts of a host NUMA node.

    A burst is bandwidth above a guest's guarantee. The allocation ratio allows
    more bursts in total than are reserved, but no single burst can be larger
    than the reserve.

    :param node: number of the host NUMA node.
    :param config: options of the host.
    :param current: usage of the inventory in Placement.
    """
    pool = get_burst_reserve(node, host, config)
    if not pool:
        return make_closed_inventory(current)
    offered = max(get_promisable_burst_percent(node, host, config),
                  current.used)
    return make_inventory(pool,
                          allocation_ratio=round((offered + 0.5) / pool, 3)
                          if offered != pool else 1.0)


def make_closed_inventory(current: CurrentInventory
                          ) -> dict[str, int | float]:
    """Return an inventory from which nothing more can be allocated.

    It replaces the inventory of a resource that the host does not offer any
    more, but guests still use: Placement does not delete an inventory in use
    (409 InventoryInUse).

    :param current: total and usage of the inventory in Placement.
    :returns: empty if the inventory is not in use.
    """
    if not current.used:
        return {}
    total = max(current.total, current.used, 1)
    return make_inventory(total, reserved=total)


def _make_group_inventory(host: HostDescription,
                          current: CurrentInventory) -> Mapping[str,
                                                                Inventory]:
    """Return the inventory of a host's resctrl control groups.

    A control group that several guests share counts once. The total does not
    fall while groups are allocated, because nova-compute would not start
    without a group that is in use (AssignedResourceNotFound).

    :param current: total, usage and consumers in Placement.
    """
    groups = len(set(host.sharing.values()))
    needed = (current.used - len(current.holders & host.sharing.keys())
              + groups)
    capacity = current.used + max(0, host.control_groups - needed)
    total = max(capacity, current.total) if current.used else capacity
    if total == 0:
        return {}
    record = make_inventory(total, reserved=total - capacity)
    return {names.RESCTRL_GROUP: record}
