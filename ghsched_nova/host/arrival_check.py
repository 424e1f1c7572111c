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


"""Check of the destination before a guest arrives by live migration.

Nova cannot return a guest that already runs on the destination. So kernel
support, a free control or monitoring group, and this process's access to
resctrl are checked first.
"""

from collections.abc import Sequence

from ghsched_nova.host import engine
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import group_ids
from ghsched_nova.resctrl import resolve
from ghsched_placement.flavor.policy import GuestPolicy


def check_arrival(host: engine.HostEngine, policy: GuestPolicy,
                  host_nodes: Sequence[int]) -> None:
    """Refuse a live migration if this destination cannot enforce the policy.

    Placement has allocated bandwidth and a control group for the guest. The
    host may have changed since nova-compute last reported it to Placement.

    :param host_nodes: host NUMA node of each guest NUMA node.
    :raises ResctrlUnavailable: if resctrl is no longer available on the host.
    :raises PolicyRefused: if the host cannot enforce the policy.
    :raises GroupError: if no control group or monitoring group is free, or
        resctrl cannot be written.
    """
    if not (policy.needs_control_group or policy.monitor):
        return
    found = host.read_resctrl_host()
    existing = group_ids.read_existing_groups(host.root)
    if policy.needs_control_group:
        for _one, held in policy.split_by_class():
            resolve.resolve_settings(found, held, host_nodes)
        free = found.ids.count_free_control_groups(
            len(existing.control), existing.monitors)
        if (free < len(policy.groups)
                and not host.can_join_shared_group(policy, host_nodes)):
            raise fs.GroupError(
                ('no control group is free: ' if not free else
                 f'{free} control groups are free, {len(policy.groups)} are '
                 'needed: ') + found.ids.describe_use(existing))
    elif not host.has_default_cap and not found.ids.is_monitor_free(existing):
        raise fs.GroupError('no monitoring group is free: '
                            + found.ids.describe_use(existing))
    host.check_resctrl_access()
