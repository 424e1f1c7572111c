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


"""``ghsched explain`` places guests where Placement and the scheduler do."""

import dataclasses
import itertools

from ghsched_nova.features.explain import explanation
from ghsched_nova.features.planner import hostfile
from ghsched_nova.features.planner import planner_hosts
from ghsched_nova.tests.functional import test_planner
from ghsched_placement.features.planner.state import FilledHost
from ghsched_placement.providers import tree
from ghsched_placement.tests.fixtures.placement_offers import PlacementOffers
from ghsched_placement.tests.fixtures import spaces

KUNPENG, TWO_NICS, INTEL, EPYC = (
    hostfile.load_host_file(str(test_planner.HOSTS / f'{name}.yaml'))
    for name in ('kunpeng920', 'kunpeng920-2nic', 'intel-2s', 'amd-epyc'))
FIRST, SECOND = TWO_NICS.pfs


def changed(host, reserved=(), **changes):
    return dataclasses.replace(
        host, tree_config=tree.Config(dict(reserved)), **changes)


HOSTS = (
    KUNPENG, TWO_NICS, INTEL, EPYC,
    changed(KUNPENG, {1: 100}, pfs=()),
    changed(KUNPENG, {1: 50, 2: 95}),
    changed(KUNPENG, {0: 50, 1: 50, 2: 50}, pfs=()),
    changed(KUNPENG, pfs=(dataclasses.replace(FIRST, node=2),)),
    changed(KUNPENG, pfs=(dataclasses.replace(FIRST, vfs=3),
                          dataclasses.replace(SECOND, node=0, vfs=2))),
    changed(TWO_NICS, {2: 100}),
    changed(TWO_NICS, pfs=(FIRST, dataclasses.replace(
        SECOND, alias='nic-2'))),
    changed(TWO_NICS, nodes=tuple(dataclasses.replace(
        node, memory_mb=node.memory_mb // (1 + 7 * (node.id == 0)))
        for node in TWO_NICS.nodes)),
    changed(TWO_NICS, compute=hostfile.Compute(
        dedicated=frozenset(range(100, 320)))))

BANDWIDTH: tuple[dict[str, str], ...] = (
    {}, {'mem_bw_min': '10'}, {'mem_bw_min': '60'}, {'mem_bw_min.0': '60'},
    {'mem_bw_max': '50'})
VFS: tuple[dict[str, str], ...] = (
    {}, {'vfs': 'nic:4'}, {'vfs': 'nic:4', 'vfs_locality': 'node'},
    {'vfs': 'nic:4', 'vfs_locality': 'socket'}, {'vfs.0': 'nic:5'},
    {'vfs.0': 'nic:82', 'vfs_locality': 'any'},
    {'vfs': 'nic:2,nic-2:2'})
OTHER: tuple[dict[str, str], ...] = (
    {}, {'hw:cpu_policy': 'dedicated'}, {'group_policy': 'isolate'})


def questions():
    for number, (host, nodes, *parts) in enumerate(itertools.product(
            HOSTS, (1, 2, 4), BANDWIDTH, VFS, OTHER)):
        # Each part is there with each other one, if not with each pair.
        if number % 11 == 0:
            ours = {f'ghsched:{key}': value
                    for part in parts[:-1] for key, value in part.items()}
            yield explanation.Question(
                host, 8, 16384 * nodes if number % 2 else 1024, flavor_specs={
                    'hw:numa_nodes': str(nodes), **ours, **parts[-1]})


class ExplainedPlaceTest(test_planner.PlacementTestCase):

    def taken(self, need, host):
        """The host nodes and the locality, as the planner finds them."""
        offers, state = PlacementOffers(self.placement), FilledHost(host)
        offers.set_hosts([state])
        for locality, sizes in need.yield_vf_request_variants(
                lambda: offers.list_pfs_for_flavor(need)):
            for way in offers.list_placements(need, locality, sizes)[0]:
                nodes = state.find_host_nodes(need, way)
                if nodes is not None:
                    return nodes, locality if need.policy.vfs else None
        return None

    def test_host_nodes_and_query_are_the_same(self):
        placed = refused = 0
        for question in spaces.choose(questions()):
            told = explanation.explain_flavor(question)
            if told.need is None:
                continue        # an alias that the host has not
            found = self.taken(told.need, planner_hosts.make_planner_host(
                question.host, question.host.name))
            mine = ((told.host_nodes, told.locality)
                    if told.refusal is None else None)
            self.assertEqual(found, mine, (question.flavor_specs,
                                           question.host, told.refusal))
            placed += found is not None
            refused += found is None
        self.assertGreater(min(placed, refused),
                           50 if spaces.number() is None else 3)
