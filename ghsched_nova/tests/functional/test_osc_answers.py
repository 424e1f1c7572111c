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

"""Every command of ``openstack ghsched``: empty answers, and outages.

A real openstacksdk connection asks real sockets: one that nobody listens at,
one that answers 503, and one that accepts and stays silent.
"""

import argparse
import configparser
from importlib import import_module
import io
import json
import pathlib
import socket
import threading
import types
from unittest import mock
import warnings

import fixtures
from keystoneauth1 import session
from keystoneauth1 import token_endpoint
from openstack import connection

from ghsched_placement.osc import base as osc_base
from ghsched_placement.osc import client
from ghsched_placement.osc import http
from ghsched_placement.osc import plugin
from ghsched_placement.tests import base

SETUP = pathlib.Path(__file__).parents[3] / 'setup.cfg'

#: Values of arguments that every text does not do for.
SAMPLES = {'node': '0=1'}
#: Options without which a command has nothing to do.
NEEDED = {'SetServer': ['--mem-bw-min', '20']}

#: Texts of libraries that explain nothing to a user.
FOREIGN = ('HTTPConnectionPool', 'Max retries', 'Traceback', 'urllib3',
           'supported versions', 'envvars', 'object at 0x',
           'Failed to contact')


def commands():
    """Return the classes of all commands, as the package declares them."""
    setup = configparser.ConfigParser(delimiters='=')
    setup.read(SETUP)
    lines = setup['entry_points']['openstack.ghsched.v1'].split('\n')
    places = [line.split('=')[1].strip() for line in lines if line.strip()]
    return [getattr(import_module(module), name) for module, _, name
            in (place.partition(':') for place in places)]


def arguments(kind, parser):
    """Return a command line with all that a command requires."""
    found = list(NEEDED.get(kind.__name__, ()))
    for action in parser._actions:
        value = SAMPLES.get(action.dest, 'x')
        if action.option_strings and action.required:
            found += [action.option_strings[0], value]
        elif not action.option_strings and action.nargs not in ('*', '?'):
            found.append(value)
    return found


class EmptyAnswerTest(base.TestCase):

    def printed(self, kind, *options):
        """Return what a command prints of an answer without rows."""
        stdout = io.StringIO()
        command = kind(types.SimpleNamespace(stdout=stdout), None)
        command.take_action = lambda _arguments: (('One', 'Other'), [])
        parser = command.get_parser('openstack ghsched')
        self.assertEqual(0, command.run(parser.parse_args(
            [*arguments(kind, parser), *options])))
        return stdout.getvalue()

    def test_each_table_without_rows_is_a_sentence(self):
        for kind in commands():
            if issubclass(kind, osc_base.Lister):
                with self.subTest(command=kind.__name__):
                    text = self.printed(kind, '-f', 'table')
                    self.assertRegex(text, r'\A[A-Z].{10,}\.\n\Z')
                    self.assertEqual([], json.loads(
                        self.printed(kind, '-f', 'json')))


class Server:
    """A socket that treats everybody who connects in the same way."""

    def __init__(self, answer):
        self._socket = socket.create_server(('127.0.0.1', 0))
        self._answer, self._open = answer, []
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self):
        return f'http://127.0.0.1:{self._socket.getsockname()[1]}'

    def _serve(self):
        while True:
            try:
                peer, _address = self._socket.accept()
            except OSError:
                return
            self._open.append(peer)
            if self._answer:
                peer.recv(65536)
                peer.sendall(self._answer)
                peer.close()

    def close(self):
        for one in (self._socket, *self._open):
            one.close()


def unused_url():
    """Return a URL that nobody listens at."""
    with socket.create_server(('127.0.0.1', 0)) as one:
        return f'http://127.0.0.1:{one.getsockname()[1]}'


class OutageTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.multiple(
            http, TIMEOUT_S=(1, 1), HOST_TIMEOUT_S=1,
            SESSION_TIMEOUT_S=(1, 1)))
        self.enterContext(mock.patch.multiple(
            client, ACTION_TIMEOUT_S=(1, 1)))
        warnings.simplefilter('ignore')

    def server(self, answer):
        made = Server(answer)
        self.addCleanup(made.close)
        return made.url

    def run_command(self, kind, url):
        """Return status and log of a command whose services are at a URL."""
        to_url = session.Session(auth=token_endpoint.Token(url, 'token'))
        cloud = plugin.make_client(types.SimpleNamespace(
            sdk_connection=connection.Connection(
                session=to_url, compute_endpoint_override=url,
                placement_endpoint_override=url,
                image_endpoint_override=url)))
        app = types.SimpleNamespace(
            stdout=io.StringIO(), stdin=io.StringIO(), stderr=io.StringIO(),
            client_manager=types.SimpleNamespace(ghsched=cloud))
        command = kind(app, None)
        parser = command.get_parser('openstack ghsched')
        self.assertIsInstance(parser, argparse.ArgumentParser)
        with fixtures.FakeLogger() as log:
            status = command.run(parser.parse_args(arguments(kind, parser)))
        return status, log.output

    def check_all(self, url):
        for kind in commands():
            with self.subTest(command=kind.__name__):
                status, told = self.run_command(kind, url)
                self.assertEqual(2, status, told)
                self.assertRegex(
                    told, rf'(Nova|Placement) does not answer at {url}')
                for text in FOREIGN:
                    self.assertNotIn(text, told)

    def test_commands_name_a_service_where_nobody_listens(self):
        self.check_all(unused_url())

    def test_commands_name_a_service_whose_proxy_answers_503(self):
        self.check_all(self.server(
            b'HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n'
            b'Connection: close\r\n\r\n'))

    def test_commands_name_a_service_that_never_answers(self):
        self.check_all(self.server(b''))
