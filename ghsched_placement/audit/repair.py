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

"""Repairs of allocations that need no action of the host (pure).

There are two kinds: the allocation of a consumer that no longer exists is
removed, and ghsched's part of a server's allocation is computed again from the
flavor and the host NUMA nodes that Nova has claimed. Nova's own part, VFs, and
allocations without resources of ghsched are not changed.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ghsched_placement.audit import audit
from ghsched_placement.audit.findings import Allocation
from ghsched_placement.audit.findings import AllocationsByConsumer
from ghsched_placement.audit.findings import Finding
from ghsched_placement.audit.findings import Server
from ghsched_placement.fit import capacity
from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.resources import BESIDE_BANDWIDTH
from ghsched_placement.providers import allocations
from ghsched_placement.providers import names

_OWNERLESS = ('allocation-without-server', 'allocation-elsewhere')
_DIFFERENT = ('allocation-differs', 'nodes-differ')


@dataclass(frozen=True)
class Repair:
    """Planned correction of the allocation of one consumer.

    :param host: name of the compute node whose providers are concerned.
    :param consumer: UUID of the consumer.
    :param text: description of the repair.
    :param wanted: amounts to allocate to the consumer from providers of the
        host; 0 removes an amount. Amounts that are not listed are kept.
    :param owner: UUID of the server to which the allocation is transferred;
        empty if it is not transferred.
    """

    host: str
    consumer: str
    text: str
    wanted: Allocation
    owner: str = ''


def plan_repairs(host: capacity.HostInventory, servers: Iterable[Server],
                 holdings: AllocationsByConsumer,
                 findings: Iterable[Finding], is_up: bool,
                 accounting: Accounting = 'min',
                 is_accounting_known: bool = True) -> Iterator[Repair]:
    """Yield corrections for the wrong allocations that an audit has found.

    :param servers: servers of the host.
    :param holdings: allocations from the host's providers, by consumer.
    :param findings: findings of the audit.
    :param is_up: whether nova-compute of the host is up. While it is down, the
        allocation of an evacuated server is not removed from the host.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param is_accounting_known: whether the host has reported the accounting,
        or the user has given it; otherwise it is a guess.
    """
    by_uuid = {server.uuid: server for server in servers}
    planned = set()
    for finding in findings:
        allocation = holdings.get(finding.subject, {})
        repair = None
        if finding.kind in _OWNERLESS:
            if is_up or finding.kind == 'allocation-without-server':
                repair = plan_allocation_removal(
                    host, finding.subject, allocation)
        elif finding.owner in by_uuid:
            repair = plan_allocation_transfer(
                host, finding.subject, allocation, by_uuid[finding.owner])
        elif finding.kind in _DIFFERENT and finding.subject in by_uuid:
            repair = plan_flavor_repair(host, by_uuid[finding.subject],
                                        allocation, accounting,
                                        is_accounting_known)
        if repair is not None and repair.consumer not in planned:
            planned.add(repair.consumer)
            yield repair


def is_repairable(finding: Finding) -> bool:
    """Whether ``audit --fix`` can repair a finding of this kind."""
    return finding.kind in (*_OWNERLESS, *_DIFFERENT) or bool(finding.owner)


def plan_allocation_removal(host: capacity.HostInventory, consumer: str,
                            allocation: Allocation) -> Repair | None:
    """Plan the removal of all that a consumer has allocated from a host.

    :param consumer: UUID of the consumer, such as a deleted server.
    :param allocation: amounts by provider UUID and resource class.
    :returns: None if the consumer has no resources of ghsched.
    """
    text = audit.describe_allocation(host, allocation)
    if not text:
        return None
    return Repair(host.name, consumer, 'remove its allocation from this '
                  f'host: {text}, and all other resources of the host', {
                      provider: dict.fromkeys(resources, 0)
                      for provider, resources in allocation.items()})


def plan_allocation_transfer(host: capacity.HostInventory, consumer: str,
                             allocation: Allocation, server: Server) -> Repair:
    """Plan the transfer of an ended migration's allocation to its server.

    :param consumer: UUID of the migration.
    :param allocation: amounts by provider UUID and resource class.
    :param server: server that gets the allocation.
    """
    return Repair(
        host.name, consumer, f'return to {server.name}: '
        + audit.describe_allocation(host, allocation), {}, server.uuid)


def plan_flavor_repair(host: capacity.HostInventory, server: Server,
                       allocation: Allocation, accounting: Accounting = 'min',
                       is_accounting_known: bool = True) -> Repair | None:
    """Plan the change that makes a server's allocation match its flavor.

    If the accounting is not known, bandwidth is reduced only to the larger of
    the guarantee and the cap.

    :param allocation: amounts by provider UUID and resource class.
    :param is_accounting_known: whether the accounting is not a guess.
    :returns: None if the allocation is right, if the right amounts are
        unknown, or if the server has no allocation. In the last case, run
        ``nova-manage placement heal_allocations`` first.
    """
    policy = server.policy
    if policy is None or server.moving or not allocation:
        return None
    providers = {node.number: node for node in host.nodes
                 if node.number is not None}
    by_node = _map_amounts_to_host_nodes(
        server, policy.get_resources_by_node(accounting), providers)
    if by_node is None:
        return None
    now = _copy_allocation(allocation)
    wanted: dict[str, dict[str, int]] = {
        node.uuid: {name: by_node.get(number, {}).get(name, 0)
                    for name in (names.MEM_BW_PCT, *BESIDE_BANDWIDTH)}
        for number, node in providers.items()}
    if not is_accounting_known:
        _limit_uncertain_decreases(wanted, now, {
            providers[node].uuid: cap for node, cap in _yield_caps(server)
            if node in providers})
    wanted[host.uuid] = {names.RESCTRL_GROUP: _count_groups(host, policy, now)}
    if compute_repaired_allocation(allocation, wanted) == now:
        return None
    return Repair(
        host.name, server.uuid,
        f'set the allocation of {server.name} to '
        f'{audit.describe_allocation(host, wanted) or "no bandwidth"}', wanted)


def _map_amounts_to_host_nodes(
        server: Server, amounts: Mapping[int, Mapping[str, int]],
        providers: Mapping[int, capacity.NodeInventory]
) -> dict[int, Mapping[str, int]] | None:
    """Return the amounts of a server by host NUMA node.

    :param amounts: amounts by guest NUMA node.
    :param providers: NUMA nodes of the host by number.
    :returns: None if a host NUMA node is unknown or offers no bandwidth.
    """
    if amounts and max(amounts) >= len(server.nodes):
        return None
    found = {server.nodes[guest]: resources
             for guest, resources in amounts.items()}
    if all(number in providers and (
            names.MEM_BW_PCT not in resources
            or providers[number].bandwidth is not None)
            for number, resources in found.items()):
        return found
    return None


def _count_groups(host: capacity.HostInventory, policy: GuestPolicy,
                  now: Allocation) -> int:
    """Return the number of control groups that a server should hold."""
    groups = len(policy.groups)
    if groups and audit.can_share_control_group(host, policy):
        return min(1, now.get(host.uuid, {}).get(names.RESCTRL_GROUP, 0))
    return groups


def _yield_caps(server: Server) -> Iterator[tuple[int, int]]:
    """Yield the host NUMA node and bandwidth cap of each guest NUMA node."""
    if server.policy is None:
        return
    for guest_node, cap in server.policy.get_bandwidth_by_node('max').items():
        if guest_node < len(server.nodes):
            yield server.nodes[guest_node], cap


def _limit_uncertain_decreases(
        wanted: Mapping[str, dict[str, int]], now: Allocation,
        caps: Mapping[str, int]) -> None:
    """Change wanted amounts so that bandwidth is not reduced by mistake.

    The accounting is unknown. An allocated amount is reduced only to the cap.

    :param wanted: amounts that the repair sets, by provider and class.
    :param now: present amounts.
    :param caps: cap of the server's bandwidth by UUID of the NUMA provider,
        which is the right amount if the host counts caps.
    """
    for provider, amounts in wanted.items():
        amount = amounts[names.MEM_BW_PCT]
        held = now.get(provider, {}).get(names.MEM_BW_PCT, 0)
        if held > amount:
            amounts[names.MEM_BW_PCT] = min(
                held, max(amount, caps.get(provider, 0)))


def compute_repaired_allocation(allocation: Allocation, wanted: Allocation
                                ) -> dict[str, dict[str, int]]:
    """Return a consumer's allocation with the amounts of a repair applied.

    :param allocation: amounts by provider UUID and resource class.
    :param wanted: amounts that the repair sets; 0 removes an amount.
    """
    found = _copy_allocation(allocation)
    for provider, resources in wanted.items():
        found[provider] = {
            name: amount for name, amount
            in {**found.get(provider, {}), **resources}.items() if amount}
    return {provider: resources for provider, resources in found.items()
            if resources}


def _copy_allocation(allocation: Allocation) -> dict[str, dict[str, int]]:
    return {provider: dict(resources)
            for provider, resources in allocation.items()}


def make_repair_body(answer: Mapping[str, Any], wanted: Allocation
                     ) -> dict[str, Any] | None:
    """Return the PUT /allocations body that makes a planned repair.

    :param answer: body of GET /allocations/{consumer}, from microversion 1.28
        on.
    :param wanted: amounts that the repair sets; 0 removes an amount.
    :returns: None if nothing would change.
    """
    now = allocations.parse_allocations(answer)
    then = compute_repaired_allocation(now, wanted)
    if not now.keys() & wanted.keys() or then == now:
        return None     # such as a server that has left the host meanwhile
    return allocations.make_allocations_body(answer, then)


def make_transfer_body(answer: Mapping[str, Any],
                       server_answer: Mapping[str, Any], repair: Repair,
                       generation: int | None = None
                       ) -> dict[str, dict[str, Any]] | None:
    """Return the POST /allocations body that moves an allocation to a server.

    The allocation of an ended migration replaces the server's own, as in Nova
    when a migration fails (``SchedulerReportClient.move_allocations``).

    :param answer: body of GET /allocations/{consumer} for the migration.
    :param server_answer: body of GET /allocations/{consumer} for the server.
    :param repair: the planned repair.
    :param generation: consumer generation of the server if ``server_answer``
        has none.
    :returns: None if there is nothing to move, or if the server has an
        allocation from the same providers.
    """
    if server_answer['allocations'].keys() & answer['allocations'].keys() or (
            not answer['allocations']):
        return None
    return {
        repair.consumer: allocations.make_allocations_body(answer, {}),
        repair.owner: allocations.make_allocations_body(
            answer, allocations.parse_allocations(answer),
            consumer_generation=server_answer.get('consumer_generation',
                                                  generation))}
