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

"""Fix: finish or undo live migrations that end while nova-compute is down.

libvirt copies a guest without nova-compute, and removes it from the source
when it runs on the destination. Nova hears of that from libvirt only: a
nova-compute that is started afterwards resets the server to a host where it
is no longer running (``ComputeManager._reset_live_migration``), and with
``resume_guests_state_on_host_boot`` starts it there a second time. Of one that
was not copied the migration still holds what the server had, and the server
what it was to have on the other host.

The same is left when libvirtd of the source is restarted meanwhile: Nova puts
the server into ERROR as soon as libvirt does not answer, wherever it runs. See
``doc/source/contributor/upstream/cut-off-live-migration.rst``.
"""

from collections.abc import Callable
import functools
import time
from typing import Any

from nova.compute import power_state
from nova import exception
from nova import objects
from oslo_log import log as logging

from ghsched_nova.nova_fixes import live_migrations
from ghsched_nova.nova_fixes import patches
from ghsched_nova.nova_seams import registry

LOG = logging.getLogger(__name__)

patch = patches.make_patch_decorator(registry.COMPUTE)
seam = registry.make_seam_decorator(registry.COMPUTE)

#: Status of a live migration from the start of libvirt's copy until Nova has
#: completed the migration.
COPYING = 'running'

#: Seconds to wait for an answer of libvirtd, which may be restarting.
_ANSWERS_WITHIN = 60

#: Seconds to wait until libvirt has aborted the copy of a guest.
_ABORTED_WITHIN = 10

#: libvirt's VIR_DOMAIN_JOB_BOUNDED and VIR_DOMAIN_JOB_UNBOUNDED. Only
#: nova-compute can import libvirt-python.
_JOBS = (1, 2)

#: libvirt's domain state VIR_DOMAIN_PAUSED with the reasons
#: VIR_DOMAIN_PAUSED_MIGRATION, _POSTCOPY and _POSTCOPY_FAILED.
_PAUSED_BY_MIGRATION = ((3, 2), (3, 12), (3, 13))


class ResultUnknown(Exception):  # noqa: N818
    """Raised if libvirt on the source does not know a migration's result.

    Only the destination knows then whether the guest runs there.
    """


@seam('nova.virt.libvirt.driver.LibvirtDriver._host')
@seam('nova.compute.manager.ComputeManager.driver')
@patch('nova.compute.manager.ComputeManager._reset_live_migration',
       ('self', 'context', 'instance'), only_ours=True)
def _reset_live_migration(original: Callable[..., Any], manager: Any,
                          context: Any, instance: Any) -> Any:
    host = manager.driver._host
    return make_live_migration_reset(
        functools.partial(original, manager),
        live_migrations.list_live_migrations_in_progress,
        functools.partial(live_migrations.has_domain, host),
        functools.partial(_wait_for_aborted_copy, host),
        functools.partial(finish_live_migration, manager),
        live_migrations.roll_back_live_migration)(context, instance)


def make_live_migration_reset(
        reset: Callable[..., Any], list_in_progress: Callable[..., list[Any]],
        has_domain: Callable[[Any], bool], abort_copy: Callable[[Any], bool],
        finish: Callable[...,
                         Any], roll_back: Callable[...,
                                                   Any]) -> Callable[..., Any]:
    """Return a replacement of Nova's reset that finishes live migrations.

    Nova resets a server's live migration when nova-compute starts. The
    replacement finishes the live migration if libvirt has copied the guest,
    and rolls it back otherwise.

    :param reset: ``ComputeManager._reset_live_migration``.
    :param list_in_progress: function that returns the live migrations in
        progress of an instance, the most advanced first.
    :param has_domain: function that returns whether libvirt has the guest.
    :param abort_copy: function that aborts the copy, waits for its end, and
        returns whether libvirt still has the guest.
    :param finish: function that runs Nova's steps after a copy.
    :param roll_back: function that rolls back the records of a migration
        without a copy.
    """
    @functools.wraps(reset)
    def ended(context: Any, instance: Any) -> Any:
        migration, *_others = list_in_progress(context, instance) or [None]
        if migration is None:
            return reset(context, instance)
        if migration.status == COPYING and not has_domain(instance):
            _try_to_finish(finish, context, instance, migration)
            return None
        reset(context, instance)
        if abort_copy(instance):
            _try_to_roll_back(roll_back, context, instance, migration)
        return None
    return ended


def _try_to_finish(finish: Callable[..., Any], context: Any, instance: Any,
                   migration: Any) -> None:
    LOG.warning('ghsched: completing a live migration to %s that libvirt '
                'finished while nova-compute was down; volumes stay connected '
                'to this host until it reboots',
                migration.dest_compute, instance=instance)
    try:
        finish(context, instance, migration)
    except Exception as error:
        LOG.error('ghsched: cannot complete a live migration to %(host)s in '
                  'Nova although libvirt finished it: %(error)s; check the '
                  'guest on that host',
                  {'host': migration.dest_compute, 'error': error},
                  instance=instance)
    # What Nova does next is to start guests that ran when the host was
    # shut down. This one runs elsewhere.
    instance.power_state = power_state.NOSTATE


def _try_to_roll_back(roll_back: Callable[..., Any], context: Any,
                      instance: Any, migration: Any) -> None:
    LOG.warning('ghsched: rolling back a live migration to %s because '
                'nova-compute stopped before libvirt copied the guest; the '
                'guest stays on this host',
                migration.dest_compute, instance=instance)
    try:
        roll_back(context, instance, migration)
    except Exception as error:
        LOG.error('ghsched: cannot revert the allocation of a rolled-back '
                  'live migration in Placement: %s; run "openstack ghsched '
                  'audit --fix"',
                  error, instance=instance)


class _CompletionSteps:
    """Record whether nova-compute's steps after a live migration have run.

    :ivar begun: whether a step has begun.
    :ivar done: whether a step has succeeded.
    """

    begun = False
    done = False

    def record_run(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            self.begun = True
            result = method(*args, **kwargs)
            self.done = True
            return result
        return recorded


def live_migrate_and_verify(
        migrate: Callable[..., Any], is_copied: Callable[[Any], bool | None],
        context: Any, instance: Any, dest: str,
        post_method: Callable[..., Any], recover_method: Callable[..., Any],
        block_migration: bool, migrate_data: Any) -> None:
    """Live-migrate a guest, and ask libvirt for the result after an error.

    If Nova's driver fails, libvirt may nevertheless have migrated the guest,
    or rolled back. Since Nova 32 the driver raises an error of libvirt even
    after a rollback, which sets the server to ``ERROR``.

    :param migrate: ``LibvirtDriver.live_migration``, which takes the
        parameters after ``is_copied``.
    :param is_copied: function that returns the result of
        :func:`wait_for_migration_result` for an instance.
    :raises Exception: the error of Nova's driver, if the result is unknown.
    """
    steps = _CompletionSteps()
    try:
        migrate(context, instance, dest, steps.record_run(post_method),
                steps.record_run(recover_method), block_migration,
                migrate_data)
    except Exception as error:
        if steps.done:
            LOG.info('ghsched: ignoring a libvirt error after the live '
                     'migration completed: %s', error, instance=instance)
            return
        copied = None if steps.begun else is_copied(instance)
        if copied is None:
            raise
        if copied:
            LOG.warning('ghsched: completing the live migration to %s because '
                        'libvirt has copied the guest in spite of an error: '
                        '%s', dest, error, instance=instance)
            post_method(context, instance, dest, block_migration, migrate_data)
        else:
            LOG.warning('ghsched: rolling back the live migration to %s '
                        'because libvirt has not copied the guest: %s',
                        dest, error, instance=instance)
            recover_method(context, instance, dest, migrate_data)


def wait_for_migration_result(
        is_gone: Callable[[], bool | None]) -> bool | None:
    """Wait until libvirt stops copying a guest to another host.

    :param is_gone: function that returns whether the guest has left this host;
        None while libvirt copies the guest.
    :returns: whether the guest was copied; None if libvirt does not answer or
        does not know the result.
    """
    unanswered = 0
    while unanswered < _ANSWERS_WITHIN:
        try:
            gone = is_gone()
        except ResultUnknown:
            return None
        except Exception as error:
            LOG.info('ghsched: cannot query the libvirt job of a live '
                     'migration; retrying: %s', error)
            unanswered += 1
        else:
            if gone is not None:
                return gone
            unanswered = 0
        time.sleep(1)
    return None


# -- what libvirt has done ----------------------------------------------------


def wait_for_migration_job(host: Any, instance: Any) -> bool | None:
    """Wait for the end of libvirt's migration job of a guest.

    :param host: ``nova.virt.libvirt.host.Host`` of the driver.
    :returns: whether the guest is on the destination; None if that is unknown.
    """
    gone = wait_for_migration_result(functools.partial(_has_left_host, host,
                                                       instance))
    if gone is False:
        _abort_disk_copies(host, instance)
    return gone


def _has_left_host(host: Any, instance: Any) -> bool | None:
    """Return whether a guest has left this host by a live migration.

    :returns: None while libvirt copies the guest.
    :raises ResultUnknown: if libvirt paused the guest for the last part of its
        memory, and does not know whether the destination has started the
        guest.
    """
    try:
        guest = host.get_guest(instance)
    except exception.InstanceNotFound:
        return True
    if is_job_copying_guest(guest):
        return None
    if is_paused_by_migration(guest):
        raise ResultUnknown
    return not guest.is_active()


def _wait_for_aborted_copy(host: Any, instance: Any) -> bool:
    """Wait until libvirt has aborted the copy of a live-migrated guest.

    nova-compute has requested the abort. libvirt aborts a copy as soon as it
    can, which may be after the guest has left this host.

    :returns: whether the guest is still on this host.
    """
    for _wait in range(_ABORTED_WITHIN):
        try:
            if not is_job_copying_guest(host.get_guest(instance)):
                _abort_disk_copies(host, instance)
                return True
        except Exception as error:
            LOG.info('ghsched: cannot query the libvirt job of a live '
                     'migration; not rolling back the migration: %s',
                     error, instance=instance)
            return False
        time.sleep(1)
    return False


def _abort_disk_copies(host: Any, instance: Any) -> None:
    """Abort leftover jobs that copy a guest's disks to another host.

    libvirt would refuse the next live migration otherwise. Errors are logged
    and not raised.
    """
    try:
        abort_disk_copies(host.get_guest(instance))
    except Exception as error:
        LOG.warning('ghsched: cannot abort the disk copy jobs of a failed '
                    'live migration: %s; hard-reboot the server before its '
                    'next live migration', error,
                    instance=instance)


@seam('nova.compute.manager.ComputeManager._post_live_migration_update_host',
      ('self', 'ctxt', 'instance', 'dest', 'block_migration', 'migrate_data',
       'source_bdms'))
@seam('nova.compute.manager.ComputeManager.update_available_resource',
      ('self', 'context', 'startup'))
@seam('nova.compute.manager.ComputeManager._is_instance_storage_shared',
      ('self', 'context', 'instance', 'host'))
def finish_live_migration(manager: Any, context: Any, instance: Any,
                          migration: Any) -> None:
    """Run nova-compute's steps that follow libvirt's copy of a guest.

    This is used after a restart, when nova-compute has lost its data of the
    live migration. No disk is removed, except with the directory of a guest
    that is not on shared storage. No volume is disconnected, because the
    volumes' records are those of the destination.

    :param manager: ``nova.compute.manager.ComputeManager``.
    :param migration: a live migration from this host.
    :raises Exception: an error of Nova; even then the server's record names
        the destination (``_post_live_migration_update_host``).
    """
    # It is a start, and the tracker of resources knows no device yet.
    manager.update_available_resource(context, startup=True)
    manager._post_live_migration_update_host(
        context, instance, migration.dest_compute,
        migrate_data=objects.LibvirtLiveMigrateData(
            migration=migration, is_shared_block_storage=True,
            is_shared_instance_path=manager._is_instance_storage_shared(
                context, instance, host=migration.dest_compute)),
        source_bdms=objects.BlockDeviceMappingList(objects=[]))


@seam('nova.virt.libvirt.guest.Guest.get_job_info', ('self',))
def is_job_copying_guest(guest: Any) -> bool:
    """Return whether a libvirt job is copying a guest.

    The job may be a live migration, for example.

    :param guest: ``nova.virt.libvirt.guest.Guest``.
    :raises Exception: if libvirt cannot answer.
    """
    return guest.get_job_info().type in _JOBS


@seam('nova.virt.libvirt.guest.Guest._domain')
def is_paused_by_migration(guest: Any) -> bool:
    """Return whether a live migration has left its guest paused in libvirt.

    A libvirtd that is restarted while the destination starts the guest does
    not know whether the guest runs there (``qemuProcessRecoverMigrationOut``
    of libvirt), and leaves the guest paused.

    :param guest: ``nova.virt.libvirt.guest.Guest``.
    """
    return tuple(guest._domain.state()) in _PAUSED_BY_MIGRATION


@seam('nova.virt.libvirt.guest.Guest.get_all_disks', ('self',))
@seam('nova.virt.libvirt.guest.Guest.get_block_device', ('self', 'disk'))
@seam('nova.virt.libvirt.guest.BlockDevice.get_job_info', ('self',))
@seam('nova.virt.libvirt.guest.BlockDevice.abort_job',
      ('self', 'async_', 'pivot'))
def abort_disk_copies(guest: Any) -> None:
    """Abort the jobs by which a live migration copies a guest's disks.

    A libvirtd that is restarted during these block jobs aborts the migration,
    but not always its block jobs. libvirt then refuses the next migration with
    "domain has active block job".

    :param guest: ``nova.virt.libvirt.guest.Guest``.
    :raises Exception: if libvirt cannot abort a job.
    """
    for disk in guest.get_all_disks():
        device = guest.get_block_device(disk.target_dev)
        if device.get_job_info():
            device.abort_job()
