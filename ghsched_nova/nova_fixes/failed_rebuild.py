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

"""Fix: a server whose rebuild failed keeps its allocation in Placement.

``ComputeManager.rebuild_instance`` takes each failure for that of an
evacuation, whose destination gets back what was allocated there. A server
that is rebuilt on its own host would hold nothing any more. See
``doc/source/contributor/upstream/failed-rebuild.rst``.
"""

from collections.abc import Callable
from typing import Any

from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_fixes import servers
from ghsched_nova.nova_seams import registry

patch = patches.make_patch_decorator(registry.COMPUTE)
seam = registry.make_seam_decorator(registry.COMPUTE)


@seam('nova.compute.resource_tracker.ResourceTracker.host')
@patch('nova.compute.resource_tracker.ResourceTracker.'
       'delete_allocation_for_evacuated_instance',
       ('self', 'context', 'instance', 'node', 'node_type'))
def _delete_allocation(original: Callable[..., Any],
                       tracker: Any,
                       context: Any,
                       instance: Any,
                       node: str,
                       node_type: str = 'source') -> Any:
    # One that is evacuated is on the other host until it has arrived.
    if (node_type == 'destination' and instance.host == tracker.host
            and servers.has_ghsched_flavor(instance)):
        return
    original(tracker, context, instance, node, node_type)
