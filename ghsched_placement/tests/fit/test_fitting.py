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

"""Whether a host fits, why not, and how often."""

from dataclasses import replace
import functools
import itertools
import random

from hypothesis import given
from hypothesis import strategies as st
import os_traits

from ghsched_placement.fit import capacity
from ghsched_placement.fit import counting
from ghsched_placement.fit import fitting
from ghsched_placement.fit.guest_demand import GuestDemand
from ghsched_placement.fit import lack
from ghsched_placement.fit.node_capacity import NodeCapacity
from ghsched_placement.fit.node_capacity import Pages
from ghsched_placement.flavor import policy
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.flavor.policy import Vfs
from ghsched_placement.flavor.topology import GuestNode
from ghsched_placement.providers import names
from ghsched_placement.providers import tree
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds
from ghsched_placement.tests.fixtures import spaces


def wish(*shares, vfs=(), locality='node', **more):
    """A guest with such guarantees by guest NUMA node."""
    policy = GuestPolicy(
        nodes=tuple(map(NodePolicy, shares)), vfs_locality=locality,
        vfs=tuple(Vfs(node, 'nic', count)
                  for node, count in enumerate(vfs) if count))
    return GuestDemand(policy, max(len(shares), len(vfs)),
                       classes={'nic': clouds.VF}, **more)


def shared_host(asked, used, backs, groups_free=0, **more):
    """A host whose node n backs the guest nodes backs[n] of such guests.

    :param used: bandwidth that is used of each node.
    """
    return clouds.host(*(
        clouds.node(number, used=share, traits=clouds.NODE_TRAITS | {
            names.make_share_trait(asked.policy.fingerprint, guest_node)
            for guest_node in guest_nodes})
        for number, (share, guest_nodes) in enumerate(
            zip(used, backs, strict=True))),
        groups=3 + groups_free, groups_used=3, **more)


def count_with_vfs_of_sockets(cpus, vfs, sockets, needs):
    """Return the most guests, found by trying every place and every PF.

    :param cpus: free CPUs of each host node; a guest node takes one.
    :param vfs: free VFs of the PF of each host node.
    :param needs: VFs of each guest node, of its host node or its socket.
    """
    def yield_pfs(left, node, count):
        near = [other for other in range(len(left)) if other == node or (
            sockets[node] is not None and sockets[other] == sockets[node])]
        for pfs in itertools.combinations_with_replacement(near, count):
            rest = list(left)
            for pf in pfs:
                rest[pf] -= 1
            if min(rest) >= 0:
                yield tuple(rest)

    def yield_after(cpus, vfs):
        for nodes in itertools.permutations(range(len(cpus)), len(needs)):
            if all(cpus[node] for node in nodes):
                found = {vfs}
                for node, count in zip(nodes, needs, strict=True):
                    found = {rest for left in found
                             for rest in yield_pfs(left, node, count)}
                yield from ((tuple(
                    free - (node in nodes) for node, free in enumerate(cpus)),
                    rest) for rest in found)

    @functools.cache
    def count(cpus, vfs):
        return max((1 + count(*after) for after
                    in set(yield_after(cpus, vfs))), default=0)
    return count(cpus, vfs)


class CheckTest(base.TestCase):

    def fits(self, host, asked):
        verdict = fitting.check_host_capacity(host, asked)
        self.assertEqual((), verdict.reason_texts)
        return verdict

    def refused(self, host, asked):
        verdict = fitting.check_host_capacity(host, asked)
        self.assertEqual((0, ()), (verdict.guests, verdict.nodes))
        return verdict.reason_texts

    def test_as_many_as_the_nodes_have_bandwidth_for(self):
        host = clouds.host(clouds.node(0, used=50), clouds.node(1))
        self.assertEqual(1 + 3, self.fits(host, wish(30)).guests)

    def test_amount_that_no_feature_declares_is_no_reason(self):
        host = clouds.host(clouds.node(0))
        host = replace(host, nodes=tuple(
            replace(one, unstated={'CUSTOM_FOG': 'fog'})
            for one in host.nodes))
        self.assertEqual(3, self.fits(host, wish(30)).guests)

    @base.needs_features('bursts')
    def test_as_many_as_have_room_for_their_bursts(self):
        asked = GuestDemand(
            GuestPolicy((NodePolicy(10, burst=20),)), 1)
        host = clouds.host(clouds.node(0, bursts=50, bursts_used=5),
                           clouds.node(1))
        self.assertEqual(2, self.fits(host, asked).guests)
        none = clouds.host(clouds.node(0, bursts=50, bursts_used=40))
        self.assertIn('10 % of memory bandwidth as bursts free, 20 needed',
                      self.refused(none, asked)[0])

    def test_cpus_of_a_numa_node_too_few_refuse_the_guest(self):
        host = capacity.set_node_capacity(
            clouds.host(clouds.node(0), clouds.node(1), VCPU=2),
            [NodeCapacity(number, cpus=1, memory=512) for number in (0, 1)])
        asked = wish(30, needs=(GuestNode(shared=2, memory=64),),
                     amounts={'VCPU': 2})
        self.assertEqual((
            'NUMA nodes 0-1 cannot take guest NUMA node 0: 1 CPUs free, 2 '
            'needed',), self.refused(host, asked))

    def test_guests_fill_cpus_and_memory_of_each_numa_node(self):
        host = capacity.set_node_capacity(
            clouds.host(clouds.node(0), clouds.node(1)),
            [NodeCapacity(0, cpus=8, memory=512),
             NodeCapacity(1, dedicated=4, cpus=2, memory=4096)])
        self.assertEqual(2 + 1, self.fits(host, wish(
            10, needs=(GuestNode(shared=2, memory=256),))).guests)
        self.assertEqual(4, self.fits(host, wish(
            10, needs=(GuestNode(pinned=1, memory=256),))).guests)

    def test_cpus_of_a_host_that_does_not_report_are_not_counted(self):
        host = clouds.host(clouds.node(0))
        self.assertEqual(10, self.fits(host, wish(
            10, needs=(GuestNode(shared=999, memory=1),))).guests)

    def test_even_rooms_of_a_host_are_parts_of_what_it_has(self):
        host = clouds.host(clouds.node(0), clouds.node(1), VCPU=5,
                           MEMORY_MB=4096, used={'VCPU': 3})
        self.assertEqual(
            [(0, 2, 2, 2048), (1, 2, 2, 2048)],
            [(room.node, room.cpus, room.vcpus_used, room.memory)
             for room in capacity.estimate_node_capacity(host)])
        self.assertEqual((), capacity.estimate_node_capacity(clouds.host()))

    def test_without_pcpus_all_cpus_may_be_dedicated(self):
        rooms = [[(room.cpus, room.dedicated, room.dedicated_free)
                  for room in capacity.estimate_node_capacity(host)]
                 for host in (
            clouds.host(clouds.node(0), clouds.node(1), VCPU=4),
            clouds.host(clouds.node(0), clouds.node(1), VCPU=4, PCPU=6))]
        self.assertEqual([[(2, 2, 2)] * 2, [(2, 3, 3)] * 2], rooms)

    def test_dedicated_cpus_are_taken_from_vcpus_where_nova_does_that(self):
        asked = wish(5, amounts={'PCPU': 3, 'MEMORY_MB': 64},
                     fallback_vcpus=2)
        self.assertEqual(4, self.fits(clouds.host(
            clouds.node(0), VCPU=9, MEMORY_MB=640), asked).guests)
        self.assertEqual(('2 dedicated CPUs free, 3 needed',), self.refused(
            clouds.host(clouds.node(0), VCPU=9, PCPU=2, MEMORY_MB=640),
            asked))
        self.assertEqual(('0 dedicated CPUs free, 3 needed',), self.refused(
            clouds.host(clouds.node(0), VCPU=9, MEMORY_MB=640),
            replace(asked, fallback_vcpus=0)))

    def test_guest_nodes_are_on_host_nodes_of_their_own(self):
        host = clouds.host(clouds.node(0), clouds.node(1, used=60))
        verdict = self.fits(host, wish(30, 30))
        self.assertEqual((1, {0, 1}), (verdict.guests, set(verdict.nodes)))

    def test_a_guest_node_makes_way_for_another(self):
        host = clouds.host(clouds.node(0), clouds.node(1, used=60))
        self.assertEqual((1, 0), self.fits(host, wish(30, 90)).nodes)
        self.assertEqual((0, 1), self.fits(host, wish(90, 30)).nodes)

    def test_reasons_name_each_node(self):
        host = clouds.host(clouds.node(0, used=90),
                           clouds.node(1, bandwidth=0))
        self.assertEqual((
            'NUMA node 0 cannot take guest NUMA node 0: 10 % of '
            'memory bandwidth free, 30 needed',
            'NUMA node 1 cannot take guest NUMA node 0: its bandwidth '
            'cannot be controlled'), self.refused(host, wish(30)))

    def test_nodes_that_fit_but_not_together(self):
        host = clouds.host(clouds.node(0), clouds.node(1, used=100))
        self.assertIn('need a host NUMA node each',
                      self.refused(host, wish(30, 30))[0])

    def test_fewer_nodes_than_the_guest_has(self):
        self.assertIn('it has 1 NUMA node, the guest has 2',
                      self.refused(clouds.host(clouds.node(0)), wish(1, 1)))

    def test_traits_are_reported_by_the_key_that_needs_them(self):
        host = clouds.host(clouds.node(0), traits={'CUSTOM_X'})
        trait = names.CAPABILITY_TRAITS['MEM_BW_MIN']
        self.assertEqual(
            (f'it cannot hold ghsched:mem_bw_min (trait {trait})',
             'it lacks the trait OWNER_NOVA', 'it has the trait CUSTOM_X'),
            self.refused(host, wish(
                30, required=frozenset({trait, 'OWNER_NOVA'}),
                forbidden=frozenset({'CUSTOM_X'}))))

    def test_a_disabled_host(self):
        host = clouds.host(
            clouds.node(0),
            traits=clouds.ALL_TRAITS | {os_traits.COMPUTE_STATUS_DISABLED})
        self.assertEqual(('the compute service is disabled; openstack compute '
                          'service set --enable',),
                         self.refused(host, wish(30)))

    def test_control_groups_run_out(self):
        host = clouds.host(clouds.node(0), groups=3, groups_used=1)
        self.assertEqual(2, self.fits(host, wish(1)).guests)
        full = clouds.host(clouds.node(0), groups=3, groups_used=3)
        self.assertEqual(('0 control groups free, 1 needed',),
                         self.refused(full, wish(1)))

    def test_each_vcpu_class_takes_a_control_group(self):
        asked = GuestDemand(policy.parse_policy({
            'ghsched:vcpu_classes': 'a:0,b:1', 'ghsched:mem_bw_min.a': '5',
            'ghsched:mem_bw_max.b': '50', 'ghsched:mem_bw_min': '1'}, 1, 4),
            1, classes={})
        for free, guests in ((6, 2), (5, 1), (3, 1)):
            host = clouds.host(clouds.node(0), groups=9, groups_used=9 - free)
            self.assertEqual(guests, self.fits(host, asked).guests)
        host = clouds.host(clouds.node(0), groups=9, groups_used=7)
        self.assertEqual(('2 control groups free, 3 needed',),
                         self.refused(host, asked))
        host = clouds.host(clouds.node(0), groups=2)
        self.assertEqual(('2 control groups in all, 3 needed',),
                         self.refused(host, asked))

    def test_totals_of_the_host(self):
        host = clouds.host(clouds.node(0), VCPU=8, MEMORY_MB=1000,
                           used={'VCPU': 3})
        self.assertEqual(2, self.fits(host, wish(
            1, amounts={'VCPU': 2, 'MEMORY_MB': 300})).guests)
        self.assertEqual(
            ('0 dedicated CPUs free, 1 needed', '5 vCPUs free, 6 needed'),
            (self.refused(host, wish(1, amounts={'PCPU': 1}))[0],
             self.refused(host, wish(1, amounts={'VCPU': 6}))[0]))

    def test_disks_may_be_elsewhere(self):
        self.fits(clouds.host(clouds.node(0)),
                  wish(1, amounts={'DISK_GB': 10}))

    def test_vfs_of_the_node(self):
        host = clouds.host(
            clouds.node(0), clouds.node(1), clouds.pf('0000:01:00.0', 0, 3),
            clouds.pf('0000:02:00.0', 0, 3), clouds.pf('0000:81:00.0', 1, 8))
        verdict = self.fits(host, wish(vfs=(5,)))
        self.assertEqual(2, verdict.guests)
        self.assertIn('6 VFs of nic free, 9 needed',
                      self.refused(host, wish(vfs=(9,)))[0])

    def test_distant_vfs_are_those_of_the_host(self):
        host = clouds.host(
            clouds.node(0), clouds.node(1), clouds.pf('0000:01:00.0', 0, 3),
            clouds.pf('0000:81:00.0', None, 4))
        self.assertEqual(1, self.fits(
            host, wish(vfs=(7,), locality='any')).guests)
        self.assertEqual(
            ('7 VFs of nic free, 8 needed (ghsched:vfs)',),
            self.refused(host, wish(vfs=(8,), locality='any')))

    def test_vfs_of_a_socket_are_those_of_all_its_nodes(self):
        """However the VFs of each PF are given to the guests."""
        for number in spaces.choose(range(400)):
            chance = random.Random(f'sockets {number}')  # noqa: S311
            sockets = [chance.choice((0, 0, 1, None)) for _node in range(4)]
            cpus = [chance.randint(0, 3) for _node in sockets]
            vfs = [chance.choice((0, 2, 5)) for _node in sockets]
            needs = [chance.choice((0, 1, 2))
                     for _node in range(chance.choice((1, 2, 2, 3)))]
            host = capacity.set_node_capacity(clouds.host(
                *map(clouds.node, range(4)), *(
                    clouds.pf(f'0000:{node}1:00.0', node, count)
                    for node, count in enumerate(vfs) if count)),
                [NodeCapacity(node, count, socket=socket)
                 for node, (count, socket)
                 in enumerate(zip(cpus, sockets, strict=True))])
            asked = replace(
                wish(vfs=needs, locality='socket'),
                needs=(GuestNode(shared=1),) * len(needs))
            verdict = fitting.check_host_capacity(host, asked)
            self.assertEqual(
                count_with_vfs_of_sockets(tuple(cpus), tuple(vfs), sockets,
                                          needs), verdict.guests, number)
            self.assertEqual(verdict.guests > 0, bool(verdict.nodes), number)

    def test_the_reason_of_guest_nodes_in_one_socket_names_its_vfs(self):
        host = capacity.set_node_capacity(clouds.host(
            *map(clouds.node, range(3)), clouds.pf('0000:01:00.0', 0, 8),
            clouds.pf('0000:81:00.0', 2, 3)), [
                NodeCapacity(node, 4, socket=socket)
                for node, socket in enumerate((0, 0, 1))])
        self.assertEqual(
            ('the 2 guest NUMA nodes need a host NUMA node each and the VFs '
             'in its socket: guest NUMA node 0 (1 CPUs, 5 VFs of nic) fits on '
             'host NUMA nodes 0-1, guest NUMA node 1 (1 CPUs, 5 VFs of nic) '
             'fits on host NUMA nodes 0-1',), self.refused(host, replace(
                 wish(vfs=(5, 5), locality='socket'),
                 needs=(GuestNode(shared=1),) * 2)))

    def test_a_guest_that_wants_nothing_is_counted_to_an_end(self):
        self.assertEqual(counting.MAX_GUESTS, self.fits(
            clouds.host(clouds.node(0)), wish(vfs=(0,))).guests)

    @given(st.lists(st.integers(0, 100), min_size=1, max_size=4),
           st.lists(st.integers(0, 60), min_size=1, max_size=3))
    def test_fits_if_and_only_if_some_order_does(self, used, shares):
        host = clouds.host(*(clouds.node(number, used=share)
                             for number, share in enumerate(used)))
        possible = any(
            all(100 - used[node] >= share
                for node, share in zip(nodes, shares, strict=True))
            for nodes in itertools.permutations(range(len(used)),
                                                len(shares)))
        verdict = fitting.check_host_capacity(host, wish(*shares))
        self.assertEqual(possible, verdict.guests > 0)
        self.assertEqual(possible, not verdict.reason_texts)
        if possible:
            self.assertEqual(len(shares), len(set(verdict.nodes)))

    @given(st.lists(st.integers(0, 100), min_size=2, max_size=4),
           st.integers(1, 60), st.integers(1, 2))
    def test_the_number_is_right_for_equal_nodes(self, used, share, nodes):
        """n guests fit when k n parts can be spread, at most n to a node."""
        host = clouds.host(*(clouds.node(number, used=one)
                             for number, one in enumerate(used)), groups=500)
        room = [(100 - one) // share for one in used]
        expected = max(n for n in range(401) if sum(
            min(n, one) for one in room) >= n * nodes)
        self.assertEqual(expected, fitting.check_host_capacity(
            host, wish(*[share] * nodes)).guests)


@st.composite
def one_node_hosts(draw):
    """A host of one NUMA node, and a guest of one."""
    total = draw(st.integers(1, 100))
    record = {**tree.make_inventory(total),
              'min_unit': draw(st.sampled_from((1, 1, 5, 20))),
              'max_unit': draw(st.sampled_from((total, 10, 40))),
              'step_size': draw(st.sampled_from((1, 1, 5, 10)))}
    sizes = draw(st.sampled_from(((), (4,), (4, 2048), (4, 2048, 1048576))))
    room = NodeCapacity(
        0, draw(st.integers(0, 8)), draw(st.integers(0, 8)),
        draw(st.sampled_from((1.0, 2.0))), draw(st.integers(0, 8)),
        draw(st.integers(0, 4)), draw(st.sampled_from((1024, 4096))),
        draw(st.integers(0, 2048)), draw(st.sampled_from((1.0, 1.5))),
        tuple(Pages(size, draw(st.integers(0, 4)) * 1048576 // size,
                    draw(st.integers(0, 2)) * 1048576 // size)
              for size in sizes))
    host = clouds.host(replace(
        clouds.node(0, used=draw(st.integers(0, 100))),
        inventories={names.MEM_BW_PCT: record}),
        clouds.pf('0000:01:00.0', 0, used=draw(st.integers(0, 8))))
    asked = wish(
        draw(st.integers(1, 100)), vfs=(draw(st.integers(0, 8)),),
        locality=draw(st.sampled_from(('node', 'any'))), needs=(GuestNode(
            draw(st.integers(0, 8)), draw(st.integers(0, 8)),
            draw(st.sampled_from((512, 1000, 1024, 2048)))),),
        page_size=draw(st.sampled_from(
            (None, 'small', 'large', 'any', 2048, 1048576))))
    return capacity.set_node_capacity(host, [room]), asked


class ReasonsTest(base.TestCase):

    @given(one_node_hosts())
    def test_shortages_are_those_that_keep_the_count_at_0(self, drawn):
        """Reasons come from the records, the count from the amounts."""
        host, asked = drawn
        short = [*fitting.find_host_shortages(host, asked),
                 *fitting.find_node_shortages(host.nodes[0], asked, 0)]
        fits = counting.count_guests(host.amounts,
                                     asked.make_need(host)).guests
        self.assertEqual(not short, fits > 0, short)
        self.assertEqual(fits, fitting.check_host_capacity(host, asked).guests)

    @given(one_node_hosts())
    def test_bandwidth_and_vfs_are_short_by_plain_numbers(self, drawn):
        host, asked = drawn
        stock, share = host.nodes[0].bandwidth, asked.policy.nodes[0].minimum
        fits = (share <= stock.total - stock.used
                and stock.record['min_unit'] <= share
                <= stock.record['max_unit']
                and share % stock.record['step_size'] == 0)
        vfs = sum(need.count for need in asked.policy.vfs)
        short = {one.resource for one in (
            *fitting.find_host_shortages(host, asked),
            *fitting.find_node_shortages(host.nodes[0], asked, 0))}
        self.assertEqual(fits, short.isdisjoint(
            {lack.BANDWIDTH, f'{lack.BANDWIDTH} for one guest'}))
        self.assertEqual(vfs <= host.pfs[0].stock.free,
                         'VFs of nic' not in short)


class SharingTest(base.TestCase):
    """Guests of equal policy on a host that has no control group left."""

    def test_it_goes_where_a_group_can_be_shared(self):
        asked = wish(30)
        verdict = fitting.check_host_capacity(
            shared_host(asked, (0, 40), ((), (0,))), asked)
        self.assertEqual(((1,), 2, 2, True, ()), (
            verdict.nodes, verdict.guests, verdict.sharing,
            verdict.needs_shared_group,
            verdict.reason_texts))

    def test_another_policy_has_nothing_to_share(self):
        host = shared_host(wish(30), (0, 40), ((), (0,)))
        for asked in (wish(31), wish(30, 30)):
            verdict = fitting.check_host_capacity(host, asked)
            reason = '0 control groups free, 1 needed'
            self.assertEqual(((reason,), 0, False), (
                verdict.reason_texts, verdict.guests,
                verdict.needs_shared_group))

    def test_reasons_name_the_nodes_with_and_without_a_group(self):
        asked = wish(30)
        self.assertEqual(
            ('NUMA node 0 cannot take guest NUMA node 0: no control group '
             'is left and it has none that can be shared',
             'NUMA node 1 cannot take guest NUMA node 0: 10 % of '
             'memory bandwidth free, 30 needed'),
            fitting.check_host_capacity(shared_host(asked, (0, 90),
                                                    ((), (0,))),
                                        asked).reason_texts)

    def test_guest_nodes_do_not_change_places(self):
        asked = wish(10, 10)
        verdict = fitting.check_host_capacity(
            shared_host(asked, (0, 50, 20), ((), (0,), (1,))), asked)
        self.assertEqual(((1, 2), 5, 5), (
            verdict.nodes, verdict.guests, verdict.sharing))

    def test_one_host_node_does_not_back_two_guest_nodes(self):
        asked = wish(10, 10)
        verdict = fitting.check_host_capacity(
            shared_host(asked, (0, 0), ((0, 1), ())), asked)
        self.assertIn('with a control group to share', verdict.reason_texts[0])

    def test_a_cap_alone_is_shared_on_its_node(self):
        asked = GuestDemand(GuestPolicy(
            (NodePolicy(maximum=40),)), 1, amounts={'VCPU': 2})
        verdict = fitting.check_host_capacity(shared_host(
            asked, (0, 0), ((), (0,)), VCPU=7), asked)
        self.assertEqual(((1,), 3, 3), (
            verdict.nodes, verdict.guests, verdict.sharing))

    def test_groups_that_are_left_are_taken_first(self):
        asked = wish(30)
        verdict = fitting.check_host_capacity(shared_host(
            asked, (0, 40), ((), (0,)), groups_free=2), asked)
        self.assertEqual(((0,), 4, 2, False), (
            verdict.nodes, verdict.guests, verdict.sharing,
            verdict.needs_shared_group))

    def test_a_guest_without_control_shares_nothing(self):
        asked = wish(vfs=(0,))
        verdict = fitting.check_host_capacity(shared_host(asked, (0,),
                                                          ((0,),)), asked)
        self.assertEqual((counting.MAX_GUESTS, 0, False), (
            verdict.guests, verdict.sharing, verdict.needs_shared_group))

    @given(st.lists(st.tuples(st.integers(0, 100), st.sets(
        st.integers(0, 2))), min_size=1, max_size=4),
        st.lists(st.integers(0, 60), min_size=1, max_size=3))
    def test_joins_if_and_only_if_some_order_does(self, nodes, shares):
        asked = wish(*shares)
        used, backs = zip(*nodes, strict=True)
        possible = any(
            all(guest_node in backs[node] and 100 - used[node] >= share
                for guest_node, (node, share) in enumerate(
                    zip(order, shares, strict=True)))
            for order in itertools.permutations(range(len(used)),
                                                len(shares)))
        verdict = fitting.check_host_capacity(shared_host(asked, used, backs),
                                              asked)
        self.assertEqual(possible, verdict.needs_shared_group)
        self.assertEqual(possible, not verdict.reason_texts)
        self.assertEqual(verdict.guests, verdict.sharing)
        for guest_node, node in enumerate(verdict.nodes):
            self.assertIn(guest_node, backs[node])

    @given(st.lists(st.tuples(st.integers(0, 100), st.booleans()),
                    min_size=1, max_size=4),
           st.integers(10, 60), st.integers(0, 4))
    def test_no_more_than_there_is_room_for(self, nodes, share, groups):
        """Exact without a free group, and never more than the best way."""
        asked = wish(share)
        used, shared = zip(*nodes, strict=True)
        room = [(100 - one) // share for one in used]
        joining = sum(itertools.compress(room, shared))
        host = shared_host(
            asked, used, [(0,) if one else () for one in shared], groups)
        verdict = fitting.check_host_capacity(host, asked)
        own = verdict.guests - verdict.sharing
        self.assertEqual(min(groups, sum(room)), own)
        self.assertLessEqual(verdict.guests,
                             joining + min(groups, sum(room) - joining))
        if not groups:
            self.assertEqual(joining, verdict.guests)

    @given(st.lists(st.integers(0, 100), min_size=3, max_size=3),
           st.permutations(range(3)), st.integers(1, 3),
           st.integers(1, 60))
    def test_one_group_is_joined_until_a_node_of_it_is_full(
            self, used, order, guest_nodes, share):
        asked = wish(*[share] * guest_nodes)
        backs = [(order.index(node),) if order.index(node) < guest_nodes
                 else () for node in range(3)]
        verdict = fitting.check_host_capacity(shared_host(asked, used, backs),
                                              asked)
        self.assertEqual(min((100 - used[node]) // share
                             for node in order[:guest_nodes]),
                         verdict.sharing)
        if verdict.needs_shared_group:
            self.assertEqual(tuple(order[:guest_nodes]), verdict.nodes)
