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

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.host import uncounted_guests
from ghsched_nova.resctrl import model
from ghsched_placement.flavor.policy import parse_policy
from ghsched_placement.providers import names
from ghsched_placement.tests import base

HOST = '0b1f6f0e-35f5-4c4b-9f38-1c6f2f3f8d55'
SHARES = st.integers(1, 100)


def guest(share, node=0, shared=False):
    return metadata.DomainPolicy(
        parse_policy({'ghsched:mem_bw_min': str(share)}, 1),
        (node,), shared)


def make_allocations(share, node=0, groups=1):
    found = {names.make_numa_provider_uuid(HOST, node): {
        'resources': {names.MEM_BW_PCT: share}}}
    if groups:
        found[HOST] = {'resources': {names.RESCTRL_GROUP: groups}}
    return found


class OfRunningTest(base.TestCase):

    def list_policies(self, xml):
        return uncounted_guests.map_policies_with_allocation([
            desired.Running(model.Domain('a', 1, 'x'), xml)], 'min')

    def test_guests_with_a_policy_alone_are_parsed(self):
        self.assertEqual({}, self.list_policies('<domain'))
        self.assertEqual({'a': guest(60)}, self.list_policies(
            metadata.write_policy('<domain/>', guest(60))))

    def test_a_policy_that_cannot_be_read_is_left_out(self):
        xml = metadata.write_policy('<domain/>', guest(60))
        self.assertEqual({}, self.list_policies(
            xml.replace('host="0"', 'host="x"')))


class UncountedTest(base.TestCase):

    def uncounted(self, guests, holdings):
        return uncounted_guests.find_unallocated_guests(guests, holdings, HOST,
                                                        'min')

    @given(SHARES, st.integers(0, 3))
    def test_a_guest_that_is_counted(self, share, node):
        self.assertEqual({}, self.uncounted(
            {'a': guest(share, node)}, {'a': make_allocations(share, node)}))

    @given(SHARES, SHARES)
    def test_any_other_share_is_not_its_own(self, share, other):
        found = self.uncounted(
            {'a': guest(share), 'b': guest(share)},
            {'a': make_allocations(other), 'b': make_allocations(share)})
        self.assertEqual(set() if share == other else {'a'}, set(found))

    def test_nothing_at_all(self):
        found = self.uncounted({'a': guest(60)}, {})
        self.assertIn('0 % memory bandwidth for it instead of 60 %',
                      found['a'])

    def test_no_control_group_unless_it_shares_one(self):
        holdings = {'a': make_allocations(60, groups=0)}
        self.assertIn('control group', self.uncounted(
            {'a': guest(60)}, holdings)['a'])
        self.assertEqual({}, self.uncounted({'a': guest(60, shared=True)},
                                            holdings))

    def test_resources_of_its_migration_are_counted(self):
        self.assertEqual({}, self.uncounted(
            {'a': guest(60)}, {'the migration': make_allocations(60)}))
        # What another guest holds is not.
        self.assertEqual({'a'}, set(self.uncounted(
            {'a': guest(60), 'b': guest(60)}, {'b': make_allocations(60)})))


class LogUnallocatedTest(base.TestCase):
    """Listing the domains again takes as many questions as there are guests.
    """

    def setUp(self):
        super().setUp()
        self.listed = 0

    def log_guests(self, held, present):
        def list_present():
            self.listed += 1
            return present

        xml = metadata.write_policy('<domain/>', guest(60))
        return uncounted_guests.log_unallocated_guests(
            [desired.Running(model.Domain('a', 7, 'x'), xml)], HOST, 'min',
            held, list_present)

    def test_domains_are_listed_only_if_an_allocation_is_missing(self):
        self.assertEqual({}, self.log_guests({'a': make_allocations(60)}, ()))
        self.assertEqual(0, self.listed)

    def test_guest_that_has_ended_meanwhile_needs_no_allocation(self):
        for present, found in (([('a', 7)], ['a']), ([('a', 8)], []), ([], []),
                               ([('b', 7)], [])):
            self.assertEqual(found, list(self.log_guests({}, present)))
        self.assertEqual(4, self.listed)
