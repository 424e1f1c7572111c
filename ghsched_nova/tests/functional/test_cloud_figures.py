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

"""The cache of a cloud, against a real Placement and Nova's API."""

from ghsched_nova.tests.functional import openstack_base
from ghsched_placement.features.exporter import cloud_cache
from ghsched_placement.features.flavor_check import flavor_check as flavors


class CloudFiguresTest(openstack_base.CommandTestCase):

    def setUp(self):
        super().setUp()
        for name in ('host_a', 'host_b'):
            self.start_host(name)
        # Two of 40 % fit on each NUMA node.
        self.wanted = self.flavor(vcpus=1, mem_bw_min=40)
        name = self.api.get_flavor(self.wanted)['name']
        reading = cloud_cache.ReadOnlyConnection(self.connection())
        self.now = 1000.0
        self.cache = cloud_cache.CloudCache(
            cloud_cache.CloudClient(reading, workers=1),
            cloud_cache.CloudCacheSettings((cloud_cache.WatchedFlavor(name),)),
            lambda: self.now)

    def count(self):
        """Return the guests that still fit, after a refresh."""
        self.now += 1
        self.cache.refresh()
        return self.cache.cloud.flavors[0].guests

    def test_count_follows_servers_that_come_and_go(self):
        checked = sum(row['Guests That Fit'] for row in self.json_of(
            flavors.CheckFlavor, self.wanted))
        self.assertEqual(checked, self.count())
        server = self.boot(self.wanted)
        self.assertEqual(checked - 1, self.count())
        self._delete_server(server)
        self.assertEqual(checked, self.count())
