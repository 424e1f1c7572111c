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

"""What nova-compute answers about the policies of its guests.

It is a namespace of its own on nova-compute's server on the message bus. Each
answer is plain data. A refusal is an answer with ``refused``, the reason; with
``gone``, when there is no such guest here; and with ``left``, when not all
could be put back.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import functools
import types
from typing import Any

from nova import exception
from nova import objects
from nova.virt.libvirt import guest as libvirt_guest
from oslo_log import log as logging
import oslo_messaging

from ghsched_nova.host import desired
from ghsched_nova.host import engine
from ghsched_nova.host import live
from ghsched_nova.live import messages
from ghsched_nova.live import move_messages
from ghsched_nova.live import records
from ghsched_nova.nova_seams import compute
from ghsched_nova.virt import host_moves

LOG = logging.getLogger(__name__)

_REFUSALS = (*desired.NOT_DESIRED, live.NotChanged, messages.MessageError)

#: How many calls that nobody waits for any more are remembered.
_VOID = 1000

Answer = dict[str, Any]


def _answering(method: Callable[..., Answer]) -> Callable[..., Answer]:
    """A refusal is an answer; an exception would only tell its class."""
    @functools.wraps(method)
    def answer(*args: Any, **kwargs: Any) -> Answer:
        try:
            return method(*args, **kwargs)
        except exception.InstanceNotFound as error:
            return {'refused': str(error), 'gone': True}
        except _REFUSALS as error:
            refusal: Answer = {'refused': str(error)}
            if getattr(error, 'left', False):
                refusal['left'] = True
            return refusal
    return answer


class PolicyEndpoint:
    """The methods that a call can name.

    :param host: nova.virt.libvirt.host.Host
    :param changing: to be entered while the policy of a guest changes.
    :param changed: called with a context and an instance afterwards.
    :param mover: moves guests between the NUMA nodes of this host.
    """

    target = oslo_messaging.Target(namespace=messages.NAMESPACE,
                                   version=messages.VERSION)

    def __init__(self, own_engine: engine.HostEngine, host: Any,
                 changing: contextlib.AbstractContextManager[Any],
                 changed: Callable[[Any, Any], None],
                 mover: host_moves.HostMoves) -> None:
        self._engine = own_engine
        self._mover = mover
        self._host = host
        self._changing = changing
        self._changed = changed
        self._void: collections.deque[str] = collections.deque(maxlen=_VOID)

    @_answering
    def check_policy(self, context: Any, instance_uuid: str,
                     policy: Sequence[messages.Node],
                     running: bool) -> Answer:
        """Whether this host can hold a policy, see HostClient.check."""
        if not running:
            return {'policy': None, 'same': False,
                    **self._held(instance_uuid, None, policy)}
        with self.running(instance_uuid) as domain:
            return {'policy': live.policy_of(domain.live),
                    'same': live.is_same(self._engine, domain, policy),
                    **self._held(instance_uuid, domain.live, policy)}

    def _held(self, uuid: str, xml: str | None,
              policy: Sequence[messages.Node]) -> Answer:
        """What a guest's group is to hold, and for how many guests."""
        guests = live.count_group_guests(self._engine, uuid, xml, policy)
        return {'guests': guests, 'effective': live.effective(
            self._engine, policy, guests)}

    @_answering
    def policy_of(self, context: Any, instance_uuid: str,
                  void: str) -> Answer:
        """The policy of a guest, see HostClient.policy_of."""
        with compute.instance_lock(instance_uuid):
            self._void.append(void)
            with self.running(instance_uuid) as domain:
                return {'policy': live.policy_of(domain.live)}

    @_answering
    def set_policy(self, context: Any, instance_uuid: str,
                   policy: Sequence[messages.Node], token: str,
                   lock: str | None = None) -> Answer:
        """Change the policy of a guest, see HostClient.set.

        :param lock: what tells the caller's lock from others; a caller of
            version 1.0 has none.
        """
        with compute.instance_lock(instance_uuid):
            instance = self._begun(context, instance_uuid, token, lock)
            with self._changing, self.running(instance_uuid) as domain:
                live.change_policy(self._engine, domain, policy)
                LOG.info('ghsched: the policy of %(name)s is %(policy)s now',
                         {'name': domain.guest.name, 'policy': policy})
        # Placement may be slow; a caller that has not waited for it finds
        # the lock free, and asks what the policy is.
        self._changed(context, instance)
        return {}

    @_answering
    def check_move(self, context: Any, instance_uuid: str,
                   move: move_messages.Packed) -> Answer:
        """Whether a guest can be moved, see HostClient.check_move."""
        with self.running(instance_uuid) as domain:
            self._mover.check(domain, move)
        return {}

    @_answering
    def move_nodes(self, context: Any, instance_uuid: str,
                   move: move_messages.Packed, token: str,
                   lock: str) -> Answer:
        """Move a guest, see HostClient.move_nodes."""
        with compute.instance_lock(instance_uuid):
            instance = self._begun(context, instance_uuid, token, lock)
            with self.running(instance_uuid) as domain:
                self._mover.run(context, instance, domain, move)
        return {}

    def _begun(self, context: Any, uuid: str, token: str,
               lock: str | None) -> Any:
        """The instance, if the change of a call is still wanted.

        :raises NotChanged: when it is not.
        """
        if token in self._void:
            raise live.NotChanged('the caller has given the change up')
        instance = objects.Instance.get_by_uuid(
            context, uuid, expected_attrs=['numa_topology', 'flavor',
                                           'system_metadata'])
        if not (instance.task_state == records.LOCKED if lock is None
                else records.is_locked(instance, lock)):
            raise live.NotChanged(
                'the server is not being changed any more, its task '
                f'state is {instance.task_state}')
        return instance

    @contextlib.contextmanager
    def running(self, uuid: str) -> Iterator[live.Domain]:
        """A domain that runs.

        :raises NotChanged: when it does not.
        """
        # Nova asks for no more of an instance than this.
        guest = self._host.get_guest(types.SimpleNamespace(uuid=uuid,
                                                           name=uuid))
        if guest.id < 0:
            raise live.NotChanged('the domain does not run')
        yield live.Domain(guest, lambda xml: libvirt_guest.Guest.create(
            xml, self._host))
