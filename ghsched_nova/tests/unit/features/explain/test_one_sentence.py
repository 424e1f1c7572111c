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

"""The reasons of a refusal are the same, with the same figures, for all.

``flavor check``, ``plan``, ``explain`` and the fault of a server are asked
about random hosts and flavors. GHSCHED_SAMPLE=all compares more than 500
refusals.
"""

import collections
import dataclasses
from pathlib import Path
import random
import re

from ghsched_nova.features.explain import explanation
from ghsched_nova.features.planner import hostfile
from ghsched_nova.features.planner import planner_hosts
from ghsched_placement.base import cpulist
from ghsched_placement.features.flavor_check import flavor_check as flavors
from ghsched_placement.features.planner.flavors import Flavor
from ghsched_placement.features.planner import need as needs
from ghsched_placement.features.planner import plan as planner
from ghsched_placement.fit import capacity
from ghsched_placement.fit import cloud_lack
from ghsched_placement.fit.cloud_totals import CloudTotals
from ghsched_placement.fit.cloud_totals import HostTotals
from ghsched_placement.fit.cloud_totals import Stock
from ghsched_placement.fit import fitting
from ghsched_placement.fit import lack
from ghsched_placement.providers import names
from ghsched_placement.query.vfs import Pf
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

FILES = [hostfile.load_host_file(str(path)) for path in sorted((
    Path(__file__).parents[5] / 'etc/ghsched/hosts').glob('*.yaml'))]

#: Hosts and flavors in the whole.
QUESTIONS = 700

OF_NODES = re.compile(r'NUMA nodes? ([0-9,-]+) cannot take guest NUMA nodes? '
                      r'[0-9,-]+: (.*)')

#: Free and needed amounts in a sentence of one host.
FIGURES = (r'(\d+) {0}[^;,]* free, (\d+) needed',
           r'at most (\d+) {0}[^;,]* for one guest, (\d+) needed',
           r'it has (\d+) [^,;]*, (\d+) needed',
           r'it has (\d+) {0}, the guest has (\d+)')


def draw_usage(chance, host):
    """Return a host of which some of each inventory is in use."""
    return dataclasses.replace(host, providers=tuple(dataclasses.replace(
        one, used={name: chance.choice((0, 0, of['total'] // 2,
                                        of['total'] - of['reserved']))
                   for name, of in one.inventories.items()})
        for one in host.providers), cells=tuple(dataclasses.replace(
            cell, vcpus_used=chance.choice((0, cell.vcpus)),
            dedicated_used=chance.choice((0, cell.dedicated // 2)),
            memory_used=chance.choice((0, cell.memory // 2, cell.memory)))
            for cell in host.cells))


def draw_flavor(chance, host, aliases):
    nodes = chance.choice((1, 1, 2, 2, 3, 4, 5))
    asked = {'hw:numa_nodes': str(nodes)}
    for likely, key, values in (
            (.7, 'ghsched:mem_bw_min', (5, 7, 10, 20, 60, 95)),
            (.3, 'ghsched:mem_bw_max', (95, 100)),
            # A described host without this figure has a reason of its own.
            (0 if host.unstated else .2, 'ghsched:l3_ways', (1, 3, 11, 20)),
            (.2, 'ghsched:mem_bw_burst', (1, 20, 80)),
            (.2 * len(aliases), 'ghsched:vfs',
             ('nic:1', 'nic:9', 'nic:40', 'nic:90')),
            (.3, 'hw:cpu_policy', ('dedicated',)),
            (.3, 'hw:mem_page_size', ('large', 'small', '1GB'))):
        if chance.random() < likely:
            asked[key] = str(chance.choice(values))
    if 'ghsched:vfs' in asked:
        asked['ghsched:vfs_locality'] = chance.choice(
            ('any', 'socket', 'node'))
    return Flavor('x', chance.choice((1, 2, 8, 40, 100)) * nodes,
                  1024 * chance.choice((1, 4, 64, 300, 1000)) * nodes,
                  extra_specs=asked)


class Cloud:
    """Placement with one host, as nova-scheduler asks it after a refusal."""

    def __init__(self, host, aliases):
        self.root, *rest = host.providers
        self.rest, self.aliases = rest, aliases
        self.nodes = [one for one in rest
                      if names.NUMA_NODE_TRAIT in one.traits]

    def ask(self, query):
        """Whether an amount, or each of several, is free somewhere."""
        asked = dict(query)
        for trait in filter(None, asked.get('root_required', '').split(',')):
            if (trait.lstrip('!') in self.root.traits) == (trait[0] == '!'):
                return False
        wanted = set(filter(None, asked.get('required', '').split(',')))
        return all(any(
            self.holds(one, *item.split(':'))
            for one in (self.root, *self.rest)
            if one is self.root or wanted <= one.traits)
            for item in asked['resources'].split(','))

    def holds(self, provider, name, amount):
        of, amount = provider.inventories.get(name), int(amount)
        if of is None or amount > of['max_unit']:
            return False
        free = ((of['total'] - of['reserved']) * of['allocation_ratio']
                - provider.used.get(name, 0))
        return (amount <= free and amount >= of.get('min_unit', 1)
                and amount % of.get('step_size', 1) == 0)

    def list_pfs(self, name):
        return [Pf(self.root.uuid, one.uuid if one in self.nodes
                   else one.parent or '',
                   one.get_inventory(name).free)
                for one in self.rest if name in one.inventories
                and one.get_inventory(name).free > 0]

    def read_totals(self):
        def stocks(provider):
            return {name: Stock(
                int((of['total'] - of['reserved']) * of['allocation_ratio']),
                provider.used.get(name, 0))
                for name, of in provider.inventories.items()}
        return CloudTotals((HostTotals(
            stocks(self.root), tuple(map(stocks, self.nodes))),), True)

    def find_fault(self, need, root_amounts):
        """Return the reasons of the fault of a server."""
        return cloud_lack.find_refusal_reasons(
            need.policy, 'min', cloud_lack.CloudQueries(
                self.ask, {one.alias: self.list_pfs(self.aliases[one.alias])
                           for one in need.policy.vfs},
                nodes=lambda: self.list_pfs(names.MEM_BW_PCT),
                read_totals=self.read_totals,
                has_pcpu_fallback=True),
            [('resources', ','.join(f'{name}:{amount}' for name, amount
                                    in root_amounts.items()))])


class Question:
    """A host, a flavor, and what each says of them."""

    def __init__(self, number):
        chance = random.Random(f'sentence {number}')  # noqa: S311
        self.file = chance.choice(FILES)
        self.host = planner_hosts.make_planner_host(self.file, 'h')
        self.is_empty = chance.random() < .5
        if not self.is_empty:
            self.host = draw_usage(chance, self.host)
        self.flavor = draw_flavor(chance, self.host, self.file.aliases)

    def check(self):
        """Return the verdict of flavor check; None: the flavor is wrong."""
        host, = capacity.build_hosts(self.host.providers)
        host = capacity.set_node_capacity(host, self.host.cells)
        try:
            asked, = flavors.list_requirements(
                flavors.Size(self.flavor.vcpus, self.flavor.ram),
                self.flavor.extra_specs, [host], self.file.aliases, 'min',
                True)
        except flavors.base.CommandRefused:
            return None
        self.root_amounts = asked.demand.get_root_amounts(host)
        return fitting.check_host_capacity(host, asked.demand)

    def plan(self):
        found, = planner.plan_host_capacity(
            [self.host], [self.flavor], settings=planner.PlanSettings(
                aliases=self.file.aliases, more=False)).flavors
        return found.hosts[0]

    def explain(self):
        return explanation.explain_flavor(explanation.Question(
            self.file, self.flavor.vcpus, self.flavor.ram,
            flavor_specs=self.flavor.extra_specs)).refusal

    def find_fault(self):
        return Cloud(self.host, self.file.aliases).find_fault(
            needs.build_flavor_need(self.flavor, 'min', self.file.aliases),
            self.root_amounts)


class OneSentenceTest(base.TestCase):

    def test_all_say_the_same_of_a_refusal(self):
        refused, numbers = 0, spaces.choose(range(QUESTIONS))
        for number in numbers:
            question = Question(number)
            verdict = question.check()
            if verdict is None:
                continue
            plan = question.plan()
            self.assertEqual(verdict.guests > 0, plan.guests > 0, number)
            if verdict.guests:
                continue
            refused += 1
            self.compare_plan(number, verdict, plan.lacks)
            if question.is_empty:
                self.compare_explanation(number, verdict, question.explain())
            for one in question.find_fault():
                self.compare_fault(number, question, verdict, one)
        self.assertGreater(refused, .7 * len(numbers))

    def test_as_many_are_placed_as_promised_wherever_vfs_may_be(self):
        placed = collections.Counter()
        numbers = spaces.choose(range(QUESTIONS))
        for number in numbers:
            question = Question(number)
            # Most is lost on an empty host.
            if not question.file.aliases or not question.is_empty:
                continue
            chance = random.Random(number)  # noqa: S311
            nodes, locality = chance.choice((2, 3, 3)), chance.choice(
                ('node', 'socket', 'any', 'any'))
            vfs = f'nic:{chance.choice((1, 3, 9, 20))}'
            question.flavor = Flavor(
                'x', nodes * chance.choice((1, 2, 8, 20)),
                1024 * nodes * chance.choice((1, 4, 16, 64)), extra_specs={
                    'hw:numa_nodes': str(nodes),
                    'ghsched:vfs_locality': locality,
                    'ghsched:mem_bw_min': str(chance.choice((5, 7, 10, 20))),
                    **{f'ghsched:vfs.{node}': vfs
                       for node in range(nodes)}})
            guests = question.check().guests
            self.assertEqual(guests, question.plan().guests, number)
            placed[locality] += guests > 0
        self.assertEqual(3, len(placed))

    def compare_plan(self, number, verdict, lacks):
        """The lacks of plan, by node, are in the sentences of flavor check."""
        if any(one.resource == lack.COMBINATION
               for one in (*lacks, *verdict.lacks)):
            return
        said = set()
        for one in verdict.lacks:
            found = OF_NODES.fullmatch(one.text)
            said |= {(node, found[2]) for node in cpulist.parse_cpu_list(
                found[1])} if found else {(None, one.text)}
        for node in {one.node for one in lacks}:
            texts = [one.text for one in lacks if one.node == node]
            self.assertLessEqual(
                {(None, text) for text in texts} if node is None
                else {(node, ', '.join(texts))}, said, number)

    def compare_explanation(self, number, verdict, refusal):
        """A described host may have more: limits that it cannot enforce."""
        said, _, more = refusal.partition('; ghsched:')
        self.assertEqual('; '.join(verdict.reason_texts), said, number)
        self.assertTrue(not more or 'cannot be enforced: ' in more, number)

    def compare_fault(self, number, question, verdict, one):
        """Whatever a fault says that no host has is in flavor check."""
        text = '; '.join(verdict.reason_texts)
        if one.resource == lack.COMBINATION:
            return
        if re.search(r'no host has \d+ NUMA nodes with', one.reason):
            # Flavor check says it of each node, or what comes before.
            name = names.MEM_BW_PCT
            if one.resource != lack.BANDWIDTH:
                name, = set(question.file.aliases.values())
            free = collections.Counter()
            for pf in Cloud(question.host, {}).list_pfs(name):
                free[pf.parent] += pf.free
            self.assertLess(
                sum(left >= one.needed for left in free.values()),
                int(question.flavor.extra_specs['hw:numa_nodes']), number)
        elif one.resource.startswith('trait '):
            self.assertIn(f'({one.resource})', text, number)
        else:
            figures = [pair for figure in FIGURES for pair in re.findall(
                figure.format(re.escape(lack.get_resource_unit(
                    one.resource))), text)]
            self.assertIn(str(one.needed), {needed for _free, needed
                                            in figures}, number)
            if one.free:
                self.assertIn(str(one.free), {free for free, _needed
                                              in figures}, number)
