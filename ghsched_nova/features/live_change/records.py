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

"""Reads and writes Nova's records of one guest.

Uses Nova's databases as nova-manage does: the API database names the cell of
a guest, and the databases of that cell have its record.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import copy
from typing import Any

from nova.compute import vm_states
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova import exception
from nova import objects
from nova import servicegroup
from oslo_log import log as logging

from ghsched_nova.base import action_errors as errors
from ghsched_nova.features.live_change import change
from ghsched_nova.features.live_change import node_move
from ghsched_nova.features.live_change import nova_cells
from ghsched_nova.features.live_change import server_lock
from ghsched_nova.nova_seams import numa
from ghsched_nova.nova_seams import shared
from ghsched_placement.features.live_change import node_move as moves

LOG = logging.getLogger(__name__)

#: VM states in which a guest can be changed; whether the guest has a QEMU
#: process in this state.
_STATES = {vm_states.ACTIVE: True, vm_states.PAUSED: True,
           vm_states.STOPPED: False}

#: Names of the instance action and of its events.
ACTION, EVENT = moves.ACTION, 'ghsched_set_bandwidth'
MOVE_EVENT = moves.EVENT


class NovaRecords:
    """Reads, changes and locks Nova's records of one guest.

    Implements :class:`change.PolicyChangeRecords` and
    :class:`node_move.NodeMoveRecords`.

    :param context: context of the guest's cell, see :func:`open_cell_context`.
    :param uuid: UUID of the instance.
    :param lock_duration: seconds after which others may take over a lock of
        the server that was not removed.
    """

    def __init__(self, context: Any, uuid: str,
                 lock_duration: int = 0) -> None:
        self._context = context
        self._uuid = uuid
        self._lock_duration = lock_duration
        self._abandoned: server_lock.Lock | None = None
        self._token = ''

    def read_guest(self) -> change.GuestRecord:
        instance = self._instance()
        if instance.vm_state not in _STATES:
            raise errors.RefusedByState(
                f'the server is {instance.vm_state}; only one that is '
                f'{", ".join(sorted(_STATES))} can be changed')
        self._check_task_state(instance)
        self._check_compute_service_is_up(instance)
        node = objects.ComputeNode.get_by_host_and_nodename(
            self._context, instance.host, instance.node)
        return change.GuestRecord(
            uuid=self._uuid, name=instance.display_name or '',
            host=instance.host, compute_node=node.uuid,
            host_nodes=tuple(numa.list_host_nodes(instance.numa_topology)),
            extra_specs=dict(instance.flavor.extra_specs),
            running=_STATES[instance.vm_state],
            evacuation_sources=tuple(self._list_evacuation_sources()),
            vcpus=instance.flavor.vcpus,
            abandoned=self._abandoned is not None)

    def read_guest_nodes(self) -> node_move.GuestLocation:
        guest, instance = self.read_guest(), self._instance()
        node = objects.ComputeNode.get_by_host_and_nodename(
            self._context, instance.host, instance.node)
        devices = objects.PciDeviceList.get_by_instance_uuid(
            self._context, self._uuid)
        return node_move.GuestLocation(
            guest, nova_cells.list_guest_cells(instance.numa_topology),
            nova_cells.map_host_cells(node),
            tuple(device.address for device in devices))

    def _list_evacuation_sources(self) -> Iterator[str]:
        """Yield the UUIDs of compute nodes from which a guest was evacuated.

        Only sources that may still have data of the guest are returned. Nova
        removes the data when the host is back
        (``_destroy_evacuated_instances``).
        """
        for migration in objects.MigrationList.get_by_filters(
                self._context, {'instance_uuid': self._uuid,
                                'migration_type': 'evacuation',
                                'status': 'done'}):
            with contextlib.suppress(exception.ComputeHostNotFound):
                yield objects.ComputeNode.get_by_host_and_nodename(
                    self._context, migration.source_compute,
                    migration.source_node).uuid

    def lock_server(self) -> str:
        instance = self._instance()
        lock = server_lock.Lock.make(self._lock_duration,
                                     shared.config().host)
        columns = server_lock.make_lock_columns(instance, lock)
        is_taken_over = (self._abandoned is not None and
                         server_lock.read_lock(instance) == self._abandoned)
        try:
            if is_taken_over:
                self._take_over_lock(instance, columns)
            else:
                instance.update(columns)
                instance.save(expected_task_state=[None],
                              expected_vm_state=list(_STATES))
        except (exception.InstanceUpdateConflict,
                exception.InstanceNotFound) as error:
            raise errors.Refused(
                'another operation is in progress on the server: '
                f'{error}') from error
        self._token = lock.text
        return self._token

    def _take_over_lock(self, instance: Any, columns: dict[str, Any]) -> None:
        """Replace an abandoned lock of a server by a new one.

        Only the first of several requests succeeds, because the progress must
        be unchanged. Instance.save() cannot compare the progress.

        :param columns: columns of Nova's record that lock the server.
        """
        LOG.warning('ghsched: taking over the lock of server %(uuid)s from a '
                    'change or move that did not unlock the server: %(lock)s',
                    {'uuid': self._uuid, 'lock': self._abandoned})
        main_db_api.instance_update_and_get_original(
            self._context, self._uuid,
            {**columns, 'expected_task_state': [server_lock.LOCKED],
             'expected_vm_state': list(_STATES)},
            columns_to_join=['system_metadata'],
            expected={'progress': instance.progress})

    def check_lock(self) -> None:
        self._check_owner(self._instance())

    def _check_owner(self, instance: Any) -> None:
        lock = server_lock.read_lock(instance)
        if lock is not None and lock.text != self._token:
            raise errors.TakenOver(
                'another change or move has taken over the server, because '
                'this one took too long')

    def unlock_server(self) -> str:
        token, self._token = self._token, ''
        if not token:
            return ''
        try:
            instance = self._instance()
            if not server_lock.is_locked(instance, token):
                return ''    # it is another request's
            server_lock.clear_lock(instance)
            instance.save(expected_task_state=[server_lock.LOCKED])
        except (exception.InstanceUpdateConflict, exception.InstanceNotFound,
                errors.GuestGone):
            return ''    # it has become so, or there is none any more
        except Exception as error:
            return ('the task state of the server is still '
                    f'{server_lock.LOCKED} ({error}); the next change or move '
                    f'can take over the server in {self._lock_duration} s, '
                    'or set it to active with "openstack server set --state '
                    'active"')
        return ''

    def save_extra_specs(self, extra_specs: Mapping[str, str]) -> None:
        """Save new extra specs of a server, and unlock the server.

        The scheduler uses the request spec, and a start of the guest uses the
        flavor of the instance. The request spec is written first, because
        writing the instance also unlocks the server.
        """
        instance = self._instance()
        if not server_lock.is_locked(instance, self._token):
            self._check_owner(instance)
            raise errors.Refused(
                'another request has taken over the task state of the server, '
                f'which is {instance.task_state} now')
        before = dict(instance.flavor.extra_specs)
        try:
            self._update_request_spec(before, extra_specs)
            instance.flavor.extra_specs = dict(extra_specs)
            server_lock.clear_lock(instance)
            # Nova writes the flavor before it looks at the task state.
            instance.save(expected_task_state=[server_lock.LOCKED])
        except BaseException as error:
            self._save_back(extra_specs, before, error)
            raise
        self._token = ''

    def _save_back(self, after: Mapping[str, str], before: Mapping[str, str],
                   why: BaseException) -> None:
        try:
            self._update_request_spec(after, before)
            self._save_flavor(before)
        except (exception.InstanceNotFound, exception.RequestSpecNotFound,
                errors.GuestGone):
            return
        except Exception as error:
            raise errors.RollbackIncomplete(f'{type(why).__name__}: {why}', [
                "Nova's records of the server may have the new values "
                f'({error}); when its databases answer again, give the '
                'server the new values with this command, and then the old '
                'ones']) from why

    def _update_request_spec(
        self, old_specs: Mapping[str, str], new_specs: Mapping[str, str]
    ) -> None:
        """Change the extra specs in a server's request spec.

        nova-scheduler uses the request spec when the server is moved.

        :param old_specs: extra specs before the change.
        :param new_specs: extra specs after the change.
        """
        spec = objects.RequestSpec.get_by_instance_uuid(self._context,
                                                        self._uuid)
        old = dict(spec.flavor.extra_specs)
        new = {name: text for name, text in old.items()
               if name in new_specs or name not in old_specs}
        new |= {name: text for name, text in new_specs.items()
                if old_specs.get(name) != text}
        if new != old:
            spec.flavor.extra_specs = new
            spec.save()

    def _save_flavor(self, extra_specs: Mapping[str, str]) -> None:
        instance = self._instance()
        if instance.flavor.extra_specs != extra_specs:
            instance.flavor.extra_specs = dict(extra_specs)
            instance.save()

    def _check_task_state(self, instance: Any) -> None:
        """Refuse a server on which another operation is in progress.

        An abandoned lock is remembered, and can be taken over.
        """
        self._abandoned = None
        if self._token and server_lock.is_locked(instance, self._token):
            return
        if not self._token and instance.task_state is None:
            return
        lock = server_lock.read_lock(instance)
        if self._token or lock is None:
            raise errors.RefusedByState(
                'another operation is in progress on the server (its task '
                f'state is {instance.task_state}); try again when it is done')
        if not lock.is_abandoned:
            raise errors.RefusedByState(
                'another change or move of the server has been in progress '
                f'for {lock.age} s; try again when it is done. If it was '
                'interrupted, the next one can take over the server in '
                f'{lock.duration - lock.age + 1} s')
        self._abandoned = lock

    def _check_compute_service_is_up(self, instance: Any) -> None:
        """Refuse a server whose nova-compute service is down.

        A call to that host would wait for its timeout. A tenant may read the
        reason, so the reason does not name the host.
        """
        service = objects.Service.get_by_compute_host(self._context,
                                                      instance.host)
        if not servicegroup.API().service_is_up(service):
            raise errors.RefusedByState(
                'nova-compute on the host of the server is down; the server '
                'cannot be changed until nova-compute is up again')

    def _instance(self) -> Any:
        try:
            instance = objects.Instance.get_by_uuid(
                self._context, self._uuid,
                expected_attrs=['flavor', 'numa_topology',
                                'system_metadata'])
        except exception.InstanceNotFound as error:
            raise errors.GuestGone('the server no longer exists') from error
        # Nova marks fields as changed while reading them, and save() would
        # overwrite the topology that nova-compute writes during a move.
        instance.obj_reset_changes(['numa_topology'], recursive=True)
        return instance


@contextlib.contextmanager
def record_action(context: Any, uuid: str,
                  event: str = EVENT) -> Iterator[None]:
    """Within this context, record an instance action of a server.

    The action ends with the context. If the context raises an error, the
    action has failed with this error.

    :param context: context of the guest's cell, with the user and the request.
    :param uuid: UUID of the instance.
    :param event: name of the action's event.
    :raises Refused: if the start cannot be recorded; nothing is changed.
    """
    try:
        objects.InstanceAction.action_start(context, uuid, ACTION,
                                            want_result=False)
        objects.InstanceActionEvent.event_start(
            context, uuid, event, want_result=False,
            host=shared.config().host)
    except Exception as error:
        raise errors.Refused('cannot record the instance action: '
                             f'{type(error).__name__}: {error}') from error
    failure = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        _finish_action(context, uuid, event, failure)


def _finish_action(
    context: Any, uuid: str, event: str, failure: BaseException | None
) -> None:
    """Record the end of an instance action's event; never raises.

    :param failure: error with which the action has failed; None if it has
        succeeded.
    """
    try:
        objects.InstanceActionEvent.event_finish_with_failure(
            context, uuid, event, exc_val=failure,
            exc_tb=failure.__traceback__ if failure else None,
            want_result=False)
    except Exception as error:
        LOG.warning('ghsched: cannot record the end of an instance action of '
                    'server %s; the action stays unfinished: %s', uuid, error)


def get_visible_server(uuid: str, user_context: Any) -> Any:
    """Return Nova's record of a server that a user may see.

    Nova's database returns only servers of the user's own project, unless the
    user is an admin.

    :param user_context: context of the user.
    :raises GuestGone: if the user may see no such server.
    :raises Refused: if the databases cannot be read.
    """
    with open_cell_context(uuid, user_context) as cell:
        context = copy.copy(cell)
        context.is_admin = user_context.is_admin
        try:
            return objects.Instance.get_by_uuid(context, uuid,
                                                expected_attrs=['flavor'])
        except exception.InstanceNotFound as error:
            raise errors.GuestGone(f'Nova has no server {uuid}') from error


def refuse_locked_server(context: Any, server: Any) -> None:
    """Refuse an action on a server that is locked against its users.

    Nova refuses its own actions in the same way (``check_instance_lock()`` of
    nova/compute/api.py).

    :raises RefusedByState: if the server is locked, and the user is no admin.
    """
    if server.locked and not context.is_admin:
        raise errors.RefusedByState('the server is locked')


@contextlib.contextmanager
def open_cell_context(uuid: str, user_context: Any = None) -> Iterator[Any]:
    """Within this context, yield an admin context of a server's cell.

    :param uuid: UUID of the server.
    :param user_context: context of the user, which is elevated. None gives an
        anonymous admin.
    :raises Refused: if there is no such guest, or if the guest is on no host.
    """
    context = user_context.elevated() if user_context else (
        nova_context.get_admin_context())
    try:
        mapping = objects.InstanceMapping.get_by_instance_uuid(context, uuid)
    except exception.InstanceMappingNotFound as error:
        raise errors.GuestGone(f'Nova has no server {uuid}') from error
    except Exception as error:
        raise errors.Refused("cannot read Nova's API database: "
                             f'{type(error).__name__}: {error}') from error
    if mapping.cell_mapping is None:
        raise errors.RefusedByState('the server is on no host')
    with nova_context.target_cell(context, mapping.cell_mapping) as target:
        yield target
