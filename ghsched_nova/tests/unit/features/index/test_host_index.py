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

import dataclasses
import itertools
import random
import sys

import fixtures
from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.features.index import host_capacity
from ghsched_nova.features.index.host_capacity import ReportedHost
from ghsched_nova.features.index.host_capacity import ReportedNode
from ghsched_nova.features.index.host_capacity import RequestNeed
from ghsched_nova.features.index.host_capacity import RequestNodeNeed
from ghsched_nova.features.index import host_index
from ghsched_placement.features.index import headroom
from ghsched_placement.fit.node_capacity import CacheCpus
from ghsched_placement.tests import base

NIC = ('15b3', '101e')


def node(number=0, pinned=8, **values):
    return ReportedNode(number,
                        pinned=pinned,
                        pages={
                            0: 4096,
                            4: 4096,
                            **values.pop('pages', {})
                        },
                        devices=values.pop('devices', {}),
                        **values)


def row(name='a', nodes=None, bandwidth=None, guests=0, updated=1,
        counted=0, groups=5, **values):
    left = bandwidth is not None and headroom.Headroom(
        float(updated), counted, groups, bandwidth)
    return ReportedHost(uuid=name,
                        name=name,
                        cell='c',
                        updated=updated,
                        nodes=tuple(nodes or (node(0), node(1))),
                        guests=guests,
                        has_driver=True,
                        placement_headroom=left or None,
                        **values)


def need(*nodes, **values):
    values.setdefault('groups', 1)
    return RequestNeed(tuple(nodes or [RequestNodeNeed(pinned=4, memory=1024,
                                                       bandwidth=30)]),
                       **values)


def list_free_amounts(view):
    """Return free dedicated CPUs and bandwidth of each NUMA node."""
    return [(node.free[0], view.bandwidth.get(node.number))
            for node in view.amounts.nodes]


class FitTest(base.TestCase):

    def fit(self, wanted, **values):
        return host_index.IndexedHost(row(**values)).view.assign_nodes(wanted)

    def test_fit_with_unknown_bandwidth_finds_a_node(self):
        self.assertEqual((0,), self.fit(need()))

    def test_fit_compares_the_bandwidth_of_each_node(self):
        self.assertEqual((1,), self.fit(need(), bandwidth={0: 29, 1: 30}))
        self.assertIsNone(self.fit(need(), bandwidth={0: 29, 1: 29}))

    def test_fit_without_control_groups_finds_none(self):
        self.assertIsNone(self.fit(need(), bandwidth={0: 90}, groups=0))

    def test_fit_without_cpus_memory_pages_or_devices_finds_none(self):
        for wanted in (RequestNodeNeed(pinned=9), RequestNodeNeed(shared=1),
                       RequestNodeNeed(memory=4097),
                       RequestNodeNeed(memory=1, page=2048),
                       RequestNodeNeed(devices=((NIC, 1),))):
            self.assertIsNone(self.fit(need(wanted)), wanted)

    def test_fit_on_a_host_without_the_driver_finds_none(self):
        host = host_index.IndexedHost(
            dataclasses.replace(row(), has_driver=False)).view
        self.assertIsNone(host.assign_nodes(need(needs_driver=True)))
        self.assertEqual((0,), host.assign_nodes(need(groups=0)))

    @given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 100)),
                    min_size=1, max_size=4),
           st.lists(st.tuples(st.integers(1, 8), st.integers(1, 100)),
                    min_size=1, max_size=4))
    def test_fit_finds_nodes_whenever_an_exhaustive_search_does(
            self, rooms, wanted):
        host = host_index.IndexedHost(row(
            nodes=[node(number, pinned=left)
                   for number, (left, _) in enumerate(rooms)],
            bandwidth={number: share
                       for number, (_, share) in enumerate(rooms)}))
        possible = any(
            all(left >= pinned and share >= bandwidth
                for (left, share), (pinned, bandwidth)
                in zip(some, wanted, strict=True))
            for some in itertools.permutations(rooms, len(wanted)))
        found = host.view.assign_nodes(need(*[
            RequestNodeNeed(pinned=pinned, bandwidth=bandwidth)
            for pinned, bandwidth in wanted]))
        self.assertEqual(possible, found is not None)
        for place, (pinned, bandwidth) in zip(found or (), wanted,
                                              strict=False):
            self.assertLessEqual((pinned, True), (
                rooms[place][0], rooms[place][1] >= bandwidth))
        self.assertEqual(len(found or ()), len(set(found or ())))


class CacheTest(base.TestCase):
    """Guests whose dedicated CPUs must share few L3 caches."""

    WISH = RequestNodeNeed(pinned=6, few_caches=True)

    def make_row(self, *free_by_node, size=8, name='a', **values):
        """Return a host with L3 caches of equal size.

        :param free_by_node: free CPUs of the caches of each node; empty for a
            node with one cache and 16 free CPUs.
        """
        return row(name, nodes=[
            node(number, pinned=sum(free) or 16, caches=tuple(
                CacheCpus(size, size - one) for one in free), **values)
            for number, free in enumerate(free_by_node)])

    def fit(self, wanted, *free_by_node, **values):
        return host_index.IndexedHost(self.make_row(
            *free_by_node, **values)).view.assign_nodes(need(*wanted))

    def test_node_whose_free_cpus_are_of_many_caches_is_left_out(self):
        self.assertIsNone(self.fit([self.WISH], (5, 5), (0, 4)))
        self.assertEqual((1,), self.fit([self.WISH], (5, 5), (2, 6)))
        self.assertEqual((1,), self.fit([self.WISH], (5, 5), ()))
        self.assertEqual((0,), self.fit(
            [RequestNodeNeed(pinned=6)], (5, 5), (2, 6)))

    def test_fit_finds_nodes_whenever_a_search_of_all_caches_does(self):
        chance = random.Random(47)  # noqa: S311
        for _case in range(300):
            size = chance.choice((3, 4))
            nodes = [[chance.randint(0, size) for _cache in range(3)]
                     for _node in range(2)]
            wanted = [chance.randint(1, 3 * size)
                      for _node in range(chance.randint(1, 2))]
            fits = any(
                all(any(sum(some) >= pinned for some in
                        itertools.combinations(free, -(-pinned // size)))
                    for free, pinned in zip(some_nodes, wanted, strict=True))
                for some_nodes in itertools.permutations(nodes, len(wanted)))
            with self.subTest(nodes=nodes, wanted=wanted):
                self.assertEqual(fits, self.fit(
                    [RequestNodeNeed(pinned=pinned, few_caches=True)
                     for pinned in wanted], *nodes, size=size) is not None)

    def test_claim_takes_the_cpus_of_few_caches(self):
        host = host_index.IndexedHost(self.make_row(
            (7, 6), (5, 5), devices={NIC: 4}))
        for server, left in (('1', (7, 0)), ('2', (1, 0))):
            host.add_claim(server, need(self.WISH), 0.0)
            self.assertEqual(left, host.view.amounts.nodes[0].free[5:7])
        self.assertIsNone(host.view.assign_nodes(need(self.WISH)))
        host.drop_claim('2')
        self.assertEqual((0,), host.view.assign_nodes(need(self.WISH)))
        self.assertEqual(1, host.view.count_guests(need(self.WISH), 5))

    def test_report_of_a_freed_cache_clears_refusals(self):
        host = host_index.IndexedHost(self.make_row((5, 5)))
        host.add_refusal(need(self.WISH), 1.0)
        host.update_report(dataclasses.replace(
            self.make_row((4, 6)), updated=2), 2.0)
        self.assertFalse(host.view.has_refused(need(self.WISH), 3.0))

    def test_free_vfs_of_a_host_with_caches_are_those_that_no_claim_has(self):
        pf = host_capacity.PfCapacity('pf', 0, NIC, 4)
        host = host_index.IndexedHost(dataclasses.replace(
            self.make_row((8, 8), devices={NIC: 4}), pfs=(pf,)))
        host.add_claim('1', need(dataclasses.replace(
            self.WISH, devices=((NIC, 3),))), 0.0)
        self.assertEqual([1], [one.free for one in host.view.list_pfs()])

    def test_refusal_by_caches_is_certain_without_chosen_threads(self):
        index = host_index.Index()
        index.update_hosts([self.make_row((5, 5))], (), 0.0)
        for threads in (False, True):
            self.assertEqual(threads, index.has_cpus_and_memory_for(
                need(dataclasses.replace(self.WISH, threads=threads))))

    def count_calls(self, wanted, hosts):
        """Return how many functions are called to propose hosts."""
        index = host_index.Index()
        index.update_hosts(hosts, (), 0.0)
        calls = []
        sys.setprofile(lambda _frame, event, _what: calls.append(event)
                       if event in ('call', 'c_call') else None)
        try:
            index.propose_hosts(need(wanted), lambda _row: True, (), 0.0)
        finally:
            sys.setprofile(None)
        return len(calls)

    def test_request_with_the_key_costs_little_more_than_without(self):
        # A whole request calls some 20,000 functions.
        hosts = [self.make_row(*[[8] * 16] * 2, name=str(number))
                 for number in range(host_index.POOL)]
        plain = RequestNodeNeed(pinned=6)
        bare = [self.make_row((), (), name=str(number))
                for number in range(host_index.POOL)]
        self.assertLess(self.count_calls(plain, hosts), 1.1
                        * self.count_calls(plain, bare))
        self.assertLess(self.count_calls(self.WISH, hosts)
                        - self.count_calls(plain, hosts), 2000)


class HostTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.host = host_index.IndexedHost(row(bandwidth={0: 100, 1: 100}))

    def list_free_amounts(self):
        return list_free_amounts(self.host.view)

    def test_claim_is_subtracted_until_the_host_reports_the_guest(self):
        self.host.add_claim('x', need(), now=1)
        self.assertEqual([(4, 70), (8, 100)], self.list_free_amounts())
        self.assertEqual(4, self.host.view.groups)
        # Nova's figures come first, ours with the next period.
        self.host.update_report(row(
            nodes=(node(0, pinned=4, pages={0: 3072}), node(1)),
            bandwidth={0: 100, 1: 100},
            guests=1, updated=2), now=2)
        self.assertEqual([(4, 70), (8, 100)], self.list_free_amounts())
        self.host.update_report(row(
            nodes=(node(0, pinned=4, pages={0: 3072}), node(1)),
            bandwidth={0: 70, 1: 100},
            guests=1, counted=1, updated=3, groups=4), now=3)
        self.assertEqual([(4, 70), (8, 100)], self.list_free_amounts())
        self.assertEqual(4, self.host.view.groups)

    def test_claim_that_no_report_counts_is_dropped_by_age(self):
        self.host.add_claim('x', need(), now=1)
        self.host.update_report(row(bandwidth={0: 100, 1: 100}, updated=2),
                                now=2 + host_index.CLAIM_AGE)
        self.assertEqual([(8, 100), (8, 100)], self.list_free_amounts())

    def test_claim_of_a_started_guest_is_that_of_the_report(self):
        self.host.add_claim('x', need(), now=1)
        # One guest came and one went: the report has as many as before.
        self.host.update_report(row(bandwidth={0: 100, 1: 100}, updated=2),
                                now=2)
        self.assertEqual([(4, 70), (8, 100)], self.list_free_amounts())
        self.host.confirm_claim('x')
        self.assertEqual([(8, 70), (8, 100)], self.list_free_amounts())
        self.host.update_report(row(bandwidth={0: 99, 1: 100}, updated=3),
                                now=3)
        self.assertEqual([(8, 99), (8, 100)], self.list_free_amounts())

    def test_claim_of_a_started_guest_is_no_other_guest_of_the_report(self):
        self.host.add_claim('other', need(), now=1)
        self.host.add_claim('x', need(), now=1)
        self.host.confirm_claim('x')
        self.host.update_report(
            row(bandwidth={0: 70, 1: 100}, counted=1, updated=2), now=2)
        self.assertEqual([(4, 40), (8, 100)], self.list_free_amounts())

    def test_claim_released_restores_the_room(self):
        self.host.add_claim('x', need(), now=1)
        self.host.drop_claim('x')
        self.assertEqual([(8, 100), (8, 100)], self.list_free_amounts())

    def test_correct_replaces_bandwidth_and_groups(self):
        self.host.add_claim('x', need(), now=1)
        self.host.set_free_amounts({0: 50, 1: 20}, 3, queried_at=2, now=2)
        self.assertEqual([(4, 50), (8, 20)], self.list_free_amounts())
        self.assertEqual(3, self.host.view.groups)

    def test_correct_keeps_a_claim_that_is_younger_than_the_question(self):
        self.host.add_claim('x', need(), now=2)
        self.host.set_free_amounts({0: 100, 1: 100}, 5, queried_at=1, now=3)
        self.assertEqual([(4, 70), (8, 100)], self.list_free_amounts())

    def test_refusals_beyond_the_limit_drop_the_oldest(self):
        self.patch(host_index, '_REFUSALS', 2)
        wanted = [need(other_requirements=label) for label in 'abc']
        for one in wanted:
            self.host.add_refusal(one, 1.)
        self.assertEqual([False, True, True], [
            self.host.view.has_refused(one, 1.) for one in wanted])

    def test_report_of_fewer_guests_clears_refusals(self):
        self.host.update_report(row(guests=2), now=1)
        self.host.add_refusal(need(), 1.)
        self.host.update_report(row(guests=1, updated=2), now=2)
        self.assertFalse(self.host.view.has_refused(need(), 2))

    def test_report_of_a_free_device_of_no_node_clears_refusals(self):
        self.host.add_refusal(need(), 1.)
        self.host.update_report(row(
            bandwidth={0: 100, 1: 100}, updated=2, floating={NIC: 1}), now=2)
        self.assertFalse(self.host.view.has_refused(need(), 2))

    def test_report_of_more_room_clears_refusals(self):
        wanted = need()
        self.host.add_refusal(wanted, 1.)
        self.host.update_report(
            row(bandwidth={0: 90, 1: 90}, updated=2), now=2)
        self.assertTrue(self.host.view.has_refused(wanted, 2))
        self.host.update_report(
            row(bandwidth={0: 91, 1: 90}, updated=3), now=3)
        self.assertFalse(self.host.view.has_refused(wanted, 3))

    def test_refusal_is_dropped_by_age(self):
        wanted = need()
        self.host.add_refusal(wanted, 1.)
        self.assertFalse(self.host.view.has_refused(
            wanted, 1 + host_capacity.REFUSAL_AGE))


class IndexTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.index = host_index.Index(random.Random(1))  # noqa: S311
        self.index.update_hosts([row(name) for name in 'abc'], (), 0)

    def names(self, wanted=None, allowed=lambda _row: True, tried=()):
        return sorted(view.row.name for view in self.index.propose_hosts(
            wanted or need(), allowed, tried, 0))

    def test_propose_returns_hosts_with_room_that_were_not_tried(self):
        self.assertEqual(['a', 'b', 'c'], self.names())
        self.assertEqual(['c'], self.names(
            allowed=lambda host: host.name != 'a', tried=['b']))

    def test_propose_without_hosts_returns_none(self):
        self.assertEqual([], host_index.Index().propose_hosts(
            need(), lambda _row: True, (), 0))

    def test_propose_leaves_out_hosts_that_are_down_or_gone(self):
        self.index.set_unavailable_hosts(['a'])
        self.index.update_hosts([], ['b', 'z'], 0)
        self.assertEqual(['c'], self.names())

    def test_propose_returns_no_more_than_are_weighed(self):
        self.index.update_hosts([row(f'h{number}') for number in range(99)],
                                (), 0)
        self.assertEqual(host_index.POOL, len(self.names()))

    def test_propose_leaves_out_hosts_that_refused_the_need(self):
        self.index.add_refusals(['a', 'z'], need(), 0)
        self.assertEqual(['b', 'c'], self.names())
        self.assertEqual(['a', 'b', 'c'], self.names(
            need(other_requirements='other')))

    def test_cpus_and_memory_are_those_that_a_host_reports(self):
        big = need(RequestNodeNeed(pinned=8, memory=1024))
        self.index.update_hosts(
            [row(name, [node(0, 7)], updated=2) for name in 'abc'], (), 0)
        self.assertFalse(self.index.has_cpus_and_memory_for(big))
        self.index.update_hosts([row('b', [node(0, 8)], updated=3)], (), 0)
        self.assertTrue(self.index.has_cpus_and_memory_for(big))

    def test_cpus_and_memory_are_those_without_claims(self):
        big = need(RequestNodeNeed(pinned=8), RequestNodeNeed(pinned=8))
        for name in 'abc':
            self.index.add_claim(name, name, need(), 0)
        self.assertEqual([], self.names(big))
        self.assertTrue(self.index.has_cpus_and_memory_for(big))

    def test_cpus_and_memory_are_not_bandwidth_groups_or_devices(self):
        self.index.update_hosts(
            [row(name, bandwidth={0: 0, 1: 0}, groups=0, updated=2)
             for name in 'abc'], (), 0)
        big = need(RequestNodeNeed(pinned=8, bandwidth=10,
                                   devices=((NIC, 1),)))
        self.assertEqual([], self.names(big))
        self.assertTrue(self.index.has_cpus_and_memory_for(big))

    def test_claim_of_a_placed_guest_releases_its_first_host(self):
        self.index.add_claim('a', 'x', need(), 0)
        self.index.add_claim('b', 'x', need(), 0)
        self.assertEqual([8, 4, 8], [
            list_free_amounts(view)[0][0] for view in self.index.list_views()])

    def test_claims_are_those_of_the_host_that_reports_them(self):
        for name in 'ab':
            self.index.add_claim(name, f'guest {name}', need(), 0)
        guests = ['guest a', 'guest b', 'unknown']
        self.index.confirm_claims('a', guests)
        self.assertEqual([8, 4, 8], [
            list_free_amounts(view)[0][0] for view in self.index.list_views()])
        for guest in guests:
            self.index.drop_claim(guest, 'c')
        self.assertEqual([8, 4, 8], [
            list_free_amounts(view)[0][0] for view in self.index.list_views()])
        self.index.drop_claim('guest b', 'b')
        self.assertEqual([8, 8, 8], [
            list_free_amounts(view)[0][0] for view in self.index.list_views()])

    def test_shuffle_returns_all_hosts_in_a_random_order(self):
        uuids = [str(number) for number in range(12)]
        orders = [self.index.shuffle_hosts(uuids) for _ in range(20)]
        self.assertEqual([uuids] * 20, [
            sorted(order, key=uuids.index) for order in orders])
        self.assertGreater(len(set(map(tuple, orders))), 10)


class OldChangesTest(base.TestCase):
    """Changes of a host that repeats its report."""

    def setUp(self):
        super().setUp()
        self.index = host_index.Index()
        self.index.update_hosts(
            [row(bandwidth={0: 100, 1: 100}), row('b')], (), 0)

    def list_free_amounts(self, now):
        """Return free CPUs, bandwidth and groups of the host at a time."""
        self.index.drop_old_changes(now)
        view = self.index.list_views()[0]
        return list_free_amounts(view), view.groups

    def test_claim_is_subtracted_until_it_is_old(self):
        self.index.add_claim('a', 'guest', need(), 1000)
        before, after = ([(4, 70), (8, 100)], 4), ([(8, 100), (8, 100)], 5)
        for now in (1000, 1100, 1179):
            self.assertEqual(before, self.list_free_amounts(now))
        self.assertEqual(after, self.list_free_amounts(1180))

    def test_amounts_of_placement_are_used_until_they_are_old(self):
        self.index.set_free_amounts('a', {0: 20}, 2, 1000, 1001)
        for now in (1001, 1100, 1179):
            self.assertEqual(([(8, 20), (8, 100)], 2),
                             self.list_free_amounts(now))
        self.assertEqual(([(8, 100), (8, 100)], 5),
                         self.list_free_amounts(1180))

    def test_host_that_is_removed_meanwhile_is_not_proposed(self):
        def remove(host):
            self.index.update_hosts((), 'b', 1000)
            return True
        self.patch(host_index.IndexedHost, 'has_changes_since_report',
                   property(remove))
        self.index.drop_old_changes(1000)
        self.assertEqual(['a'], [view.row.uuid for view in (
            self.index.propose_hosts(need(), lambda _row: True, (), 1000))])

    def test_hosts_without_changes_are_not_recomputed(self):
        self.index.set_free_amounts('a', {0: 20}, 2, 1000, 1001)
        self.index.add_claim('b', 'guest', need(), 1000)
        self.index.update_hosts((), 'b', 1000)
        self.list_free_amounts(1180)
        with fixtures.MockPatchObject(
                host_index.IndexedHost, 'update_report') as updated:
            self.index.drop_old_changes(1181)
        updated.mock.assert_not_called()
