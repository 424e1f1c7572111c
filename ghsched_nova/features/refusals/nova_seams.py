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

"""Seams of nova-api for the list of refusals."""

from typing import Any

from nova import context as nova_context
from nova import objects

from ghsched_nova.nova_seams import registry

seam = registry.make_seam_decorator(registry.API, part=registry.ACTIONS)


@seam('nova.context.scatter_gather_all_cells',
      ('context', 'fn', 'args', 'kwargs'))
@seam('nova.context.is_cell_failure_sentinel', ('record',))
@seam('nova.objects.service.ServiceList.get_by_binary',
      ('context', 'binary', 'include_disabled'))
def list_scheduler_hosts(context: Any) -> set[str]:
    """Return the hosts of all cells that run nova-scheduler.

    Cells that do not answer are skipped.
    """
    answers = nova_context.scatter_gather_all_cells(
        context, objects.ServiceList.get_by_binary, 'nova-scheduler')
    return {service.host for services in answers.values()
            if not nova_context.is_cell_failure_sentinel(services)
            for service in services if not service.forced_down}
