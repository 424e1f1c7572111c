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

"""Interface of the planner's Placement client.

``connection.placement`` of openstacksdk and any other keystoneauth adapter
will do.
"""

from typing import Any
from typing import Protocol

from keystoneauth1 import exceptions

#: same_subtree, root_required and groups without resources.
MICROVERSION = '1.36'


class PlannerError(Exception):
    """Raised if the planner fails, with the reason for an admin."""


class Response(Protocol):
    """HTTP response with the attributes that ``requests`` gives it."""

    @property
    def status_code(self) -> int:
        """HTTP status code of the response."""

    @property
    def text(self) -> str:
        """Body of the response as text; empty if the response has no body."""

    def json(self) -> Any:
        """Return the parsed JSON body of the response."""


class PlacementReader(Protocol):
    """Interface of a client that only reads from a Placement service."""

    def get(self, url: str, *, microversion: str) -> Response:
        """Send a GET request to Placement; return the response."""


def get_json(client: PlacementReader, path: str,
             missing_ok: bool = False) -> Any:
    """Send a GET request to Placement; return the parsed JSON response.

    :param path: URL path with the query string.
    :param missing_ok: whether to return None if the path does not exist.
    :raises PlannerError: when Placement refuses the request or does not
        answer.
    """
    try:
        answer = client.get(path, microversion=MICROVERSION)
    except exceptions.ConnectionError as error:
        raise PlannerError(f'Placement does not answer: GET {path}'
                           ) from error
    except exceptions.ClientException as error:
        raise PlannerError(f'Placement: GET {path}: {error}') from error
    if missing_ok and answer.status_code == 404:
        return None
    return parse_response('GET', path, answer)


def parse_response(method: str, path: str, answer: Response) -> Any:
    """Return the parsed JSON body of a response of Placement.

    :param method: HTTP method of the request, for the error.
    :param path: URL path of the request, for the error.
    :raises PlannerError: when the response has an error status.
    """
    if answer.status_code >= 400:
        raise PlannerError(f'Placement: {method} {path}: '
                           f'{answer.status_code} {answer.text.strip()}')
    return answer.json() if answer.text else None
