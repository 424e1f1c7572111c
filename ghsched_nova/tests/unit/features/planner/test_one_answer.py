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

"""Equal numbers of "flavor check" and "plan" for one host and flavor."""

import dataclasses
from pathlib import Path
import random

from ghsched_nova.features.planner import hostfile
from ghsched_nova.features.planner import planner_hosts
from ghsched_placement.features.flavor_check import flavor_check as flavors
from ghsched_placement.features.planner import fill
from ghsched_placement.features.planner.flavors import Flavor
from ghsched_placement.features.planner import limits
from ghsched_placement.features.planner import need as needs
from ghsched_placement.features.planner.offer import Offers
from ghsched_placement.features.planner import plan as planner
from ghsched_placement.features.planner.state import FilledHost
from ghsched_placement.fit import capacity
from ghsched_placement.fit import fitting
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

HOSTS = sorted((Path(__file__).parents[5] / 'etc/ghsched/hosts').glob(
    '*.yaml'))

#: Hosts and flavors in the whole.
QUESTIONS = 160


def make_host(path):
    return planner_hosts.make_planner_host(
        hostfile.load_host_file(str(path)), 'h')


def plan(host, flavor):
    state = FilledHost(host)
    fill.fill_each_host_with_flavor(
        Offers(), needs.build_flavor_need(flavor), [state])
    return state.guests


def check(host, flavor):
    found, = capacity.build_hosts(host.providers)
    found = capacity.set_node_capacity(found, host.cells)
    size = flavors.Size(flavor.vcpus, flavor.ram, 0, 0)
    demands = [flavors.make_flavor_requirements(
        size, specs, {}, 'min', True).demand for specs
        in flavors.list_node_count_variants(size, flavor.extra_specs)]
    return fitting.count_guests(found, demands).guests


def find_reasons(host, flavor):
    """Return what a host as a whole lacks, as plan and flavor check say it."""
    return [[one.text for one in lacks if one.node is None]
            for lacks in find_lacks(host, flavor)]


def find_lacks(host, flavor):
    """Return why a guest does not fit, by plan and by flavor check."""
    found, = capacity.build_hosts(host.providers)
    size = flavors.Size(flavor.vcpus, flavor.ram, 0, 0)
    demand = flavors.make_flavor_requirements(
        size, flavor.extra_specs, {}, 'min', True).demand
    planned = limits.list_shortages(FilledHost(host),
                                    needs.build_flavor_need(flavor))
    checked = fitting.check_host_capacity(
        capacity.set_node_capacity(found, host.cells), demand).lacks
    return planned, checked


def draw_usage(chance, host):
    """Return a host of which some bandwidth of some nodes is used."""
    return dataclasses.replace(host, providers=tuple(dataclasses.replace(
        provider, used={names.MEM_BW_PCT: chance.choice((0, 0, 20, 50))}
        if names.MEM_BW_PCT in provider.inventories else {})
        for provider in host.providers))


def draw_flavor(chance):
    nodes = chance.choice((1, 2, 2, 2, 3, 4))
    asked = {'hw:numa_nodes': str(nodes)}
    if chance.random() < .6:
        asked['ghsched:mem_bw_min'] = str(chance.choice((5, 10, 15, 20, 40)))
    if chance.random() < .3:
        asked['hw:cpu_policy'] = 'dedicated'
    if chance.random() < .2:
        del asked['hw:numa_nodes']
        asked['ghsched:numa'] = 'auto'
    if chance.random() < .2:
        asked['hw:mem_page_size'] = chance.choice(('large', 'small', '2048'))
    return Flavor('drawn', chance.choice((2, 4, 8, 16)) * nodes,
                  chance.choice((1024, 4096, 16384)) * nodes,
                  extra_specs=asked)


class OneAnswerTest(base.TestCase):

    def test_guests_without_keys_on_a_host_with_a_nic_count_alike(self):
        host = make_host(HOSTS[0].with_name('kunpeng920.yaml'))
        flavor = Flavor('x', 2, 2048, extra_specs={'hw:numa_nodes': '2'})
        self.assertEqual([256, 256], [plan(host, flavor), check(host, flavor)])

    def test_guests_of_undecided_nodes_that_need_two_are_counted(self):
        host = make_host(HOSTS[0].with_name('kunpeng920.yaml'))
        asked = {'ghsched:mem_bw_min': '10'}
        two = Flavor('x', 100, 2048, extra_specs={
            **asked, 'hw:numa_nodes': '2'})
        auto = Flavor('x', 100, 2048, extra_specs={
            **asked, 'ghsched:numa': 'auto'})
        counts = [function(host, flavor) for function in (plan, check)
                  for flavor in (two, auto)]
        self.assertEqual([counts[0]] * 4, counts)
        self.assertGreater(counts[0], 0)

    def test_guests_of_undecided_nodes_in_a_mix_are_as_many_as_alone(self):
        host = make_host(HOSTS[0].with_name('kunpeng920.yaml'))
        # 52 of the 80 CPUs of a node: what is left of two nodes is enough
        # for one more.
        dedicated = {'hw:cpu_policy': 'dedicated'}
        flavor, one = (
            Flavor('x', 52, 2048, extra_specs={
                **dedicated, **keys}) for keys in (
                {'ghsched:numa': 'auto'}, {'hw:numa_nodes': '1'}))
        found = planner.plan_host_capacity(
            [host], [flavor], {'x': 1}, planner.PlanSettings(more=False))
        self.assertEqual(({'x': 6}, 6, 4), (
            found.mix.guests, plan(host, flavor), plan(host, one)))

    def test_more_numa_nodes_than_the_host_has_are_one_sentence(self):
        host = make_host(HOSTS[0].with_name('kunpeng920.yaml'))
        flavor = Flavor('x', 5, 5120, extra_specs={'hw:numa_nodes': '5'})
        self.assertEqual([['it has 4 NUMA nodes, the guest has 5']] * 2,
                         find_reasons(host, flavor))

    def test_missing_control_groups_are_one_sentence(self):
        host = make_host(HOSTS[0].with_name('kunpeng920.yaml'))
        root, *rest = host.providers
        root = dataclasses.replace(root, used={
            names.RESCTRL_GROUP:
            root.inventories[names.RESCTRL_GROUP]['total']})
        host = dataclasses.replace(host, providers=(root, *rest))
        flavor = Flavor('x', 1, 1024, extra_specs={
            'hw:numa_nodes': '1', 'ghsched:mem_bw_min': '10'})
        self.assertEqual([['0 control groups free, 1 needed']] * 2,
                         find_reasons(host, flavor))

    def test_flavor_check_and_plan_count_alike(self):
        for number in spaces.choose(range(QUESTIONS)):
            chance = random.Random(number)  # noqa: S311
            host = draw_usage(chance, make_host(chance.choice(HOSTS)))
            flavor = draw_flavor(chance)
            self.assertEqual(plan(host, flavor), check(host, flavor),
                             (number, host.name, flavor))
