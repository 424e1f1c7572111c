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

"""Request groups and traits that a guest's policy adds to a query (pure)."""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from ghsched_placement.flavor import keys
from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.providers import names

#: How far VFs are from their guest node; each takes the earlier ones in.
LOCALITIES = keys.VFS_LOCALITY.choices


@dataclass(frozen=True)
class GranularGroup:
    """A granular request group of an allocation candidates query.

    :param suffix: suffix of the parameters ``resources`` and ``required``.
    :param resources: amounts by resource class, all from one provider. If
        empty, the group only selects a provider (Placement microversion 1.36).
    :param required: traits that the provider must have.
    """

    suffix: str
    resources: Mapping[str, int]
    required: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Request:
    """Everything that ghsched adds to an allocation candidates query.

    :param groups: granular request groups, in a stable order.
    :param resources: amounts by resource class that are added to the
        unnumbered request group. Only the compute node's own provider has
        these classes.
    :param root_required: traits that the compute node must have, so that no
        host is a candidate that would ignore a part of the policy.
    :param same_subtree: lists of group suffixes. The providers of the groups
        in a list must be below the provider of its first group.
    :param is_isolated: whether each group needs a provider of its own.
    """

    groups: tuple[GranularGroup, ...] = ()
    resources: Mapping[str, int] = field(default_factory=dict)
    root_required: frozenset[str] = frozenset()
    same_subtree: tuple[tuple[str, ...], ...] = ()
    is_isolated: bool = False


@dataclass(frozen=True)
class PciRequest:
    """Nova's PCI request for VFs of one guest NUMA node, divided among PFs.

    :param guest_node: number of the guest NUMA node.
    :param request_id: ID of Nova's InstancePCIRequest.
    :param resource_class: resource class of one VF.
    :param sizes: number of VFs to take from each PF.
    :param required: traits that the PFs must have.
    """

    guest_node: int
    request_id: str
    resource_class: str
    sizes: tuple[int, ...]
    required: frozenset[str] = frozenset()

    def make_pf_groups(self) -> Iterator[GranularGroup]:
        """Yield a request group for each PF that VFs are taken from.

        Each group requests all VFs of one PF at once. With one group for each
        VF, as in Nova, Placement would try m to the power of n combinations
        for n VFs among m PFs.
        """
        first = 0
        for size in self.sizes:
            yield GranularGroup(names.make_vf_suffix(self.request_id, first),
                                {self.resource_class: size}, self.required)
            first += size


def build_request(policy: GuestPolicy, accounting: Accounting,
                  devices: Sequence[PciRequest] = (),
                  locality: str = 'node', joining: bool = False) -> Request:
    """Return the request groups and traits that a policy adds to a query.

    nova-scheduler sends the query to Placement for allocation candidates. The
    request has one group for each guest NUMA node that needs bandwidth or
    other resources of a host node, and one for each PF. The control group is
    requested of the compute node.

    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param devices: VFs that the policy requests, with the numbers to take from
        each PF.
    :param locality: required distance of VFs, one of :data:`LOCALITIES`;
        Placement enforces ``node`` only.
    :param joining: whether the guest shares a control group of other guests.
    """
    demand = policy.get_resources_by_node(accounting)
    needed = policy.get_needed_capabilities()
    count = 0 if joining else len(policy.groups)
    traits = compute_sharing_traits(policy) if joining else {}
    groups = [
        GranularGroup(names.make_bandwidth_suffix(node), amounts,
                      traits.get(node, frozenset()))
        for node, amounts in sorted(demand.items())]
    below: dict[int, list[str]] = {}
    for item in devices:
        found = list(item.make_pf_groups())
        groups.extend(found)
        below.setdefault(item.guest_node, []).extend(
            group.suffix for group in found)
    nodes, subtrees = _make_node_groups(demand.keys(), traits,
                                        below if locality == 'node' else {})
    groups.extend(nodes)
    return Request(groups=tuple(groups), same_subtree=subtrees,
                   resources={names.RESCTRL_GROUP: count} if count else {},
                   root_required=_list_host_traits(policy, needed),
                   # Of PFs one can serve several groups.
                   is_isolated=len(demand) > 1 and not devices and not nodes)


def _make_node_groups(with_bandwidth: Collection[int],
                      traits: Mapping[int, frozenset[str]],
                      vf_suffixes: Mapping[int, Sequence[str]]
                      ) -> tuple[list[GranularGroup],
                                 tuple[tuple[str, ...], ...]]:
    """Return request groups that bind a guest node to one host NUMA node.

    The bandwidth and the VFs of a guest node come from the same host node if
    their request groups are listed together in Placement's parameter
    ``same_subtree``. A guest node without bandwidth gets a group without
    resources, which selects its host node, where this is needed.

    :param with_bandwidth: guest nodes with a request group for bandwidth.
    :param traits: required traits of the host node, by guest node.
    :param vf_suffixes: suffixes of the groups for VFs that must come from the
        host node, by guest node.
    :returns: groups without resources, and the suffixes of the groups that
        must be on the same host node, one entry for each guest node.
    """
    groups, subtrees = [], []
    for node in sorted({*vf_suffixes, *traits}):
        suffixes = vf_suffixes.get(node, ())
        if node in with_bandwidth:
            if suffixes:
                subtrees.append((names.make_bandwidth_suffix(node), *suffixes))
        elif node in traits or len(suffixes) > 1:
            # Placement takes a group without resources only in a subtree.
            groups.append(GranularGroup(
                names.make_node_suffix(node), {}, traits.get(node, frozenset())
                | {names.NUMA_NODE_TRAIT}))
            subtrees.append((names.make_node_suffix(node), *suffixes))
    return groups, tuple(subtrees)


def compute_sharing_traits(policy: GuestPolicy) -> dict[int, frozenset[str]]:
    """Return the traits of host nodes with a control group to share.

    Guests with the same bandwidth policy can share a resctrl control group. A
    host node with such a group has a trait named after the policy.

    :param policy: bandwidth policy of the guest.
    :returns: required traits of the host node, by guest NUMA node.
    """
    return {node: frozenset({names.make_share_trait(policy.fingerprint, node)})
            for node in range(len(policy.nodes))}


def _list_host_traits(policy: GuestPolicy,
                      needed: frozenset[str]) -> frozenset[str]:
    """Return the traits that a host must have to enforce a guest's policy.

    :param needed: capabilities that the policy needs of a host.
    """
    if policy.vfs:
        # Only such a host has its PFs below its NUMA nodes.
        needed |= {'DEVICE_NUMA'}
    return frozenset(names.CAPABILITY_TRAITS[capability]
                     for capability in needed)


def list_node_suffixes(policy: GuestPolicy, accounting: Accounting,
                       joining: bool = False) -> dict[int, str]:
    """Return the request group suffix for the host node of each guest node.

    A suffix names a granular request group of an allocation candidates query.

    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param joining: whether the guest shares a control group of other guests.
    :returns: suffix by guest NUMA node, without guest nodes for which ghsched
        requests nothing.
    """
    demand = policy.get_resources_by_node(accounting)
    joined = range(len(policy.nodes)) if joining else ()
    return {node: (names.make_bandwidth_suffix(node) if node in demand
                   else names.make_node_suffix(node))
            for node in sorted({*demand, *joined,
                                *(vfs.guest_node for vfs in policy.vfs)})}
