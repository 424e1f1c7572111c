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

"""Repair: a live-migrated server loses its flavor's passthrough devices.

``ResourceTracker._move_claim`` makes the PCI requests of the flavor again with
new IDs and stores them in the migration context, but the devices of the
destination are claimed for the requests of the instance. After the migration
no request has the devices, and the next hard reboot fails or starts the guest
without them. ``_update_pci_dev_xml`` replaces device addresses one after the
other, so a source address that is also a destination address is replaced
twice. And a destination that refuses after its claim keeps the devices. See
``doc/source/contributor/upstream/live-migrated-devices.rst``.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from oslo_utils import excutils

from ghsched_nova.nova_fixes import servers
from ghsched_nova.nova_seams import registry

seam = registry.make_seam_decorator(registry.COMPUTE)

#: Addresses of no device: a PCI domain has 16 bits.
_NOWHERE = '1{:07x}:00:00.0'


def patch_nova_compute() -> None:
    """Patch nova-compute to live-migrate guests with the flavor's devices.

    The patch acts on servers whose flavor has ghsched extra specs and asks for
    passthrough devices. It keeps the server's PCI requests. It replaces the
    device addresses in the guest's XML in an order that mixes up none. A
    destination that refuses the migration releases the devices that it has
    claimed. A second call changes nothing.
    """
    registry.replace_function(
        'nova.compute.manager.ComputeManager.'
        '_flavor_based_pci_claim',
        servers.limit_to_ghsched_servers(_claim_devices, 2))
    registry.replace_function(
        'nova.compute.manager.ComputeManager.'
        'check_can_live_migrate_destination',
        servers.limit_to_ghsched_servers(_check_destination, 2))


@seam('nova.compute.manager.ComputeManager._flavor_based_pci_claim',
      ('self', 'ctxt', 'instance', 'pci_requests'))
def _claim_devices(original: Callable[..., Any], manager: Any, context: Any,
                   instance: Any, pci_requests: Any) -> dict[str, str]:
    """Claim a guest's devices on the destination of a live migration.

    :param original: Nova's function that claims the devices.
    :returns: PCI address on the destination by PCI address on the source.
    """
    addresses = original(manager, context, instance, pci_requests)
    _keep_pci_requests(instance)
    return order_address_replacements(addresses)


@seam('nova.compute.manager.ComputeManager.rt')
@seam('nova.compute.resource_tracker.ResourceTracker.pci_tracker')
@seam('nova.compute.resource_tracker.ResourceTracker.'
      'free_pci_device_claims_for_instance', ('self', 'context', 'instance'))
@seam('nova.compute.manager.ComputeManager.check_can_live_migrate_destination',
      ('self', 'ctxt', 'instance', 'block_migration', 'disk_over_commit',
       'migration', 'limits'))
def _check_destination(original: Callable[...,
                                          Any], manager: Any, context: Any,
                       instance: Any, *args: Any, **kwargs: Any) -> Any:
    """Run Nova's check of the destination of a live migration.

    If the destination refuses, the devices that it has claimed for the live
    migration are released.
    """
    try:
        return original(manager, context, instance, *args, **kwargs)
    except Exception:
        with excutils.save_and_reraise_exception():
            if manager.rt.pci_tracker:
                manager.rt.free_pci_device_claims_for_instance(
                    context, instance)


def _keep_pci_requests(instance: Any) -> None:
    """Copy an instance's PCI requests to its migration context.

    The flavor does not change in a live migration, and the devices of the
    destination are claimed for these requests.
    """
    context = instance.migration_context
    if context is not None and instance.pci_requests is not None:
        context.new_pci_requests = instance.pci_requests
        instance.save()


def order_address_replacements(
        new_by_old: Mapping[str, str]) -> dict[str, str]:
    """Return the order in which to replace device addresses in a guest's XML.

    An address that is both old and new would be replaced twice. Therefore all
    old addresses are first replaced by addresses of no device.

    :param new_by_old: address on the destination by address on the source.
    :returns: for each address to replace, in order, the address that replaces
        it.
    """
    if new_by_old.keys().isdisjoint(new_by_old.values()):
        return dict(new_by_old)
    between = {old: _NOWHERE.format(number)
               for number, old in enumerate(new_by_old)}
    return between | {between[old]: new for old, new in new_by_old.items()}
