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

"""The filter of nova-api that serves the requests of ghsched.

Nova's API takes no extensions any more, but its pipeline of WSGI filters is
the operator's (api-paste.ini). This filter stands behind ``keystonecontext``,
so Keystone has checked the token and Nova has made a context of it, and
answers one server action itself::

    POST /servers/UUID/action
    {"ghsched": {KEY: ...}}

and ``GET /ghsched/NAME``. ``GET /ghsched`` lists what there is. Features add
the keys and the names
(:mod:`ghsched_nova.features.declared_api`). Whatever else comes goes on to
Nova. The filter also switches on what else nova-api needs for ghsched
(:mod:`ghsched_nova.api.nova_changes`).
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import MutableMapping
import json
import re
from typing import Any

import microversion_parse
from nova import exception
from oslo_log import log as logging
import webob

from ghsched_nova.api import nova_changes
from ghsched_nova.api import policies as rules
from ghsched_nova.base import action_errors as errors
from ghsched_nova.features import declared_api
from ghsched_placement.flavor import policy as policies

LOG = logging.getLogger(__name__)

#: The key of the body, and the name in the list of the server's actions.
ACTION = 'ghsched'
_LEGACY_VERSION = 'X-OpenStack-Nova-API-Version'
_PATH = re.compile(r'(?:/[^/]+)?/servers/([0-9A-Fa-f-]{32,36})/action/?')
#: A project's ID may come first; /servers/ghsched is Nova's.
_REPORT_PATH = re.compile(
    r'(?:/[^/]+)?/ghsched/([a-z-]+)/?|(?:/[0-9a-f-]+)?/ghsched/?')
#: Version of the requests and of their answers. A new argument or a new key of
#: an answer adds one.
_VERSION = 1


def filter_factory(_global: Mapping[str, str], **_local: str
                   ) -> Callable[[Any], 'Filter']:
    """Patch nova-api for ghsched and return the WSGI filter for its pipeline.

    Paste calls this for ``paste.filter_factory``, once for each pipeline.
    """
    nova_changes.apply_patches()
    return Filter


class Filter:
    """WSGI filter of nova-api that serves ghsched's API requests.

    These are the server action ``ghsched``, ``GET /ghsched/REPORT`` of the
    reports of features, and ``GET /ghsched``, which lists both. All other
    requests are passed to the next application.

    :param application: next WSGI application in the pipeline.
    """

    def __init__(self, application: Any) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        request = webob.Request(environ)
        found = _PATH.fullmatch(request.path_info)
        if request.method == 'POST' and found:
            # webob leaves the body to be read again.
            asked = parse_ghsched_action(request.body)
            if asked is not None:
                response = _make_refusal_response() or handle_server_action(
                    environ.get('nova.context'), found[1], asked)
                response.headers.update(make_version_headers(request.headers))
                return response(environ, start)
        found = _REPORT_PATH.fullmatch(request.path_info)
        if (request.method == 'GET' and found
                and found[1] in (None, *declared_api.REPORTS)):
            response = _make_refusal_response() or handle_report_request(
                environ.get('nova.context'), found[1])
            response.headers.update(make_version_headers(request.headers))
            return response(environ, start)
        return self._application(environ, start)


def _make_refusal_response() -> webob.Response | None:
    """Return a response 503 if the installed Nova does not suit ghsched.

    :returns: None if ghsched's API works with this Nova.
    """
    reason = nova_changes.find_api_refusal()
    return _make_error_document(503, reason) if reason else None


def make_version_headers(
        request_headers: MutableMapping[str, str]) -> dict[str, str]:
    """Return response headers that repeat a request's compute microversion.

    Clients expect them. The body of the response does not depend on the
    microversion. The result is empty if the request names none or ``latest``.
    """
    version = microversion_parse.get_version(
        request_headers, 'compute', legacy_headers=[_LEGACY_VERSION])
    if version in (None, 'latest'):
        return {}
    return {microversion_parse.STANDARD_HEADER: f'compute {version}',
            _LEGACY_VERSION: version}


def parse_ghsched_action(body: bytes) -> Any:
    """Return the argument of a ``ghsched`` server action in a request body.

    Returns None for any other action.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None     # Nova says what is wrong with it.
    return document.get(ACTION) if isinstance(document, dict) else None


def handle_report_request(context: Any, name: str | None) -> webob.Response:
    """Return the response to ``GET /ghsched/NAME``, the report of a feature.

    :param name: name of the report; None for the list of reports and actions,
        which every user may read.
    """
    try:
        _require_authenticated_context(context)
        return _make_json_response(
            200, declared_api.REPORTS[name](context) if name else {
                'version': _VERSION,
                'actions': sorted(declared_api.SERVER_ACTIONS),
                'reports': sorted(declared_api.REPORTS)})
    except exception.Forbidden as error:
        return _make_error_document(403, error.format_message())


def _require_authenticated_context(context: Any) -> None:
    """Refuse a request that Keystone's middleware has not authenticated.

    :raises nova.exception.Forbidden: if the request has no context.
    """
    if context is None:
        raise exception.Forbidden(
            'the request has no context: put the filter of ghsched after '
            'keystonecontext in the pipeline of nova-api')


def handle_server_action(context: Any, uuid: str,
                         action: Any) -> webob.Response:
    """Run a ``ghsched`` server action and return the HTTP response.

    :param uuid: UUID of the server.
    :param action: argument of the ``ghsched`` server action.
    """
    try:
        _require_authenticated_context(context)
        document = _find_action(context, action)(context, uuid, action)
        return _make_json_response(200, document if context.is_admin
                                   else _remove_host_name(document))
    except (exception.Forbidden, exception.OverQuota) as error:
        return _make_error_document(403, error.format_message())
    except policies.PolicyError as error:
        return _make_error_document(400, str(error))
    except (errors.Refused, errors.RollbackIncomplete) as error:
        return _make_error_response(context, uuid, error)


def _make_error_response(
    context: Any, uuid: str, error: Exception
) -> webob.Response:
    """Log why a server was not changed, and return the HTTP error response.

    Only an admin sees names of hosts in the response.
    """
    code = (404 if isinstance(error, errors.GuestGone)
            else 409 if isinstance(error, errors.Refused) else 500)
    LOG.log(logging.ERROR if code == 500 else logging.INFO,
            'ghsched: cannot run the action on server %(uuid)s: %(error)s',
            {'uuid': uuid, 'error': error})
    if context.is_admin:
        return _make_error_document(code, str(error))
    if code == 404:
        return _make_error_document(code, f'Nova has no server {uuid}')
    return _make_error_document(code, getattr(error, 'public', '') or (
        'the server cannot be changed now; the log of nova-api has the '
        f'reason, for request {context.request_id}'))


def _remove_host_name(document: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a change report without the name of the host.

    Users without the admin role get this copy.
    """
    return {**document, 'server': {**document['server'], 'host': None}}


def _find_action(context: Any, action: Any) -> declared_api.ServerAction:
    """Return the function of a feature that runs a server action.

    :param action: argument of the ``ghsched`` server action.
    :raises PolicyError: if no feature has an action with this argument.
    :raises nova.exception.Forbidden: if the user may change no server, and so
        may not learn which arguments there are.
    """
    for key, run in declared_api.SERVER_ACTIONS.items():
        if isinstance(action, dict) and key in action:
            return run
    rules.authorize(context, rules.SET, {
        'project_id': context.project_id, 'user_id': context.user_id})
    raise policies.PolicyError(
        ACTION, 'must have one of the keys '
        + ', '.join(declared_api.SERVER_ACTIONS))


def _make_error_document(code: int, message: str) -> webob.Response:
    """Return an HTTP error response in Nova's JSON format."""
    return _make_json_response(
        code, {ACTION: {'code': code, 'message': message}}
    )


def _make_json_response(
    code: int, document: Mapping[str, Any]
) -> webob.Response:
    """Return an HTTP response with a JSON body."""
    return webob.Response(
        status=code, json_body=document, content_type='application/json',
        charset='UTF-8')
