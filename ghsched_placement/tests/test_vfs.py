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


import testtools

from ghsched_placement import request
from ghsched_placement import vfs

DEVICES = request.Devices(0, 'id', 'CUSTOM_VF', (4,), frozenset({'CUSTOM_A'}))


class ReadTest(testtools.TestCase):

    def summary(self, capacity=8, used=3, traits=('CUSTOM_A', 'CUSTOM_B'),
                resource_class='CUSTOM_VF'):
        return {'resources': {resource_class: {'capacity': capacity,
                                               'used': used}},
                'traits': list(traits), 'root_provider_uuid': 'root',
                'parent_provider_uuid': 'node0'}

    def test_what_is_left_and_where(self):
        self.assertEqual([vfs.Pf('root', 'node0', 5)],
                         vfs.read({'pf': self.summary()}, DEVICES))

    def test_other_devices_are_left_out(self):
        self.assertEqual([], vfs.read({
            'gpu': self.summary(resource_class='CUSTOM_GPU'),
            'other': self.summary(traits=('CUSTOM_B',))}, DEVICES))

    def test_the_question_names_class_and_traits(self):
        self.assertEqual([('resources_vf', 'CUSTOM_VF:1'),
                          ('required_vf', 'CUSTOM_A')], vfs.query(DEVICES))


class SplitsTest(testtools.TestCase):

    def test_places_are_nodes_or_hosts(self):
        pfs = [vfs.Pf('a', 'a0', 3), vfs.Pf('a', 'a1', 4),
               vfs.Pf('a', 'a0', 5)]
        self.assertEqual({'a0': [5, 3], 'a1': [4]},
                         vfs.by_place(pfs, 'node'))
        self.assertEqual({'a': [5, 4, 3]}, vfs.by_place(pfs, 'any'))

    def test_the_fewest_pfs_come_first(self):
        self.assertEqual(
            [(5, 3), (4, 2, 2)],
            vfs.splits(8, [[4, 2, 2], [5, 3], [3, 3]], 3))

    def test_one_pf_needs_no_split(self):
        self.assertEqual([], vfs.splits(8, [[9, 9], [8]], 3))

    def test_ways_grow_with_the_number_of_groups(self):
        pfs = {'nic': [vfs.Pf('a', 'a0', 1)] * 4 + [vfs.Pf('b', 'b0', 1)] * 2,
               'fast': [vfs.Pf('a', 'a0', 1)] * 2}
        self.assertEqual(4 ** 3 * 2,
                         vfs.combinations({'nic': 3, 'fast': 1}, pfs))
        self.assertEqual(0, vfs.combinations({'other': 1}, pfs))

    def test_no_more_than_asked_for(self):
        pools = [[9, left, 9] for left in range(1, 9)]
        self.assertEqual(2, len(vfs.splits(12, map(sorted, pools), 2)))
