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

"""Fix: a live-migrated server keeps its flavor's passthrough devices.

``ResourceTracker._move_claim`` makes the PCI requests of the flavor again with
new IDs and stores them in the migration context, but the devices of the
destination are claimed for the requests of the instance. After the migration
no request has the devices, and the next hard reboot fails or starts the guest
without them. ``_update_pci_dev_xml`` replaces device addresses one after the
other, so a source address that is also a destination address is replaced
twice. A destination that refuses after its claim keeps the devices. And
``PciDevTracker.clean_usage`` frees no device of a server that has a live
migration in ``error``, even if a later one claimed the device. See
``doc/source/contributor/upstream/live-migrated-devices.rst``.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging
from oslo_utils import excutils

from ghsched_nova.nova_fixes import live_migrations
from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_fixes import servers
from ghsched_nova.nova_seams import registry

LOG = logging.getLogger(__name__)

patch = patches.make_patch_decorator(registry.COMPUTE)
seam = registry.make_seam_decorator(registry.COMPUTE)

#: Format of temporary PCI addresses. No device has such an address, because
#: the number of a PCI domain has 16 bits.
_NOWHERE = '1{:07x}:00:00.0'


@patch('nova.compute.manager.ComputeManager._flavor_based_pci_claim',
       ('self', 'ctxt', 'instance', 'pci_requests'), only_ours=True)
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
@patch('nova.compute.manager.ComputeManager.'
       'check_can_live_migrate_destination',
       ('self', 'ctxt', 'instance', 'block_migration', 'disk_over_commit',
        'migration', 'limits'), only_ours=True)
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


@patch('nova.compute.resource_tracker.ResourceTracker.'
       '_update_usage_from_migrations',
       ('self', 'context', 'migrations', 'nodename'))
@seam('nova.pci.manager.PciDevTracker.claims')
@seam('nova.pci.manager.PciDevTracker.free_instance_claims',
      ('self', 'context', 'instance'))
@seam('nova.objects.migration.Migration.instance')
@seam('nova.virt.libvirt.driver.LibvirtDriver._host')
def _update_usage_from_migrations(original: Callable[..., Any], tracker: Any,
                                  context: Any, migrations: Any,
                                  nodename: str) -> Any:
    """Count the resources of migrations, and free devices of failed ones.

    Nova calls this in each periodic update, with the migrations to and from
    this host that are in progress or in ``error``.
    """
    result = original(tracker, context, migrations, nodename)
    claims = tracker.pci_tracker.claims if tracker.pci_tracker else {}
    for uuid in find_failed_live_migrations(migrations) & claims.keys():
        # Nova has loaded the instance of the first one.
        migration = next(one for one in migrations
                         if one.instance_uuid == uuid)
        try:
            _release_devices(tracker, context, migration.instance)
        except Exception as error:
            LOG.warning('ghsched: cannot release devices that a failed live '
                        'migration of server %(uuid)s to this host claimed; '
                        'retrying in the next periodic task: %(error)s',
                        {'uuid': uuid, 'error': error})
    return result


def _release_devices(tracker: Any, context: Any, instance: Any) -> None:
    """Release the devices that this host claimed for a server elsewhere.

    Nothing is released if libvirt on this host has the guest, or does not
    answer.
    """
    if (instance.host == tracker.host
            or not servers.has_ghsched_flavor(instance)
            or live_migrations.has_domain(tracker.driver._host, instance)):
        return
    LOG.warning('ghsched: releasing devices that a failed live migration to '
                'this host claimed', instance=instance)
    tracker.pci_tracker.free_instance_claims(context, instance)


def find_failed_live_migrations(migrations: Iterable[Any]) -> set[str]:
    """Return the servers all of whose migrations are failed live migrations.

    :param migrations: migrations in progress or in ``error``.
    :returns: UUIDs of the servers.
    """
    failed = {True: set(), False: set()}    # type: dict[bool, set[str]]
    for one in migrations:
        failed[one.is_live_migration and one.status == 'error'].add(
            one.instance_uuid)
    return failed[True] - failed[False]


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
    """Return the replacements of device addresses in a guest's XML, in order.

    If an address is both old and new, it would be replaced twice. In this case
    each old address is first replaced by a temporary address that no device
    has, and each temporary address then by the new address.

    :param new_by_old: address on the destination by address on the source.
    :returns: new address by old address. The replacements are to be made one
        after the other, in the order of the dictionary.
    """
    if new_by_old.keys().isdisjoint(new_by_old.values()):
        return dict(new_by_old)
    between = {old: _NOWHERE.format(number)
               for number, old in enumerate(new_by_old)}
    return between | {between[old]: new for old, new in new_by_old.items()}
