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

"""A live migration that ended while the nova-compute of its source was away.

libvirt copies a guest without nova-compute, and removes it from the source
when it runs on the destination. Nova hears of that from libvirt only: a
nova-compute that is started afterwards resets the server to a host where it
does not run any more (``ComputeManager._reset_live_migration``), and with
``resume_guests_state_on_host_boot`` starts it there a second time.
"""

from collections.abc import Callable
import functools
from typing import Any

from nova.compute import power_state
from oslo_log import log as logging

LOG = logging.getLogger(__name__)


def finishing(reset: Callable[..., Any], under_way: Callable[..., Any],
              is_here: Callable[[Any], bool], finish: Callable[..., Any]
              ) -> Callable[..., Any]:
    """Nova's reset of a live migration, but for a guest that has gone.

    :param reset: ``ComputeManager._reset_live_migration``.
    :param under_way: gives the migration of an instance, or None.
    :param is_here: whether libvirt still has the guest.
    :param finish: does what Nova does after the copy.
    """
    @functools.wraps(reset)
    def ended(context: Any, instance: Any) -> Any:
        migration = under_way(context, instance)
        if migration is None or is_here(instance):
            return reset(context, instance)
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
        return None
    return ended
