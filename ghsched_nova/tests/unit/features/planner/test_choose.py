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

from ghsched_nova.tests.unit.features.planner import samples
from ghsched_placement.features.packing import gradient
from ghsched_placement.features.planner import choose
from ghsched_placement.features.planner import flavors
from ghsched_placement.features.planner import need as needs
from ghsched_placement.features.planner.state import FilledHost
from ghsched_placement.features.planner.state import GuestPlacement
from ghsched_placement.tests import base

BANDWIDTH = 'CUSTOM_MEM_BW_PCT'


def need(share, name='f', vfs=0):
    keys = f',ghsched:vfs=nic:{vfs}' if vfs else ''
    return needs.build_flavor_need(flavors.parse_flavor_argument(
        f'{name}:vcpus=1,ram=512,hw:numa_nodes=1,'
        f'ghsched:mem_bw_min={share}{keys}'), aliases={'nic': samples.NIC})


def ways(share):
    return [GuestPlacement((node,), (((node + 1, BANDWIDTH), share),))
            for node in range(2)]


class GradientTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.small, self.big = need(35, 'small'), need(65, 'big')
        self.choose = choose.make_gradient_placement_chooser(
            {'small': 1, 'big': 1}, {'small': self.small, 'big': self.big})

    def test_the_node_where_others_of_the_mix_still_fit(self):
        # 65 % are left of node 0: all of it is of use to a big guest.
        state = FilledHost(samples.host(used={('_NUMA0', BANDWIDTH): 35,
                                              ('_NUMA1', BANDWIDTH): 65}))
        found = self.choose(state, self.small, ways(35))
        self.assertEqual((1,), found.nodes)


class RoomTest(base.TestCase):

    def test_free_amounts_of_each_node(self):
        state = FilledHost(samples.host(vfs=(4, 0), groups=3, used={
            ('_NUMA0', BANDWIDTH): 30, ('_0000:00:00.0', samples.NIC): 1}))
        self.assertEqual(gradient.FreeCapacity(
            {0: (0, 4, 4096, 70, 3), 1: (0, 4, 4096, 100, 0)},
            {0: (0, 4, 4096, 100, 4), 1: (0, 4, 4096, 100, 0)}, 3),
            choose.make_free_capacity(state))

    def test_unknown_values_do_not_count(self):
        room = choose.make_free_capacity(
            FilledHost(samples.host(cells=False)))
        self.assertEqual({(0, 0, 0, 100, 0)}, set(room.total.values()))

    def test_a_kind_is_what_a_guest_takes(self):
        self.assertEqual(gradient.GuestKind(((0, 1, 512, 20, 2),), True),
                         choose.make_guest_kind(
                             need(20, vfs=2)))
