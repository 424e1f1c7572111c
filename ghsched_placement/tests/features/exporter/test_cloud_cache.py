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

"""The cache of a cloud, against simulated answers of Nova and Placement."""

import fixtures
from osc_lib import exceptions

from ghsched_placement.features.exporter import cloud_cache
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import simulated_cloud
from ghsched_placement.tests.fixtures.simulated_cloud import flavor
from ghsched_placement.tests.fixtures.simulated_cloud import NODES

HOUR = 3600.0


class CloudCacheTestCase(base.TestCase):

    def make(self, hosts, *watched):
        self.cloud = simulated_cloud.SimulatedCloud(hosts)
        self.now = 1000.0
        self.client = cloud_cache.CloudClient(
            cloud_cache.ReadOnlyConnection(self.cloud.connection), workers=1)
        self.cache = cloud_cache.CloudCache(
            self.client, cloud_cache.CloudCacheSettings(watched),
            lambda: self.now)

    def refresh(self, seconds=0):
        self.now += seconds
        self.cache.refresh()
        return self.cache.cloud

    def used(self, name, node=0):
        host, = (one for one in self.cache.cloud.hosts if one.name == name)
        return host.nodes[node].bandwidth.used


class RefreshTest(CloudCacheTestCase):

    def test_new_allocation_is_read_with_the_next_refresh(self):
        self.make(3)
        self.refresh()
        self.cloud.use('h0001', 2, 40, 8)
        self.refresh(60)
        self.assertEqual([0, 40], [self.used('h0000', 2),
                                   self.used('h0001', 2)])

    def test_deleted_server_has_its_host_read_again(self):
        self.make(3)
        self.cloud.use('h0001', 2, 40, 8)
        self.refresh()
        self.cloud.use('h0001', 2, 0, 0, raises=False)
        self.refresh(60)
        self.assertEqual(40, self.used('h0001', 2))
        self.cloud.changed = {'h0001'}
        self.refresh(60)
        self.assertEqual(0, self.used('h0001', 2))

    def test_change_that_nobody_has_recorded_is_found_within_an_hour(self):
        self.make(3)
        self.cloud.use('h0001', 2, 40, 8)
        self.refresh()
        self.cloud.use('h0001', 2, 0, 0, raises=False)
        self.refresh(HOUR)
        self.assertEqual(0, self.used('h0001', 2))

    def test_host_that_is_gone_is_dropped(self):
        self.make(3)
        self.refresh()
        del self.cloud.trees['h0001']
        self.assertEqual(['h0000', 'h0002'], [
            host.name for host in self.refresh(60).hosts])

    def test_error_of_a_service_keeps_the_state_and_what_was_noted(self):
        self.make(3)
        self.cloud.use('h0001', 2, 40, 8)
        before = self.refresh()
        self.cloud.use('h0001', 2, 0, 0, raises=False)
        self.cloud.changed, self.cloud.broken = {'h0001'}, True
        self.assertRaises(exceptions.CommandError, self.refresh, 60)
        self.assertIs(before, self.cache.cloud)
        self.cloud.changed, self.cloud.broken = set(), False
        self.refresh(60)
        self.assertEqual(0, self.used('h0001', 2))

    def test_hosts_beyond_the_limit_of_a_refresh_wait_for_the_next(self):
        self.patch(cloud_cache, 'HOSTS_READ', 2)
        self.make(5)
        self.assertEqual([(2, 3), (4, 1), (5, 0)], [
            (len(found.hosts), found.unread) for found in (
                self.refresh(), self.refresh(5), self.refresh(5))])
        self.cloud.changed = {'h0001', 'h0003', 'h0004'}
        for name in self.cloud.changed:
            self.cloud.use(name, 0, 10, 1, raises=False)
        self.refresh(5)
        self.cloud.changed = set()
        self.refresh(5)
        self.assertEqual([10] * 3, [
            self.used(name) for name in ('h0001', 'h0003', 'h0004')])

    def test_nothing_but_get_can_be_sent(self):
        self.make(1)
        for service in (self.client.connection.placement,
                        self.client.connection.compute):
            self.assertEqual(['get'], [
                name for name in ('get', 'put', 'post', 'delete', 'patch',
                                  'request') if hasattr(service, name)])
        self.assertFalse(hasattr(self.client.connection, 'network'))


class BudgetTest(CloudCacheTestCase):
    """Requests to Placement at 1,000 simulated hosts."""

    hosts = 1000
    interval = 300
    #: Requests of each refresh, whatever the number of hosts.
    lists = 5

    def ask(self):
        """Return the requests to Placement of an hour."""
        before = self.cloud.asked['placement']
        for _time in range(int(HOUR / self.interval)):
            self.refresh(self.interval)
        return self.cloud.asked['placement'] - before

    def test_hosts_cost_a_request_an_hour_and_three_for_each_new_provider(
            self):
        self.make(self.hosts)
        refreshes = 1
        while self.refresh(5).unread:
            refreshes += 1
        self.assertEqual(self.hosts // cloud_cache.HOSTS_READ, refreshes)
        self.assertEqual(self.hosts, len(self.cache.cloud.hosts))
        budget = self.hosts + self.lists * HOUR / self.interval
        self.ask()    # the first checks are due at its end
        asked = self.ask()
        self.assertLessEqual(asked, budget)
        self.assertGreaterEqual(asked, self.hosts)
        for number in range(50):
            self.cloud.use(f'h{number:04}', 1, 30, 4)
        asked = self.ask()
        self.assertLessEqual(asked, budget + 50 * 3 * (NODES + 1))
        self.assertGreaterEqual(asked, 50 * 3 * (NODES + 1))
        self.assertEqual(30, self.used('h0049', 1))


class FlavorTest(CloudCacheTestCase):

    def room(self):
        found, = self.refresh(60).flavors
        return found.guests, found.hosts, dict(found.lacking)

    def test_guests_of_a_flavor_are_counted_over_all_hosts(self):
        self.make(3, cloud_cache.WatchedFlavor('big', 5))
        self.cloud.flavors = [flavor(**{
            'hw:numa_nodes': '1', 'ghsched:mem_bw_min': '40'})]
        # Two of 40 % on each of the four nodes.
        self.assertEqual((24, 3, {}), self.room())
        for node in range(NODES):
            self.cloud.use('h0001', node, 70, 60)
        self.cloud.down = {'h0002'}
        self.assertEqual((8, 1, {
            '% of memory bandwidth': 1, 'compute service': 1}), self.room())

    def test_changed_flavor_is_counted_again(self):
        self.make(1, cloud_cache.WatchedFlavor('big'))
        for least, guests in ((40, 8), (60, 4), (101, 0)):
            self.cloud.flavors = [flavor(**{
                'hw:numa_nodes': '1', 'ghsched:mem_bw_min': str(least)})]
            self.assertEqual(guests, self.room()[0], least)

    def test_flavor_that_does_not_exist_fits_nowhere_and_is_logged(self):
        log = self.useFixture(fixtures.FakeLogger())
        self.make(2, cloud_cache.WatchedFlavor('none'))
        self.assertEqual((0, 0, {'valid flavor': 1}), self.room())
        self.assertIn('flavor none fit in the cloud; reporting 0: Nova '
                      'has no '
                      'flavor', log.output)

    def test_names_of_flavors_may_have_an_equals_sign(self):
        for text, found in (('a', ('a', 1)), ('a=3', ('a', 3)),
                            ('a=b=30', ('a=b', 30)), ('a=b', ('a=b', 1)),
                            ('=3', ('=3', 1)), ('a=', ('a=', 1))):
            watched = cloud_cache.parse_watched_flavor(text)
            self.assertEqual(found, (watched.flavor, watched.least))
