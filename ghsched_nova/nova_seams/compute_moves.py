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

"""Claims of nova-compute while a guest moves to other nodes of its host."""

from typing import Any

from nova.compute import resource_tracker
from nova import exception
from oslo_concurrency import lockutils
from oslo_log import log as logging

from ghsched_nova.nova_seams import registry

LOG = logging.getLogger(__name__)

seam = registry.make_seam_decorator(registry.COMPUTE)

#: Resources that moving guests use on their new host NUMA nodes and that are
#: not in Nova's records yet, by name of the compute node and UUID of the
#: guest.
MOVING: dict[tuple[str, str], Any] = {}


@seam('nova.compute.resource_tracker.ResourceTracker._update_usage',
      ('self', 'usage', 'nodename', 'sign'),
      called='Counts a moving guest on its new nodes, under the lock of the '
             'resource tracker.')
def count_moving_guests_on_new_nodes(tracker: Any, nodename: str) -> None:
    """Count guests that move between host NUMA nodes on their new nodes, too.

    Their records still name their old nodes. No other guest can then claim the
    old or the new nodes.

    :param tracker: nova-compute's resource tracker, which counts usage from
        the records of its guests with each periodic report.
    """
    for (node, uuid), topology in tuple(MOVING.items()):
        try:
            if node == nodename:
                count_usage(tracker, nodename, (topology, 1))
        except exception.NovaException as error:
            LOG.warning('ghsched: cannot claim the new NUMA nodes of server '
                        '%s during a move between host NUMA nodes; counting '
                        'only the old nodes: %s',
                        uuid, error)


def count_usage(tracker: Any, node: str, *topologies: tuple[Any, int]
                ) -> None:
    """Add NUMA topologies to a host's usage in Nova, or subtract them.

    :param tracker: nova-compute's resource tracker.
    :param node: name of the compute node.
    :param topologies: each with 1 to be added or -1 to be subtracted.
    """
    for topology, sign in topologies:
        tracker._update_usage({'memory_mb': 0, 'numa_topology': topology},
                              node, sign)


@seam('nova.compute.resource_tracker.COMPUTE_RESOURCE_SEMAPHORE')
def get_claim_lock() -> Any:
    """Return the lock that Nova's resource tracker holds during a claim.

    All claims of this nova-compute process use the same lock.
    """
    return lockutils.lock(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE,
                          'nova-', fair=True)
