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


import ddt

from ghsched_nova.tests.unit.features.planner import samples
from ghsched_placement.features.planner.client import PlannerError
from ghsched_placement.features.planner import flavors
from ghsched_placement.features.planner import need as needs
from ghsched_placement.features.planner.state import FilledHost
from ghsched_placement.features.planner.state import GuestPlacement
from ghsched_placement.fit import fitting
from ghsched_placement.fit import lack
from ghsched_placement.flavor import resources
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import sample_flavors

#: Resource classes of host NUMA nodes that the core and the features have.
KINDS = sorted({names.MEM_BW_PCT, *resources.BESIDE_BANDWIDTH})

BANDWIDTH = 'CUSTOM_MEM_BW_PCT'


def need(text='ghsched:mem_bw_min=40', vcpus=1):
    return needs.build_flavor_need(flavors.parse_flavor_argument(
        f'f:vcpus={vcpus},ram=512,hw:numa_nodes=1,{text}'),
        aliases={'nic': samples.NIC})


def way(node, wanted):
    amounts = {(0, name): amount
               for name, amount in wanted.demand.amounts.items()}
    amounts[0, 'CUSTOM_RESCTRL_GROUP'] = 1
    amounts[node + 1, BANDWIDTH] = 40
    return GuestPlacement((node,), tuple(sorted(amounts.items())))


class PlaceTest(base.TestCase):

    def test_cpus_are_not_looked_at_where_they_are_not_known(self):
        state, wanted = FilledHost(samples.host(cells=False)), need(vcpus=3)
        state.place_guest(wanted, way(0, wanted), (0,))
        self.assertEqual((0,), state.find_host_nodes(wanted, way(0, wanted)))

    def test_nova_chooses_where_nothing_of_ours_does(self):
        state = FilledHost(samples.host(vfs=(4, 0)))
        wanted = needs.build_flavor_need(flavors.parse_flavor_argument(
            'f:vcpus=2,ram=512,hw:numa_nodes=1'))
        free = GuestPlacement((), ())
        # Nodes with devices are the last that Nova takes.
        self.assertEqual((1,), state.find_host_nodes(wanted, free))
        for _ in range(2):
            state.place_guest(wanted, free, (1,))
        self.assertEqual((0,), state.find_host_nodes(wanted, free))


@ddt.ddt
class ClassTest(base.TestCase):
    """Each resource class that Placement counts on NUMA nodes."""

    offered = {'bursts': {0: 40, 1: 40}, 'l3_ways': 20, 'rt_permille': 1800}

    def need(self, kind):
        specs = sample_flavors.flavor(sample_flavors.KEY_OF_CLASS[kind])
        return needs.build_flavor_need(flavors.parse_flavor_argument(
            'f:vcpus=1,ram=512,' + ','.join(f'{key}={value}' for key,
                                            value in specs.items())))

    def state(self, kind, left):
        """A host whose nodes have so much left of a class."""
        total = FilledHost(
            samples.host(**self.offered)).get_free_amount((1, kind))
        self.assertGreater(total, 0)
        return FilledHost(samples.host(used={
            (f'_NUMA{node}', kind): total - left for node in (0, 1)},
            **self.offered))

    @ddt.data(*KINDS)
    def test_class_that_nodes_have_too_little_of_is_named(self, kind):
        wanted = self.need(kind)
        amount = wanted.demand.get_node_amounts(0)[kind]
        found = list_node_shortages(self.state(kind, amount - 1), wanted, 1)
        self.assertEqual([lack.WORDS[kind]],
                         [one.resource for one in found])
        self.assertEqual([], list_node_shortages(
            self.state(kind, amount), wanted, 1))


def list_node_shortages(state, asked, node):
    """Return what a host node lacks for the first guest node."""
    return list(fitting.find_node_shortages(
        state.fit_host.nodes[node], asked.demand, 0))


class NeedTest(base.TestCase):

    def test_an_alias_that_nobody_reported(self):
        error = self.assertRaises(PlannerError, need, 'ghsched:vfs=gpu:1')
        self.assertIn('gpu', str(error))

    def test_values_that_nova_would_refuse(self):
        error = self.assertRaises(PlannerError, need,
                                  'ghsched:mem_bw_min=200')
        self.assertIn('ghsched:mem_bw_min', str(error))

    def test_classes_that_are_not_counted_are_not_asked_for(self):
        wanted = needs.build_flavor_need(
            flavors.parse_flavor_argument('f:vcpus=1,ram=1,disk=5'),
            excluded_classes=['DISK_GB'])
        self.assertEqual({'VCPU': 1, 'MEMORY_MB': 1},
                         wanted.demand.amounts)

    def test_no_two_aliases_have_one_suffix(self):
        long = 'n' * 80
        aliases = ['a-b', 'a_b', 'ä', long + '1', long + '2']
        wanted = needs.build_flavor_need(flavors.parse_flavor_argument(
            'f:vcpus=2,ram=512,hw:numa_nodes=2,ghsched:vfs='
            + ','.join(f'{alias}:4' for alias in aliases)),
            aliases=dict.fromkeys(aliases, samples.NIC))
        asked = wanted.make_ghsched_query_part('node', {(0, 'a-b'): (1, 1)})
        suffixes = [group.suffix for group in asked.groups]
        self.assertEqual(len(suffixes), len(set(suffixes)))
        for suffix in suffixes:
            # What Placement takes, see its schema.
            self.assertRegex(suffix, '^[A-Za-z0-9_-]{1,64}$')

    def test_dedicated_cpus_and_emulator_threads(self):
        wanted = needs.build_flavor_need(flavors.parse_flavor_argument(
            'f:vcpus=4,ram=2048,hw:numa_nodes=2,hw:cpu_policy=mixed,'
            'hw:cpu_dedicated_mask=0-2,hw:emulator_threads_policy=isolate'))
        self.assertEqual([(3, 0), (1, 1)], [
            (cell.pinned, cell.shared) for cell in wanted.guest.needs])
