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

"""Flavors for which nova-scheduler found no host, from all schedulers.

::

    GET /ghsched/refusals

    {"refusals": [{"flavor": "42", "name": "large", "count": 3,
                   "last": 1700000000.0}],
     "silent": ["controller-2"]}
"""

import dataclasses
from typing import Any

from oslo_log import log as logging
import oslo_messaging

from ghsched_nova.api import policies
from ghsched_nova.features.refusals import nova_seams
from ghsched_nova.nova_seams import messaging
from ghsched_placement.features.refusals import refusal_record

LOG = logging.getLogger(__name__)

#: oslo.messaging namespace of ghsched's calls on the topic of nova-scheduler.
NAMESPACE = 'ghsched'
RPC_VERSION = '1.0'

#: Seconds to wait for the answer of one nova-scheduler.
TIMEOUT_S = 5

#: Maximum number of hosts with nova-scheduler that are asked.
MAX_HOSTS = 32

#: Attempts to connect to the message bus before a call fails.
_BUS_RETRIES = 1


def list_refusals(context: Any) -> dict[str, Any]:
    """Return the response to ``GET /ghsched/refusals``.

    :param context: request context of nova-api.
    :raises nova.exception.Forbidden: if the policy rules do not allow it.
    """
    policies.authorize(context, policies.LIST_REFUSALS, {})
    return collect_refusals(context)


def collect_refusals(context: Any) -> dict[str, Any]:
    """Query all nova-schedulers for the refused requests they have recorded.

    :param context: request context of nova-api.
    :returns: the refusals, and the hosts whose nova-scheduler did not answer.
    """
    hosts = sorted(nova_seams.list_scheduler_hosts(context))[:MAX_HOSTS]
    if not messaging.is_bus_reachable(context):
        return {'refusals': [], 'silent': hosts}
    answers = {host: _get_refusals_of_scheduler(context, host)
               for host in hosts}
    return {
        'refusals': [dataclasses.asdict(one) for one
                     in refusal_record.merge_refusals(*(
                         record for record in answers.values()
                         if record is not None))],
        'silent': [host for host, record in answers.items()
                   if record is None]}


def _get_refusals_of_scheduler(context: Any, host: str
                               ) -> tuple[refusal_record.RefusalCount,
                                          ...] | None:
    """Query a host's nova-scheduler for the refused requests it has recorded.

    :returns: None if nova-scheduler does not answer.
    """
    client = messaging.make_rpc_client(context, oslo_messaging.Target(
        topic=messaging.SCHEDULER_TOPIC, namespace=NAMESPACE,
        version=RPC_VERSION))
    try:
        return refusal_record.FORMAT.parse(client.prepare(
            server=host, timeout=TIMEOUT_S, retry=_BUS_RETRIES).call(
                context, 'list_refusals'))
    except (oslo_messaging.MessagingException,
            oslo_messaging.RemoteError) as error:
        LOG.info('ghsched: cannot get refused requests from nova-scheduler on '
                 'host %(host)s; listing only those of other schedulers: '
                 '%(error)s',
                 {'host': host, 'error': error})
        return None
