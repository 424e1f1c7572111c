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

"""Reasons of refusals that the index of hosts knows without a question."""

import collections
import random

from ghsched_nova.features.index import cloud_memory
from ghsched_nova.features.index.host_capacity import ReportedHost
from ghsched_nova.features.index.host_capacity import ReportedNode
from ghsched_nova.features.index import host_index
from ghsched_placement.features.index import headroom
from ghsched_placement.fit import cloud_lack
from ghsched_placement.fit import cloud_totals
from ghsched_placement.flavor.policy import parse_policy
from ghsched_placement.providers import names
from ghsched_placement.query.vfs import Pf
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import spaces

CLOUDS = 400


class Cloud:
    """Hosts with free bandwidth by NUMA node and control groups.

    :ivar asked: number of questions to Placement.
    """

    def __init__(self, chance):
        self.asked = 0
        self.hosts = {
            f'{number}1111111-2222-4333-8444-555555555555': (
                [chance.choice((0, 10, 25, 40, 95)) for _node
                 in range(chance.randint(1, 3))], chance.randint(0, 2))
            for number in range(chance.randint(1, 3))}
        self.most = max(chance.choice((50, 95)), *(
            free for nodes, _groups in self.hosts.values() for free in nodes))

    def ask(self, query):
        """Return Placement's answer, whether a host has what is asked for."""
        self.asked += 1
        name, _, amount = dict(query)['resources'].partition(':')
        if name == names.MEM_BW_PCT:
            return any(free >= int(amount) for nodes, _groups
                       in self.hosts.values() for free in nodes)
        if name == names.RESCTRL_GROUP:
            return any(groups >= int(amount)
                       for _nodes, groups in self.hosts.values())
        return True

    def list_nodes(self):
        self.asked += 1
        return [Pf(uuid, f'{uuid} {node}', free)
                for uuid, (nodes, _groups) in self.hosts.items()
                for node, free in enumerate(nodes)]

    def read_totals(self):
        self.asked += 1
        return cloud_totals.CloudTotals(tuple(
            cloud_totals.HostTotals({}, tuple(
                {names.MEM_BW_PCT: cloud_totals.Stock(
                    self.most, self.most - free)} for free in nodes))
            for nodes, _groups in self.hosts.values()), is_complete=True)

    def has_trait(self, _trait):
        self.asked += 1
        return True

    def make_queries(self):
        return cloud_lack.CloudQueries(
            self.ask, nodes=self.list_nodes, read_totals=self.read_totals,
            has_trait=self.has_trait)

    def make_index(self):
        index = host_index.Index()
        index.update_hosts([ReportedHost(
            uuid, uuid, 'c', 1,
            tuple(ReportedNode(node) for node in range(len(nodes))),
            has_driver=True, placement_headroom=headroom.Headroom(
                1., 0, groups, dict(enumerate(nodes)),
                capacity=dict.fromkeys(range(len(nodes)), self.most)))
            for uuid, (nodes, groups) in self.hosts.items()], (), 0)
        return index


class CloudMemoryTest(base.TestCase):

    def find_reasons(self, cloud, shares, queries):
        policy = parse_policy(
            {f'ghsched:mem_bw_min.{node}': str(share)
             for node, share in enumerate(shares)}, len(shares))
        found = cloud_lack.find_refusal_reasons(policy, 'min', queries)
        return [(one.reason, one.query) for one in found]

    def test_reasons_are_those_of_placement_with_fewer_questions(self):
        kinds = collections.Counter()
        for number in range(spaces.count(CLOUDS)):
            chance = random.Random(number)  # noqa: S311
            cloud = Cloud(chance)
            shares = [chance.choice((5, 20, 30, 60, 98))] * chance.randint(
                1, 2)
            expected = self.find_reasons(cloud, shares, cloud.make_queries())
            asked, cloud.asked = cloud.asked, 0
            memory = cloud_memory.CloudMemory(cloud.make_index())
            for _time in range(2):
                cloud.asked = 0
                self.assertEqual(expected, self.find_reasons(
                    cloud, shares,
                    memory.answer_from_index(cloud.make_queries())))
            # The second time, only what no host has is asked for again.
            self.assertLessEqual(cloud.asked, 1)
            self.assertLess(cloud.asked, asked)
            kinds.update(reason for reason, _query in expected)
        self.assertGreater(len(kinds), 6)

    def test_bandwidth_that_a_host_does_not_report_is_asked_for(self):
        cloud = Cloud(random.Random(1))  # noqa: S311
        index = cloud.make_index()
        index.update_hosts([ReportedHost('u', 'u', 'c', 1, (ReportedNode(0),),
                                         has_driver=True)], (), 0)
        queries = cloud.make_queries()
        self.assertIs(queries, cloud_memory.CloudMemory(
            index).answer_from_index(queries))

    def test_capacity_that_a_host_does_not_report_is_asked_for_alone(self):
        for capacity, asked in (({0: 95}, 1), ({}, 2)):
            cloud = Cloud(random.Random(1))  # noqa: S311
            index = host_index.Index()
            index.update_hosts([ReportedHost(
                'u', 'u', 'c', 1, (ReportedNode(0),), has_driver=True,
                placement_headroom=headroom.Headroom(
                    1., 0, 9, {0: 40}, capacity=capacity))], (), 0)
            ((reason, _query),) = self.find_reasons(
                cloud, [96], cloud_memory.CloudMemory(
                    index).answer_from_index(cloud.make_queries()))
            self.assertIn('96 % of its memory bandwidth in all', reason)
            # Whether a host has the trait is the other question.
            self.assertEqual(asked, cloud.asked)

    def test_answer_is_asked_for_once(self):
        memory = cloud_memory.CloudMemory(host_index.Index())
        answers = iter(range(1, 99))
        self.assertEqual([1, 1, 2], [
            memory.remember(name, lambda: next(answers)) for name in 'aab'])

    def test_answer_of_no_is_asked_for_again(self):
        memory = cloud_memory.CloudMemory(host_index.Index())
        answers = iter((False, True))
        self.assertEqual([False, True, True], [
            memory.remember('a', lambda: next(answers)) for _time in range(3)])
