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

"""Placement client of Nova's services: one microversion, one exception."""

from collections.abc import Mapping
from collections.abc import Sequence
import logging
from typing import Any
from urllib import parse

from keystoneauth1 import exceptions


LOG = logging.getLogger(__name__)

#: Microversion with consumer generations (1.28) and same_subtree (1.36), and
#: without consumer types (1.38), which Nova does not set.
VERSION = '1.37'

#: Error code of Placement for a write that conflicts with another one.
_CONCURRENT = 'placement.concurrent_update'


class PlacementError(Exception):
    """Raised if Placement refuses a request or does not answer.

    :ivar code: HTTP status; 0 if Placement did not answer.
    :ivar concurrent: whether the request was refused because of a concurrent
        update, so that it can be retried.
    """

    def __init__(self, text: str, code: int = 0,
                 concurrent: bool = False) -> None:
        super().__init__(text)
        self.code, self.concurrent = code, concurrent


class PlacementClient:
    """Placement client whose methods raise only :class:`PlacementError`.

    :param session: object with the methods ``get``, ``put`` and ``delete`` of
        Nova's report client.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def get(self, url: str,
            query: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
        """Send a GET request to Placement and return the parsed JSON answer.
        """
        if query:
            url = f'{url}?{parse.urlencode(query)}'
        return dict(self._send_request('get', url).json())

    def put(self, url: str, body: Mapping[str, Any]) -> None:
        self._send_request('put', url, body)

    def delete(self, url: str) -> None:
        self._send_request('delete', url)

    def get_inventories(self, provider: str) -> dict[str, Any]:
        """Return the inventories of a resource provider, by resource class."""
        return dict(self.get(f'/resource_providers/{provider}/inventories')[
            'inventories'])

    def get_usages(self, provider: str) -> dict[str, int]:
        """Return the used amounts of a resource provider, by resource class.
        """
        return dict(self.get(f'/resource_providers/{provider}/usages')[
            'usages'])

    def get_usage_by_consumer(self, provider: str,
                              resource_class: str) -> dict[str, int]:
        """Return how much each consumer uses of a provider's resource class.

        :returns: amount by consumer UUID.
        """
        held = self.get(f'/resource_providers/{provider}/allocations')
        return {consumer: int(one['resources'][resource_class])
                for consumer, one in held['allocations'].items()
                if resource_class in one['resources']}

    def get_traits(self, provider: str) -> frozenset[str]:
        return frozenset(self.get(
            f'/resource_providers/{provider}/traits')['traits'])

    def is_trait_in_use(self, trait: str) -> bool:
        """Whether any resource provider in Placement has a given trait.

        Placement's work does not grow with the number of providers.
        """
        return bool(self.get('/traits', [
            ('name', f'in:{trait}'), ('associated', 'true')])['traits'])

    def count_providers_with_trait(self, trait: str) -> int:
        """Return the number of resource providers that have a given trait."""
        try:
            return len(self.get('/resource_providers', [
                ('required', trait)])['resource_providers'])
        except PlacementError as error:
            if error.code == 400:
                return 0
            raise

    def get_allocation_candidates(self, query: Sequence[tuple[str, str]],
                                  limit: int) -> dict[str, Any]:
        """Return Placement's answer to an allocation candidates query.

        The answer has no candidates if Placement does not know a trait or a
        resource class of the query.

        :param query: parameters of GET /allocation_candidates.
        :param limit: largest number of candidates to ask for.
        """
        try:
            return self.get('/allocation_candidates',
                            [*query, ('limit', str(limit))])
        except PlacementError as error:
            if error.code == 400 and 'No such' in str(error):
                return {'allocation_requests': [], 'provider_summaries': {}}
            raise

    def move_provider(self, uuid: str, name: str, parent: str) -> None:
        """Move a resource provider below another parent of the same tree.

        Nova's report client cannot do this, because it keeps the parent that a
        provider has in Placement.

        :param uuid: UUID of the provider to move.
        :param name: name of the provider.
        :param parent: UUID of the new parent.
        """
        self.put(f'/resource_providers/{uuid}',
                 {'name': name, 'parent_provider_uuid': parent})

    def _send_request(self, method: str, url: str, *body: Any) -> Any:
        try:
            response = getattr(self._session, method)(url, *body,
                                                      version=VERSION)
        except exceptions.ClientException as error:
            LOG.warning('cannot reach Placement; giving up the current '
                        'operation: %s', error)
            raise PlacementError('Placement does not answer'
                                 ) from error
        if response.status_code not in (200, 204):
            raise _make_error(response)
        return response


def is_conflict(response: Any) -> bool:
    """Return whether Placement refused a write because of a concurrent update.

    Such a write can be retried.
    """
    return any(one.get('code') == _CONCURRENT
               for one in _list_errors(response))


def _make_error(response: Any) -> PlacementError:
    details = [str(one.get('detail', '')).strip()
               for one in _list_errors(response)]
    return PlacementError(
        '; '.join([f'Placement: HTTP {response.status_code}',
                   *filter(None, details)]), response.status_code,
        is_conflict(response))


def _list_errors(response: Any) -> list[Any]:
    try:
        return list(response.json()['errors'])
    except (ValueError, KeyError, TypeError):
        return []
