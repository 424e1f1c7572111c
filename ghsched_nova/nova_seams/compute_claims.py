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

"""Claims of nova-compute, with the devices that Placement gave."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from typing import Any

from nova import objects
from nova.objects import fields

from ghsched_nova.nova_seams import registry

seam = registry.in_processes(registry.COMPUTE)

_LIVE_MIGRATION = fields.MigrationType.LIVE_MIGRATION

_TRACKER = 'nova.compute.resource_tracker.ResourceTracker'


@seam('nova.compute.utils.update_pci_request_with_placement_allocations',
      ('context', 'report_client', 'pci_requests', 'provider_mapping'))
def watch_provider_mapping(
        function: Callable[[Any, Mapping[str, Sequence[str]]], None]) -> None:
    """Call a function of ours with the providers of each guest before its
    claim.

    ``nova.compute.manager.ComputeManager`` and ``nova.conductor`` look
    ``nova.compute.utils.update_pci_request_with_placement_allocations`` up in
    its module right before each claim of a guest with such providers.

    :param function: takes the PCI requests of the instance, after Nova's
        function is done with them, and the providers by group suffix.
    """
    def watched(original: Callable[..., Any], context: Any,
                report_client: Any, pci_requests: Any,
                provider_mapping: Any) -> Any:
        result = original(context, report_client, pci_requests,
                          provider_mapping)
        function(pci_requests, provider_mapping)
        return result
    registry.replace('nova.compute.utils.'
                     'update_pci_request_with_placement_allocations', watched)


@seam('nova.compute.resource_tracker.ResourceTracker._move_claim',
      ('self', 'context', 'instance', 'new_flavor', 'nodename', 'migration',
       'allocations', 'move_type', 'image_meta', 'limits'))
@seam('nova.compute.resource_tracker.ResourceTracker.instance_claim',
      ('self', 'context', 'instance', 'nodename', 'allocations', 'limits'))
def around_claims(
        of_move: Callable[..., contextlib.AbstractContextManager[None]],
        of_new: Callable[[Any], contextlib.AbstractContextManager[None]]
) -> None:
    """Enter a context of ours around each resource claim of nova-compute.

    :param of_move: takes the instance, its new flavor, the image (ImageMeta
        or None) and whether it is a live migration; around the claim of a
        move, which makes the PCI requests of the instance again.
    :param of_new: takes the instance; around the claim of an instance that
        has no host, which uses the PCI requests that it has.
    """
    def claimed_move(original: Callable[..., Any], tracker: Any, context: Any,
                     instance: Any, new_flavor: Any, *args: Any,
                     **kwargs: Any) -> Any:
        image = kwargs.get('image_meta') or None
        if isinstance(image, dict):
            image = objects.ImageMeta.from_dict(image)
        with of_move(instance, new_flavor, image,
                     kwargs.get('move_type') == _LIVE_MIGRATION):
            return original(tracker, context, instance, new_flavor, *args,
                            **kwargs)

    def claimed(original: Callable[..., Any], tracker: Any, context: Any,
                instance: Any, *args: Any, **kwargs: Any) -> Any:
        with of_new(instance):
            return original(tracker, context, instance, *args, **kwargs)
    registry.replace(f'{_TRACKER}._move_claim', claimed_move)
    registry.replace(f'{_TRACKER}.instance_claim', claimed)
