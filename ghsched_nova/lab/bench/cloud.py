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

"""Guests of a running cloud, by openstacksdk.

What a cloud refuses for want of room ends a ramp; all else ends the run.
"""

import base64
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
from dataclasses import dataclass
import os
from typing import Any
from typing import TypeVar

from keystoneauth1 import exceptions as ksa_exceptions
from openstack import connect as openstack_connect
from openstack import exceptions
from osc_lib import exceptions as osc_exceptions

from ghsched_nova.lab.bench import density
from ghsched_nova.lab.bench import errors
from ghsched_placement.features.load import load
from ghsched_placement.features.load.load import HostLoad
from ghsched_placement.osc import http
from ghsched_placement.osc import nova_reader

_T = TypeVar('_T')

#: Lines from the end of a console: some hundred runs of a load.
_LINES = 5000


@dataclass(frozen=True)
class Order:
    """Parameters common to all guests: names or UUIDs, empty for none.

    :param seconds: that a guest may take to become active, and to go.
    """

    image: str
    network: str
    key: str = ''
    security_group: str = ''
    availability_zone: str = ''
    seconds: float = 600.0


@dataclass(frozen=True)
class BootedServer:
    """A server that is active.

    :param host: stands for its host among those of the project.
    """

    uuid: str
    address: str
    host: str


class Cloud:
    """Boots guests and takes them away.

    :param connection: of openstacksdk.
    """

    def __init__(self, connection: Any, order: Order) -> None:
        self._connection = connection
        self._order = order
        self._booted = 0

    def boot(self, flavor: str, user_data: str = '') -> BootedServer:
        """Boot a guest and wait until it is active.

        :raises FullError: when there is no room for it.
        :raises BenchError: for all else; nothing is left behind then.
        """
        wanted = _asked(lambda: self._wanted(flavor, user_data))
        try:
            server = _asked(
                lambda: self._connection.compute.create_server(**wanted))
        except errors.BenchError as error:
            if _is_quota(error):
                raise density.FullError(str(error)) from None
            raise
        try:
            return self._active(server)
        except BaseException:
            self._delete(server.id)
            raise

    def _wanted(self, flavor: str, user_data: str) -> dict[str, Any]:
        """Return the body of a server request, with its names resolved."""
        of, cloud = self._order, self._connection
        self._booted += 1
        wanted = {
            'name': f'ghsched-bench-{os.getpid()}-{self._booted}',
            'flavor_id': cloud.compute.find_flavor(
                flavor, ignore_missing=False).id,
            'image_id': cloud.image.find_image(
                of.image, ignore_missing=False).id,
            'networks': [{'uuid': cloud.network.find_network(
                of.network, ignore_missing=False).id}],
            'user_data': base64.b64encode(user_data.encode()).decode(),
            'key_name': of.key, 'availability_zone': of.availability_zone,
            'security_groups': [{'name': of.security_group}]
            if of.security_group else []}
        return {name: value for name, value in wanted.items() if value}

    def _active(self, server: Any) -> BootedServer:
        compute = self._connection.compute
        try:
            server = compute.wait_for_server(server, wait=self._order.seconds)
        except exceptions.ResourceFailure:
            fault = compute.get_server(server.id).fault or {}
            raise density.FullError(
                str(fault.get('message', 'Nova gives no reason'))) from None
        except exceptions.SDKException as error:
            raise errors.BenchError(f'the cloud: {error}') from None
        return BootedServer(server.id, address(server.addresses or {}),
                            str(server.host_id))

    @contextlib.contextmanager
    def flavor(self, name: str, vcpus: int, memory: int, disk: int,
               extra_specs: Mapping[str, str]) -> Iterator[str]:
        """Within this context, the cloud has a flavor; yield its name.

        :param memory: MiB.
        :param disk: GiB.
        """
        compute = self._connection.compute
        name = f'ghsched-bench-{os.getpid()}-{name}'
        made = _asked(lambda: compute.create_flavor(
            name=name, vcpus=vcpus, ram=memory, disk=disk,
            is_public=False))
        try:
            if extra_specs:
                _asked(lambda: compute.create_flavor_extra_specs(
                    made, dict(extra_specs)))
            yield name
        finally:
            _asked(lambda: compute.delete_flavor(made))

    def console(self, guest: BootedServer) -> str:
        """Return the end of what a guest wrote to its serial console."""
        answer = _asked(
            lambda: self._connection.compute.get_server_console_output(
                guest.uuid, length=_LINES))
        return str(answer['output'])

    def delete(self, guest: BootedServer) -> None:
        """Delete a guest and wait until it is gone, to free its resources."""
        self._delete(guest.uuid)

    def _delete(self, uuid: str) -> None:
        compute = self._connection.compute

        def gone() -> None:
            server = compute.find_server(uuid, ignore_missing=True)
            if server is not None:
                compute.delete_server(server, ignore_missing=True)
                compute.wait_for_delete(server, wait=self._order.seconds)
        _asked(gone)

    def load(self, guest: BootedServer) -> HostLoad | None:
        """Return the load that the host of a guest has measured; None if it
        reports none.
        """
        try:
            reader = nova_reader.NovaReader(self._connection)
            return load.parse_load_stats(reader.get_diagnostics(guest.uuid))
        except (exceptions.SDKException, osc_exceptions.CommandError):
            return None


def connect(name: str, order: Order) -> Cloud:
    """Return a cloud of clouds.yaml, or that of the environment.

    :param name: empty for the environment's.
    :raises BenchError: when none is configured, or it does not answer.
    """
    connection = _asked(lambda: openstack_connect(cloud=name or None))
    http.set_session_timeout(connection, http.TIMEOUT_S)
    try:
        # Asks Keystone, and Nova for its versions.
        with http.translate_unreachable(connection, 'compute'):
            connection.compute    # noqa: B018
    except http.Unreachable as error:
        raise errors.BenchError(str(error)) from error
    return Cloud(connection, order)


def _asked(ask: Callable[[], _T]) -> _T:
    try:
        return ask()
    except (exceptions.SDKException,
            ksa_exceptions.ClientException) as error:
        raise errors.BenchError(f'the cloud: {error}') from error


def _is_quota(error: errors.BenchError) -> bool:
    """Whether an error is Nova's refusal for a quota (HTTP 403)."""
    return isinstance(error.__cause__, exceptions.ForbiddenException)


def address(addresses: dict[str, list[dict[str, Any]]]) -> str:
    """Choose the address of a server: floating before fixed, IPv4 before IPv6.

    :param addresses: of Nova's API, by network.
    :raises BenchError: when it has none.
    """
    found = [one for ports in addresses.values() for one in ports]
    if not found:
        raise errors.BenchError('a guest has no address')
    best = min(found, key=lambda one: (
        one.get('OS-EXT-IPS:type') != 'floating', one['version']))
    return str(best['addr'])
