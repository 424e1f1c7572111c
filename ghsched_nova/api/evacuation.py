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

"""What has to end before a guest is evacuated.

A live migration that was under way when the host was lost ends with it, and
nobody says so in its record. nova-conductor, which looks for the record of the
evacuation by its status only, may take that one for it
(``ComputeTaskManager.rebuild_instance``): when the evacuation fails, its own
record stays ``accepted``, and the old host destroys the guest when it is back.
What the migration holds in Placement would be held for ever.
"""

from typing import Any

from nova.compute import task_states
from nova import exception
from oslo_log import log as logging

from ghsched_nova import compat

LOG = logging.getLogger(__name__)


def check(context: Any, instance: Any) -> None:
    """Refuse to evacuate a server of ours that nova-conductor works on.

    It would take away what the server gets on its new host.

    :raises nova.exception.InstanceInvalidState: for nova-api, which answers
        409. In a minute or two the server can be evacuated.
    """
    if compat.is_ours(instance) and any(map(
            compat.is_being_scheduled,
            compat.live_migrations_under_way(context, instance))):
        raise exception.InstanceInvalidState(
            attr='task_state', instance_uuid=instance.uuid,
            state=task_states.MIGRATING, method='evacuate')


def prepare(context: Any, instance: Any) -> None:
    """End each live migration of a server of ours whose host is lost.

    It raises nothing: the guest is to be evacuated whatever becomes of them.
    """
    if not compat.is_ours(instance):
        return
    try:
        for migration in compat.live_migrations_under_way(context, instance):
            LOG.warning('ghsched: the live migration %s ends, because the '
                        'server is evacuated', migration.uuid,
                        instance=instance)
            compat.take_back_live_migration(context, instance, migration)
    except Exception as error:
        LOG.error('ghsched: a live migration could not be ended before the '
                  'server is evacuated: %s; run "openstack ghsched audit" '
                  'when that is done', error, instance=instance)
