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

"""Time for which nova-scheduler remembers that it found no host."""

import fixtures
from nova import exception
from nova import objects
from oslo_utils.fixture import uuidsentinel as uuids

from ghsched_nova.features.index.host_capacity import ReportedHost
from ghsched_nova.features.index.host_capacity import ReportedNode
from ghsched_nova.features.index.host_capacity import RequestNeed
from ghsched_nova.features.index.host_capacity import RequestNodeNeed
from ghsched_nova.features.index import indexed
from ghsched_nova.features.index import refusal_cache
from ghsched_placement.tests import base

objects.register_all()

NEED = RequestNeed((RequestNodeNeed(pinned=4),))


def spec(name='big'):
    return objects.RequestSpec(
        instance_uuid=uuids.instance,
        flavor=objects.Flavor(name=name, vcpus=4, memory_mb=1,
                              extra_specs={}))


class SignatureTest(base.TestCase):

    def test_requests_for_the_same_are_alike(self):
        def sign(memory, uuid):
            return refusal_cache.make_request_signature(objects.RequestSpec(
                instance_uuid=uuid, flavor=objects.Flavor(
                    memory_mb=memory, extra_specs={})))

        self.assertEqual(sign(1, uuids.a), sign(1, uuids.b))
        self.assertNotEqual(sign(1, uuids.a), sign(2, uuids.a))


class RefusalsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.useFixture(fixtures.MonkeyPatch(
            'time.monotonic', lambda: self.now))
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.index.nova_seams.'
            'cache_host_topologies', lambda _n: None))
        self.indexed = indexed.IndexedScheduler(None)
        self.is_current = True
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.features.index.index_feed.Feed.is_current',
            property(lambda _feed: self.is_current)))

    def refuse(self, *queries):
        """Cache a refusal of a search during which reports get old."""
        is_proven = not self.indexed.may_have_cpus_and_memory(NEED)
        self.is_current = False
        self.indexed.cache_refusal(spec(), 'full', queries, is_proven)
        self.is_current = True

    def is_remembered(self, name='big', has_candidates=None):
        try:
            self.indexed.refuse_if_cached(spec(name), NEED,
                                          has_candidates or self.fail)
        except exception.NoValidHost as error:
            self.assertEqual('full', error.kwargs['reason'])
            return True
        return False

    def report(self, pinned, updated):
        self.indexed.index.update_hosts([ReportedHost(
            'u', 'h', 'c', updated, (ReportedNode(
                0, pinned=pinned, pages={0: 1}),))], (), self.now)

    def test_refusal_by_the_reports_of_hosts_is_repeated_for_a_while(self):
        self.refuse()
        self.assertTrue(self.is_remembered())
        self.assertFalse(self.is_remembered('other'))
        self.now += refusal_cache.MAX_AGE + 1
        self.assertFalse(self.is_remembered())

    def test_refusal_by_placement_is_repeated_while_each_query_has_no_answer(
            self):
        self.report(8, 1)
        self.refuse((('resources', 'A:1'),), (('resources', 'B:1'),))
        asked = []
        self.assertTrue(self.is_remembered(has_candidates=asked.append))
        self.assertEqual([[('resources', 'A:1')], [('resources', 'B:1')]],
                         asked)
        self.assertFalse(self.is_remembered(
            has_candidates=lambda query: 'B:1' in query[0]))

    def test_refusal_that_placement_proves_in_part_is_not_repeated(self):
        self.report(8, 1)
        self.refuse((('resources', 'A:1'),), ())
        self.assertFalse(self.is_remembered())

    def test_refusal_is_dropped_when_a_host_reports_room(self):
        self.report(0, 1)
        self.refuse()
        self.report(3, 2)
        self.assertTrue(self.is_remembered())
        self.report(4, 3)
        self.assertFalse(self.is_remembered())

    def test_refusal_while_a_host_reports_room_is_not_repeated(self):
        self.report(4, 1)
        self.refuse()
        self.report(0, 2)
        self.assertFalse(self.is_remembered())

    def test_refusal_is_dropped_when_aggregates_change(self):
        self.refuse()
        self.indexed.drop_cached_refusals()
        self.assertFalse(self.is_remembered())

    def test_refusal_is_not_repeated_while_a_report_cannot_be_read(self):
        self.refuse()
        self.is_current = False
        self.assertFalse(self.is_remembered())
        self.is_current = True
        self.indexed.feed._unread.add('x')
        self.assertFalse(self.is_remembered())

    def test_refusal_is_not_repeated_when_the_lookup_fails(self):
        def fail(_query):
            raise ValueError
        self.refuse((('resources', 'A:1'),))
        self.assertFalse(self.is_remembered(has_candidates=fail))

    def select_small(self, has_other=True, free=2):
        """Select a host for a guest of 4 CPUs from an index of one host."""
        self.indexed.index.update_hosts([ReportedHost(
            uuid=uuids.host, name='host', cell='cell', updated=free,
            nodes=(ReportedNode(0, free, 0, {0: 1024}),), has_driver=True)],
            (), self.now)

        def run(_spec):
            search = self.indexed.current_search
            search.attempts += 3
            search.tried.update(view.row.uuid for view in
                                self.indexed.index.propose_hosts(
                                    search.need, lambda _row: True,
                                    search.tried, self.now))
            raise exception.NoValidHost(reason='none')
        return self.indexed.select_hosts(spec(), [uuids.instance], NEED, run,
                                         has_other)

    def test_index_without_room_says_so_if_there_is_another_way(self):
        self.assertRaises(indexed.NoHostFits, self.select_small)
        self.assertIsNone(self.select_small(has_other=False))

    def test_index_with_a_host_with_room_proves_nothing(self):
        self.assertIsNone(self.select_small(free=4))

    def test_index_with_an_old_look_proves_nothing(self):
        self.is_current = False
        self.assertIsNone(self.select_small())
