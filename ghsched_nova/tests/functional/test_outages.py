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

"""Console commands whose cloud does not answer, each in its own process.

``openstack ghsched ...`` is in :mod:`.test_osc_answers`.
"""

import argparse
import configparser
import os
from pathlib import Path
import subprocess
import sys

import ddt
import fixtures

from ghsched_nova.cmd import host
from ghsched_nova.cmd import main
from ghsched_nova.lab.bench import cli
from ghsched_nova.tests.functional import test_osc_answers as answers
from ghsched_placement.tests import base

#: Seconds that a command waits in this test for an answer.
ANSWER_S = 1

#: Commands that ask a cloud: the module, its limit of waiting, arguments.
CLOUD = {
    'ghsched plan': (
        'ghsched_nova.cmd.main', 'ghsched_placement.osc.http',
        'SESSION_TIMEOUT_S',
        ['plan', '--cloud', 'envvars', '--flavor', 'm1:vcpus=1,ram=512']),
    'ghsched-host retire': (
        'ghsched_nova.cmd.host', 'ghsched_nova.features.live_change.'
                                 'set_command',
        'PLACEMENT_TIMEOUT_S',
        ['retire', '--dry-run', '--node', 'a', '--config-file',
         'nova.conf']),
    'ghsched-bench cloud': (
        'ghsched_nova.lab.bench.cli', 'ghsched_placement.osc.http',
        'TIMEOUT_S',
        ['cloud', '--flavors', 'm1', '--image', 'i', '--network', 'n']),
}

#: Exit statuses, where not 2: a measurement that failed has a report.
STATUS = {'ghsched-bench cloud': 1}

#: Commands that first of all need Nova's database, see
#: :class:`ConfiguredTest`.
DATABASE = {'ghsched server set'}

#: Commands that read files, libvirt and the kernel of their host only.
LOCAL = {'ghsched explain', 'ghsched-host blame', 'ghsched-host describe',
         'ghsched-host plan',
         'ghsched-host reconcile', 'ghsched-bench list', 'ghsched-bench run',
         'ghsched-bench report', 'ghsched-bench compare',
         'ghsched-bench machine', 'ghsched-bench verify', 'ghsched-exporter',
         'ghsched-status', 'ghsched-top', 'ghsched-resctrl-emulator',
         'ghsched-testhost'}

#: Services of Nova, with the settings and the limits of Nova.
SERVICES = {'ghsched-nova-compute', 'ghsched-nova-scheduler'}

NOVA_CONF = """
[DEFAULT]
compute_driver = libvirt.LibvirtDriver
[placement]
auth_type = password
auth_url = {url}/v3
username = nova
password = secret
project_name = service
user_domain_name = Default
project_domain_name = Default
"""

RUN = """
import sys
import {limits}
{limits}.{name} = {seconds}
import {module}
sys.exit({module}.main({arguments}))
"""

TIMEOUT = """
import sys
from ghsched_nova.features.live_change import set_command as server_set
options = server_set.read_nova_service_conf('nova-compute', [sys.argv[1]],
                                    init_rpc=False)
print(options.placement.timeout == float(sys.argv[2]))
"""


def leaves(prefix, parser, depth=2):
    """Yield each sub-command of a parser, with the words before.

    :param depth: most words after the prefix.
    """
    groups = [action for action in parser._actions
              if isinstance(action, argparse._SubParsersAction)]
    if not groups or not depth:
        yield prefix
        return
    for group in groups:
        for name, one in group.choices.items():
            yield from leaves(f'{prefix} {name}', one, depth - 1)


def scripts():
    """Return the names of the console scripts, as the package has them."""
    setup = configparser.ConfigParser(delimiters='=')
    setup.read(answers.SETUP)
    lines = setup['entry_points']['console_scripts'].split('\n')
    return {line.split('=')[0].strip() for line in lines if line.strip()}


@ddt.ddt
class SilentCloudTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.directory = Path(self.useFixture(fixtures.TempDir()).path)

    def test_commands_of_the_package_are_all_in_one_list(self):
        found = scripts() - {'ghsched', 'ghsched-host', 'ghsched-bench'}
        found |= {*leaves('ghsched', main.make_parser()),
                  *leaves('ghsched-host', host.make_parser()),
                  *leaves('ghsched-bench', cli.make_parser(), 1)}
        self.assertEqual(sorted(found), sorted(
            [*CLOUD, *DATABASE, *LOCAL, *SERVICES]))

    def run_with(self, command, url):
        """Return the finished process of a command whose cloud is at a URL."""
        module, limits, name, arguments = CLOUD[command]
        (self.directory / 'nova.conf').write_text(NOVA_CONF.format(url=url))
        environment = {
            **{key: value for key, value in os.environ.items()
               if not key.startswith('OS_')},
            'OS_AUTH_URL': f'{url}/v3', 'OS_USERNAME': 'me',
            'OS_PASSWORD': 'secret', 'OS_PROJECT_NAME': 'mine',
            'OS_USER_DOMAIN_NAME': 'Default',
            'OS_PROJECT_DOMAIN_NAME': 'Default',
            'PYTHONPATH': str(answers.SETUP.parent)}
        return subprocess.run(
            [sys.executable, '-c', RUN.format(
                module=module, limits=limits, name=name, seconds=ANSWER_S,
                arguments=arguments)],
            cwd=self.directory, env=environment, capture_output=True,
            text=True, check=False, timeout=base.GIVE_UP_S)

    def check(self, command, url):
        done = self.run_with(command, url)
        self.assertEqual(STATUS.get(command, 2), done.returncode, done.stderr)
        shown = done.stdout + done.stderr
        self.assertRegex(shown, r'(Keystone|Nova|Placement) does not answer')
        for text in answers.FOREIGN:
            self.assertNotIn(text, shown)

    @ddt.data(*sorted(CLOUD))
    def test_command_ends_in_a_sentence_where_nobody_listens(self, command):
        self.check(command, answers.unused_url())

    @ddt.data(*sorted(CLOUD))
    def test_command_ends_in_a_sentence_where_nobody_answers(self, command):
        server = answers.Server(b'')
        self.addCleanup(server.close)
        self.check(command, server.url)


class ConfiguredTest(base.TestCase):
    """Commands that use Nova's client of Placement."""

    def is_limit(self, seconds, *lines):
        """Whether Placement has a limit, with some lines in nova.conf."""
        directory = Path(self.useFixture(fixtures.TempDir()).path)
        (directory / 'nova.conf').write_text('\n'.join(
            ['[placement]', *lines, '']))
        # Nova's configuration is of the whole process.
        return subprocess.run(
            [sys.executable, '-c', TIMEOUT, str(directory / 'nova.conf'),
             seconds],
            cwd=answers.SETUP.parent, capture_output=True, text=True,
            check=True, timeout=base.GIVE_UP_S).stdout

    def test_placement_client_of_a_command_has_a_time_limit(self):
        self.assertEqual('True\n', self.is_limit('10'))

    def test_time_limit_of_nova_conf_is_kept(self):
        self.assertEqual('True\n', self.is_limit('77', 'timeout = 77'))
