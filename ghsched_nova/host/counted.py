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

"""Guests that run with a guarantee which Placement does not count.

``nova-manage placement heal_allocations --force`` makes the allocation of a
guest of its flavor alone, without what the scheduler added, and a guest
without an allocation can be rebooted. Others may then be promised the same
bandwidth, so each report looks.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging

from ghsched_nova.guest import metadata
from ghsched_nova.host import agreement
from ghsched_nova.host import desired
from ghsched_placement import names
from ghsched_placement.policy import Accounting

LOG = logging.getLogger(__name__)

#: What consumers hold here, as Placement has it: resources by provider.
Holdings = Mapping[str, Mapping[str, Any]]


def uncounted(guests: Mapping[str, metadata.DomainPolicy],
              holdings: Holdings, root: str,
              accounting: Accounting) -> dict[str, str]:
    """Why what guests are promised is not counted, by UUID (pure).

    What a guest is promised that is being migrated away its migration holds:
    a consumer that is no guest here.

    :param root: UUID of the compute node.
    """
    found = {}
    others = [held for consumer, held in sorted(holdings.items())
              if consumer not in guests]
    for uuid, guest in guests.items():
        reason = _differs(guest, holdings.get(uuid, {}), root, accounting)
        if reason and all(_differs(guest, held, root, accounting)
                          for held in others):
            found[uuid] = reason
    return found


def _differs(guest: metadata.DomainPolicy, held: Mapping[str, Any],
             root: str, accounting: Accounting) -> str:
    try:
        agreement.check(guest.policy, accounting, guest.counted_nodes, held,
                        root, joins=guest.shared)
    except agreement.Disagreement as error:
        return str(error)
    return ''


def of_running(running: Iterable[desired.Running], accounting: Accounting
               ) -> dict[str, metadata.DomainPolicy]:
    """Return guests that run with a policy which Placement counts, by UUID."""
    found = {}
    for one in running:
        try:
            guest = one.policy
        except metadata.MetadataError:
            continue    # whoever holds the policy says so
        if guest is not None and (guest.policy.controlled
                                  or guest.policy.resources(accounting)):
            found[one.domain.uuid] = guest
    return found


def look(running: Iterable[desired.Running], root: str,
         accounting: Accounting,
         holders: Callable[[str, str], Mapping[str, int]]) -> dict[str, str]:
    """Ask Placement, log and return what it does not count.

    :param holders: see the method of the Placement client.
    """
    guests = of_running(running, accounting)
    asked = {(names.numa_provider_uuid(root, guest.counted_nodes[number]),
              name) for guest in guests.values()
             for number, amounts in guest.policy.resources(accounting).items()
             for name in amounts}
    if any(guest.policy.controlled for guest in guests.values()):
        asked.add((root, names.RESCTRL_GROUP))
    holdings: dict[str, dict[str, Any]] = {}
    for provider, resource_class in sorted(asked):
        for consumer, amount in holders(provider, resource_class).items():
            of_provider = holdings.setdefault(consumer, {}).setdefault(
                provider, {'resources': {}})
            of_provider['resources'][resource_class] = amount
    found = uncounted(guests, holdings, root, accounting)
    for uuid, reason in found.items():
        LOG.error('ghsched: Placement does not count what guest %(uuid)s is '
                  'promised: %(reason)s. "openstack ghsched audit --fix" '
                  'puts it right', {'uuid': uuid, 'reason': reason})
    return found
