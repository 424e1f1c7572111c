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

"""Whether the check of an upgrade finds guarantees that memory cannot keep."""

import contextlib
from http import server
import io
import json
from pathlib import Path
import threading

import ddt
import fixtures
from keystoneauth1 import loading
from oslo_config import cfg

from ghsched_nova.cmd import configured
from ghsched_nova.cmd.service_program import DRIVER
from ghsched_nova.features.doctor import guaranteed
from ghsched_nova.features.doctor import node
from ghsched_nova.features.doctor import status
from ghsched_placement.providers import names
from ghsched_placement.tests import base

CREDENTIALS = """\
[placement]
auth_type = admin_token
endpoint = http://127.0.0.1:{port}
token = admin
"""
SCHEDULER = '[filter_scheduler]\nenabled_filters = ComputeFilter\n'
COMPUTE = f'[DEFAULT]\ncompute_driver = {DRIVER}\n'


class Placement:
    """The API's answers about providers of NUMA nodes.

    :param shares: allocated percent and allocation ratio, by name.
    """

    def __init__(self, shares):
        self.shares = shares
        self.gone = set()
        self.refused = 0
        self.paths = []

    def answer(self, path):
        """Return the status and the document of a path."""
        self.paths.append(path)
        if self.refused:
            return self.refused, {'errors': [{'detail': 'no'}]}
        if path.startswith('/traits?'):
            return 200, {'traits': [names.NUMA_NODE_TRAIT]}
        if path.startswith('/resource_providers?'):
            return 200, {'resource_providers': [
                {'uuid': name, 'name': name} for name in self.shares]}
        _empty, _kind, name, what = path.split('/')
        if name in self.gone:
            return 404, {'errors': [{'detail': 'no such provider'}]}
        used, ratio = self.shares[name]
        if what == 'usages':
            return 200, {'usages': {names.MEM_BW_PCT: used}}
        return 200, {'inventories': {names.MEM_BW_PCT: {
            'total': 100, 'reserved': 0, 'allocation_ratio': ratio}}}


#: Values of options of [placement] that keystoneauth reads, by type.
VALUES = {'List': 'internal', 'Boolean': 'true', 'Integer': '3',
          'Float': '3.5', 'String': '1.1'}


def list_placement_options():
    """Return name and value of each option that may stand in [placement]."""
    found = {option.dest: option for read in (
        loading.get_adapter_conf_options, loading.get_session_conf_options,
        loading.get_auth_common_conf_options) for option in read()}
    for plugin in ('password', 'v3password', 'admin_token', 'none'):
        found.update({option.dest: option for option
                      in loading.get_auth_plugin_conf_options(plugin)})
    return [(name, '500,503' if name == 'retriable_status_codes'
             else VALUES.get(type(option.type).__name__, 'true'))
            for name, option in sorted(found.items())]


#: Values of which each is wrong for most options.
ODD_VALUES = ('', '-1', '9' * 50, 'a:b', '*:0', '$x', 'nan', '\u00b2',
              'x' * 300, '/x' * 2500, '/' + 'x' * 5000)


def list_node_options():
    """Return section and name of each option that node commands read."""
    found = node.read_node_options([])
    return [('DEFAULT', 'compute_driver'), ('DEFAULT', 'state_path'),
            ('compute', 'cpu_dedicated_set'),
            ('placement', 'allocation_conflict_retry_count'),
            *((section, name) for section in ('ghsched', 'filter_scheduler')
              for name in found[section])]


@ddt.ddt
class GuaranteedTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.patch(guaranteed, 'ANSWER_TIMEOUT', base.GIVE_UP_S)
        self.placement = Placement({})
        placement = self.placement

        class Handler(server.BaseHTTPRequestHandler):

            def do_GET(self):  # noqa: N802
                code, document = placement.answer(self.path)
                body = json.dumps(document).encode()
                self.send_response(code)
                self.send_header('Content-Type', 'application/json')
                self.send_header('Content-Length', str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args):
                pass

        http = server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self.addCleanup(http.server_close)
        self.port = http.server_address[1]
        thread = threading.Thread(target=http.serve_forever, args=(.01,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(http.shutdown)
        self.file = Path(self.useFixture(fixtures.TempDir()).path,
                         'nova.conf')

    def found(self, text=CREDENTIALS + SCHEDULER, **shares):
        self.placement.shares = shares
        self.file.write_text(text.format(port=self.port))
        files = [str(self.file)]
        check, = guaranteed.check_guaranteed_bandwidth(
            node.read_node_facts(files, self.file.parent / 'proc'),
            node.read_node_options(files))
        return check

    def test_node_with_more_than_memory_delivers_is_named(self):
        check = self.found(a_NUMA0=(80, 1.0), a_NUMA1=(81, 1.0),
                           b_NUMA0=(100, 1.0), c_NUMA0=(0, 1.0))
        self.assertEqual('warning', check.status)
        self.assertIn('b_NUMA0 (100 %), a_NUMA1 (81 %)', check.text)
        self.assertNotIn('c_NUMA0', check.text)
        self.assertNotIn('a_NUMA0', check.text)
        self.assertIn('reserved_bandwidth', check.remedy)

    def test_allocation_ratio_divides_the_guarantees(self):
        self.assertEqual('ok', self.found(a=(160, 2.0)).status)
        self.assertIn('a (82 %)', self.found(a=(163, 2.0)).text)

    def test_cloud_within_the_bound_is_ok(self):
        for shares in ({}, {'a': (0, 1.0)}, {'a': (80, 1.0)}):
            self.assertEqual('ok', self.found(**shares).status, shares)

    def test_named_nodes_are_bounded(self):
        check = self.found(**{f'n{number}': (90, 1.0)
                              for number in range(50)})
        self.assertEqual(guaranteed.NAMED_NODES, check.text.count('(90 %)'))
        self.assertTrue(check.text.endswith('and 30 more'), check.text)

    def test_provider_deleted_meanwhile_is_left_out(self):
        self.placement.gone = {'a'}
        self.assertEqual('ok', self.found(a=(90, 1.0)).status)

    def test_placement_that_refuses_is_a_warning_with_its_answer(self):
        self.placement.refused = 503
        check = self.found(a=(90, 1.0))
        self.assertEqual('warning', check.status)
        self.assertIn('HTTP 503', check.text)

    def test_section_that_cannot_be_used_is_a_warning(self):
        for text in ('auth_type = no-such-plugin\n',
                     'auth_type = password\nauth_url = http://127.0.0.1:1\n'):
            check = self.found('[placement]\n' + text + SCHEDULER)
            self.assertEqual('warning', check.status, text)
            self.assertIn('cannot read Placement', check.text)

    @ddt.data(*list_placement_options())
    @ddt.unpack
    def test_any_option_of_the_section_ends_no_check_with_an_error(
            self, name, value):
        credentials = ''.join(
            f'{line}\n' for line in CREDENTIALS.splitlines()
            if not line.startswith(f'{name} ='))
        check = self.found(f'{credentials}{name} = {value}\n{SCHEDULER}',
                           a=(90, 1.0))
        # The other section has no credentials.
        self.assertEqual('skipped' if name == 'auth_section' else 'warning',
                         check.status)
        if name == 'interface':     # Nova ignores it, devstack sets it
            self.assertIn('a (90 %)', check.text)

    @ddt.data(*list_node_options())
    @ddt.unpack
    def test_odd_value_of_an_option_ends_no_command_with_a_traceback(
            self, section, name):
        files = [str(self.file)]
        for value in ODD_VALUES:
            self.file.write_text(f'[{section}]\n{name} = {value}\n')
            # The commands show this error.
            with contextlib.suppress(cfg.Error):
                guaranteed.check_guaranteed_bandwidth(
                    node.read_node_facts(files, self.file.parent / 'proc'),
                    node.read_node_options(files))
                configured.read_state_path(files)
            with contextlib.suppress(cfg.Error, ValueError):
                configured.read_dedicated_cpus(files)

    def test_options_that_contradict_each_other_are_a_warning(self):
        check = self.found(f'{CREDENTIALS}version = 1\nmin_version = 1\n'
                           f'{SCHEDULER}', a=(90, 1.0))
        self.assertEqual('warning', check.status)
        self.assertIn('min_version', check.text)

    def test_node_without_credentials_is_skipped(self):
        self.assertEqual('skipped', self.found(SCHEDULER).status)

    def test_compute_host_does_not_ask_about_the_cloud(self):
        check = self.found(CREDENTIALS + COMPUTE, a=(90, 1.0))
        self.assertEqual('skipped', check.status)
        self.assertEqual([], self.placement.paths)

    def test_upgrade_check_shows_the_nodes(self):
        self.found(a_NUMA0=(90, 1.0))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status.main(['--config-file', str(self.file), 'upgrade', 'check',
                         '--json'])
        found = {one['check']: one for one in json.loads(
            out.getvalue())['checks']}
        self.assertIn('a_NUMA0 (90 %)',
                      found['Guaranteed bandwidth']['details'])
