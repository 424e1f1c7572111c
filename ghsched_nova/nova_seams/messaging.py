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

"""The message bus: calls to nova-compute, and notifications."""

import socket
from typing import Any

from nova import context as nova_context
from nova import rpc
from nova.scheduler import rpcapi as scheduler_rpcapi

from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import shared

seam = registry.make_seam_decorator(registry.API, registry.COMPUTE,
                                    part=registry.ACTIONS)

#: Topic on which nova-scheduler listens.
SCHEDULER_TOPIC: str = scheduler_rpcapi.RPC_TOPIC

#: Seconds to wait for a TCP connection to one host of the message bus. The
#: port is that of RabbitMQ if the transport_url names none.
_BUS_TIMEOUT_S = 2.0

_BUS_PORT = 5672


@seam('nova.rpc.get_client',
      ('target', 'version_cap', 'serializer', 'call_monitor_timeout'))
@seam('nova.rpc.ClientRouter.client', ('self', 'context'))
def make_rpc_client(context: Any, target: Any) -> Any:
    """Return an RPC client for the message bus of a context's cell.

    It is made in the same way as the clients of ``nova.compute.rpcapi``.
    """
    router = rpc.ClientRouter(rpc.get_client(
        target, serializer=rpc.JsonPayloadSerializer()))
    return router.client(context)


@seam('nova.rpc.TRANSPORT')
@seam('nova.context.RequestContext.mq_connection')
def is_bus_reachable(context: Any) -> bool:
    """Return whether any host of a cell's message bus is reachable.

    A host is reachable if it accepts a TCP connection. This is checked before
    an RPC call, because the first call of a process waits without a limit for
    the connection of its reply queue, whatever time-out the call has
    (``oslo_messaging._drivers.amqpdriver.AMQPDriverBase._get_reply_q``).

    :param context: context of the cell, see ``nova.context.target_cell``.
    :returns: True also if the hosts of the bus are unknown.
    """
    transport: Any = getattr(context, 'mq_connection', None) or rpc.TRANSPORT
    url = getattr(getattr(transport, '_driver', None), '_url', None)
    hosts = [(one.hostname, one.port or _BUS_PORT)
             for one in (url.hosts if url is not None else ())
             if one.hostname]
    return not hosts or any(map(_accepts_connection, hosts))


def _accepts_connection(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, _BUS_TIMEOUT_S):
            return True
    except OSError:
        return False


def send_notification(event: str, payload: dict[str, Any]) -> None:
    """Send a versioned notification, as nova-compute does.

    It is sent to the topics of
    ``[notifications]versioned_notifications_topics``. Nothing is sent with
    ``notification_format=unversioned``.
    """
    rpc.get_versioned_notifier(f'nova-compute:{shared.config().host}').info(
        nova_context.get_admin_context(), event, payload)
