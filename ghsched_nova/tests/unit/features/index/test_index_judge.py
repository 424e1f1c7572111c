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

"""The number of guest NUMA nodes that the index finds, against an exact judge.

tests/fixtures/numa_judge.py has the judge and its environment variables.
"""

import collections
import datetime
import itertools
import json
import time

import fixtures

from ghsched_nova.features.index import index_feed
from ghsched_nova.features.index import index_search
from ghsched_nova.features.index import indexed
from ghsched_nova.tests.fixtures import numa_judge


class IndexedCloud(numa_judge.Cloud):
    """Hosts with real records, and a scheduler with an index of them.

    :ivar ways: how often hosts were selected, by the way of the search.
    """

    def __init__(self, chance, hosts, tenths):
        super().__init__(chance, hosts, tenths)
        self.indexed = indexed.IndexedScheduler(None)
        self.ways = collections.Counter()
        self._reports = itertools.count()
        for place in range(len(hosts)):
            self._report(place)

    def _report(self, place):
        """Store a host's record in the index, as nova-compute writes it."""
        state = self._states[place]
        report = {
            'uuid': state.uuid, 'host': state.host,
            'updated_at': datetime.datetime.fromtimestamp(
                next(self._reports), datetime.UTC),
            'stats': json.dumps({}), 'pci_stats': None,
            'numa_topology': state.numa_topology._to_json(),
            'cpu_allocation_ratio': self._ratio, 'ram_allocation_ratio': 1.0,
            'vcpus': 1024, 'vcpus_used': 0, 'memory_mb': 2 ** 30,
            'memory_mb_used': 0}
        self.indexed.index.update_hosts(
            [index_feed.parse_compute_node('cell', report)], (),
            time.monotonic())

    def _count(self, place, claimed, free):
        super()._count(place, claimed, free)
        self._report(place)

    def _run(self, spec, has_other):
        need = index_search.compute_request_need(
            spec, [spec.instance_uuid], 'min')
        found = self.indexed.select_hosts(
            spec, [spec.instance_uuid], need, self._run_by_index, has_other)
        if found is not None:
            self.ways['index'] += 1
            return found
        self.ways['whole'] += 1
        return self._filter(self._states, spec)

    def _run_by_index(self, spec):
        """Select a host among those that the index proposes."""
        search = self.indexed.current_search
        search.attempts += index_search.BATCH
        proposed = {view.row.uuid for view in self.indexed.index.propose_hosts(
            search.need, lambda row: True, search.tried, time.monotonic())}
        chosen = [state for state in self._states if state.uuid in proposed]
        self._chance.shuffle(chosen)
        search.states = {state.uuid: state
                         for state in chosen[:index_search.BATCH]}
        search.tried.update(search.states)
        return self._filter(list(search.states.values()), spec)


class IndexJudgeTest(numa_judge.JudgeTestCase):

    def setUp(self):
        super().setUp()
        for name, stand_in in (
                ('nova_seams.cache_host_topologies', lambda _number: None),
                ('index_feed.Feed.is_current', True)):
            self.useFixture(fixtures.MonkeyPatch(
                f'ghsched_nova.features.index.{name}', stand_in))

    def test_requests_in_random_clouds_get_the_fewest_nodes_that_fit(self):
        ways = collections.Counter()
        for cloud in self.check_requests(IndexedCloud):
            ways.update(cloud.ways)
        self.assertEqual({'index', 'whole'}, set(ways))
        self.assertGreater(min(ways.values()), 1, ways)
