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

"""How long nova-scheduler remembers that it found no host."""

from dataclasses import replace

import fixtures
from nova import exception
from nova import objects
from oslo_utils.fixture import uuidsentinel as uuids

from ghsched_nova.scheduler.host_index import Need
from ghsched_nova.scheduler.host_index import NodeNeed
from ghsched_nova.scheduler.host_index import NodeRoom
from ghsched_nova.scheduler.host_index import Row
from ghsched_nova.scheduler import indexed
from ghsched_placement.tests import base

NEED = Need((NodeNeed(pinned=4),))


def spec(name='big'):
    return objects.RequestSpec(
        instance_uuid=uuids.instance,
        flavor=objects.Flavor(name=name, memory_mb=1, extra_specs={}))


class RefusalsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.useFixture(fixtures.MonkeyPatch(
            'time.monotonic', lambda: self.now))
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_nova.compat.cache_host_topologies', lambda _n: None))
        self.indexed = indexed.IndexedScheduler(None)

    def refuse(self, took=0.0, need=NEED):
        self.indexed.refused(spec(), need, self.indexed.index.gains, took,
                             'full')

    def is_remembered(self, name='big'):
        try:
            self.indexed.check(spec(name), NEED)
        except exception.NoValidHost as error:
            self.assertEqual('full', error.kwargs['reason'])
            return True
        return False

    def test_the_same_is_refused_again_for_a_while(self):
        self.refuse()
        self.assertTrue(self.is_remembered())
        self.assertFalse(self.is_remembered('other'))
        self.now += indexed.REFUSAL_AGE[0] + 1
        self.assertFalse(self.is_remembered())

    def test_hosts_may_offer_more_bursts_without_a_report(self):
        self.refuse(need=replace(NEED, unreported=True))
        self.assertFalse(self.is_remembered())

    def test_a_search_that_took_long_is_not_soon_repeated(self):
        self.refuse(took=2.0)
        self.now += 2 * indexed.REFUSAL_TIMES - 1
        self.assertTrue(self.is_remembered())
        self.now += 2
        self.assertFalse(self.is_remembered())

    def test_no_refusal_is_remembered_for_long(self):
        self.refuse(took=1000.0)
        self.now += indexed.REFUSAL_AGE[1] + 1
        self.assertFalse(self.is_remembered())

    def test_a_host_that_has_got_room_ends_it(self):
        def report(pinned, updated):
            self.indexed.index.report([Row(
                'u', 'h', 'c', updated, (NodeRoom(
                    0, cpus=8, pinned=pinned, pages={0: 1}),))], (), self.now)
        report(0, 1)
        self.refuse()
        report(3, 2)
        self.assertTrue(self.is_remembered())
        report(4, 3)
        self.assertFalse(self.is_remembered())

    def test_aggregates_that_change_end_it(self):
        self.refuse()
        self.indexed.forget_refusals()
        self.assertFalse(self.is_remembered())
