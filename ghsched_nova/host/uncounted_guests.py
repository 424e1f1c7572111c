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

"""Running guests whose guarantee is missing from their Placement allocation.

``nova-manage placement heal_allocations --force`` computes the allocation of a
guest from its flavor alone, without the resources that the scheduler added,
and a guest without an allocation can be rebooted. Placement may then promise
the same bandwidth to other guests, so each report checks the allocations.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging

from ghsched_nova.guest import metadata
from ghsched_nova.host import allocation_check
from ghsched_nova.host import desired
from ghsched_placement.flavor.policy import Accounting

LOG = logging.getLogger(__name__)

#: Allocations on this host: consumer -> provider -> resources.
AllocationsByConsumer = Mapping[str, Mapping[str, Any]]


def find_unallocated_guests(guests: Mapping[str, metadata.DomainPolicy],
                            allocations: AllocationsByConsumer, root: str,
                            accounting: Accounting) -> dict[str, str]:
    """Return the guests whose guarantee Placement has not allocated.

    While a guest migrates away, its allocation may belong to the migration as
    the consumer.

    :param guests: policy of each running guest, by UUID.
    :param allocations: allocations of Placement on this host, by UUID of the
        consumer: ``{provider: {'resources': {class: amount}}}``.
    :param root: UUID of the compute node's resource provider.
    :returns: text on the missing allocation, by UUID of the guest.
    """
    found = {}
    others = [held for consumer, held in sorted(allocations.items())
              if consumer not in guests]
    for uuid, guest in guests.items():
        reason = _describe_difference(
            guest, allocations.get(uuid, {}), root, accounting
        )
        if reason and all(_describe_difference(guest, held, root, accounting)
                          for held in others):
            found[uuid] = reason
    return found


def _describe_difference(guest: metadata.DomainPolicy,
                         allocation: Mapping[str, Any],
                         root: str, accounting: Accounting) -> str:
    """Describe how a Placement allocation differs from a guest's policy.

    The text is empty if the allocation has all that the policy guarantees.
    """
    try:
        allocation_check.check_allocation(
            guest.policy, accounting, guest.allocated_nodes, allocation, root,
            can_share_group=guest.shared)
    except allocation_check.ClaimMismatch as error:
        return str(error)
    return ''


def map_policies_with_allocation(
        running: Iterable[desired.Running],
        accounting: Accounting) -> dict[str, metadata.DomainPolicy]:
    """Return the policies for which Placement must have an allocation.

    A policy needs an allocation if it guarantees bandwidth or needs a control
    group.

    :returns: policy by UUID of the guest.
    """
    found = {}
    for one in running:
        try:
            guest = one.policy
        except metadata.MetadataError:
            continue    # the reconciliation of the guest logs the error
        if guest is not None and (guest.policy.needs_control_group
                                  or guest.policy.get_resources_by_node(
                                      accounting)):
            found[one.domain.uuid] = guest
    return found


def log_unallocated_guests(
        running: Iterable[desired.Running], root: str, accounting: Accounting,
        allocations: AllocationsByConsumer,
        list_present: Callable[[], Collection[tuple[str, int]]]
) -> dict[str, str]:
    """Log and return guests whose guarantee Placement has not allocated.

    A guarantee is bandwidth or a control group.

    :param running: running domains of this host.
    :param root: UUID of the compute node's resource provider.
    :param allocations: allocations of Placement on this host, by UUID of the
        consumer: ``{provider: {'resources': {class: amount}}}``.
    :param list_present: function that returns UUID and libvirt's ID of the
        domains that still run. It is called only if an allocation is missing:
        the allocation of a guest that has ended meanwhile is gone, too.
    :returns: text on the missing allocation, by UUID of the guest.
    """
    running = list(running)
    guests = map_policies_with_allocation(running, accounting)
    found = find_unallocated_guests(guests, allocations, root, accounting)
    if found:
        present = list_present()
        here = {one.domain.uuid for one in running
                if (one.domain.uuid, one.domain.id) in present}
        found = {uuid: reason for uuid, reason in found.items()
                 if uuid in here}
    for uuid, reason in found.items():
        LOG.error('ghsched: the Placement allocation of running guest '
                  '%(uuid)s lacks bandwidth or a control group that the '
                  'flavor guarantees (%(reason)s); run "openstack ghsched '
                  'audit --fix"', {'uuid': uuid, 'reason': reason})
    return found
