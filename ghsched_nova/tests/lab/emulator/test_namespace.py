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

import io
from pathlib import Path
from unittest import mock

import fixtures

from ghsched_nova.lab.emulator import machines
from ghsched_nova.lab.emulator import namespace
from ghsched_placement.tests import base


class MigrationConfTest(base.TestCase):
    def test_guests_are_received_at_an_address_and_ports(self):
        self.assertEqual([
            'migration_address = "127.0.1.2"',
            'migration_host = "127.0.1.2"',
            'migration_port_min = 18060',
            'migration_port_max = 18079',
        ], namespace.migration_conf('127.0.1.2:18060-18079').splitlines())

    def test_anything_but_ports_is_refused(self):
        self.assertRaises(ValueError, namespace.migration_conf,
                          '127.0.1.2:some-more')


class ProcTest(base.TestCase):
    def test_proc_has_the_file_system_and_flags_of_the_processor(self):
        state = Path(self.useFixture(fixtures.TempDir()).path)
        flags = 'flags\t\t: fpu\n'
        for dialect, found in (('intel', 'fpu rdt_a cat_l3'),
                               ('mpam', 'fpu\n')):
            with mock.patch('builtins.open', wraps=open) as opened:
                opened.side_effect = lambda path, *mode: (
                    io.StringIO(flags) if path == '/proc/cpuinfo'
                    else mock.DEFAULT)
                namespace.write_proc(machines.build(dialect, '0=0'), state)
            self.assertIn(found, (state / 'proc/cpuinfo').read_text())
            self.assertIn('nodev\tresctrl\n',
                          (state / 'proc/filesystems').read_text())
