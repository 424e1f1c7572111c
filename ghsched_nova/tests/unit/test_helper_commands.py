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

"""Commands by which a user nova could start the privileged helpers.

Each way to start a helper, a filter of nova-rootwrap or a line of sudoers,
must match the command that oslo.privsep makes and no attack on it.
"""

import fnmatch
from pathlib import Path
import re

from oslo_config import cfg
from oslo_rootwrap import wrapper

from ghsched_nova.base import privsep
from ghsched_nova import conf
from ghsched_placement.tests import base

TOP = Path(__file__).parents[3]
FILES = TOP / 'tools/packaging/files'
HELPER = '/usr/bin/privsep-helper'
SOCKET = '/tmp/tmp_a37mkax/privsep.sock'
CONTEXTS = {name: one for name, one in vars(privsep).items()
            if isinstance(one, privsep.Context)}

#: Arguments that somebody else chose, in place of any of a command.
HOSTILE = (
    '/etc/ssl/../../tmp/x/evil.conf', '/etc/../tmp/evil.conf',
    '/etc/nova/../../tmp/evil.conf', '/etc/nova/x/evil.conf',
    '/etc//nova/evil.conf', '/etc/nova//tmp/evil.conf', '/tmp/evil.conf',
    '/etc/nova/nova.conf /tmp/evil.conf', '/etc/nova/nova.conf\n/tmp/x.conf',
    '/etc/nova/.conf/../../../tmp/evil.conf', '/etc/passwd', '/etc/shadow',
    '/etc/ghsched/../../tmp/helper.conf', '--config-dir', '--log-config',
    '--log-config-append', '--nouse-syslog', 'os.system', 'nova.privsep.path',
    'ghsched_nova.base.privsep.context.x', 'evil.context', '', '/', '-c',
    '/tmp/../var/x', '/tmp/tmp12345678/../../var/privsep.sock',
    '/tmp/tmp12345678/privsep.sock --config-file /tmp/evil.conf',
    '/tmp/tmp1 --config-file /tmp/x/privsep.sock', '/run/libvirt/sock')


def attacks_on(command):
    """Yield the command with a hostile argument in each place, and longer."""
    for place in range(1, len(command) + 1):
        for hostile in HOSTILE:
            if place < len(command):
                yield [*command[:place], hostile, *command[place + 1:]]
            yield [*command[:place], hostile, *command[place:]]
            for option in ('--config-file', '--config-dir'):
                yield [*command[:place], option, hostile, *command[place:]]


class HelperCommandTest(base.TestCase):

    def commands(self, *prefix):
        """Yield the command of each helper, without sudo."""
        for context in CONTEXTS.values():
            _sudo, *command = context.helper_command(SOCKET)
            yield [*prefix, *command]

    def assert_matches_no_attack(self, is_allowed, commands):
        commands = list(commands)
        self.assertEqual(len(CONTEXTS), len(commands))
        for command in commands:
            self.assertTrue(is_allowed(command), command)
            for attack in attacks_on(command):
                if attack not in commands:
                    self.assertFalse(is_allowed(attack), attack)

    def test_filters_of_rootwrap_match_no_attack(self):
        cfg.CONF([], default_config_files=[])
        self.addCleanup(cfg.CONF.reset)
        # oslo.rootwrap adds a filter of its own for privsep-helper.
        filters = [one for one in wrapper.load_filters(
            [str(TOP / 'etc/nova/rootwrap.d')])
            if one.name != 'privsep-helper']
        self.assertEqual(len(CONTEXTS), len(filters))
        self.assert_matches_no_attack(
            lambda command: any(one.match(command) for one in filters),
            (['privsep-helper', '--config-file', '/etc/nova/nova.conf',
              '--privsep_context', context.pypath, '--privsep_sock_path',
              SOCKET] for context in CONTEXTS.values()))

    def test_lines_of_sudoers_match_no_attack(self):
        text = (FILES / 'sudoers.d/ghsched').read_text()
        lines = [re.fullmatch(rf'nova ALL = \(root\) NOPASSWD: {HELPER} (.+)',
                              line)[1]
                 for line in text.splitlines() if not line.startswith('#')]
        # A star, a question mark or a caret matches further arguments.
        self.assertEqual([], [line for line in lines
                              if set(line) & set('*?^\\!')])
        conf.register_opts(cfg.CONF)
        cfg.CONF([], default_config_files=[
            str(FILES / 'ghsched-compute.conf')])
        self.addCleanup(cfg.CONF.reset)
        # sudo compares the arguments, joined by spaces (fnmatch(3)).
        self.assert_matches_no_attack(
            lambda command: command[0] == HELPER and any(
                fnmatch.fnmatchcase(' '.join(command[1:]), line)
                for line in lines), self.commands())

    def test_helpers_read_a_file_in_a_directory_of_root(self):
        installed = (TOP / 'tools/packaging/debian/ghsched-compute.install'
                     ).read_text().splitlines()
        self.assertIn('tools/packaging/files/helper.conf etc/ghsched',
                      installed)
        conf.register_opts(cfg.CONF)
        cfg.CONF([], default_config_files=[
            str(FILES / 'ghsched-compute.conf')])
        self.addCleanup(cfg.CONF.reset)
        for command in self.commands():
            self.assertEqual(['/etc/ghsched/helper.conf'], [
                after for one, after in zip(command, command[1:],
                                            strict=False)
                if one == '--config-file'])

    def test_example_of_limits_names_options_that_limit_helpers(self):
        named = re.findall(r'^# (\w+) = (.+)$',
                           (FILES / 'helper.conf').read_text(), re.MULTILINE)
        conf.register_opts(cfg.CONF)
        cfg.CONF([], default_config_files=[])
        self.addCleanup(cfg.CONF.reset)
        self.assertEqual(4, len(named))
        for name, value in named:
            self.assertEqual(value, str(cfg.CONF.ghsched[name]))
