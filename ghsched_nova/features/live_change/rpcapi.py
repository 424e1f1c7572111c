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

"""RPC client for the ghsched calls of nova-compute.

The server is :mod:`ghsched_nova.features.live_change.rpc`; the messages are
described there and in :mod:`ghsched_nova.features.live_change.messages`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nova.compute import rpcapi as compute_rpcapi
import oslo_messaging

from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.live_change import change
from ghsched_nova.features.live_change import messages
from ghsched_nova.features.live_change import move_messages
from ghsched_nova.nova_seams import messaging
from ghsched_nova.nova_seams import shared

#: Errors of a nova-compute without ghsched's endpoint, or with an older one.
#: Some drivers of oslo.messaging raise them without a RemoteError.
_UNKNOWN_ERRORS = (oslo_messaging.UnsupportedVersion,
                   oslo_messaging.NoSuchMethod)
_UNKNOWN = tuple(error.__name__ for error in _UNKNOWN_ERRORS)


#: Seconds without a heartbeat of nova-compute after which a query fails; a
#: host that is busy with the answer sends one in half of that time.
ALIVE_TIMEOUT_S = 10

#: Attempts to connect to the message bus before a call fails; oslo.messaging
#: retries forever by default.
BUS_RETRIES = 2

#: Call options of a query that changes nothing on the host.
QUESTION: Mapping[str, int] = MappingProxyType(
    {'call_monitor_timeout': ALIVE_TIMEOUT_S})

#: Call options of a change: its answer is awaited for up to
#: ``[DEFAULT]rpc_response_timeout``.
CHANGE: Mapping[str, int] = MappingProxyType({})


def get_rpc_timeout() -> int:
    """Return the seconds after which an RPC call without an answer fails.

    oslo.messaging registers the option only with the first RPC client of a
    process.
    """
    # It imports the drivers of all message buses.
    from oslo_messaging import opts
    for group, options in opts.list_opts():
        if group is None:
            shared.config().register_opts(options)
    return int(shared.config().rpc_response_timeout)


def get_long_rpc_timeouts() -> dict[str, int]:
    """Return Nova's time-outs of RPC calls that may take long.

    One of them limits the time between heartbeats: if the called host stops
    sending heartbeats, the call fails early.
    """
    return {'timeout': shared.config().long_rpc_timeout,
            'call_monitor_timeout': get_rpc_timeout()}


class HostClient:
    """Client of a host's nova-compute over Nova's message bus.

    Implements
    :class:`ghsched_nova.features.live_change.change.PolicyChangeClient`.

    :param context: request context of the guest's cell.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._client = messaging.make_rpc_client(
            context,
            oslo_messaging.Target(topic=compute_rpcapi.RPC_TOPIC,
                                  namespace=messages.NAMESPACE,
                                  version=messages.VERSION))

    def check_policy(
        self, guest: change.GuestRecord, policy: change.PackedPolicy
    ) -> dict[str, Any]:
        """Ask a compute host whether it can apply a bandwidth policy.

        Nothing is changed.

        :param guest: the guest to which the policy would be applied.
        :returns: dictionary with the present policy of the guest (``policy``;
            None if the guest does not run), whether it equals the requested
            policy (``same``), the values that the host would enforce
            (``effective``), and the number of guests in the control group
            (``guests``).
        :raises Refused: with the host's reason.
        :raises HostSilent: if the host does not answer.
        """
        return self._call(guest, 'check_policy', patience=QUESTION,
                          policy=policy, running=guest.running)

    def set_policy(
        self, guest: change.GuestRecord, policy: change.PackedPolicy,
        call_id: str, lock_id: str
    ) -> None:
        """Ask a compute host to apply a bandwidth policy to a running guest.

        :param call_id: ID of this call, by which it can be cancelled.
        :param lock_id: ID of the caller's lock on the server.
        :raises Refused: with the host's reason; the host has rolled back.
        :raises HostRollbackFailed: with the host's reason; the host could not
            roll back.
        :raises HostSilent: if the host does not answer; its state is unknown.
        """
        self._call(guest, 'set_policy', policy=policy, token=call_id,
                   lock=lock_id)

    def cancel_call(
        self, guest: change.GuestRecord, call_id: str
    ) -> change.PackedPolicy | None:
        """Cancel a policy change that a compute host has not begun.

        If the host is already changing the policy, it finishes the change
        first. If the cancelled change arrives later, the host refuses it.

        :param call_id: ID of the call of :meth:`set_policy` to cancel.
        :returns: the bandwidth policy that the running guest has now, in the
            format of RPC messages; None if it has none.
        """
        policy: change.PackedPolicy | None = self._call(
            guest, 'policy_of', void=call_id)['policy']
        return policy

    def check_move(self, guest: change.GuestRecord,
                   move: move_messages.PackedMove) -> None:
        """Ask a compute host whether a guest can move between its NUMA nodes.

        :raises Refused: with the host's reason.
        :raises HostSilent: if the host does not answer.
        """
        self._call(guest, 'check_move', QUESTION, move=move)

    def move_nodes(self, guest: change.GuestRecord,
                   move: move_messages.PackedMove,
                   call_id: str, lock_id: str) -> None:
        """Ask a compute host to move a running guest between NUMA nodes.

        The move may take as long as a live migration.

        :param call_id: ID of this call, by which it can be cancelled.
        :param lock_id: ID of the caller's lock on the server.
        :raises Refused: with the host's reason; the host has rolled back.
        :raises HostRollbackFailed: with the host's reason; the host could not
            roll back yet.
        :raises HostSilent: if the host does not answer; its state is unknown.
        """
        self._call(guest,
                   'move_nodes',
                   get_long_rpc_timeouts(),
                   move=move,
                   token=call_id,
                   lock=lock_id)

    def get_report(self, guest: change.GuestRecord, method: str,
                   **arguments: Any) -> dict[str, Any]:
        """Return a feature's report on a guest from the guest's compute host.

        The answer takes up to a minute.

        :param method: name of the feature's RPC method.
        :raises Refused: with the host's reason.
        :raises HostSilent: if the host does not answer.
        """
        if not messaging.is_bus_reachable(self._context):
            raise _make_unreachable_bus_error(guest.host)
        report: dict[str, Any] = self._call(
            guest, method, get_long_rpc_timeouts(),
            **arguments)['report']
        return report

    def _call(self, guest: change.GuestRecord, method: str,
              patience: Mapping[str, int] = CHANGE,
              **arguments: Any) -> dict[str, Any]:
        if patience is QUESTION and not messaging.is_bus_reachable(
                self._context):
            raise _make_unreachable_bus_error(guest.host)
        client = self._client.prepare(server=guest.host, retry=BUS_RETRIES,
                                      **patience)
        try:
            answer: dict[str, Any] = client.call(
                self._context, method, instance_uuid=guest.uuid, **arguments)
        except oslo_messaging.MessagingTimeout as error:
            raise errors.HostSilent(
                f'nova-compute on {guest.host} did not answer in time; is it '
                'up ("openstack compute service list"), with compute_driver '
                '= ghsched.GhschedLibvirtDriver?') from error
        except _UNKNOWN_ERRORS as error:
            raise _make_unknown_call_error(guest.host) from error
        except oslo_messaging.RemoteError as error:
            if error.exc_type in _UNKNOWN:
                raise _make_unknown_call_error(guest.host) from error
            raise errors.Refused(f'nova-compute on {guest.host} failed: '
                                 f'{error.exc_type}: {error.value}') from error
        except oslo_messaging.MessagingException as error:
            raise _make_unreachable_bus_error(guest.host) from error
        _raise_error_of_answer(answer, guest.host)
        return answer


def _raise_error_of_answer(answer: object, host: str) -> None:
    """Raise the error that a compute host returned as answer to an RPC call.

    Do nothing if the call succeeded.
    """
    if not isinstance(answer, dict):
        raise errors.Refused(f'nova-compute on {host} returned an answer '
                             f'of unknown type {type(answer).__name__}')
    if answer.get('gone'):
        raise errors.GuestGone(str(answer['refused']))
    if answer.get('left'):
        raise errors.HostRollbackFailed(f'host {host}: {answer["refused"]}')
    if answer.get('refused'):
        raise errors.Refused(f'host {host}: {answer["refused"]}')


def _make_unreachable_bus_error(host: str) -> errors.HostSilent:
    """Return the error for an RPC call when the message bus does not answer.

    :param host: the compute host to call.
    """
    return errors.HostSilent(
        f'cannot reach nova-compute on {host} because the message bus does '
        'not answer')


def _make_unknown_call_error(host: str) -> errors.Refused:
    """Return the error for an RPC call that nova-compute does not know.

    :param host: the compute host that was called.
    """
    return errors.Refused(
        f'nova-compute on {host} does not know the call; is compute_driver = '
        'ghsched.GhschedLibvirtDriver there, of this release or later?')
