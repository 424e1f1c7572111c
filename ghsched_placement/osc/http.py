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

"""Requests to OpenStack's services, their answers, and their errors."""

from collections.abc import Iterator
import contextlib
import logging
from typing import Any

from keystoneauth1 import exceptions as ksa_exceptions
from openstack import exceptions as sdk_exceptions
from osc_lib import exceptions

#: Seconds to connect to a service, and seconds to wait for its answer.
TIMEOUT_S = (5, 60)

#: Seconds to connect, and to wait, for what openstacksdk asks by itself:
#: tokens, versions of the services, and servers and flavors by name.
SESSION_TIMEOUT_S = (5, 10)

#: Seconds to wait for what nova-api asks nova-compute over the message bus.
HOST_TIMEOUT_S = 5

#: Services by their type in the catalog, as messages name them.
NAMES = {'compute': 'Nova', 'identity': 'Keystone', 'image': 'Glance',
         'placement': 'Placement'}

#: Statuses of a proxy whose service is down.
_DOWN = (502, 503, 504)

_UNREACHED = (ksa_exceptions.ConnectionError, ksa_exceptions.DiscoveryFailure,
              sdk_exceptions.NotSupported,
              sdk_exceptions.ServiceDiscoveryException)


def set_session_timeout(connection: Any,
                        timeouts: tuple[int, int] | None = None) -> None:
    """Set the timeouts of all requests of a connection to OpenStack.

    :param connection: connection of openstacksdk.
    :param timeouts: timeouts in seconds to connect and to read; None for
        :data:`SESSION_TIMEOUT_S`.
    """
    # It repeats what the error says; --debug still shows it.
    identity = logging.getLogger('keystoneauth')
    if not identity.isEnabledFor(logging.DEBUG):
        identity.setLevel(logging.ERROR)
    if connection.session.timeout is None:
        connection.session.timeout = timeouts or SESSION_TIMEOUT_S


class Unreachable(exceptions.CommandError):
    """Raised if a service does not answer; names the service and its URL."""


@contextlib.contextmanager
def translate_unreachable(connection: Any, service: str) -> Iterator[None]:
    """Within this context, raise Unreachable in place of connection errors.

    :param connection: connection of openstacksdk.
    :param service: service type in the catalog, such as ``compute``.
    :raises Unreachable: if the service does not answer.
    """
    try:
        yield
    except sdk_exceptions.HttpException as error:
        if error.status_code not in _DOWN:
            raise
        raise make_unreachable_error(connection, service,
                                     f'HTTP {error.status_code}') from error
    except _UNREACHED as error:
        identity = _get_auth_url(connection)
        if identity and identity in str(error):
            raise Unreachable(f'Keystone does not answer at {identity}'
                              ) from error
        late = isinstance(error, ksa_exceptions.ConnectTimeout)
        raise make_unreachable_error(connection, service,
                                     'timeout' if late else '') from error


def make_unreachable_error(connection: Any, service: str,
                           reason: str = '') -> Unreachable:
    """Return the error to raise if an OpenStack service does not answer.

    :param service: service type in the catalog, such as ``compute``.
    :param reason: reason why the service does not answer, if known.
    """
    try:
        url = connection.endpoint_for(service)
    except Exception:    # the catalog may be out of reach as well
        url = None
    return Unreachable(
        f'{NAMES[service]} does not answer' + (f' at {url}' if url else '')
        + (f' ({reason})' if reason else ''))


def _get_auth_url(connection: Any) -> str:
    """Return the URL of Keystone; empty if the URL is unknown."""
    auth = getattr(getattr(connection, 'session', None), 'auth', None)
    return str(getattr(auth, 'auth_url', None) or '')


def send_request(connection: Any, service: str, method: str, path: str,
                 **arguments: Any) -> Any:
    """Send a request to an OpenStack service and return its response.

    A response with an error status is returned, too.

    :param connection: connection of openstacksdk.
    :param service: service type in the catalog, such as ``compute``.
    :param method: name of the adapter's method, such as ``get``.
    :param path: URL path below the service's endpoint.
    :param arguments: further arguments of the adapter's method.
    :raises Unreachable: if the service does not answer.
    """
    arguments.setdefault('timeout', TIMEOUT_S)
    with translate_unreachable(connection, service):
        response = getattr(getattr(connection, service), method)(path,
                                                                 **arguments)
    if response.status_code in _DOWN:
        raise make_unreachable_error(connection, service,
                                     f'HTTP {response.status_code}')
    return response


def get_json(connection: Any, service: str, path: str,
             microversion: str | None, default: Any = None) -> Any:
    """Send a GET request to an OpenStack service and return the parsed JSON.

    :param connection: connection of openstacksdk.
    :param service: service type in the catalog, such as ``compute``.
    :param path: URL path below the service's endpoint.
    :param default: value to return for a 404 response, or if Placement does
        not know a resource class or trait in the query.
    :raises Unreachable: if the service does not answer.
    :raises CommandError: if the service refuses the request.
    """
    response = send_request(connection, service, 'get', path,
                            microversion=microversion)
    if default is not None and (response.status_code == 404 or (
            response.status_code == 400
            and 'No such' in get_error_message(response))):
        return default
    if response.status_code == 200:
        return response.json()
    where = path.partition('?')[0]
    if response.status_code == 403:
        raise exceptions.CommandError(
            f'{NAMES[service]} does not let you read {where} (HTTP 403). '
            'This command is for admins; see OS_CLOUD or --os-cloud')
    raise exceptions.CommandError(
        f'{NAMES[service]}: GET {where}: HTTP {response.status_code} '
        f'{get_error_message(response)}')


def get_error_message(response: Any) -> str:
    """Return the error message in the response of an OpenStack service."""
    try:
        answer = response.json()
        if 'errors' in answer:
            return str(answer['errors'][0]['detail']).strip()
        return str(next(iter(answer.values()))['message'])
    except (AttributeError, KeyError, LookupError, StopIteration, TypeError,
            ValueError):
        return str(response.text)[:200].strip()
