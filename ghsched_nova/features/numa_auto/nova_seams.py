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

"""Seams of nova-scheduler for servers whose number of NUMA nodes is open."""

from typing import Any

from nova.compute import task_states
from nova import context as nova_context
from nova import exception
from nova import objects

from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import registry
from ghsched_placement.providers import names

seam = registry.make_seam_decorator(registry.SCHEDULER)


def copy_limits_with_numa_count(limits: Any, count: int) -> Any:
    """Return a copy of NUMA limits that also names a number of guest nodes.

    A claim with these limits takes a guest topology with this number of nodes.
    """
    limits = limits.obj_clone()
    metadata = (limits.network_metadata
                if 'network_metadata' in limits else None)
    limits.network_metadata = objects.NetworkMetadata(
        physnets={*numa.get_physnets(limits),
                  names.make_node_count_physnet(count)},
        tunneled=bool(metadata and metadata.tunneled))
    return limits


@seam('nova.objects.instance.Instance.get_by_uuid',
      ('context', 'uuid', 'expected_attrs', 'use_slave'))
def get_current_numa_count(context: Any, uuid: str) -> tuple[int, bool]:
    """Return the number of NUMA nodes with which a server runs.

    :returns: the number in Nova's record, which is 0 for a server that has
        never run; and whether the server is being live-migrated.
    """
    cell = objects.InstanceMapping.get_by_instance_uuid(
        context, uuid).cell_mapping
    if cell is None:
        return 0, False
    with nova_context.target_cell(context, cell) as of_cell:
        try:
            server = objects.Instance.get_by_uuid(
                of_cell, uuid, expected_attrs=['numa_topology'])
        except exception.InstanceNotFound:
            return 0, False
    # nova-api gives a new server with CPUs of its own a topology of one node.
    return (len(numa.list_host_nodes(server.numa_topology))
            if server.launched_at else 0,
            server.task_state == task_states.MIGRATING)
