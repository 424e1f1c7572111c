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

"""Hosts on which guests of several equal NUMA nodes are booted until refused.

The judge is a search of all ways to place the guests.
"""

import itertools
import random

from ghsched_nova.tests.functional import nova_base
from ghsched_placement.tests.fixtures import spaces

CLOUDS = 60
NODES = 4
CPUS = 3


def find_most(rooms, guest_nodes):
    """Return the most guests that fit, of all ways to place them.

    :param rooms: number of guest nodes that each host node holds.
    """
    known = {}

    def most(left):
        if left not in known:
            known[left] = max((
                1 + most(tuple(sorted(room - (place in places)
                                      for place, room in enumerate(left))))
                for places in itertools.combinations(
                    range(len(left)), guest_nodes)
                if all(left[place] for place in places)), default=0)
        return known[left]
    return most(tuple(sorted(rooms)))


class FilledHostTest(nova_base.GhschedTestCase):

    def test_boots_until_refusal_are_the_most_that_fit(self):
        self.flags(cpu_dedicated_set=f'0-{NODES * CPUS - 1}', group='compute')
        self.start_host(nodes=NODES, cores=CPUS)
        for number in spaces.choose(range(CLOUDS)):
            with self.subTest(cloud=number):
                self.fill_host(random.Random(number))  # noqa: S311

    def fill_host(self, chance):
        """Boot guests until one is refused, and delete them."""
        guest_nodes, share = chance.choice((2, 2, 3)), chance.choice((25, 30))
        reserved = [chance.choice((0, 20, 45, 70, 100)) for _node
                    in range(NODES)]
        self.reserve(**{f'n{node}': percent
                        for node, percent in enumerate(reserved)})
        most = find_most([min(CPUS, (100 - percent) // share)
                          for percent in reserved], guest_nodes)
        flavor = self.flavor(vcpus=guest_nodes, nodes=guest_nodes, ram=96,
                             mem_bw_min=share)
        servers = [self.boot(flavor) for _guest in range(most)]
        servers.append(self.boot(flavor, state='ERROR'))
        for server in servers:
            self._delete_server(server)
