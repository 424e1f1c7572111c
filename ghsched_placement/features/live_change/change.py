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

"""Change of the bandwidth policy of an existing guest (pure).

The values of a control group may change: guarantee, cap, hard limit and
priority. All other ``ghsched:`` keys decide where a guest can run, or what its
domain contains, and need a resize.
"""

from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ghsched_placement.flavor import keys
from ghsched_placement.flavor import policy as policies
from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.providers import allocations
from ghsched_placement.providers import names

#: The keys that can change while a guest runs.
CHANGEABLE = (keys.MEM_BW_MIN, keys.MEM_BW_MAX, keys.MEM_BW_HARDLIMIT,
              keys.MEM_BW_PRIORITY)

#: New text of an extra spec by its name, None to take it away.
RequestedChanges = Mapping[str, str | None]

_BY_NAME = {key.name: key for key in CHANGEABLE}


@dataclass(frozen=True)
class PolicyChange:
    """Validated change of a guest's bandwidth policy.

    :param before: policy before the change.
    :param after: policy after the change.
    :param extra_specs: all extra specs of the flavor after the change.
    """

    before: GuestPolicy
    after: GuestPolicy
    extra_specs: Mapping[str, str]


def get_changeable_extra_spec(name: str) -> str:
    """Return the full name of an extra spec that can be changed.

    Extra specs that cannot be changed while a guest exists are refused.

    :param name: such as ``mem_bw_max``, ``mem-bw-max`` or ``mem_bw_max.0``,
        with or without ``ghsched:``.
    :raises PolicyError: for any other name.
    """
    prefix = keys.NAMESPACE + ':'
    word, dot, node = name.removeprefix(prefix).partition('.')
    key = _BY_NAME.get(word.replace('-', '_'))
    if key is None:
        known = ', '.join(one.extra_spec for one in CHANGEABLE)
        raise policies.PolicyError(
            prefix + name.removeprefix(prefix),
            f'cannot change while the guest exists; only {known} can. To '
            'change another one, resize the guest')
    return key.extra_spec + dot + node


def merge_requested_changes(extra_specs: Mapping[str, str],
                            requested: RequestedChanges) -> dict[str, str]:
    """Return a flavor's extra specs with the requested changes applied.

    :param requested: new value by extra spec; None removes the extra spec.
    :raises PolicyError: for an extra spec that cannot be changed while a guest
        exists, or an invalid value.
    """
    merged = dict(extra_specs)
    for name, text in requested.items():
        name = get_changeable_extra_spec(name)
        if text is None:
            merged.pop(name, None)
        else:
            policies.check_extra_spec(name, text)
            merged[name] = text.strip()
    return merged


def make_policy_change(extra_specs: Mapping[str, str],
                       requested: RequestedChanges,
                       guest_nodes: int, vcpus: int = 0) -> PolicyChange:
    """Validate a requested change of a server's bandwidth policy; return it.

    :param extra_specs: extra specs of the server's flavor now.
    :param requested: new value by extra spec; None removes the extra spec.
    :param guest_nodes: number of NUMA nodes of the server.
    :param vcpus: number of vCPUs of the server; 0 if unknown.
    :raises PolicyError: if the new policy is invalid. It is also raised if the
        old and new policies need different control groups, because a running
        guest can neither get nor lose a control group.
    """
    merged = merge_requested_changes(extra_specs, requested)
    before = policies.parse_policy(extra_specs, guest_nodes, vcpus
                                   ) or GuestPolicy()
    after = policies.parse_policy(merged, guest_nodes, vcpus) or GuestPolicy()
    if before.needs_control_group != after.needs_control_group:
        raise policies.PolicyError(
            get_changeable_extra_spec(next(iter(requested))),
            'the guest was started without ghsched:mem_bw_* and has no '
            'control group; resize it to a flavor with them'
            if after.needs_control_group else
            'this would leave the guest without any ghsched:mem_bw_*, and '
            'its control group without a use; resize it to a flavor without '
            'them, or set ghsched:mem_bw_max to 100')
    if len(before.groups) != len(after.groups):
        raise policies.PolicyError(
            get_changeable_extra_spec(next(iter(requested))),
            f'the guest was started with {len(before.groups)} vCPU classes '
            f'with limits, and would have {len(after.groups)}; resize it')
    return PolicyChange(before, after, merged)


# -- what Placement holds -----------------------------------------------------

#: Amount by UUID of the provider and resource class.
Amounts = Mapping[tuple[str, str], int]


def compute_allocation_amounts(policy: GuestPolicy, accounting: Accounting,
                               host_nodes: Sequence[int],
                               compute_node_uuid: str, classes: Iterable[str]
                               ) -> dict[tuple[str, str], int]:
    """Return the amounts that a guest allocates from each host NUMA node.

    :param policy: bandwidth policy of the guest.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param host_nodes: host NUMA node of each guest NUMA node.
    :param compute_node_uuid: UUID of the compute node's provider.
    :param classes: resource classes to return for each host NUMA node, even if
        the amount is 0.
    :returns: amounts by provider UUID and resource class.
    """
    asked = policy.get_resources_by_node(accounting)
    found: dict[tuple[str, str], int] = {}
    for guest_node, host_node in enumerate(host_nodes):
        provider = names.make_numa_provider_uuid(compute_node_uuid, host_node)
        for name in classes:
            found[provider, name] = (
                found.get((provider, name), 0)
                + asked.get(guest_node, {}).get(name, 0))
    return found


def select_allocation_amounts(allocation: Mapping[str, Any],
                              classes: Container[str]
                              ) -> dict[tuple[str, str], int]:
    """Return only the amounts of given resource classes in an allocation.

    :param allocation: the allocation, as ``{provider: {'resources': {class:
        amount}}}``.
    :returns: amounts by provider UUID and resource class.
    """
    return {(provider, name): int(amount)
            for provider, one in allocation.items()
            for name, amount in one['resources'].items()
            if amount and name in classes}


def make_changed_allocation_body(answer: Mapping[str, Any],
                                 new_amounts: Amounts
                                 ) -> dict[str, Any] | None:
    """Return the PUT /allocations body that sets new amounts of a consumer.

    :param answer: body of GET /allocations/{consumer} (Placement 1.28 or
        later, up to 1.37).
    :param new_amounts: amounts by provider UUID and resource class; 0 removes
        an amount. Amounts that are not listed do not change.
    :returns: None if the consumer has these amounts already.
    """
    held = allocations.parse_allocations(answer)
    if all(held.get(provider, {}).get(name, 0) == amount
           for (provider, name), amount in new_amounts.items()):
        return None
    for (provider, name), amount in new_amounts.items():
        resources = held.setdefault(provider, {})
        resources.pop(name, None)
        if amount:
            resources[name] = amount
    return allocations.make_allocations_body(answer, held)


def merge_by_larger_amount(first: Amounts,
                           second: Amounts) -> dict[tuple[str, str], int]:
    """Merge two allocations, taking the larger amount of each resource.

    The result is allocated while a server's policy changes, because it
    suffices for both the old and the new policy.
    """
    return {key: max(first.get(key, 0), second.get(key, 0))
            for key in {**first, **second}}


def find_unlisted_providers(amounts: Amounts,
                            providers: Iterable[str]) -> frozenset[str]:
    """Return the providers in an allocation that are not in a given list.

    :param amounts: amounts by provider UUID and resource class.
    :param providers: UUIDs of the given providers.
    """
    return frozenset(provider for provider, _name in amounts) - frozenset(
        providers)
