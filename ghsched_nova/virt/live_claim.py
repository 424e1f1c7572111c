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

"""Where the claim of a live migration has to be, on the destination.

Nova before 34 claims there without the limits of its scheduler (bug
2153425), and so does every release when an admin forces the host. What
Placement holds there names the same host NUMA nodes.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import TypeAlias

from oslo_log import log as logging

from ghsched_nova import compat
from ghsched_nova.host import agreement
from ghsched_placement import held
from ghsched_placement import policy as policies

LOG = logging.getLogger(__name__)


#: Whether a guest can share a control group of the host: its policy, host
#: NUMA nodes.
CanJoin: TypeAlias = Callable[[policies.GuestPolicy, Sequence[int]], bool]


def orders(instance: Any, host: compat.Destination,
           can_join: CanJoin) -> Iterator[tuple[int, ...]]:
    """Host NUMA nodes that the claim may take, by guest NUMA node.

    Nothing for a guest that the claim may put anywhere, or whose flavor
    cannot be read: nova-compute refuses that one a little later.
    """
    guest_nodes = len(compat.host_cells(instance.numa_topology))
    try:
        policy = policies.parse(instance.flavor.extra_specs, guest_nodes,
                                instance.flavor.vcpus)
    except policies.PolicyError as error:
        LOG.warning('ghsched: %s', error, instance=instance)
        return
    if policy is None or not guest_nodes or not (
            policy.controlled or policy.vfs or policy.rt_permille):
        return
    accounting = compat.config().ghsched.bandwidth_accounting
    found = held.held(host.allocations, host.uuid, host.nodes,
                      host.node_of_pf)
    for order in held.orders(policy, accounting, guest_nodes, host.nodes,
                             found):
        try:
            agreement.check(policy, accounting, order, host.allocations,
                            host.uuid, joins=can_join(policy, order))
        except agreement.Disagreement:
            continue
        yield order
