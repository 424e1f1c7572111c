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

"""RPC endpoint of nova-compute to check and change policies of its guests.

A namespace of its own on nova-compute's server on the message bus. Each
answer is plain data. A refusal is an answer with ``refused``, the reason; with
``gone`` if the guest is not on this host; and with ``left`` if something could
not be restored.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import functools
from pathlib import Path
import types
from typing import Any
import uuid

from nova import exception
from nova import objects
from nova.virt.libvirt import guest as libvirt_guest
from oslo_log import log as logging
import oslo_messaging
from oslo_utils import uuidutils

from ghsched_nova.features.live_change import guest_move
from ghsched_nova.features.live_change import host_moves
from ghsched_nova.features.live_change import messages
from ghsched_nova.features.live_change import move_messages
from ghsched_nova.features.live_change import page_move
from ghsched_nova.features.live_change import policy_change
from ghsched_nova.features.live_change import server_lock
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_nova.nova_seams import compute

LOG = logging.getLogger(__name__)

_REFUSALS = (*desired.POLICY_ERRORS, policy_change.NotChanged,
             messages.MessageError)

#: Number of cancelled calls that are remembered.
_VOID = 1000

Answer = dict[str, Any]


def _return_refusals(method: Callable[..., Answer]) -> Callable[..., Answer]:
    """Wrap an RPC method so that it returns refusals instead of raising them.

    oslo.messaging would pass on only the class and the text of an exception.
    """
    @functools.wraps(method)
    def answer(*args: Any, **kwargs: Any) -> Answer:
        try:
            return method(*args, **kwargs)
        except exception.InstanceNotFound as error:
            return {'refused': str(error), 'gone': True}
        except _REFUSALS as error:
            refusal: Answer = {'refused': str(error)}
            if getattr(error, 'incomplete', False):
                refusal['left'] = True
            return refusal
    return answer


class PolicyEndpoint:
    """RPC methods that change policies and NUMA nodes of this host's guests.

    :param own_engine: engine that enforces policies on this host.
    :param host: nova.virt.libvirt.host.Host of the driver.
    :param changing: lock that is held while the policy of a guest changes.
    :param changed: function that is called after the change of a policy, with
        the request context and the instance.
    :param mover: mover of guests between the NUMA nodes of this host.
    :param refresh: function that notifies other features of a changed or moved
        guest, given its UUID.
    """

    target = oslo_messaging.Target(namespace=messages.NAMESPACE,
                                   version=messages.VERSION)

    def __init__(self, own_engine: engine.HostEngine, host: Any,
                 changing: contextlib.AbstractContextManager[Any],
                 changed: Callable[[Any, Any], None],
                 mover: host_moves.HostMoves,
                 refresh: Callable[[str], None]) -> None:
        self._engine = own_engine
        self._mover = mover
        self._host = host
        self._changing = changing
        self._changed = changed
        self._refresh = refresh
        self._void: collections.deque[str] = collections.deque(maxlen=_VOID)

    @_return_refusals
    def check_policy(self, context: Any, instance_uuid: str,
                     policy: Sequence[messages.Node],
                     running: bool) -> Answer:
        """Return the limits that this host would enforce for a new policy.

        Nothing is changed.

        :param policy: new bandwidth policy of each guest NUMA node.
        :param running: whether Nova records the guest as running.
        :returns: ``policy``: current policy of a running guest; ``same``:
            whether that is the new policy; ``effective``: the limits;
            ``guests``: number of guests that share them.
        """
        if not running:
            return {'policy': None, 'same': False,
                    **self._describe_limits(instance_uuid, None, policy)}
        with self.running_domain(instance_uuid) as domain:
            current = policy_change.read_packed_policy(domain.live_xml)
            return {'policy': current,
                    'same': policy_change.domain_has_policy(
                        self._engine, domain, policy),
                    **self._describe_limits(instance_uuid, domain.live_xml,
                                            policy)}

    def _describe_limits(self, uuid: str, xml: str | None,
                         policy: Sequence[messages.Node]) -> Answer:
        """Return a bandwidth policy's limits, and how many guests share them.

        Guests that share a control group share its limits.

        :param uuid: UUID of the guest.
        :param xml: live XML of the guest; None if it is stopped.
        """
        guests = policy_change.count_group_guests(
            self._engine, uuid, xml, policy)
        return {
            'guests': guests,
            'effective': policy_change.compute_enforced_limits(
                self._engine, policy, guests
            ),
        }

    @_return_refusals
    def policy_of(self, context: Any, instance_uuid: str,
                  void: str) -> Answer:
        """Cancel a set_policy() call, and return the guest's current policy.

        A caller that got no answer to set_policy() learns by this call whether
        the policy was changed.

        :param void: ID of the set_policy() call to cancel. If it has not begun
            yet, it will be refused. If it has ended, nothing is cancelled.
        :returns: bandwidth policy of the running guest.
        """
        if not uuidutils.is_uuid_like(void):
            raise messages.MessageError('the ID of the call to cancel is not '
                                        'a UUID')
        with compute.lock_instance(instance_uuid):
            # Its one form: a UUID may have any number of hyphens.
            self._void.append(str(uuid.UUID(void)))
            with self.running_domain(instance_uuid) as domain:
                return {'policy': policy_change.read_packed_policy(
                    domain.live_xml)}

    @_return_refusals
    def set_policy(self, context: Any, instance_uuid: str,
                   policy: Sequence[messages.Node], token: str,
                   lock: str) -> Answer:
        """Change the bandwidth policy of a running guest.

        :param token: ID of this call.
        :param lock: ID of the caller's lock on the server.
        """
        with compute.lock_instance(instance_uuid):
            instance = self._load_instance(context, instance_uuid, token, lock)
            with self._changing, self.running_domain(instance_uuid) as domain:
                policy_change.change_policy(self._engine, domain, policy)
                LOG.info('ghsched: changed the bandwidth policy of running '
                         'guest %(name)s to %(policy)s',
                         {'name': domain.guest.name, 'policy': policy})
        self._refresh(instance_uuid)
        # After the lock, because Placement may be slow: a caller whose call
        # timed out can then query the policy.
        self._changed(context, instance)
        return {}

    @_return_refusals
    def check_move(self, context: Any, instance_uuid: str,
                   move: move_messages.PackedMove) -> Answer:
        """Check that a guest can move between NUMA nodes of this host.

        Nothing is changed. The call is refused if the guest cannot move.

        :param move: the old and new NUMA nodes.
        """
        with self.running_domain(instance_uuid) as domain:
            self._mover.check_move(domain, move)
        return {}

    @_return_refusals
    def move_nodes(self, context: Any, instance_uuid: str,
                   move: move_messages.PackedMove, token: str,
                   lock: str) -> Answer:
        """Move a guest to other NUMA nodes of this host.

        :param token: ID of this call.
        :param lock: ID of the caller's lock on the server.
        """
        with compute.lock_instance(instance_uuid):
            instance = self._load_instance(context, instance_uuid, token, lock)
            with self.running_domain(instance_uuid) as domain:
                self._mover.move_guest(context, instance, domain, move)
        self._refresh(instance_uuid)
        return {}

    def _load_instance(self, context: Any, uuid: str, token: str,
                       lock: str) -> Any:
        """Return the instance that an RPC call may change.

        :param token: ID of the call.
        :param lock: ID under which the caller has locked the server in Nova
            (see :mod:`ghsched_nova.features.live_change.server_lock`).
        :raises NotChanged: if the caller has cancelled the call, or its lock
            has expired.
        """
        if token in self._void:
            raise policy_change.NotChanged(
                'the caller has cancelled the change')
        instance = objects.Instance.get_by_uuid(
            context, uuid, expected_attrs=['numa_topology', 'flavor',
                                           'system_metadata'])
        if not server_lock.is_locked(instance, lock):
            raise policy_change.NotChanged(
                'the server is not locked for this change any more; its task '
                f'state is {instance.task_state}')
        return instance

    @contextlib.contextmanager
    def running_domain(self, uuid: str) -> Iterator[policy_change.LiveDomain]:
        """Within this context, yield the libvirt domain of a running guest.

        :raises NotChanged: if the domain does not run.
        """
        # Host.get_guest() reads only uuid and name of the instance.
        guest = self._host.get_guest(types.SimpleNamespace(uuid=uuid,
                                                           name=uuid))
        if guest.id < 0:
            raise policy_change.NotChanged('the domain does not run')
        yield policy_change.LiveDomain(
            guest, lambda xml: libvirt_guest.Guest.create(
                xml, self._host))


class LiveChangePart(compute_hooks.ComputeHooks):
    """Changes of running guests: their policies and their NUMA nodes."""

    def __init__(self, services: compute_hooks.ComputeServices) -> None:
        memory = page_move.MemoryMover(Path(services.section.libvirt_run_path),
                                       services.section.node_move_rate)
        self._moves = host_moves.HostMoves(
            services.virtapi, guest_move.Mover(
                services.engine, memory, services.changing), memory)
        self.endpoint = PolicyEndpoint(
            services.engine, services.libvirt_host, services.changing,
            services.report_shared_groups, self._moves,
            services.refresh_guest)

    def reconcile_guests(self, running: Sequence[desired.Running]
                         ) -> Iterable[str]:
        """Finish or undo moves that a crash of nova-compute interrupted."""
        self._moves.finish_interrupted_moves(running,
                                             self.endpoint.running_domain)
        return ()
