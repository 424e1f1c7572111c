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

"""``flavor check`` and boots of random flavors agree.

Real Placement, and Nova's scheduler, fit and claim.
"""

import os
import random

from ghsched_nova.tests.functional import openstack_base
from ghsched_placement.osc import flavor

#: Flavors that are checked and booted in one cloud.
STEPS = int(os.environ.get('GHSCHED_CHECK_STEPS', '14'))

SEED = int(os.environ.get('GHSCHED_CHECK_SEED', '271'))


class RandomFlavorsTest(openstack_base.CommandTestCase):
    """Hosts with two CPUs for shared and two for dedicated use per node."""

    def setUp(self):
        super().setUp()
        self.flags(cpu_shared_set='0-1,4-5', cpu_dedicated_set='2-3,6-7',
                   group='compute')
        self.flags(cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0,
                   reserved_host_memory_mb=0)
        for name in ('host_a', 'host_b'):
            self.start_host(name)
        self.servers = []

    def random_flavor(self, chance):
        keys, nodes = {}, chance.choice((0, 0, 1, 2))
        if not nodes and chance.random() < .7:
            keys['numa'] = 'auto'
            if chance.random() < .2:
                keys['numa_max'] = 1
        if (nodes or keys) and chance.random() < .5:
            keys['mem_bw_min'] = chance.choice((10, 30, 60, 90))
        size = {'vcpus': chance.choice((1, 2, 2, 3, 4)),
                'ram': chance.choice((64, 512, 2048, 6000, 9000)),
                'policy': chance.choice(('shared', 'dedicated')),
                'nodes': nodes}
        if nodes == 2:
            size['vcpus'] = 2 * max(1, size['vcpus'] // 2)
        return self.flavor(**size, **keys), (size, keys)

    def test_check_of_random_flavors_agrees_with_their_boots(self):
        chance, answers = random.Random(SEED), []  # noqa: S311
        for step in range(STEPS):
            wanted, asked = self.random_flavor(chance)
            rows = self.json_of(flavor.CheckFlavor, wanted)
            fits = any(row['Fits'] for row in rows)
            server = self.api.post_server({'server': self._build_server(
                flavor_id=wanted, networks='none')})
            self.wait_until(lambda made=server: self.api.get_server(
                made['id'])['status'] in ('ACTIVE', 'ERROR'))
            found = self.api.get_server(server['id'])
            self.assertEqual(fits, found['status'] == 'ACTIVE',
                             (step, asked, rows, found.get('fault')))
            answers.append(fits)
            if fits:
                host, = (row for row in rows if row['Host']
                         == found['OS-EXT-SRV-ATTR:host'])
                self.assertTrue(host['Fits'], (step, asked, rows))
                self.servers.append(server)
            else:
                self._delete_server(server)
            if self.servers and chance.random() < .4:
                self._delete_server(self.servers.pop(
                    chance.randrange(len(self.servers))))
        # Both answers occur often enough to say something.
        self.assertGreater(min(map(answers.count, (True, False))), STEPS // 6)
