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

"""Check before a guest starts that its Placement allocation is its claim."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.resources import BESIDE_BANDWIDTH
from ghsched_placement.providers import names


class ClaimMismatch(Exception):
    """Difference between a guest's Placement allocation and its claim."""


@dataclass(frozen=True)
class Devices:
    """Requested, allocated and claimed devices of one PCI request of a guest.

    :param name: name of the alias or port, for error messages.
    :param count: number of requested devices.
    :param allocated: UUID of the provider of each allocated device; empty if
        Placement does not allocate these devices.
    :param claimed: UUID of the provider of each device that nova-compute has
        claimed; None for a device that is not in Placement.
    """

    name: str
    count: int
    allocated: Sequence[str]
    claimed: Sequence[str | None]


def check_allocation(policy: GuestPolicy, accounting: Accounting,
                     host_nodes: Sequence[int], allocations: Mapping[str, Any],
                     compute_node_uuid: str,
                     vfs: Sequence[tuple[int, int | None]] = (),
                     can_share_group: bool = False) -> None:
    """Refuse a guest whose allocation in Placement differs from its claim.

    The claim is what nova-compute has reserved for the guest on this host.

    :param host_nodes: host NUMA node of each guest NUMA node, from the claim.
    :param allocations: ``{provider: {'resources': {class: amount}}}``.
    :param vfs: pair of guest NUMA node and host NUMA node for each claimed VF
        that the flavor requests in ``ghsched:vfs``.
    :param can_share_group: whether the guest can share a control group of
        the host. It then needs none of its own.
    :raises ClaimMismatch: with the first difference.
    """
    for guest_node, share in policy.get_bandwidth_by_node(accounting).items():
        node = host_nodes[guest_node]
        provider = names.make_numa_provider_uuid(compute_node_uuid, node)
        have = _get_amount(allocations, provider, names.MEM_BW_PCT)
        if have != share:
            raise ClaimMismatch(
                f'guest NUMA node {guest_node} was claimed on host NUMA node '
                f'{node}, where Placement has allocated {have} % memory '
                f'bandwidth for it instead of {share} %')
    _check_node_allocations(policy, accounting, host_nodes, allocations,
                            compute_node_uuid)
    for guest_node, device_node in vfs:
        if policy.vfs_locality == 'node' and (
                device_node != host_nodes[guest_node]):
            raise ClaimMismatch(
                f'guest NUMA node {guest_node} was claimed on host NUMA node '
                f'{host_nodes[guest_node]}, and a VF for it on node '
                f'{device_node}')
    if not can_share_group:
        _check_control_groups(policy, _get_amount(
            allocations, compute_node_uuid, names.RESCTRL_GROUP))


def _check_control_groups(policy: GuestPolicy, groups: int) -> None:
    if groups < len(policy.groups):
        allocated = ('no control group' if not groups else
                     f'{groups} of {len(policy.groups)} control groups')
        raise ClaimMismatch(f'Placement has allocated {allocated} to the '
                            'guest; was the host chosen without '
                            'nova-scheduler?')


def check_devices(requests: Iterable[Devices],
                  allocations: Mapping[str, Any]) -> None:
    """Refuse a guest whose claimed devices differ from its allocation.

    nova-compute has claimed PCI devices of the host for the guest. They must
    be the devices that Placement has allocated.

    :param requests: requested, allocated and claimed devices of each PCI
        request.
    :param allocations: ``{provider: {'resources': {class: amount}}}``.
    :raises ClaimMismatch: with the first difference.
    """
    total: Counter[str | None] = Counter()
    for one in requests:
        if len(one.claimed) != one.count:
            raise ClaimMismatch(
                f'{len(one.claimed)} devices of {one.name} were claimed, '
                f'{one.count} were requested')
        if not one.allocated:
            continue
        if Counter(one.claimed) != Counter(one.allocated):
            raise ClaimMismatch(
                f'devices of {one.name} were claimed from the providers '
                f'{_format_providers(one.claimed)}, but allocated from '
                f'{_format_providers(one.allocated)}')
        total.update(one.claimed)
    for provider, count in total.items():
        held = sum(allocations.get(provider or '', {}).get(
            'resources', {}).values())
        # It may hold more: Nova charges a guest for devices of a resize that
        # was rolled back, until the migration is gone.
        if held < count:
            raise ClaimMismatch(
                f'{count} devices of provider {provider} were claimed, '
                f'but Placement has allocated {held} to the guest')


def describe_missing_devices(requests: Iterable[Devices]) -> tuple[str, ...]:
    """Describe each PCI request for which a guest claimed too few devices.

    :param requests: requested, allocated and claimed devices of each PCI
        request.
    :returns: one text per such request; empty if all devices are claimed.
    """
    return tuple(f'{len(one.claimed)} of {one.count} devices of {one.name}'
                 for one in requests if len(one.claimed) < one.count)


def _format_providers(uuids: Iterable[str | None]) -> str:
    return ', '.join(sorted(map(str, uuids)))


def _check_node_allocations(policy: GuestPolicy, accounting: Accounting,
                            host_nodes: Sequence[int],
                            allocations: Mapping[str, Any],
                            compute_node_uuid: str) -> None:
    for guest_node, amounts in policy.get_resources_by_node(
            accounting).items():
        provider = names.make_numa_provider_uuid(compute_node_uuid,
                                                 host_nodes[guest_node])
        for name, resource in BESIDE_BANDWIDTH.items():
            have = _get_amount(allocations, provider, name)
            if amounts.get(name, have) != have:
                raise ClaimMismatch(
                    f'guest NUMA node {guest_node} was claimed on host NUMA '
                    f'node {host_nodes[guest_node]}, where Placement has '
                    f'allocated {have} {resource.allocated} for it instead of '
                    f'{amounts[name]}')


def _get_amount(allocations: Mapping[str, Any], provider: str,
                resource_class: str) -> int:
    resources = allocations.get(provider, {}).get('resources', {})
    return int(resources.get(resource_class, 0))
