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

"""CPUs of few L3 caches through the life of a server."""

from pathlib import Path

import fixtures
from lxml import etree

from ghsched_nova.guest import thread_pins
from ghsched_nova.tests.functional import test_every_key
from ghsched_nova.tests.functional import test_lifecycle
from ghsched_nova.tests.functional import test_moves
from ghsched_placement.base import cpulist

FLAVOR = {'hw:numa_nodes': '1', 'hw:cpu_policy': 'dedicated',
          'ghsched:cpu_cache': 'require'}
SHARED = {'hw:numa_nodes': '1', 'ghsched:cpu_cache': 'require'}
#: L3 caches of both NUMA nodes. Guests may have the CPUs 3-5 and 9-11.
CACHES = ('0-3', '4-5', '6-9', '10-11')
#: L3 caches for guests on shared CPUs, which are 0-2 and 6-8.
SMALL_CACHES = ('0', '1', '2-5', '6', '7', '8-11')


class CacheTestCase(test_every_key.AllCapabilitiesTestCase):

    CACHES: tuple[str, ...] = CACHES

    def setUp(self):
        super().setUp()
        self.write_caches()
        self._run_periodics()
        self.start((0, 2), (1, 2), name='host_b', nodes=2, sockets=1)
        self.src, self.dest = self.computes['host_a'], self.computes['host_b']
        # The start of a host has written one for each node.
        self.write_caches()
        self._run_periodics()

    def write_caches(self):
        for number, cpus in enumerate(self.CACHES):
            for cpu in cpulist.parse_cpu_list(cpus):
                cache = Path(self.kernel.path, 'devices/system/cpu',
                             f'cpu{cpu}', 'cache/index3')
                cache.mkdir(parents=True, exist_ok=True)
                (cache / 'id').write_text(f'{number}\n')
                (cache / 'shared_cpu_list').write_text(f'{cpus}\n')

    def pins(self, server):
        found = thread_pins.parse_pins(etree.fromstring(self.xml(server)))
        return found['vcpu', 0] | found['vcpu', 1]


class JourneyTest(CacheTestCase):

    def test_guest_has_the_cpus_of_one_cache_wherever_it_goes(self):
        first = self.boot_with(FLAVOR, host='host_a')
        self.assertEqual({4, 5}, self.pins(first))
        self.assertTrue(self.move(first, 1).is_needed)
        self.assertEqual({10, 11}, self.pins(first))
        second = self.boot_with(FLAVOR, host='host_a')
        self.assertEqual({4, 5}, self.pins(second))
        self.server = first
        self._live_migrate(first)
        self.assertEqual('host_b', self.host(first))
        self.assertEqual({4, 5}, self.pins(first))
        third = self.boot_with(FLAVOR, host='host_a')
        self.assertEqual({10, 11}, self.pins(third))


class SharedJourneyTest(CacheTestCase):
    """Guests with shared CPUs of two of the three caches of a node."""

    CACHES = SMALL_CACHES

    def test_guest_is_bound_to_few_caches_wherever_it_goes(self):
        first = self.boot_with(SHARED, host='host_a')
        self.assertEqual({0, 1}, self.pins(first))
        self._reboot_server(first, hard=True)
        self.assertEqual({0, 1}, self.pins(first))
        self.assertTrue(self.move(first, 1).is_needed)
        self.assertEqual({6, 7}, self.pins(first))
        second = self.boot_with(SHARED, host='host_a')
        self.assertEqual({0, 1}, self.pins(second))
        self.server = first
        self._live_migrate(first)
        self.assertEqual('host_b', self.host(first))
        self.assertEqual({0, 1}, self.pins(first))
        self.server = second
        self._live_migrate(second)
        self._run_periodics()
        # Nova has placed it on the other node.
        self.assertEqual([{0, 1}, {6, 7}], [*map(self.pins, (first, second))])

    def test_cold_migrated_guest_is_bound_at_its_new_host(self):
        self.useFixture(fixtures.MonkeyPatch(test_lifecycle.MOVE_DISK,
                                             test_moves.move_disk))
        first = self.boot_with(SHARED, host='host_a')
        self._migrate_server(first)
        self._confirm_resize(first)
        self.assertEqual('host_b', self.host(first))
        self.assertEqual({0, 1}, self.pins(first))
