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

"""A live migration whose end the nova-compute of its source has not seen.

libvirt copies a guest without nova-compute, and removes it from the source
when it runs on the destination. Nova hears of that from libvirt only: a
nova-compute that is started afterwards resets the server to a host where it
does not run any more (``ComputeManager._reset_live_migration``), and with
``resume_guests_state_on_host_boot`` starts it there a second time. Of one that
was not copied the migration still holds what the server had, and the server
what it was to have on the other host.

The same is left when libvirtd of the source is restarted meanwhile: Nova puts
the server into ERROR as soon as libvirt does not answer, wherever it runs.
"""

from collections.abc import Callable
import functools
import time
from typing import Any

from nova.compute import power_state
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

#: Status of a migration whose guest libvirt has been told to copy.
COPYING = 'running'

#: Seconds in which libvirtd is back when it is restarted.
_ANSWERS_WITHIN = 60


class Unknown(Exception):
    """Only the destination knows whether a guest runs there."""


def finishing(reset: Callable[..., Any], under_way: Callable[..., list[Any]],
              is_here: Callable[[Any], bool], stays: Callable[[Any], bool],
              finish: Callable[..., Any], take_back: Callable[..., Any]
              ) -> Callable[..., Any]:
    """Nova's reset of a live migration, and what has to follow.

    :param reset: ``ComputeManager._reset_live_migration``.
    :param under_way: gives the live migrations of an instance, that which
        has got furthest first.
    :param is_here: whether libvirt still has the guest.
    :param stays: the same after a copy was aborted, when that has ended.
    :param finish: does what Nova does after the copy.
    :param take_back: does what Nova does when there was none.
    """
    @functools.wraps(reset)
    def ended(context: Any, instance: Any) -> Any:
        migration, *_others = under_way(context, instance) or [None]
        if migration is None:
            return reset(context, instance)
        if migration.status == COPYING and not is_here(instance):
            _finish(finish, context, instance, migration)
            return None
        reset(context, instance)
        if stays(instance):
            _take_back(take_back, context, instance, migration)
        return None
    return ended


def _finish(finish: Callable[..., Any], context: Any, instance: Any,
            migration: Any) -> None:
    LOG.warning('ghsched: libvirt has copied the guest to %s while '
                'nova-compute was not running; the live migration is '
                'finished now. Volumes that were connected here stay '
                'connected until the host reboots',
                migration.dest_compute, instance=instance)
    try:
        finish(context, instance, migration)
    except Exception as error:
        LOG.error('ghsched: the live migration to %(host)s could not be '
                  'finished: %(error)s; see the guest there',
                  {'host': migration.dest_compute, 'error': error},
                  instance=instance)
    # What Nova does next is to start guests that ran when the host was
    # shut down. This one runs elsewhere.
    instance.power_state = power_state.NOSTATE


def _take_back(take_back: Callable[..., Any], context: Any, instance: Any,
               migration: Any) -> None:
    LOG.warning('ghsched: nova-compute has ended before the guest was copied '
                'to %s; it stays here, and gets back what the migration holds '
                'for it', migration.dest_compute, instance=instance)
    try:
        take_back(context, instance, migration)
    except Exception as error:
        LOG.error('ghsched: what the migration holds in Placement could not '
                  'be given back: %s; "openstack ghsched audit --fix" does '
                  'it', error, instance=instance)


def beginning(migrate: Callable[..., Any], has_ended: Callable[..., bool]
              ) -> Callable[..., Any]:
    """Begin no live migration that has ended before.

    Who evacuates a guest ends what was under way (``api/evacuation.py``), and
    the host that is back reads what it was sent before.

    :param migrate: ``ComputeManager.live_migration``.
    :param has_ended: whether a migration has, by a new look at its record.
    """
    @functools.wraps(migrate)
    def begun(context: Any, *args: Any, **kwargs: Any) -> Any:
        if has_ended(context, kwargs['migration']):
            LOG.warning('ghsched: the live migration that was asked for has '
                        'ended before it could begin; the guest is not '
                        'touched', instance=kwargs['instance'])
            return None
        return migrate(context, *args, **kwargs)
    return begun


def rolling_back(revert: Callable[..., Any], is_live: Callable[[Any], bool]
                 ) -> Callable[..., Any]:
    """Roll a live migration back even if Placement does not hear of it.

    The guest is where it was. Without this its server is being migrated for
    ever, or in ``ERROR``.

    :param revert: ``ComputeManager._revert_allocation``.
    :param is_live: whether a migration is one of that kind.
    """
    @functools.wraps(revert)
    def reverted(context: Any, instance: Any, migration: Any) -> Any:
        try:
            return revert(context, instance, migration)
        except Exception as error:
            if not is_live(migration):
                raise
            LOG.error('ghsched: what the migration %(uuid)s holds could not '
                      'be given back: %(error)s; "openstack ghsched audit '
                      '--fix" does it', {'uuid': migration.uuid,
                                         'error': error}, instance=instance)
            return False
    return reverted


class _Follows:
    """How far what follows a live migration has got."""

    begun = False
    done = False

    def noting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.begun = True
            result = method(*args, **kwargs)
            self.done = True
            return result
        return noted


def seen_to_its_end(migrate: Callable[..., Any],
                    is_copied: Callable[[Any], bool | None], context: Any,
                    instance: Any, dest: str, post_method: Callable[..., Any],
                    recover_method: Callable[..., Any], block_migration: bool,
                    migrate_data: Any) -> None:
    """Migrate a guest, and say how that has ended if Nova's driver cannot.

    Since Nova 32 the driver raises what libvirt has answered also when the
    guest is rolled back already, and its server ends in ``ERROR``.

    :param migrate: ``LibvirtDriver.live_migration``; the other parameters but
        the next are its own.
    :param is_copied: see :func:`outcome`, for an instance.
    :raises Exception: as Nova's driver, if it is not known how it has ended.
    """
    follows = _Follows()
    try:
        migrate(context, instance, dest, follows.noting(post_method),
                follows.noting(recover_method), block_migration, migrate_data)
    except Exception as error:
        if follows.done:
            LOG.info('ghsched: a live migration has ended, and all that '
                     'follows is done; Nova hears no more of: %s', error,
                     instance=instance)
            return
        copied = None if follows.begun else is_copied(instance)
        if copied is None:
            raise
        LOG.warning('ghsched: Nova lost sight of the live migration to '
                    '%(host)s (%(error)s); libvirt %(end)s the guest',
                    {'host': dest, 'error': error,
                     'end': 'has copied' if copied else 'did not copy'},
                    instance=instance)
        if copied:
            post_method(context, instance, dest, block_migration, migrate_data)
        else:
            recover_method(context, instance, dest, migrate_data)


def outcome(look: Callable[[], bool | None]) -> bool | None:
    """Whether libvirt has copied a guest, once it does so no longer.

    :param look: whether the guest has gone; None: it is being copied.
    :returns: None: libvirt does not answer, or cannot know it either.
    """
    unanswered = 0
    while unanswered < _ANSWERS_WITHIN:
        try:
            gone = look()
        except Unknown:
            return None
        except Exception as error:
            LOG.info('ghsched: libvirt cannot say what has become of a live '
                     'migration: %s', error)
            unanswered += 1
        else:
            if gone is not None:
                return gone
            unanswered = 0
        time.sleep(1)
    return None
