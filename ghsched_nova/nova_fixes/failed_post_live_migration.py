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

"""Fix: delete the allocation of a live migration that failed after its copy.

``ComputeManager._post_live_migration`` deletes the migration's allocation on
the source with its last step. If an earlier step fails, such as the call of
the destination, the server is moved to the destination in Nova's database, but
Placement counts the source's resources as used as well. See
``doc/source/contributor/upstream/failed-post-live-migration.rst``.
"""

from collections.abc import Callable
from typing import Any

from oslo_log import log as logging
from oslo_utils import excutils

from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_seams import registry

LOG = logging.getLogger(__name__)

patch = patches.make_patch_decorator(registry.COMPUTE)
seam = registry.make_seam_decorator(registry.COMPUTE)


@patch('nova.compute.manager.ComputeManager._post_live_migration_update_host',
       ('self', 'ctxt', 'instance', 'dest', 'block_migration', 'migrate_data',
        'source_bdms'), only_ours=True)
def _post_live_migration(original: Callable[..., Any], manager: Any,
                         context: Any, instance: Any, dest: str,
                         block_migration: bool = False,
                         migrate_data: Any = None,
                         source_bdms: Any = None) -> Any:
    """Run Nova's steps after the copy of a guest, on the source.

    If a step fails after Nova has recorded the server on the destination, the
    migration's allocation on the source is deleted.

    :raises Exception: the error of Nova.
    """
    try:
        return original(manager, context, instance, dest, block_migration,
                        migrate_data, source_bdms=source_bdms)
    except Exception:
        with excutils.save_and_reraise_exception():
            if (instance.host == dest and migrate_data is not None
                    and 'migration' in migrate_data):
                _delete_allocation(manager, context, instance,
                                   migrate_data.migration)


@seam('nova.compute.manager.ComputeManager._delete_allocation_after_move',
      ('self', 'context', 'instance', 'migration'))
def _delete_allocation(manager: Any, context: Any, instance: Any,
                       migration: Any) -> None:
    """Delete the allocation of a live migration on the source.

    An error is logged and not raised.
    """
    LOG.warning('ghsched: live migration %s failed after libvirt copied the '
                'guest; deleting its allocation on this host in Placement',
                migration.uuid, instance=instance)
    try:
        manager._delete_allocation_after_move(context, instance, migration)
    except Exception as error:
        LOG.error('ghsched: cannot delete the allocation of live migration '
                  '%(uuid)s in Placement: %(error)s; run "openstack ghsched '
                  'audit --fix"', {'uuid': migration.uuid, 'error': error},
                  instance=instance)
