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
support, a free control group and this process's access to resctrl are checked
first.
"""

from collections.abc import Sequence

from ghsched_nova.host import engine
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resolve
from ghsched_placement.policy import GuestPolicy


def check_arrival(host: engine.HostEngine, policy: GuestPolicy,
                  host_nodes: Sequence[int]) -> None:
    """Refuse a live migration if this destination cannot enforce the policy.

    Placement has allocated bandwidth and a control group for the guest. The
    host may have changed since nova-compute last reported it to Placement.

    :param host_nodes: host NUMA node of each guest NUMA node.
    :raises ResctrlUnavailable: if resctrl is no longer available on the host.
    :raises PolicyRefused: if the host cannot enforce the policy.
    :raises GroupError: if no control group is free, or resctrl cannot be
        written.
    """
    if not policy.needs_control_group:
        return
    found = host.read_resctrl_host()
    resolve.resolve_settings(found, policy, host_nodes)
    taken = sum(not name.startswith(naming.MONITORS)
                and name not in naming.NOT_GROUPS
                for name in host.list_resctrl_groups())
    if (taken >= found.num_closids - 1
            and not host.can_join_shared_group(policy, host_nodes)):
        raise fs.GroupError(
            f'no control group is free: {taken} of {found.num_closids - 1} '
            'are in use')
    host.check_resctrl_access()
