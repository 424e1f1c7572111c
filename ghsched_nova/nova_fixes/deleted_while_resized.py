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

"""Fix: restore the task state of a resized server that is being deleted.

nova-api marks a server with the task state ``deleting`` and then confirms its
resize, which takes the task state away
(``nova.compute.manager.ComputeManager._confirm_resize``). A nova-compute that
ends before the server's record is gone does not go on with the deletion when
it starts again. See
``doc/source/contributor/upstream/deleted-while-resized.rst``.
"""

from collections.abc import Callable
from typing import Any

from nova.compute import task_states
from nova import exception

from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_seams import registry
from ghsched_placement.flavor import policy as policies

patch = patches.make_patch_decorator(registry.API)

_DELETING = (task_states.DELETING, task_states.SOFT_DELETING)


@patch('nova.compute.api.API._confirm_resize_on_deleting',
       ('self', 'context', 'instance'))
def _confirm_resize(original: Callable[..., Any], compute_api: Any,
                    context: Any, instance: Any) -> Any:
    before = instance.task_state
    result = original(compute_api, context, instance)
    if before in _DELETING and policies.has_ghsched_keys(
            instance.flavor.extra_specs):
        instance.refresh()
        if instance.task_state is None:
            _restore_task_state(instance, before)
    return result


def _restore_task_state(instance: Any, task_state: str) -> None:
    """Set a server's task state again unless a new one has been set."""
    instance.task_state = task_state
    try:
        instance.save(expected_task_state=[None])
    except exception.UnexpectedTaskStateError:
        instance.refresh()
