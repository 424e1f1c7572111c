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

"""Seams of nova-api for changes of servers that run."""

from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

from nova import exception
from nova.limit import utils as limit_utils
from nova import objects
from oslo_limit import exception as limit_exceptions
from oslo_limit import limit

from ghsched_nova.api import limits
from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared

seam = registry.make_seam_decorator(registry.API, part=registry.LIMITS)


def count_added_usage(flavor: Any, after: Mapping[str, str]) -> dict[str, int]:
    """Return by how much changed extra specs raise a project's usage.

    :param flavor: flavor of the server before the change.
    :param after: extra specs after the change.
    :returns: amounts above 0, by name of the limit.
    """
    old, new = (limits.count_server_resources(objects.RequestSpec(
        flavor=objects.Flavor(vcpus=flavor.vcpus, extra_specs=dict(specs)),
        pci_requests=objects.InstancePCIRequests(requests=[])))
        for specs in (flavor.extra_specs, after))
    return {f'class:{resource_class}': amount
            for resource_class, amount in (new - old).items()}


@seam('nova.scheduler.client.report.SchedulerReportClient.'
      'get_usages_counts_for_limits', ('self', 'context', 'project_id'))
@seam('nova.limit.utils.should_enforce', ('exc',))
@seam('nova.limit.utils.use_unified_limits', ())
def enforce_limits(context: Any, project_id: str,
                   deltas: Mapping[str, int]) -> None:
    """Refuse to let a project use more resources than its unified limits.

    Nothing is refused if Nova does not use unified limits.

    :param deltas: amounts to add, by name of the limit (``class:`` and the
        resource class).
    :raises OverQuota: of Nova, naming the limits that are exceeded.
    """
    if not deltas or not limit_utils.use_unified_limits():
        return

    def usage(project: str | None, limits: Collection[str]
              ) -> dict[str, int]:
        # Placement names no class of which the project has nothing.
        counted = shared.get_placement_client().get_usages_counts_for_limits(
            context, project)
        return {name: counted.get(name.removeprefix('class:'), 0)
                for name in limits}
    try:
        limit.Enforcer(usage).enforce(project_id, dict(deltas))
    except limit_exceptions.ProjectOverLimit as error:
        if limit_utils.should_enforce(error):
            raise exception.OverQuota(str(error)) from error
