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

import collections

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.bench import container_plan
from ghsched_nova.lab.bench import errors
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base

#: As in the published test.
LARGE = container_plan.GuestSize(160, 245760, 2, 'nic:40', '1GB')
SMALL = container_plan.GuestSize(2, 512, 2, cpu_policy='shared')
SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 4)).map(
    lambda drawn: container_plan.GuestSize(drawn[0] * drawn[1], 512, drawn[1]))


def places(shape, count):
    return [container_plan.place_container(shape, number)
            for number in range(1, count + 1)]


class PlaceTest(base.TestCase):

    def test_published_test_has_thirty_containers_in_each_guest(self):
        found = places(LARGE, 60)
        self.assertEqual({0: 30, 1: 30},
                         collections.Counter(one.guest for one in found))
        self.assertEqual([15, 15, 15, 15], list(collections.Counter(
            (one.guest, one.node) for one in found).values()))
        self.assertEqual(120, len({(one.guest, cpu) for one in found
                                   for cpu in one.cpus}))

    def test_observed_container_is_the_first_of_the_first_guest(self):
        self.assertEqual(
            container_plan.ContainerPlace(1, 0, 0, 0, 1, shared=False),
            container_plan.place_container(LARGE, 1))

    @given(SHAPES)
    def test_cpus_of_a_container_are_of_its_node(self, shape):
        width = shape.vcpus // shape.nodes
        for one in places(shape, 2 * shape.vcpus):
            self.assertEqual({one.node}, {cpu // width for cpu in one.cpus})
            self.assertEqual(min(2, width), len(one.cpus))

    @given(SHAPES)
    def test_containers_share_cpus_only_when_all_are_taken(self, shape):
        found = [one for one in places(shape, 3 * shape.vcpus)
                 if not one.shared]
        used = collections.Counter((one.guest, cpu) for one in found
                                   for cpu in one.cpus)
        self.assertEqual({1}, set(used.values()))
        width = shape.vcpus // shape.nodes
        whole = width if width == 1 else width // 2 * 2
        self.assertEqual(2 * shape.nodes * whole, len(used))

    @given(SHAPES.filter(lambda shape: shape.vcpus > 3))
    def test_cpus_of_the_observed_container_are_not_shared(self, shape):
        first, *others = places(shape, 4 * shape.vcpus)
        self.assertEqual([], [one for one in others if not one.guest
                              and set(one.cpus) & set(first.cpus)])

    def test_small_guest_shares_from_the_fifth_container_on(self):
        self.assertEqual(
            [(0, 0, False), (1, 0, False), (0, 1, False), (1, 1, False),
             (0, 1, True), (1, 0, True)],
            [(one.guest, one.server_cpu, one.shared)
             for one in places(SMALL, 6)])

    def test_interrupts_of_a_common_device_go_where_no_server_is(self):
        self.assertEqual((1, 5, 3, 7), container_plan.irq_cpus(
            container_plan.GuestSize(8, 512, 2)))
        self.assertEqual((0, 1), container_plan.irq_cpus(SMALL))

    def test_malformed_shapes_are_refused(self):
        for values in ((5, 512, 2), (4, 512, 2, 'nic'), (4, 512, 2, 'nic:0'),
                       (4, 512, 2, 'a:1,b:2')):
            self.assertRaises(errors.BenchError, container_plan.GuestSize,
                              *values)


class VfTest(base.TestCase):

    NICS = tuple(container_plan.GuestNic(name, node) for name, node in (
        ('eth10', 0), ('eth3', 1), ('eth2', 0), ('eth4', -1)))

    def test_vf_of_the_node_comes_first_then_any_other(self):
        used = []
        while (vf := container_plan.choose_vf(self.NICS, used, 0)):
            used.append(vf.name)
        self.assertEqual(['eth2', 'eth10', 'eth3', 'eth4'], used)

    def test_each_container_has_the_next_address(self):
        self.assertEqual('192.0.2.10/24', container_plan.container_address(
            '192.0.2.10/24', 1))
        self.assertEqual('2001:db8::41/64', container_plan.container_address(
            '2001:db8::12/64', 48))
        for first, number in (('192.0.2.10/24', 247), ('192.0.2', 1),
                              ('255.255.255.255/32', 2)):
            self.assertRaises(errors.BenchError,
                              container_plan.container_address, first, number)


class ExtraSpecsTest(base.TestCase):

    KEYS = {'mem_bw_min': '40', 'mem_bw_priority': '7'}
    OTHERS = {'mem_bw_max': '60'}

    def specs(self, arm, shape=LARGE):
        return container_plan.extra_specs(shape, arm, self.KEYS, self.OTHERS)

    def test_without_protection_guests_have_their_vfs_only(self):
        self.assertEqual(({'pci_passthrough:alias': 'nic:40'},) * 2,
                         self.specs('none'))
        self.assertEqual(({}, {}), self.specs('none', SMALL))

    def test_bind_has_nodes_pages_and_vfs(self):
        bound = {'hw:numa_nodes': '2', 'hw:cpu_policy': 'dedicated',
                 'hw:mem_page_size': '1GB', 'ghsched:vfs': 'nic:40',
                 'ghsched:device_numa': 'required'}
        self.assertEqual((bound, bound), self.specs('bind'))

    def test_keys_protect_the_guest_of_the_observed_container(self):
        mine, other = self.specs('keys', SMALL)
        bound, _bound = self.specs('bind', SMALL)
        self.assertEqual({**bound, 'ghsched:mem_bw_min': '40',
                          'ghsched:mem_bw_priority': '7'}, mine)
        self.assertEqual({**bound, 'ghsched:mem_bw_max': '60'}, other)

    def test_classes_protect_the_vcpus_of_the_observed_container(self):
        mine, other = self.specs('classes')
        self.assertEqual(
            {'ghsched:vcpu_classes': 'observed:0-1',
             'ghsched:mem_bw_min.observed': '40',
             'ghsched:mem_bw_priority.observed': '7',
             'ghsched:mem_bw_max': '60'},
            {key: value for key, value in mine.items()
             if key not in self.specs('bind')[0]})
        self.assertEqual(self.specs('keys')[1], other)

    def test_all_flavors_are_accepted(self):
        for arm in container_plan.ARMS:
            for shape in (LARGE, SMALL):
                for specs in self.specs(arm, shape):
                    policy.check_flavor(specs, specs, shape.vcpus)

    def test_only_keys_that_a_class_can_have(self):
        self.assertEqual({'mem_bw_min': '40', 'mem_bw_hardlimit': 'false'},
                         container_plan.parse_keys(
                             'keys', 'mem_bw_min=40,mem_bw_hardlimit=false'))
        self.assertEqual({}, container_plan.parse_keys('keys', ''))
        for text in ('mem_bw_min', 'l3_ways=3', 'mem_bw_min=', 'x'):
            error = self.assertRaises(
                errors.BenchError, container_plan.parse_keys, 'keys', text)
            self.assertIn('keys: ', str(error))
