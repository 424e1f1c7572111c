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

"""Fix: complete the rollback of a live migration in spite of later errors.

A server of a guest that stays where it was keeps its records, and is not in
``ERROR``. See
``doc/source/contributor/upstream/failed-live-migration.rst``.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any

from nova import objects
from oslo_log import log as logging

from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_seams import registry

LOG = logging.getLogger(__name__)

patch = patches.make_patch_decorator(registry.COMPUTE)
seam = registry.make_seam_decorator(registry.COMPUTE)

#: Fields of an instance that a migration context changes, and the migration
#: context itself.
_OF_MIGRATION = ('migration_context', 'numa_topology', 'pci_requests',
                 'pci_devices', 'resources')


@patch('nova.compute.manager.ComputeManager._revert_allocation',
       ('self', 'context', 'instance', 'migration'), only_ours=True)
def revert_allocation(original: Callable[..., Any], manager: Any, context: Any,
                      instance: Any, migration: Any) -> Any:
    """Return a failed live migration's allocation to its server.

    An error is logged and not raised. Nova's ``_revert_allocation`` raises the
    error, which ends the rollback of the live migration: the server stays
    migrating or is set to ``ERROR``, although the guest runs on the source.

    :param original: Nova's ``ComputeManager._revert_allocation``.
    """
    try:
        return original(manager, context, instance, migration)
    except Exception as error:
        if (migration.migration_type
                != objects.fields.MigrationType.LIVE_MIGRATION):
            raise
        LOG.error('ghsched: cannot revert the allocation of failed live '
                  'migration %(uuid)s in Placement: %(error)s; run "openstack '
                  'ghsched audit --fix"',
                  {'uuid': migration.uuid, 'error': error},
                  instance=instance)
        return False


@seam('nova.objects.instance.Instance.save',
      ('self', 'expected_vm_state', 'expected_task_state',
       'admin_state_reset'))
@seam('nova.objects.instance.Instance.mutated_migration_context',
      ('self', 'revert'))
@contextlib.contextmanager
def saving_without_destination(instance: Any) -> Iterator[None]:
    """Within this context, save() omits the instance's claims on this host.

    NUMA topology, devices and migration context in Nova's database stay
    unchanged.

    This is used when the destination rolls back a live migration. There
    nova-compute gives the driver an instance with the NUMA topology and
    devices of the destination (``Instance.mutated_migration_context``), and
    LibvirtDriver saves the instance when it cleans up. It would also save a
    migration context that the source has deleted by then, and the next rebuild
    would use that context.
    """
    def saved(save: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        instance.obj_reset_changes(_OF_MIGRATION, recursive=True)
        return save(*args, **kwargs)

    registry.replace_function('nova.objects.instance.Instance.save', saved,
                              instance)
    try:
        yield
    finally:
        del instance.save
