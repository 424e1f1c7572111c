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


"""Cost of placing guests on the nodes with the least load."""

import fixtures
from nova import objects
from nova.virt import hardware
from oslo_utils.fixture import uuidsentinel as uuids

from ghsched_nova.nova_seams import numa
from ghsched_nova.scheduler import filters
from ghsched_nova.tests.fixtures import states
from ghsched_placement.features.load import load
from ghsched_placement.providers import names
from ghsched_placement.tests import base


def host(number, *shares, pinned=0):
    """A host whose NUMA nodes have such CPU loads.

    :param pinned: CPUs of the last node that are taken, of 4.
    """
    last = len(shares) - 1
    pages = objects.NUMAPagesTopology(size_kb=4, total=1024 * 256, used=0,
                                      reserved=0)
    state = states.host([
        states.cell(node, shared=0, pages=[pages],
                    pinned=pinned if node == last else 0,
                    physnets={names.make_node_physnet(node)})
        for node in range(len(shares))], name=f'host_{number}')
    state.stats = load.make_load_stats(load.HostLoad(states.NOW, 60.0, tuple(
        load.HostNodeLoad(node, cpus=4, vcpus=0, cpu_load=share)
        for node, share in enumerate(shares))))
    state.allocation_candidates = [{'allocations': {}, 'mappings': {}}]
    return state


def request(size=1):
    spec = states.spec(size)
    spec.image = objects.ImageMeta(properties=objects.ImageMetaProps())
    spec.instance_uuid = uuids.server
    spec.scheduler_hints = {}
    spec.requested_resources = []
    return spec


class SteeredTest(base.TestCase):

    def setUp(self):
        super().setUp()
        states.stop_clock(self)
        self.fits = []
        self.filter = filters.GhschedNUMATopologyFilter()
        fit = hardware.numa_fit_instance_to_host

        def noted(topology, *args, **kwargs):
            self.fits.append(topology)
            return fit(topology, *args, **kwargs)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.hardware.numa_fit_instance_to_host', noted))

    def passed(self, hosts, spec):
        return list(self.filter.filter_all(hosts, spec))

    def order(self, state):
        return numa.parse_chosen_host_nodes(state.limits.get('numa_topology'))

    def test_only_hosts_whose_limits_are_read_cost_another_fit(self):
        hosts = [host(number, .9, .1) for number in range(20)]
        passed = self.passed(hosts, request())
        self.assertEqual(20, len(self.fits))
        self.assertEqual([(1,)] * 3, [self.order(one) for one in passed[:3]])
        self.assertEqual(23, len(self.fits))
        self.order(passed[0])
        self.assertEqual(23, len(self.fits))

    def test_the_best_node_without_room_is_passed_over(self):
        (state,) = self.passed([host(0, .9, .1, pinned=4)], request())
        self.assertEqual((0,), self.order(state))

    def test_only_hosts_whose_limits_are_read_have_their_load_read(self):
        reports = []
        read = load.parse_load_stats
        self.useFixture(fixtures.MonkeyPatch(
            'ghsched_placement.features.load.load.parse_load_stats',
            lambda stats: reports.append(stats) or read(stats)))
        passed = self.passed([host(number, .9, .1) for number in range(20)],
                             request())
        self.assertEqual([], reports)
        self.order(passed[0])
        self.order(passed[0])
        self.assertEqual(1, len(reports))

    def test_a_host_whose_nodes_are_alike_is_left_as_it_is(self):
        given = host(0, .1, .1)
        given.allocation_candidates *= 2
        (state,) = self.passed([given], request())
        self.assertIsNone(self.order(state))
        self.assertEqual(2, len(state.allocation_candidates))
        # Nova's own, one a candidate.
        self.assertEqual(2, len(self.fits))

    def test_who_is_placed_changes_nothing_for_the_alternates(self):
        spec = request()
        chosen, alternate = self.passed(
            [host(0, .9, .1), host(1, .1, .9)], spec)
        chosen.consume_from_request(spec)
        self.assertEqual([1], [cell.id for cell in spec.numa_topology.cells])
        self.assertEqual((0,), self.order(alternate))

    def test_each_instance_of_a_request_has_limits_of_its_own(self):
        spec = request()
        first = self.passed([host(0, .9, .8, .1, pinned=2)], spec)
        first[0].consume_from_request(spec.obj_clone())
        second = self.passed(first, spec)
        self.assertEqual([(2,), (1,)],
                         [self.order(one) for one in (*first, *second)])
