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

"""A guest's policy -> what to ask Placement for (pure)."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from ghsched_placement import names
from ghsched_placement.policy import Accounting
from ghsched_placement.policy import GuestPolicy

#: How far VFs are from their guest node; each takes the earlier ones in.
LOCALITIES = ('node', 'socket', 'any')


@dataclass(frozen=True)
class Group:
    """One granular request group of an allocation candidates query.

    :param suffix: what follows ``resources`` and ``required``.
    :param resources: amounts by resource class, all from one provider; empty
        names a provider and takes nothing of it (Placement 1.36).
    :param required: traits of that provider.
    """

    suffix: str
    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Request:
    """Everything that ghsched adds to an allocation candidates query.

    :param groups: in a stable order.
    :param root_required: traits that the compute node itself must have, so
        that a host which would drop a part of the policy is never a
        candidate.
    :param node_suffix: guest NUMA node -> suffix of the group whose provider
        is its host NUMA node.
    :param same_subtree: suffixes of groups whose providers are below one of
        them.
    """

    groups: tuple[Group, ...] = ()
    root_required: frozenset[str] = frozenset()
    node_suffix: Mapping[int, str] = field(default_factory=dict)
    same_subtree: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Devices:
    """VFs of one kind for one guest NUMA node, as Nova asks for them.

    :param request_id: of Nova's InstancePCIRequest.
    :param resources: resource class of one VF.
    :param required: traits of the PF that they are of.
    :param sizes: how many to take from one PF each.
    """

    guest_node: int
    request_id: str
    resource_class: str
    sizes: tuple[int, ...]
    required: frozenset[str] = frozenset()

    def groups(self) -> Iterator[Group]:
        """A group for each PF, whatever number of VFs is taken from it.

        With one group per VF, as Nova has it, Placement would go through
        every way to share n VFs among m PFs: m to the power of n.
        """
        first = 0
        for size in self.sizes:
            yield Group(names.vf_suffix(self.request_id, first),
                        {self.resource_class: size}, self.required)
            first += size


def build(policy: GuestPolicy, accounting: Accounting,
          devices: Sequence[Devices] = (),
          locality: str = 'node') -> Request:
    """What to ask for so that a guest's policy can be kept.

    One group per guest NUMA node with a counted share, one for the guest's
    control group (all host nodes of a guest are set in one group, so it
    takes one whatever its number of nodes), one per PF.

    :param devices: what the VFs of the policy are for Placement.
    :param locality: one of :data:`LOCALITIES`. Placement itself sees to
        ``node``; it knows no sockets, so for the others the scheduler has to
        choose among its candidates.
    """
    demand = policy.demand(accounting)
    suffixes = node_suffixes(policy, accounting)
    groups = [
        Group(suffix=suffix,
              resources=({names.MEM_BW_PCT: demand[node]} if node in demand
                         else {}),
              required=frozenset({names.NUMA_NODE_TRAIT}))
        for node, suffix in suffixes.items()]
    if policy.controlled:
        groups.append(Group(suffix=names.RESCTRL_GROUP_SUFFIX,
                            resources={names.RESCTRL_GROUP: 1}))
    # Placement takes a group without resources only if it is in a subtree,
    # be it one of its own.
    subtrees = {node: [suffix] for node, suffix in suffixes.items()
                if node not in demand}
    for item in devices:
        found = list(item.groups())
        groups.extend(found)
        if locality == 'node':
            subtrees.setdefault(
                item.guest_node, [suffixes[item.guest_node]]
            ).extend(group.suffix for group in found)
    return Request(
        groups=tuple(groups),
        root_required=frozenset(names.CAPABILITY_TRAITS[capability]
                                for capability in policy.capabilities()),
        node_suffix=suffixes,
        same_subtree=tuple(map(tuple, subtrees.values())))


def node_suffixes(policy: GuestPolicy,
                  accounting: Accounting) -> dict[int, str]:
    """Suffix by guest NUMA node, for those that have a host node of theirs.

    A guest node without counted bandwidth and without VFs is Nova's alone.
    """
    demand = policy.demand(accounting)
    return {node: (names.bandwidth_suffix(node) if node in demand
                   else names.node_suffix(node))
            for node in sorted({*demand, *(vfs.guest_node
                                           for vfs in policy.vfs)})}
