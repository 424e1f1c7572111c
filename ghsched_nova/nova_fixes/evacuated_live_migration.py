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

"""Fix: end a server's live migrations before its evacuation.

A live migration that was under way when the host was lost ends with it, and
its record does not change. nova-conductor, which looks for the record of the
evacuation by its status only, may take that one for it
(``ComputeTaskManager.rebuild_instance``): when the evacuation fails, its own
record stays ``accepted``, and the old host destroys the guest when it is back.
What the migration holds in Placement would be held for ever. See
``doc/source/contributor/upstream/evacuated-live-migration.rst``.
"""

from collections.abc import Callable
from typing import Any

from nova.compute import task_states
import nova.conf
from nova import exception
from nova import objects
from oslo_log import log as logging
from oslo_utils import timeutils

from ghsched_nova.nova_fixes import live_migrations
from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_fixes import servers
from ghsched_nova.nova_seams import registry

LOG = logging.getLogger(__name__)

patch_api = patches.make_patch_decorator(registry.API)
patch_compute = patches.make_patch_decorator(registry.COMPUTE)

#: Number of rpc_response_timeout periods after which nova-conductor has given
#: up on a silent host.
_TIME_OUTS = 2

#: Statuses of an evacuation until the guest is on its new host.
_EVACUATING = ('accepted', 'pre-migrating')


@patch_api('nova.compute.api.API.evacuate',
           ('self', 'context', 'instance', 'host', 'on_shared_storage',
            'admin_password', 'force', 'target_state'))
def _evacuate(original: Callable[..., Any], api: Any, context: Any,
              instance: Any, *args: Any, **kwargs: Any) -> Any:
    refuse_early_evacuation(context, instance)
    return original(api, context, instance, *args, **kwargs)


@patch_api('nova.conductor.api.ComputeTaskAPI.rebuild_instance',
           ('self', 'context', 'instance', 'orig_image_ref', 'image_ref',
            'injected_files', 'new_pass', 'orig_sys_metadata', 'bdms',
            'recreate', 'on_shared_storage', 'preserve_ephemeral', 'host',
            'request_spec', 'reimage_boot_volume', 'target_state'))
def _cancel_and_rebuild(original: Callable[..., Any],
                        api: Any,
                        context: Any,
                        instance: Any,
                        *args: Any,
                        recreate: bool = False,
                        **kwargs: Any) -> Any:
    """Cancel a server's live migrations, then continue its evacuation.

    This wraps Nova's ``API.rebuild``, which ``API.evacuate`` calls after it
    has checked that the host is down, and has created the migration record of
    the evacuation.

    :param recreate: whether the server is being evacuated; otherwise nothing
        is cancelled.
    """
    if recreate:
        cancel_live_migrations(context, instance)
    return original(api, context, instance, *args, recreate=recreate,
                    **kwargs)


def refuse_early_evacuation(context: Any, instance: Any) -> None:
    """Refuse an evacuation while nova-conductor schedules a live migration.

    When nova-conductor gives up the live migration, it would remove the
    server's allocation on the new host. Only servers whose flavor has ghsched
    extra specs are refused.

    :raises nova.exception.InstanceInvalidState: nova-api answers 409; the
        request succeeds some minutes later.
    """
    if servers.has_ghsched_flavor(instance) and any(
            map(
                is_being_scheduled,
                live_migrations.list_live_migrations_in_progress(
                    context, instance))):
        raise exception.InstanceInvalidState(
            attr='task_state', instance_uuid=instance.uuid,
            state=task_states.MIGRATING, method='evacuate')


def cancel_live_migrations(context: Any, instance: Any) -> None:
    """Cancel a server's live migrations before its evacuation.

    Errors are logged and not raised: the evacuation goes on if a live
    migration cannot be cancelled. Servers whose flavor has no ghsched extra
    specs are skipped.
    """
    if not servers.has_ghsched_flavor(instance):
        return
    try:
        for migration in live_migrations.list_live_migrations_in_progress(
                context, instance):
            LOG.warning('ghsched: cancelling live migration %s because its '
                        'server is being evacuated', migration.uuid,
                        instance=instance)
            live_migrations.roll_back_live_migration(context, instance,
                                                     migration)
    except Exception as error:
        LOG.error('ghsched: cannot cancel a live migration before the '
                  'evacuation: %s; evacuating the server anyway. Run '
                  '"openstack ghsched audit" after the evacuation',
                  error, instance=instance)


def is_being_scheduled(migration: Any) -> bool:
    """Return whether nova-conductor may still schedule a live migration.

    nova-conductor asks the destination, which asks the source. If the source
    is down, nova-conductor gives up after a time-out, and removes what it has
    allocated for the server on the destination (``LiveMigrationTask``).
    """
    since = timeutils.normalize_time(migration.created_at)
    return migration.status == 'accepted' and not timeutils.is_older_than(
        since, _TIME_OUTS * nova.conf.CONF.rpc_response_timeout)


@patch_compute('nova.compute.manager.ComputeManager.live_migration',
               ('self', 'context', 'dest', 'instance', 'block_migration',
                'migration', 'migrate_data'), only_ours=True)
def _start_unless_cancelled(original: Callable[..., Any], manager: Any,
                            context: Any, *args: Any, **kwargs: Any) -> Any:
    """Start a live migration unless it was cancelled for an evacuation.

    A lost host that is back reads old requests from the message bus, which
    contain an old record of the migration.
    """
    if live_migrations.has_migration_ended(context, kwargs['migration']):
        LOG.warning('ghsched: not starting a live migration because it was '
                    'cancelled before this host received the request',
                    instance=kwargs['instance'])
        return None
    return original(manager, context, *args, **kwargs)


def is_evacuated_here(context: Any, instance: Any) -> bool:
    """Return whether a guest runs on this host or is being evacuated to it.

    This destination of a live migration must then not roll it back, which is
    logged.
    """
    now = objects.Instance.get_by_uuid(context, instance.uuid)
    found = now.host == nova.conf.CONF.host or bool(
        live_migrations.list_migrations(
            context, now, objects.fields.MigrationType.EVACUATION,
            _EVACUATING))
    if found:
        LOG.warning('ghsched: not rolling back a live migration at this '
                    'destination because the guest has been evacuated to '
                    'this host', instance=instance)
    return found
