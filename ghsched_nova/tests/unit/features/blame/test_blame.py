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


from ghsched_nova.cmd import domains
from ghsched_nova.cmd import host
from ghsched_nova.features.blame import blame
from ghsched_nova.host import desired
from ghsched_nova.resctrl import model
from ghsched_nova.tests.fixtures import malformed_guests
from ghsched_placement.features.blame import blame as evidence
from ghsched_placement.features.blame import blame_report
from ghsched_placement.tests import base

XML = """<domain><metadata><nova:instance
xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1"><nova:name>{}
</nova:name></nova:instance></metadata></domain>"""


def running(number, server):
    return desired.Running(
        model.Domain(f'uuid-{number}', number, f'instance-{number}'),
        XML.format(server))


class FindServerTest(base.TestCase):

    guests = (running(1, 'web'), running(2, 'db'), running(3, 'db'))

    def test_server_is_found_by_uuid_and_both_names(self):
        for name in ('uuid-1', 'instance-1', 'web'):
            self.assertEqual('uuid-1',
                             blame.find_running_guest(self.guests, name))

    def test_server_is_found_if_xml_of_another_is_malformed(self):
        for bad in range(len(malformed_guests.BAD)):
            self.assertEqual('uuid2', blame.find_running_guest(
                malformed_guests.list_guests(bad), 'guest2'))

    def test_server_with_an_unclear_name_is_refused(self):
        for name, number in (('db', '2'), ('x', 'no')):
            error = self.assertRaises(
                domains.HostError, blame.find_running_guest, self.guests, name)
            self.assertIn(f'{number} running guests', str(error))


class OutputTest(base.TestCase):

    def test_options_are_those_of_the_manual(self):
        arguments = host.make_parser().parse_args(
            ['blame', 'web', '--prove', '--format', 'json'])
        self.assertEqual(('web', True, 'json'), (
            arguments.server, arguments.prove, arguments.format))

    def test_text_has_the_table_and_the_verdict(self):
        shown = blame_report.make_report(
            's', 'host_a', (0,), evidence.BlameEvidence(
                evidence.BlameVerdict(evidence.VerdictKind.GUEST, 'x'),
                (evidence.Suspect('x', 1.0),)),
            {'x': blame_report.GuestName('noisy')}, False)
        text = blame.format_blame_report(shown)
        self.assertIn('| noisy', text)
        self.assertIn('noisy probably disturbs s', text)
        self.assertNotIn('|', blame.format_blame_report(
            {**shown, 'suspects': []}))
