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

import sys

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.tests import base
from tempest_plugin.services import host_client


def client(script: str) -> host_client.HostClient:
    """A client whose host answers every command with a Python script."""
    return host_client.HostClient(f'{sys.executable} -c "{script}"')


class HostClientTest(base.TestCase):

    def test_command_goes_behind_the_prefix(self):
        host = client('import sys; print(sys.argv[1:])')
        self.assertEqual("['ls', 'a b']\n", host.run_command('ls', 'a b'))

    def test_failure_says_what_the_host_said(self):
        host = client("import sys; sys.exit('no such domain')")
        error = self.assertRaises(
            host_client.HostCommandFailed, host.run_command, 'virsh', 'dumpxml'
        )
        self.assertIn('virsh dumpxml', str(error))
        self.assertIn('no such domain', str(error))

    def test_missing_prefix_command_is_a_failure_too(self):
        host = host_client.HostClient('no-such-command-here')
        self.assertRaises(
            host_client.HostCommandFailed, host.run_command, 'true')

    def test_group_that_holds_all_threads(self):
        host = client(
            "print('/r/a/tasks:11'); print('/r/b/tasks:12'); "
            "print('/r/b/tasks:13')")
        self.assertEqual(
            '/r/b', host.find_group_of_threads(frozenset((12, 13))))
        self.assertRaises(
            LookupError, host.find_group_of_threads, frozenset((11, 12)))

    def test_domain_xml(self):
        host = client("print('<domain><name>x</name></domain>')")
        self.assertEqual('x', host.read_domain_xml('x').findtext('name'))

    def test_vcpu_threads(self):
        host = client(r"print('{\"return\": [{\"thread-id\": 7}]}')")
        self.assertEqual(frozenset((7,)), host.read_vcpu_threads('x'))

    def test_pci_device(self):
        host = client(r"print('0x8086\n0x10ca\n1\n0000:41:00.0\n-')")
        self.assertEqual(
            host_client.HostDevice('8086:10ca', 1, '0000:41:00.0', None),
            host.read_pci_device('0000:41:10.0'))


class SchemataTest(base.TestCase):

    def test_resources_are_distinguished_by_the_whole_name(self):
        text = '    MB:0=100;1=80\n MBPRI:0=3;1=7\nL3:0=ff\n'
        self.assertEqual(
            {'MB': {0: '100', 1: '80'}, 'MBPRI': {0: '3', 1: '7'},
             'L3': {0: 'ff'}},
            host_client.parse_schemata(text))

    @given(st.dictionaries(
        st.text('ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789', min_size=1),
        st.dictionaries(st.integers(0, 99),
                        st.integers(0, 100).map(str), min_size=1)))
    def test_every_value_is_found_again(self, wanted):
        text = ''.join(
            f'{resource}:' + ';'.join(
                f'{number}={value}' for number, value in values.items())
            + '\n' for resource, values in wanted.items())
        self.assertEqual(wanted, host_client.parse_schemata(text))
