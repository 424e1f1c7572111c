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

"""Commands of ``openstack`` on Nova and Placement in the test process.

A real openstacksdk connection asks both over HTTP, which wsgi-intercept
turns into calls.
"""

import io
import json
import types

import fixtures
from keystoneauth1 import session
from keystoneauth1 import token_endpoint
from openstack import connection

from ghsched_nova.tests.functional import nova_base
from ghsched_placement.osc import client


class CommandTestCase(nova_base.GhschedTestCase):
    """Runs commands as the shell of python-openstackclient does."""

    def connection(self, api=None):
        """Return a connection as the user of ``api``, a client of Nova's test
        fixtures.
        """
        api = api or self.api
        auth = session.Session(
            # Placement takes who has this token for an admin, and any other
            # for somebody.
            auth=token_endpoint.Token(
                api.base_url, 'admin' if api.auth_user == 'admin' else 'me'),
            additional_headers={'X-Auth-User': api.auth_user,
                                'X-Auth-Project-Id': api.project_id,
                                'X-Roles': ','.join(api.roles)})
        return connection.Connection(
            session=auth, compute_endpoint_override=api.base_url,
            placement_endpoint_override=self.placement.fixture.endpoint)

    def command(self, kind, *arguments, api=None):
        """(exit status, what is printed) of a command."""
        stdout = io.StringIO()
        app = types.SimpleNamespace(
            stdout=stdout, stdin=None, stderr=io.StringIO(),
            client_manager=types.SimpleNamespace(
                ghsched=client.Client(self.connection(api), workers=1)))
        command = kind(app, None)
        parser = command.get_parser('openstack ghsched')
        status = command.run(parser.parse_args(list(arguments)))
        return status, stdout.getvalue()

    def json_of(self, kind, *arguments, api=None):
        """Return the JSON output of a command."""
        _status, text = self.command(kind, '-f', 'json', *arguments, api=api)
        return json.loads(text)

    def outcome(self, kind, *arguments, api=None):
        """(exit status, what is printed as JSON) of a command."""
        status, text = self.command(kind, '-f', 'json', *arguments, api=api)
        return status, json.loads(text)

    def said(self, status, kind, *arguments, api=None):
        """Return the log of a command that must end with a status."""
        with fixtures.FakeLogger() as log:
            found, _text = self.command(kind, *arguments, api=api)
        self.assertEqual(status, found)
        return log.output
