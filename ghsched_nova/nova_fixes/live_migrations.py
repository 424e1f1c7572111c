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

"""Live migrations in progress: their records and their guests."""

from collections.abc import Sequence
from typing import Any

from nova import exception
from nova import objects
from oslo_log import log as logging

from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared

LOG = logging.getLogger(__name__)

seam = registry.make_seam_decorator(registry.API, registry.COMPUTE)

#: Statuses of a live migration in progress, in order.
_LIVE_MIGRATING = ('accepted', 'queued', 'preparing', 'running')


def list_live_migrations_in_progress(context: Any, instance: Any) -> list[Any]:
    """Return a server's live migrations in progress, most advanced first.

    There is usually one. A nova-conductor that stops while it prepares a live
    migration leaves another record behind.
    """
    return sorted(list_migrations(context, instance,
                                  objects.fields.MigrationType.LIVE_MIGRATION,
                                  _LIVE_MIGRATING),
                  key=lambda one: _LIVE_MIGRATING.index(one.status),
                  reverse=True)


@seam('nova.objects.migration.Migration.get_by_id',
      ('context', 'migration_id'))
def has_migration_ended(context: Any, migration: Any) -> bool:
    """Return whether Nova's database records a live migration as ended."""
    return objects.Migration.get_by_id(
        context, migration.id).status not in _LIVE_MIGRATING


@seam('nova.objects.migration.MigrationList.get_by_filters',
      ('context', 'filters', 'sort_keys', 'sort_dirs', 'limit', 'marker'))
def list_migrations(context: Any, instance: Any, kind: str,
                    statuses: Sequence[str]) -> list[Any]:
    """Return the migrations of an instance with a given type and status.

    :param kind: migration type, such as ``live-migration``.
    :param statuses: accepted statuses.
    """
    return list(objects.MigrationList.get_by_filters(context, {
        'instance_uuid': instance.uuid, 'status': list(statuses),
        'migration_type': kind}))


def has_domain(host: Any, instance: Any) -> bool:
    """Return whether libvirt still has a guest's domain.

    The result is also True if libvirt does not answer.

    :param host: ``nova.virt.libvirt.host.Host`` of the driver.
    """
    try:
        host.get_guest(instance)
    except exception.InstanceNotFound:
        return False
    except exception.InternalError as error:
        LOG.warning('ghsched: cannot ask libvirt whether a live-migrating '
                    'guest is still on this host; assuming that it is: %s',
                    error, instance=instance)
    return True


@seam('nova.objects.instance.Instance.drop_migration_context', ('self',))
@seam('nova.scheduler.client.report.SchedulerReportClient.'
      'get_allocations_for_consumer', ('self', 'context', 'consumer'))
@seam('nova.scheduler.client.report.SchedulerReportClient.move_allocations',
      ('self', 'context', 'source_consumer_uuid', 'target_consumer_uuid'))
def roll_back_live_migration(context: Any, instance: Any,
                             migration: Any) -> None:
    """Roll back Nova's records of a live migration without a copied guest.

    The destination frees the claimed resources with its next periodic report.

    :param migration: a live migration from the host of the instance.
    :raises Exception: an error of Nova.
    """
    migration.status = 'error'
    migration.save()
    instance.drop_migration_context()
    client = shared.get_placement_client()
    if client.get_allocations_for_consumer(context, migration.uuid):
        client.move_allocations(context, migration.uuid, instance.uuid)
