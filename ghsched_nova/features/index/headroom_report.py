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

"""Free bandwidth and control groups of a host, for nova-scheduler's index.

They are computed from libvirt's guests, running or not, and the last reported
inventory, without a request to Placement. Guests that have not arrived yet are
not counted, nor are allocations of guests that have left.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

from oslo_log import log as logging

from ghsched_nova.guest import metadata
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_placement.features.index import headroom
from ghsched_placement.features.index.headroom import Headroom
from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.providers import names
from ghsched_placement.providers import tree

LOG = logging.getLogger(__name__)


class HeadroomReporter(compute_hooks.ComputeHooks):
    """Reporter of the host's free bandwidth and control groups.

    The index is only a hint, so no error keeps the host from reporting.

    :param section: the ``[ghsched]`` section of the configuration.
    """

    def __init__(self, section: Any) -> None:
        self._section = section
        self._last: Headroom | None = None
        self._reported: Headroom | None = None

    def observe(self, snapshot: compute_hooks.HostSnapshot) -> None:
        """Compute the host's free bandwidth and control groups."""
        found = None
        try:
            found = self._make_headroom(snapshot)
        finally:
            # An old hint is worse than none.
            self._reported = found
        self._last = found or self._last

    def _make_headroom(self, snapshot: compute_hooks.HostSnapshot
                       ) -> Headroom | None:
        if snapshot.guests is None:
            return None
        found = compute_headroom(
            snapshot.offered, snapshot.numa_nodes, snapshot.guests,
            self._section.bandwidth_accounting, snapshot.time)
        if found is None:
            return None
        is_known = snapshot.traits or snapshot.resource_classes
        return headroom.choose_headroom_report(
            self._last, dataclasses.replace(
                found, shape=headroom.hash_provider(
                    snapshot.traits, snapshot.resource_classes)
                if is_known else None))

    def make_stats(self) -> Mapping[str, str]:
        """Return the free amounts for the compute node's stats.

        While they do not change, the last record is returned again. The result
        is empty if the amounts are unknown.
        """
        return {} if self._reported is None else headroom.make_headroom_stats(
            self._reported)


def make_compute_hooks(services: compute_hooks.ComputeServices
                       ) -> HeadroomReporter:
    """Return the reporter of free bandwidth and groups to nova-scheduler.

    The scheduler's index of hosts reads the report.
    """
    return HeadroomReporter(services.section)


def compute_headroom(providers: Sequence[tree.WantedProvider],
                     nodes: Iterable[int], guests: Iterable[desired.Running],
                     accounting: Accounting, now: float) -> Headroom | None:
    """Return the bandwidth and control groups that a host has free.

    They are the reported inventories without what guests use. nova-scheduler
    uses them to find suitable hosts quickly.

    :param providers: resource providers that nova-compute reported last, the
        compute node first.
    :param nodes: host NUMA nodes.
    :param guests: all guests, running or not.
    :param now: seconds since 1970.
    :returns: free control groups, and free percent of bandwidth by host NUMA
        node; None before nova-compute's first report to Placement.
    """
    if not providers:
        return None
    root, *_nodes = providers
    records = {provider.uuid: provider.inventories for provider in providers}
    groups, used, count = 0, dict.fromkeys(nodes, 0), 0
    for policy in filter(None, map(_read_policy, guests)):
        count += 1
        groups += 0 if policy.shared else len(policy.policy.groups)
        for guest_node, share in policy.policy.get_bandwidth_by_node(
                accounting).items():
            node = policy.host_nodes[guest_node]
            used[node] = used.get(node, 0) + share

    def compute_free_bandwidth(node: int, share: int) -> int:
        uuid = names.make_numa_provider_uuid(root.uuid, node)
        return _compute_free(records.get(uuid, {}), names.MEM_BW_PCT, share)

    return Headroom(
        now, count, _compute_free(root.inventories, names.RESCTRL_GROUP,
                                  groups),
        {node: compute_free_bandwidth(node, share)
         for node, share in used.items()},
        capacity={node: compute_free_bandwidth(node, 0) for node in used})


def _compute_free(inventories: Mapping[str, tree.Inventory], name: str,
                  used: int) -> int:
    record = inventories.get(name)
    return tree.compute_free_amount(record, used) if record else 0


def _read_policy(guest: desired.Running) -> metadata.DomainPolicy | None:
    try:
        return guest.policy
    except metadata.MetadataError as error:
        LOG.debug('ghsched: cannot read the bandwidth policy of a guest from '
                  'its XML; not counting this guest in the free bandwidth '
                  'reported to nova-scheduler: %s', error)
        return None
