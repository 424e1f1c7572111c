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

from dataclasses import replace

import fixtures
from nova import exception
from nova import objects
from oslo_utils.fixture import uuidsentinel as uuids

from ghsched_nova.scheduler.host_capacity import HostReport
from ghsched_nova.scheduler.host_capacity import Need
from ghsched_nova.scheduler.host_capacity import NodeCapacity
from ghsched_nova.scheduler.host_capacity import NodeNeed
from ghsched_nova.scheduler import indexed
from ghsched_nova.scheduler import refusal_cache
from ghsched_placement.tests import base

objects.register_all()

NEED = Need((NodeNeed(pinned=4),))


def spec(name='big'):
    return objects.RequestSpec(
        instance_uuid=uuids.instance,
        flavor=objects.Flavor(name=name, vcpus=4, memory_mb=1,
                              extra_specs={}))


class RefusalsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.useFixture(fixtures.MonkeyPatch(
            'time.monotonic', lambda: self.now))
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.nova_seams.scheduler_hosts.'
            'cache_host_topologies', lambda _n: None))
        self.indexed = indexed.IndexedScheduler(None)
        self.is_current = True
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.scheduler.index_feed.Feed.is_current',
            property(lambda _feed: self.is_current)))

    def refuse(self, took=0.0, need=NEED):
        self.indexed.cache_refusal(spec(), need, self.indexed.index.gains,
                                   took, 'full')

    def is_remembered(self, name='big'):
        try:
            self.indexed.refuse_if_cached(spec(name), NEED)
        except exception.NoValidHost as error:
            self.assertEqual('full', error.kwargs['reason'])
            return True
        return False

    def test_refusal_of_an_equal_request_is_repeated_for_a_while(self):
        self.refuse()
        self.assertTrue(self.is_remembered())
        self.assertFalse(self.is_remembered('other'))
        self.now += refusal_cache.AGE[0] + 1
        self.assertFalse(self.is_remembered())

    def test_refusal_of_a_guest_with_bursts_is_not_repeated(self):
        self.refuse(need=replace(NEED, needs_bursts=True))
        self.assertFalse(self.is_remembered())

    def test_refusal_of_a_long_search_is_repeated_for_longer(self):
        self.refuse(took=2.0)
        self.now += 2 * refusal_cache.SEARCH_TIMES - 1
        self.assertTrue(self.is_remembered())
        self.now += 2
        self.assertFalse(self.is_remembered())

    def test_refusal_is_dropped_after_the_maximum_age(self):
        self.refuse(took=1000.0)
        self.now += refusal_cache.AGE[1] + 1
        self.assertFalse(self.is_remembered())

    def test_refusal_is_dropped_when_a_host_has_gained_room(self):
        def report(pinned, updated):
            self.indexed.index.update_hosts([HostReport(
                'u', 'h', 'c', updated, (NodeCapacity(
                    0, cpus=8, pinned=pinned, pages={0: 1}),))], (), self.now)
        report(0, 1)
        self.refuse()
        report(3, 2)
        self.assertTrue(self.is_remembered())
        report(4, 3)
        self.assertFalse(self.is_remembered())

    def test_refusal_is_dropped_when_aggregates_change(self):
        self.refuse()
        self.indexed.drop_cached_refusals()
        self.assertFalse(self.is_remembered())

    def test_refusal_is_not_repeated_while_a_cell_does_not_answer(self):
        self.refuse()
        self.is_current = False
        self.assertFalse(self.is_remembered())

    def test_refusal_is_not_repeated_when_the_lookup_fails(self):
        self.refuse()
        self.useFixture(fixtures.MockPatchObject(
            self.indexed.index, 'may_fit_since', side_effect=ValueError))
        self.assertFalse(self.is_remembered())

    def select_small(self, has_other=True, free=2):
        """Select a host for a guest of 4 CPUs from an index of one host."""
        self.indexed.index.update_hosts([HostReport(
            uuid=uuids.host, name='host', cell='cell', updated=free,
            nodes=(NodeCapacity(0, 8, free, 0, {0: 1024}),), has_driver=True)],
            (), self.now)

        def run(_spec):
            search = self.indexed.current_search
            search.attempts += 3
            search.tried.update(view.row.uuid for view in
                                self.indexed.index.propose_hosts(
                                    search.need, lambda _row: True,
                                    search.tried, self.now))
            raise exception.NoValidHost(reason='none')
        return self.indexed.select_hosts(spec(), NEED, run, has_other)

    def test_index_without_room_says_so_if_there_is_another_way(self):
        self.assertRaises(indexed.NoHostFits, self.select_small)
        self.assertIsNone(self.select_small(has_other=False))

    def test_index_with_a_host_with_room_proves_nothing(self):
        self.assertIsNone(self.select_small(free=4))

    def test_index_with_an_old_look_or_a_refused_host_proves_nothing(self):
        self.is_current = False
        self.assertIsNone(self.select_small())
        self.is_current = True
        self.indexed.index.add_refusals([uuids.host], NEED, self.now)
        self.assertIsNone(self.select_small())
