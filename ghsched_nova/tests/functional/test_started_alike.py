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

"""Programs of Nova and those of ghsched set up the same but for what is ours.

Both are started with one nova.conf that sets every option that Nova has read
by then to another value than its default, as far as its type names one.
"""

import json
import os
from pathlib import Path
import re
import subprocess
import sys

import ddt
import fixtures

from ghsched_placement.tests import base

TOP = Path(__file__).parents[3]
PROBE = Path(__file__).parent / 'start_probe.py'

OURS = 'ghsched.GhschedLibvirtDriver'
STOCK = 'libvirt.LibvirtDriver'

#: Values that a start needs.
NEEDED = {
    'DEFAULT.transport_url': 'fake:/', 'DEFAULT.host': 'here',
    'DEFAULT.servicegroup_driver': 'db',
    'cache.expiration_time': '60', 'cache.backend_expiration_time': '70',
    'api_database.connection': 'sqlite://',
    'database.connection': 'sqlite://',
    # Python has no module for the journal here, and no syslog is there.
    'DEFAULT.use_journal': 'false', 'DEFAULT.use_syslog': 'false',
    'DEFAULT.rpc_response_timeout': '1',
    'filter_scheduler.available_filters':
        'nova.scheduler.filters.all_filters\navailable_filters = '
        'ghsched_nova.scheduler.filters.GhschedNUMATopologyFilter',
    'filter_scheduler.enabled_filters':
        'ComputeFilter,GhschedNUMATopologyFilter'}
#: Options with which no program starts here, or which are not of one process.
LEFT = frozenset((
    'DEFAULT.compute_driver', 'DEFAULT.config_file', 'DEFAULT.config_dir',
    'DEFAULT.config_source', 'DEFAULT.log_config_append',
    # Needs a key.
    'keystone_authtoken.memcache_security_strategy'))

#: Lines of the log: number of the process, level, logger and text.
LINE = re.compile(r'\S+ \S+ \d+ ([A-Z]+) (\S+) \[[^]]*\] (.*)')


def change_value(option):
    """Return another value of an option than its default; None for a text."""
    kind, default = option['type'], option['default']
    if option['multi']:
        return None
    if kind == 'Boolean':
        return 'false' if default == 'True' else 'true'
    if kind in ('Integer', 'Float', 'Port'):
        number = 7.0 if default == 'None' else float(default) + 13
        if option['max'] is not None and number > option['max']:
            number = max(option['min'] or 0, option['max'] - 1)
        return str(number if kind == 'Float' else int(number))
    others = [one for one in option['choices']
              if one not in ('None', '') and repr(one) != default]
    return others[0] if others else None


class Start:
    """Directory with the configuration of one program, and its report."""

    def __init__(self, test):
        self.home = Path(test.useFixture(fixtures.TempDir()).path)
        self.report = self.home / 'report.json'
        self.log = self.home / 'nova.log'

    def write(self, values):
        sections = {}
        for name, value in values.items():
            group, _, option = name.rpartition('.')
            sections.setdefault(group, []).append(f'{option} = {value}\n')
        (self.home / 'nova.conf').write_text(''.join(
            f'[{group}]\n{"".join(lines)}'
            for group, lines in sections.items()))

    def run(self, entry, program, **environment):
        """Start a program until it serves, and return what it has set up."""
        self.log.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', PROBE, self.report, entry,
             f'/usr/bin/{program}',
             *(['--config-file', self.home / 'nova.conf',
                '--log-file', self.log] if 'api' not in program else [])],
            env={**os.environ, 'HOME': str(self.home),
                 'PYTHONPATH': str(TOP), **environment},
            capture_output=True, text=True, check=False,
            timeout=base.GIVE_UP_S)
        if done.returncode:
            raise AssertionError(
                done.stdout[-3000:] + done.stderr[-3000:]
                + (self.log.read_text()[-3000:] if self.log.exists() else ''))
        return {**json.loads(self.report.read_text()),
                'log': self.read_log()}

    def read_log(self):
        """Return level, logger and text of what Nova and oslo have logged.

        The line with the name of the driver is left out.
        """
        lines = filter(None, map(LINE.match,
                                 self.log.read_text().splitlines()))
        return sorted({line.groups() for line in lines
                       if line[1] != 'DEBUG'
                       and not line[2].startswith('ghsched')
                       and 'Loading compute driver' not in line[3]})


@ddt.ddt
class StartedAlikeTest(base.TestCase):

    maxDiff = None

    #: Module, program and driver of Nova's, and of ours.
    PROGRAMS = (
        ('nova.cmd.compute', 'nova-compute', STOCK,
         'ghsched_nova.cmd.compute', 'ghsched-nova-compute', OURS),
        ('nova.cmd.scheduler', 'nova-scheduler', STOCK,
         'ghsched_nova.cmd.scheduler', 'ghsched-nova-scheduler', STOCK))

    def assert_same(self, novas, ours):
        for report in (novas, ours):
            for option in report['options'].values():
                del option['read']
        # Options that only ours reads come from modules of Nova.
        self.assertEqual({}, {
            name: (option, ours['options'].get(name))
            for name, option in novas['options'].items()
            if option != ours['options'].get(name)})
        for part in sorted(novas):
            if part != 'options':
                self.assertEqual(novas[part], ours[part], part)

    @ddt.data(*PROGRAMS)
    @ddt.unpack
    def test_program_with_every_option_changed_sets_up_what_novas_does(
            self, entry, program, driver, our_entry, our_program, our_driver):
        start = Start(self)
        needed = {**NEEDED, 'DEFAULT.compute_driver': driver}
        start.write(needed)
        plain = start.run(entry, program)
        changed = {name: value for name, option in plain['options'].items()
                   if option['read'] and name not in {*NEEDED, *LEFT}
                   and (value := change_value(option)) is not None}
        start.write({**changed, **needed})
        novas = start.run(entry, program)
        differ = [name for name in changed if
                  plain['options'][name]['value']
                  != novas['options'][name]['value']]
        self.assertGreater(len(differ), 30)
        self.assertNotEqual(plain['tasks'], novas['tasks'])
        start.write({**changed, **needed,
                     'DEFAULT.compute_driver': our_driver})
        ours = start.run(our_entry, our_program)
        for report in (novas, ours):
            report['options'].pop('DEFAULT.compute_driver', None)
        self.assert_same(novas, ours)

    def test_api_with_our_filter_sets_up_what_novas_does(self):
        start = Start(self)
        paste = Path(sys.prefix, 'etc/nova/api-paste.ini').read_text()
        needed = {**NEEDED, 'DEFAULT.log_file': str(start.log)}
        reports = []
        plain = self.start_api(start, needed, paste)
        changed = {name: value for name, option in plain['options'].items()
                   if option['read'] and name not in {*NEEDED, *LEFT}
                   and (value := change_value(option)) is not None}
        self.assertGreater(len(changed), 30)
        ours = paste.replace(
            ' keystonecontext ', ' keystonecontext ghsched ') + (
            '\n[filter:ghsched]\npaste.filter_factory = '
            'ghsched_nova.api.server_filter:filter_factory\n')
        self.assertNotEqual(paste, ours)
        for text in (paste, ours):
            reports.append(self.start_api(start, {**changed, **needed}, text))
        self.assert_same(*reports)

    def start_api(self, start, values, paste):
        start.write(values)
        (start.home / 'api-paste.ini').write_text(paste)
        return start.run('--api', 'nova-api',
                         OS_NOVA_CONFIG_DIR=str(start.home))
