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

"""Texts of refusals, and the hosts that they are about."""

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.fit import capacity
from ghsched_placement.fit import cloud_lack
from ghsched_placement.fit.cloud_totals import CloudTotals
from ghsched_placement.fit.cloud_totals import HostTotals
from ghsched_placement.fit.cloud_totals import parse_provider_summaries
from ghsched_placement.fit.cloud_totals import Stock
from ghsched_placement.fit import fitting
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit.node_capacity import Pages
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.flavor.policy import parse_policy
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.providers import names
from ghsched_placement.query.vfs import Pf
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds

NODES = st.tuples(st.integers(0, 100), st.integers(0, 8), st.integers(0, 8),
                  st.integers(0, 40), st.integers(0, 8))

#: Part of a reason with two figures: free or possible, and needed.
FIGURES = re.compile(r'(\d+) ([^;:,()]+?) free, (\d+) needed')
AT_MOST = re.compile(r'at most (\d+) [^;,()]+? for one guest, (\d+) needed')
PLACE = re.compile(r'NUMA nodes? ([0-9,-]+) cannot take guest NUMA node')
TOGETHER = re.compile(r'guest NUMA node (\d+) \([^)]*\) fits on (?:no host '
                      r'NUMA node|host NUMA nodes? ([0-9,-]+))')


class HostTest(base.TestCase):
    """Reasons of "openstack ghsched flavor check" for one host."""

    def check(self, nodes, needs, vcpus, page_size):
        """Return the host, as drawn, and the reasons why it refuses."""
        host = capacity.set_node_capacity(clouds.host(*(
            clouds.node(number, used=used)
            for number, (used, *_rest) in enumerate(nodes)), VCPU=vcpus), [
            NodeCapacity(number, cpus=8, vcpus_used=8 - shared, dedicated=8,
                         dedicated_used=8 - pinned, memory=1024, pages=(
                             Pages(4, 200 * 256, (200 - small) * 256),
                             Pages(2048, 40, 40 - huge)))
            for number, (_used, shared, pinned, huge, small)
            in enumerate(nodes)])
        demand = GuestDemand(
            GuestPolicy(tuple(NodePolicy(share) for share, _need in needs)),
            len(needs), {'VCPU': 3}, needs=tuple(need for _, need in needs),
            page_size=page_size)
        return fitting.check_host_capacity(host, demand)

    @given(st.lists(NODES, min_size=1, max_size=3), st.lists(st.tuples(
        st.integers(1, 100), st.builds(
            GuestNode, st.integers(0, 9), st.integers(0, 9),
            st.integers(1, 60).map(lambda pages: 2 * pages))),
        min_size=1, max_size=3), st.integers(1, 6),
        st.sampled_from((None, 2048, 'large', 'small')))
    def test_figures_are_those_of_the_host(self, nodes, needs, vcpus, pages):
        verdict = self.check(nodes, needs, vcpus, pages)
        free = [{'% of memory bandwidth': 100 - used, 'CPUs': shared,
                 'dedicated CPUs': pinned} for used, shared, pinned, *_rest
                in nodes]
        for number, (*_rest, huge, small) in enumerate(nodes):
            free[number]['of 40 pages of 2 MB'] = huge
            free[number]['MB of memory in small pages'] = small
        fits = {guest: set(range(len(nodes))) for guest in range(len(needs))}
        for text in verdict.reason_texts:
            place = PLACE.search(text)
            for found, word, needed in FIGURES.findall(text):
                self.assertLess(int(found), int(needed), text)
                for node in _parse_numbers(place[1]) if place else ():
                    self.assertEqual(free[node].get(word, int(found)),
                                     int(found), text)
                    if word != 'MB of memory':
                        self.assertIn(word, free[node], text)
                if not place:
                    self.assertEqual((vcpus, 3), (int(found), int(needed)))
            for most, needed in AT_MOST.findall(text):
                self.assertLess(int(most), int(needed), text)
            for guest, listed in TOGETHER.findall(text):
                fits[int(guest)] = _parse_numbers(listed)
        if any(TOGETHER.search(text) for text in verdict.reason_texts):
            self.check_matching(fits, nodes, needs, vcpus, pages)
        self.assertEqual(not verdict.guests, bool(verdict.reason_texts))

    def check_matching(self, fits, nodes, needs, vcpus, pages):
        """Check the host nodes that are named for each guest node."""
        for guest, need in enumerate(needs):
            # Alone on a host of which this is the only node.
            alone = {number for number, node in enumerate(nodes)
                     if self.check([node], [need], vcpus, pages).guests}
            self.assertEqual(alone, fits[guest])
        self.assertFalse(any(
            all(node in fits[guest] for guest, node in enumerate(order))
            for order in itertools.permutations(range(len(nodes)),
                                                len(needs))))


def _parse_numbers(text):
    found = set()
    for part in filter(None, text.split(',')):
        first, _, last = part.partition('-')
        found |= set(range(int(first), int(last or first) + 1))
    return found


HOSTS = st.lists(st.tuples(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1,
             max_size=3),
    st.integers(0, 8), st.integers(0, 8), st.integers(1, 8)), min_size=1,
    max_size=3)


class CloudTest(base.TestCase):
    """Faults of servers for which no host of a cloud has room."""

    def find(self, hosts, shares, vcpus, is_complete):
        """Return the reasons for hosts as drawn.

        A host has nodes with (total, used), and vCPUs (total, used, most for
        one guest).
        """
        free = [[total - used for total, used in nodes]
                for nodes, *_rest in hosts]

        def ask(query):
            parameters = dict(query)
            if 'root_required' in parameters:
                return True
            name, _, text = parameters['resources'].partition(':')
            amount = int(text.partition(',')[0])
            if name == names.MEM_BW_PCT:
                return any(left >= amount for nodes in free for left in nodes)
            if name == 'VCPU':
                return any(total - used >= amount and most >= amount
                           for _nodes, total, used, most in hosts)
            return True
        totals = CloudTotals(tuple(
            HostTotals({'VCPU': Stock(total, used)}, tuple(
                {names.MEM_BW_PCT: Stock(*node)} for node in nodes))
            for nodes, total, used, _most in hosts), is_complete)
        queries = cloud_lack.CloudQueries(
            ask, nodes=lambda: [Pf(str(number), str(number), left)
                                for number, nodes in enumerate(free)
                                for left in nodes],
            read_totals=lambda: totals)
        policy = parse_policy({
            f'ghsched:mem_bw_min.{node}': str(share)
            for node, share in enumerate(shares)}, len(shares))
        return [one.reason for one in cloud_lack.find_refusal_reasons(
            policy, 'min', queries, [('resources', f'VCPU:{vcpus}')])]

    @given(HOSTS, st.lists(st.integers(1, 100), min_size=1, max_size=4),
           st.integers(1, 9), st.booleans())
    def test_nothing_is_left_that_never_was(self, hosts, shares, vcpus,
                                            is_complete):
        for text in self.find(hosts, shares, vcpus, is_complete):
            number = int((re.search(r'\d+', text) or ['0'])[0])
            if 'vCPUs' in text:
                stocks = [(total, used) for _nodes, total, used, _most
                          in hosts]
            elif 'NUMA nodes' in text and 'though each' not in text:
                self.check_nodes(text, hosts, shares)
                continue
            elif 'memory bandwidth' in text and 'can hold' not in text:
                stocks = [node for nodes, *_rest in hosts for node in nodes]
            else:
                continue
            once = any(total >= number for total, _used in stocks)
            now = any(total - used >= number for total, used in stocks)
            self.assertEqual('gives one guest' in text, now, text)
            if ' left' in text:
                self.assertTrue(once and not now, text)
            if ' in all' in text:
                self.assertTrue(is_complete and not once, text)
            if ' free' in text:
                self.assertFalse(once or is_complete, text)

    def check_nodes(self, text, hosts, shares):
        """Check a reason that names a number of NUMA nodes of one host."""
        self.assertIn(f'{len(shares)} NUMA nodes', text)
        once = any(all(total >= share for (total, _used), share
                       in zip(order, shares, strict=True))
                   for nodes, *_rest in hosts
                   for order in itertools.permutations(nodes, len(shares)))
        if 'with enough' not in text:
            self.assertTrue(all(len(nodes) < len(shares)
                                for nodes, *_rest in hosts), text)
        self.assertEqual(' left,' in text, once, text)

    def test_no_host_has_as_many_nodes(self):
        host = ([(100, 0), (100, 0)], 8, 0, 8)
        self.assertEqual(
            ['no host has 3 NUMA nodes, 1 % and 1 % and 1 % for the guest '
             'NUMA nodes 0 and 1 and 2 (ghsched:mem_bw_min)'],
            self.find([host], (1, 1, 1), 1, True))

    def test_more_vcpus_than_one_guest_may_have(self):
        host = ([(100, 0)], 8, 0, 2)
        self.assertEqual(['no host gives one guest 3 vCPUs'],
                         self.find([host], (1,), 3, True))
        self.assertEqual(['no host has 9 vCPUs in all'],
                         self.find([host], (1,), 9, True))

    def test_more_vcpu_classes_than_any_host_has_control_groups(self):
        policy = parse_policy({
            'ghsched:vcpu_classes': 'a:0,b:1', 'ghsched:mem_bw_max.a': '5',
            'ghsched:mem_bw_max.b': '50', 'ghsched:mem_bw_max': '1'}, 1, 4)
        for totals, is_complete, reason in (
                ((2, 1), True, 'no host has 3 resctrl control groups in all, '
                 'one for each vCPU class; the most on one host is 2; request '
                 'bandwidth for fewer classes of ghsched:vcpu_classes'),
                ((2, 3), True, 'no host has 3 resctrl control groups left, '
                 'one for each vCPU class; lower '
                 '[ghsched]reserved_control_groups, or move guests away'),
                ((2, 1), False, 'no host has 3 resctrl control groups free, '
                 'one for each vCPU class; lower '
                 '[ghsched]reserved_control_groups, or move guests away')):
            (found,) = cloud_lack.find_refusal_reasons(
                policy, 'min', cloud_lack.CloudQueries(
                    lambda query: 'RESCTRL_GROUP' not in str(query),
                    read_totals=lambda totals=totals, known=is_complete:
                    CloudTotals(tuple(
                        HostTotals({names.RESCTRL_GROUP: Stock(total, 1)})
                        for total in totals), known)))
            self.assertEqual(reason, str(found))

    def test_dedicated_cpus_are_not_missing_where_vcpus_take_their_place(self):
        def ask(query):
            return 'PCPU' not in str(query)
        for fallback, reason in ((False, 'no host has 4 dedicated CPUs free'),
                                 (True, 'no host has all that the flavor')):
            (found,) = cloud_lack.find_refusal_reasons(
                parse_policy({'ghsched:mem_bw_min': '60'}, 1), 'min',
                cloud_lack.CloudQueries(ask, nodes=lambda: [Pf('a', 'a', 99)],
                                        has_pcpu_fallback=fallback),
                [('resources', 'MEMORY_MB:1,PCPU:4')])
            self.assertIn(reason, found.reason)

    def test_totals_are_those_of_placement(self):
        summaries = {uuid: {
            'root_provider_uuid': 'a', 'traits': traits, 'resources': {
                name: {'capacity': 8, 'used': 3}}}
            for uuid, name, traits in (
                ('a', 'VCPU', []), ('n', names.MEM_BW_PCT,
                                    [names.NUMA_NODE_TRAIT]),
                ('pf', 'CUSTOM_VF', []))}
        for known, is_complete in ((0, False), (1, True), (2, False)):
            found = parse_provider_summaries(summaries, known)
            self.assertEqual(is_complete, found.is_complete)
            self.assertEqual((HostTotals(
                {'VCPU': Stock(8, 3)}, ({names.MEM_BW_PCT: Stock(8, 3)},)),),
                found.hosts)
