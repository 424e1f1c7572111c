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

"""Claims of nova-compute, with the devices that Placement has allocated."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from ghsched_nova.nova_seams import registry

seam = registry.make_seam_decorator(registry.COMPUTE)


@seam('nova.compute.utils.update_pci_request_with_placement_allocations',
      ('context', 'report_client', 'pci_requests', 'provider_mapping'))
def call_before_claims(
        function: Callable[[Any, Mapping[str, Sequence[str]]], None]) -> None:
    """Make Nova call a function before it claims resources for a guest.

    ``nova.compute.manager.ComputeManager`` and ``nova.conductor`` look
    ``nova.compute.utils.update_pci_request_with_placement_allocations`` up in
    its module right before each such claim.

    :param function: called after Nova's function; takes the PCI requests of
        the instance, and the resource providers by suffix of the request
        group.
    """
    def watched(original: Callable[..., Any], context: Any,
                report_client: Any, pci_requests: Any,
                provider_mapping: Any) -> Any:
        result = original(context, report_client, pci_requests,
                          provider_mapping)
        function(pci_requests, provider_mapping)
        return result

    registry.replace_function(
        'nova.compute.utils.'
        'update_pci_request_with_placement_allocations', watched)
