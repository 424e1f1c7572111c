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


from unittest import mock

from ghsched_nova.features.index import headroom_report
from ghsched_nova.guest import document
from ghsched_nova.guest import metadata
from ghsched_nova.host import bandwidth_use
from ghsched_nova.host import desired
from ghsched_nova.host import uncounted_guests
from ghsched_nova.resctrl import model
from ghsched_placement.flavor import policy
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import tree
from ghsched_placement.tests import base

ROOT = '11111111-2222-4333-8444-555555555555'


def guest(*nodes, shared=False, **keys):
    parsed = policy.parse_policy({f'ghsched:{name}': value
                                  for name, value in keys.items()}, len(nodes))
    return metadata.write_policy('<domain/>', metadata.DomainPolicy(
        policy=parsed, host_nodes=nodes, shared=shared))


class LeftTest(base.TestCase):

    OFFERED = tree.build_providers(ROOT, 'h', HostDescription(
        nodes=(0, 1), numa_nodes=(0, 1), control_groups=7),
        tree.Config(reserved_bandwidth={0: 10}, allocation_ratio=1.0))

    def headroom_of(self, *guests, offered=OFFERED):
        found = headroom_report.compute_headroom(
            offered, (0, 1), [
                desired.Running(model.Domain(str(number), 1, 'x'), xml)
                for number, xml in enumerate(guests)], 'min', 5.0)
        return found and (found.guests, found.groups, found.bandwidth)

    def test_nothing_before_the_first_report(self):
        self.assertIsNone(self.headroom_of(offered=()))

    def test_a_guest_without_a_policy_is_not_parsed(self):
        self.assertEqual((0, 7, {0: 90, 1: 100}), self.headroom_of('<domain'))

    def test_an_empty_host(self):
        self.assertEqual((0, 7, {0: 90, 1: 100}),
                         self.headroom_of('', '<domain/>'))

    def test_guests_take_bandwidth_where_they_are_and_a_group_each(self):
        self.assertEqual((2, 5, {0: 60, 1: 50}), self.headroom_of(
            guest(1, mem_bw_min='20'), guest(0, 1, mem_bw_min='30')))

    def test_capacity_is_what_an_empty_host_has_free(self):
        found = headroom_report.compute_headroom(
            self.OFFERED, (0, 1), [desired.Running(
                model.Domain('a', 1, 'x'), guest(1, mem_bw_min='20'))],
            'min', 5.0)
        self.assertEqual({0: 90, 1: 80}, found.bandwidth)
        self.assertEqual({0: 90, 1: 100}, found.capacity)

    def test_a_shared_group_is_no_unit(self):
        self.assertEqual((1, 7, {0: 90, 1: 80}), self.headroom_of(
            guest(1, mem_bw_min='20', shared=True)))

    def test_a_host_without_control(self):
        offered = tree.build_providers(ROOT, 'h', HostDescription(
            numa_nodes=(0, 1)), tree.Config())
        self.assertEqual((0, 0, {0: 0, 1: 0}),
                         self.headroom_of(offered=offered))

    def test_a_guest_whose_policy_makes_no_sense_is_not_counted(self):
        xml = guest(1, mem_bw_min='20').replace('host="1"', 'host="x"')
        self.assertEqual(0, self.headroom_of(xml)[0])

    def test_xml_is_parsed_once_for_all_that_a_report_needs(self):
        running = desired.Running(model.Domain('a', 1, 'x'),
                                  guest(1, mem_bw_min='20'))
        with mock.patch.object(document, 'parse_element',
                               wraps=document.parse_element) as parse:
            for _report in range(2):
                headroom_report.compute_headroom(
                    self.OFFERED, (0, 1), [running], 'min', 5.0)
                uncounted_guests.map_policies_with_allocation([running], 'min')
                bandwidth_use.list_guests_and_policies([running])
        self.assertEqual(1, parse.call_count)
