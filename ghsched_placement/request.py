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

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field

from ghsched_placement import names
from ghsched_placement.policy import Accounting
from ghsched_placement.policy import GuestPolicy


@dataclass(frozen=True)
class Group:
    """One granular request group of an allocation candidates query.

    :param suffix: what follows ``resources`` and ``required``.
    :param resources: amounts by resource class, all from one provider.
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
    :param bandwidth_suffix: guest NUMA node -> suffix of its group.
    """

    groups: tuple[Group, ...] = ()
    root_required: frozenset[str] = frozenset()
    bandwidth_suffix: Mapping[int, str] = field(default_factory=dict)


def build(policy: GuestPolicy, accounting: Accounting) -> Request:
    """What to ask for so that a guest's policy can be kept.

    One group per guest NUMA node with a counted share, one for the guest's
    control group (all host nodes of a guest are set in one group, so it
    takes one whatever its number of nodes).
    """
    demand = policy.demand(accounting)
    groups = [
        Group(suffix=names.bandwidth_suffix(node),
              resources={names.MEM_BW_PCT: share},
              required=frozenset({names.NUMA_NODE_TRAIT}))
        for node, share in sorted(demand.items())]
    if policy.controlled:
        groups.append(Group(suffix=names.RESCTRL_GROUP_SUFFIX,
                            resources={names.RESCTRL_GROUP: 1}))
    return Request(
        groups=tuple(groups),
        root_required=frozenset(names.CAPABILITY_TRAITS[capability]
                                for capability in policy.capabilities()),
        bandwidth_suffix={node: names.bandwidth_suffix(node)
                          for node in demand})
