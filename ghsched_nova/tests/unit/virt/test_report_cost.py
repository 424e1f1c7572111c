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

"""Work of a report that grows with the number of guests, by counting it."""

import copy
import types
from unittest import mock

import ddt
from nova.objects import resource

from ghsched_nova.guest import cells
from ghsched_nova.guest import document
from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.nova_seams import compute
from ghsched_nova.virt import libvirt_reader
from ghsched_nova.virt import providers
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

POLICY = metadata.DomainPolicy(
    GuestPolicy(nodes=(NodePolicy(minimum=10),)), (0,))
XML = metadata.write_policy('<domain><vcpu>2</vcpu></domain>', POLICY)


def make_guest(number, xml=XML):
    return types.SimpleNamespace(uuid=f'u{number}', id=number,
                                 name=f'i{number}', get_xml_desc=lambda: xml)


@ddt.ddt
class ReadGuestsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.host = mock.Mock()
        self.reader = libvirt_reader.GuestReader(self.host)
        self.parsed = self.enterContext(mock.patch.object(
            document, 'parse_element', wraps=document.parse_element))
        self.cells = self.enterContext(mock.patch.object(
            cells, 'parse_cells', wraps=cells.parse_cells))
        self.threads = self.enterContext(mock.patch.object(
            compute.utils, 'tpool_wrap',
            side_effect=lambda function: function))

    def read(self, guests):
        """Read guests as a report does, and use each policy three times."""
        self.host.list_guests.return_value = guests
        found = self.reader.list_running()
        for _number in range(3):
            desired.map_shared_groups(found)
            self.assertEqual([POLICY] * len(found),
                             [one.policy for one in found])
            self.assertTrue(all(one.cells for one in found))
        return found

    @ddt.data(1, 10, 60)
    def test_unchanged_guests_are_parsed_once_in_all_reports(self, count):
        guests = [make_guest(number) for number in range(count)]
        self.read(guests)
        self.assertEqual(count, self.parsed.call_count)
        self.read(guests)
        self.read(guests)
        self.assertEqual(count, self.parsed.call_count)
        self.assertEqual(count, self.cells.call_count)

    @ddt.data(1, 10, 60)
    def test_report_changes_to_a_native_thread_once_for_all_guests(self,
                                                                   count):
        self.read([make_guest(number) for number in range(count)])
        self.assertEqual(1, self.threads.call_count)

    def test_only_a_guest_with_other_xml_or_id_is_parsed_again(self):
        self.read([make_guest(number) for number in range(3)])
        self.parsed.reset_mock()
        restarted = make_guest(1)
        restarted.id = 7
        changed = make_guest(2, XML.replace('<vcpu>2', '<vcpu>4'))
        found = self.read([make_guest(0), restarted, changed])
        self.assertEqual(2, self.parsed.call_count)
        self.assertEqual([0, 7, 2], [one.domain.id for one in found])
        self.assertIn('<vcpu>4', found[2].xml)

    def test_running_guests_are_not_read_again_with_all_guests(self):
        guests = [make_guest(number) for number in range(3)]
        running = self.read(guests[1:2])
        guests[1].get_xml_desc = self.fail
        self.host.list_guests.return_value = guests
        found = self.reader.list_all(running)
        self.assertEqual(['u1', 'u0', 'u2'],
                         [one.domain.uuid for one in found])

    @ddt.data(1, 10, 60)
    def test_running_domains_are_listed_in_one_native_thread(self, count):
        self.host.list_guests.return_value = [
            make_guest(number) for number in range(count)]
        found = self.reader.list_running_ids()
        self.assertEqual({(f'u{number}', number) for number in range(count)},
                         found)
        self.host.list_guests.assert_called_once_with(only_running=True)
        self.assertEqual(1, self.threads.call_count)

    def test_nova_without_native_threads_calls_at_once(self):
        with mock.patch.object(compute, 'utils', types.SimpleNamespace()):
            self.assertEqual(1, len(self.read([make_guest(0)])))
        self.assertEqual(0, self.threads.call_count)


class AllocationsTest(base.TestCase):

    def test_allocations_that_nova_has_read_are_taken_once(self):
        client = mock.Mock()
        read = client.get_allocations_for_provider_tree
        read.return_value = {'guest': {
            'allocations': {'provider': {'resources': {'A': 1}}},
            'project_id': 'p'}}
        kept = compute.AllocationKeepingClient(client)
        self.assertIs(client.get_usages, kept.get_usages)
        self.assertEqual(read.return_value,
                         kept.get_allocations_for_provider_tree('c', 'host'))
        read.assert_called_once_with('c', 'host')
        self.assertIsNone(compute.take_tree_allocations('other'))
        self.assertEqual({'guest': {'provider': {'resources': {'A': 1}}}},
                         compute.take_tree_allocations('host'))
        self.assertIsNone(compute.take_tree_allocations('host'))


class ResourceSetTest(base.TestCase):

    def test_copy_of_a_provider_shares_the_resource_objects(self):
        one = resource.Resource(provider_uuid='p', resource_class='c',
                                identifier='i')
        found = copy.deepcopy({'c': providers.ResourceSet({one})})['c']
        self.assertEqual({one}, found)
        self.assertIs(one, next(iter(found)))
        found.clear()
        self.assertEqual(0, len(found))
