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

"""Repairs of allocations that are safe without their host's help (pure).

Two things: what a consumer without an owner holds of a host is given back,
and our part of a server's allocation is made again of its flavor and of the
host NUMA nodes that Nova has claimed for it. Nova's own part of it, VFs, and
all that holds nothing of ghsched stay as they are.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ghsched_placement import allocations
from ghsched_placement import audit
from ghsched_placement import capacity
from ghsched_placement.findings import AllocationsByConsumer
from ghsched_placement.findings import Finding
from ghsched_placement.findings import Server
from ghsched_placement import lack
from ghsched_placement import names
from ghsched_placement.policy import Accounting

#: Amount by resource class, by UUID of the provider.
Amounts = Mapping[str, Mapping[str, int]]

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
    wanted: Amounts
    owner: str = ''


def plan_repairs(host: capacity.Host, servers: Iterable[Server],
                 holdings: AllocationsByConsumer,
                 findings: Iterable[Finding], is_up: bool,
                 accounting: Accounting = 'min') -> Iterator[Repair]:
    """Yield corrections for the wrong allocations that an audit has found.

    :param servers: servers of the host.
    :param holdings: allocations from the host's providers, by consumer.
    :param findings: findings of the audit.
    :param is_up: whether nova-compute of the host is up. While it is down, the
        allocation of an evacuated server is not removed from the host.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
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
                                        allocation,
                                        accounting)
        if repair is not None and repair.consumer not in planned:
            planned.add(repair.consumer)
            yield repair


def is_repairable(finding: Finding) -> bool:
    """Whether ``audit --fix`` can repair a finding of this kind."""
    return finding.kind in (*_OWNERLESS, *_DIFFERENT) or bool(finding.owner)


def plan_allocation_removal(host: capacity.Host, consumer: str,
                            allocation: Amounts) -> Repair | None:
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


def plan_allocation_transfer(host: capacity.Host, consumer: str,
                             allocation: Amounts, server: Server) -> Repair:
    """Plan the transfer of an ended migration's allocation to its server.

    :param consumer: UUID of the migration.
    :param allocation: amounts by provider UUID and resource class.
    :param server: server that gets the allocation.
    """
    return Repair(
        host.name, consumer, f'return to {server.name}: '
        + audit.describe_allocation(host, allocation), {}, server.uuid)


def plan_flavor_repair(host: capacity.Host, server: Server,
                       allocation: Amounts,
                       accounting: Accounting = 'min') -> Repair | None:
    """Plan the change that makes a server's allocation match its flavor.

    :param allocation: amounts by provider UUID and resource class.
    :returns: None if the allocation is right, if the right amounts are
        unknown, or if the server has no allocation. In the last case, run
        ``nova-manage placement heal_allocations`` first.
    """
    policy = server.policy
    if policy is None or server.moving or not allocation:
        return None
    counted = policy.get_resources_by_node(accounting)
    if counted and max(counted) >= len(server.nodes):
        return None
    by_node = {server.nodes[guest]: amounts
               for guest, amounts in counted.items()}
    providers = {node.number: node for node in host.nodes
                 if node.number is not None}
    if not all(number in providers and (
            names.MEM_BW_PCT not in amounts
            or providers[number].bandwidth is not None)
            for number, amounts in by_node.items()):
        return None
    groups = int(policy.needs_control_group)
    now = _copy_allocation(allocation)
    if groups and audit.can_share_control_group(host, policy):
        groups = min(1, now.get(host.uuid, {}).get(names.RESCTRL_GROUP, 0))
    wanted: dict[str, dict[str, int]] = {
        node.uuid: {name: by_node.get(number, {}).get(name, 0)
                    for name in (names.MEM_BW_PCT, *lack.BESIDE)}
        for number, node in providers.items()}
    wanted[host.uuid] = {names.RESCTRL_GROUP: groups}
    if compute_repaired_allocation(allocation, wanted) == now:
        return None
    return Repair(
        host.name, server.uuid,
        f'set the allocation of {server.name} to '
        f'{audit.describe_allocation(host, wanted) or "no bandwidth"}', wanted)


def compute_repaired_allocation(allocation: Amounts,
                                wanted: Amounts) -> dict[str, dict[str, int]]:
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


def _copy_allocation(allocation: Amounts) -> dict[str, dict[str, int]]:
    return {provider: dict(resources)
            for provider, resources in allocation.items()}


def make_repair_body(answer: Mapping[str, Any], wanted: Amounts
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
