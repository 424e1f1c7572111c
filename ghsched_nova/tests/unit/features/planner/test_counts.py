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


"""Guests on hosts of the files in etc/ghsched/hosts; each number can be found
by hand.

That the planner offers what Placement offers is judged by
ghsched_nova.tests.functional.test_planner.
"""

import dataclasses
from pathlib import Path
from typing import Any

import ddt

from ghsched_nova.features.planner import hostfile
from ghsched_nova.features.planner import planner_hosts
from ghsched_placement.features.declared_needs import NEEDS
from ghsched_placement.features.planner import flavors
from ghsched_placement.features.planner import plan
from ghsched_placement.fit import lack
from ghsched_placement.providers import tree
from ghsched_placement.tests import base

HOSTS = Path(__file__).parents[5] / 'etc/ghsched/hosts'
SETTINGS = plan.PlanSettings(aliases={'nic': 'CUSTOM_PCI_15B3_1018'})
ONE = 'vcpus=2,ram=1024,hw:numa_nodes=1'
NODES = range(4)
BURSTS = '% of memory bandwidth as bursts'
KEPT = tree.Config(bursts=dict.fromkeys(NODES, 40))
CPUS = 'hw:cpu_policy=dedicated'


def load(name='kunpeng920'):
    """Return a host of a file, with whole nodes of bandwidth."""
    return dataclasses.replace(
        hostfile.load_host_file(str(HOSTS / f'{name}.yaml')),
        tree_config=tree.Config())


def host(number=0, file=None, **changes):
    return planner_hosts.make_planner_host(
        dataclasses.replace(file or load(), **changes), f'host{number}')


def pfs(*vfs):
    (pf,) = load().pfs
    return tuple(dataclasses.replace(pf, address=f'0000:81:00.{number}',
                                     vfs=count)
                 for number, count in enumerate(vfs))


def dedicated(count):
    return hostfile.Compute(dedicated=frozenset(range(count)))


def flavor(text, name='f'):
    return flavors.parse_flavor_argument(f'{name}:{text}')


def of_nodes(word, free, needed):
    return {(node, word, free, needed) for node in NODES}


def far(free, needed):
    return {(None, 'VFs of nic', free, needed)}


#: Flavor, changes of kunpeng920, guests, and what the next one lacks.
COUNTS: tuple[tuple[Any, ...], ...] = (
    (f'{ONE},ghsched:mem_bw_min=35', {}, 8, of_nodes(lack.BANDWIDTH, 30, 35)),
    (f'{ONE},ghsched:mem_bw_min=5,ghsched:mem_bw_burst=20', {}, 0,
     of_nodes(BURSTS, 0, 20)),
    (f'{ONE},ghsched:mem_bw_min=5,ghsched:mem_bw_burst=20',
     {'tree_config': KEPT}, 8, of_nodes(BURSTS, 0, 20)),
    (f'{ONE},ghsched:mem_bw_min=5,ghsched:mem_bw_burst=20',
     {'tree_config': KEPT, 'burst_ratio': 1.5}, 12, None),
    (f'{ONE},ghsched:mem_bw_max=50', {}, 31, {(None, lack.GROUPS, 0, 1)}),
    (f'{ONE},ghsched:vfs=nic:9,ghsched:vfs_locality=node', {}, 8,
     {(0, 'VFs of nic', 8, 9), *((node, 'VFs of nic', 0, 9)
                                 for node in (1, 2, 3))}),
    (f'{ONE},ghsched:vfs=nic:9', {}, 8, far(8, 9)),
    # 40 on node 0, and 40 more for guests on other nodes.
    ('vcpus=40,ram=61440,hw:numa_nodes=1,ghsched:vfs=nic:20', {}, 4,
     far(0, 20)),
    (f'{ONE},ghsched:vfs=nic:6,ghsched:vfs_locality=node',
     {'pfs': pfs(5, 4, 3)}, 2, None),
    ('vcpus=160,ram=245760,hw:numa_nodes=2,ghsched:vfs.0=nic:40', {}, 2,
     far(0, 40) | {(None, 'memory', 32768, 245760)}),
    (f'vcpus=60,ram=1024,hw:numa_nodes=1,{CPUS}',
     {'compute': dedicated(320)}, 4, of_nodes('dedicated CPUs', 20, 60)),
    (f'vcpus=30,ram=3000,{CPUS}', {}, 8, of_nodes('dedicated CPUs', 20, 30)),
    (f'vcpus=30,ram=3000,{CPUS}', {'compute': dedicated(70)}, 2,
     {(None, 'PCPU', 10, 30)}),
    (f'{ONE},ghsched:mem_bw_min=10', {'file': load('intel-2s')}, 0,
     {(None, 'trait CUSTOM_GHSCHED_MEM_BW_MIN', 0, 1)}),
    ('vcpus=4,ram=8192', {}, 64, {(None, 'memory', 0, 8192)}))


@ddt.ddt
class CountTest(base.TestCase):

    def plan(self, text, *hosts, settings=SETTINGS):
        found = plan.plan_host_capacity(hosts, [flavor(text)],
                                        settings=settings)
        return found, found.flavors[0]

    @ddt.data(*(row for row in COUNTS
                if 'bursts' in NEEDS or 'mem_bw_burst' not in row[0]))
    @ddt.unpack
    def test_guests_of_a_host_end_where_the_next_lacks_something(
            self, text, changes, guests, lacks):
        _plan, found = self.plan(text, host(**changes))
        self.assertEqual(guests, found.guests)
        self.assertIn(lacks, (None, {
            (one.node, one.resource, one.free, one.needed)
            for one in found.hosts[0].lacks}))

    def test_more_of_one_resource_gives_as_many_guests_more(self):
        for text, gains in (
                (f'{ONE},ghsched:mem_bw_min=35',
                 {(None, lack.GROUPS): 0,
                  **{(node, lack.BANDWIDTH): 1 for node in NODES}}),
                (f'{ONE},ghsched:mem_bw_max=50', {(None, lack.GROUPS): 1}),
                (f'{ONE},ghsched:vfs=nic:9', {(0, 'VFs of nic'): 1})):
            _plan, found = self.plan(text, host())
            self.assertEqual(gains, {
                (more.node, more.resource): more.guests
                for more in found.hosts[0].more}, text)

    def test_amounts_lost_to_fragmentation_are_shown(self):
        _plan, found = self.plan(f'{ONE},ghsched:mem_bw_min=60', host())
        (one,) = found.hosts
        self.assertEqual((4, 6, 4, 0), (one.guests, one.pooled,
                                        one.whole_before, one.whole_after))

    def test_hosts_that_are_alike_are_one_kind(self):
        found, of_flavor = self.plan(f'{ONE},ghsched:mem_bw_min=60',
                                     *map(host, range(5)))
        self.assertEqual((5, 1, 20),
                         (found.hosts, found.kinds, of_flavor.guests))

    def test_caps_count_where_the_admin_counts_them(self):
        _plan, found = self.plan(
            f'{ONE},ghsched:mem_bw_max=50', host(),
            settings=dataclasses.replace(SETTINGS, accounting='max'))
        self.assertEqual(8, found.guests)


class MixTest(base.TestCase):

    TEXTS = {'big': f'{ONE},ghsched:mem_bw_min=60',
             'half': f'{ONE},ghsched:mem_bw_min=30',
             'small': f'{ONE},ghsched:mem_bw_min=35',
             'large': f'{ONE},ghsched:mem_bw_min=65',
             'wide': 'vcpus=4,ram=2048,hw:numa_nodes=4,ghsched:mem_bw_min=50'}

    def mix(self, hosts, **weights):
        found = plan.plan_host_capacity(
            [*map(host, range(hosts))],
            [flavor(self.TEXTS[name], name) for name in weights], weights,
            plan.PlanSettings(more=False))
        return found.mix, found.notes

    def test_flavors_share_nodes_until_one_is_stopped(self):
        mix, _notes = self.mix(1, big=1, half=1)
        self.assertEqual(({'big': 4, 'half': 4}, 'big'),
                         (mix.guests, mix.stopped_by))

    def test_gradient_keeps_room_for_what_is_asked_for(self):
        # Nodes of 100 %: a small one beside each large one leaves room for
        # nothing else of this mix.
        mix, notes = self.mix(2, small=1, large=1)
        self.assertEqual(16, sum(mix.guests.values()))
        self.assertIn('what a guest leaves', notes[-1])

    def test_proportion_of_a_mix_is_kept(self):
        mix, _notes = self.mix(3, half=3, big=1)
        self.assertAlmostEqual(3, mix.guests['half'] / mix.guests['big'],
                               delta=0.5)

    def test_hosts_are_kept_whole_for_wide_guests(self):
        # Spread over the hosts, the small ones would leave no room for two
        # wide ones on each of two hosts.
        mix, _notes = self.mix(3, half=1, wide=1)
        self.assertEqual(4, mix.guests['wide'])
        self.assertEqual(3, sum(len(kind.hosts) for kind in mix.hosts))
        for name, guests in mix.guests.items():
            self.assertEqual(guests, sum(
                len(kind.hosts) * kind.by_flavor.get(name, 0)
                for kind in mix.hosts))
