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

"""Answers of OpenStack's services, and what their errors say."""

from typing import Any

from osc_lib import exceptions


def get_json(adapter: Any, service: str, path: str, microversion: str | None,
             gone: Any = None) -> Any:
    """The answer to a GET.

    :param gone: to be returned in place of a 404, and where the query has a
        resource class or a trait that Placement has never heard of.
    :raises CommandError: which says what the service refused, and why.
    """
    response = adapter.get(path, microversion=microversion)
    if gone is not None and (response.status_code == 404 or (
            response.status_code == 400 and 'No such' in detail(response))):
        return gone
    if response.status_code == 200:
        return response.json()
    where = path.partition('?')[0]
    if response.status_code == 403:
        raise exceptions.CommandError(
            f'{service} does not let you read {where} (HTTP 403). This '
            'command is for admins; see OS_CLOUD or --os-cloud')
    raise exceptions.CommandError(
        f'{service}: GET {where}: HTTP {response.status_code} '
        f'{detail(response)}')


def detail(response: Any) -> str:
    """What a service says of an error, of any of their ways to say it."""
    try:
        answer = response.json()
        if 'errors' in answer:
            return str(answer['errors'][0]['detail']).strip()
        return str(next(iter(answer.values()))['message'])
    except (AttributeError, KeyError, LookupError, StopIteration, TypeError,
            ValueError):
        return str(response.text)[:200].strip()
