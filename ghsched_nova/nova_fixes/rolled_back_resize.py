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

"""Fix: correct the RequestSpec of a server after a failed or reverted resize.

Nova's conductor saves the flavor that a guest is to be resized to in its
RequestSpec once the resize is on its way
(``nova.conductor.manager.ComputeTaskManager._cold_migrate``). Where
nova-compute then rolls it back, and where a user reverts it, the RequestSpec
keeps that flavor or its PCI requests: Placement would be asked for other
shares and devices than the guest claims. So before nova-api starts a move it
puts the RequestSpec right. See
``doc/source/contributor/upstream/rolled-back-resize.rst``.
"""

from collections.abc import Callable
from typing import Any

from nova import exception
from nova import objects
from nova.virt import hardware
from oslo_log import log as logging

from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_fixes import servers
from ghsched_nova.nova_seams import registry
from ghsched_placement.flavor import policy as policies

LOG = logging.getLogger(__name__)

patch = patches.make_patch_decorator(registry.API)
seam = registry.make_seam_decorator(registry.API)

#: Fields of a flavor by which nova-scheduler schedules a move.
_OF_FLAVOR = ('flavorid', 'memory_mb', 'vcpus', 'root_gb', 'ephemeral_gb',
              'swap', 'extra_specs')


@seam('nova.objects.request_spec.RequestSpec.save', ('self',))
@patch('nova.compute.api.API.evacuate',
       ('self', 'context', 'instance', 'host', 'on_shared_storage',
        'admin_password', 'force', 'target_state'))
@patch('nova.compute.api.API.live_migrate',
       ('self', 'context', 'instance', 'block_migration', 'disk_over_commit',
        'host_name', 'force', 'async_'))
@patch('nova.compute.api.API.rebuild',
       ('self', 'context', 'instance', 'image_href', 'admin_password',
        'files_to_inject', 'reimage_boot_volume', 'kwargs'))
@patch('nova.compute.api.API.resize',
       ('self', 'context', 'instance', 'flavor_id', 'clean_shutdown',
        'host_name', 'auto_disk_config'))
@patch('nova.compute.api.API.unshelve',
       ('self', 'context', 'instance', 'new_az', 'host'))
def _repair_before_move(original: Callable[..., Any], api: Any, context: Any,
                        instance: Any, *args: Any, **kwargs: Any) -> Any:
    reset_flavor_of_request_spec(context, instance)
    return original(api, context, instance, *args, **kwargs)


def reset_flavor_of_request_spec(context: Any, instance: Any) -> None:
    """Reset the flavor in a server's RequestSpec to the server's flavor.

    Servers whose flavor has no ghsched extra specs are skipped. A server with
    a task state is skipped, too: its RequestSpec may rightly name the flavor
    of the move in progress, and nova-api refuses to move it anyway.
    """
    if (instance.task_state is not None
            or not servers.has_ghsched_flavor(instance)):
        return
    spec = _load_request_spec(context, instance.uuid)
    if spec is not None and copy_flavor_to_request_spec(spec, instance):
        LOG.warning('ghsched: resetting the flavor in the RequestSpec to %s '
                    'because a resize of the server was rolled back',
                    instance.flavor.name, instance=instance)
        spec.save()


def copy_flavor_to_request_spec(spec: Any, instance: Any) -> bool:
    """Set a RequestSpec's flavor and PCI requests to those of its instance.

    Nothing is changed if neither flavor has ghsched extra specs.

    :returns: whether the RequestSpec was changed.
    """
    flavor = instance.flavor
    if not (policies.has_ghsched_keys(spec.flavor.extra_specs)
            or policies.has_ghsched_keys(flavor.extra_specs)):
        return False
    of_flavor = all(getattr(spec.flavor, name) == getattr(flavor, name)
                    for name in _OF_FLAVOR)
    if not of_flavor:
        spec.flavor = flavor
        spec.numa_topology = hardware.numa_get_constraints(
            flavor, instance.image_meta)
    # The ids differ after each move, which Nova makes the requests again for.
    of_devices = (_make_comparable_requests(spec.pci_requests)
                  == _make_comparable_requests(instance.pci_requests))
    if not of_devices:
        spec.pci_requests = instance.pci_requests
    return not (of_flavor and of_devices)


def _make_comparable_requests(
        requests: Any) -> list[tuple[str, int, str | None]]:
    """Return the devices that PCI requests ask for, without request IDs.

    Two results are compared to find out whether requests ask for the same
    devices.
    """
    return [(request.alias_name, request.count, request.requester_id)
            for request in (requests.requests if requests else ())
            if request.alias_name]


def _load_request_spec(context: Any, uuid: str) -> Any:
    """Return the RequestSpec of a server, or None if the server has none."""
    try:
        return objects.RequestSpec.get_by_instance_uuid(context, uuid)
    except exception.RequestSpecNotFound:
        return None
