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


"""A guest that is to arrive by live migration.

Once it runs here Nova has no way back, so what can be known before is asked
before: what the kernel offers, whether a control group is free, and whether
this process can act on resctrl at all.
"""

from collections.abc import Sequence

from ghsched_nova.host import engine
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import resolve
from ghsched_placement.policy import GuestPolicy


def check(host: engine.HostEngine, policy: GuestPolicy,
          host_nodes: Sequence[int]) -> None:
    """Whether this host could hold the policy of a guest now.

    Placement has counted its bandwidth and its group. It does not know what
    has happened on the host since its last report.

    :param host_nodes: host NUMA node of each guest NUMA node.
    :raises ResctrlUnavailable: when the host lost its resctrl.
    :raises PolicyNotHeld: when it cannot hold the policy.
    :raises GroupError: when no group is free, or nothing can be done.
    """
    if not policy.controlled:
        return
    found = host.host()
    resolve.resolve(found, policy, host_nodes)
    taken = sum(not name.startswith(naming.MONITORS)
                and name not in naming.NOT_GROUPS for name in host.groups())
    if (taken >= found.num_closids - 1
            and not host.can_join(policy, host_nodes)):
        raise fs.GroupError(
            f'no control group is free: {taken} of {found.num_closids - 1} '
            'are there')
    host.check_access()
