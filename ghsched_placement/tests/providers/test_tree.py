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
import math
import struct

from hypothesis import given
from hypothesis import strategies as st

from ghsched_placement.features.declared_needs import NEEDS
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import names
from ghsched_placement.providers import tree
from ghsched_placement.tests import base

ROOT = '3a0e6a0c-7e0a-4b0f-9e59-8d1c2a6a2f11'
HOST = HostDescription(nodes=(1, 0), control_groups=31,
                       capabilities=frozenset({'MEM_BW_MIN', 'MEM_BW_MAX'}))


def multiples(step):
    return tuple(range(step, 101, step))


#: Multiples of a step, some of them skipped, or any shares at all.
_GUARANTEES = st.one_of(
    st.integers(1, 25).map(multiples),
    # Every control can hold all of the bandwidth.
    st.sets(st.integers(1, 100)).map(lambda one: tuple(sorted(one | {100}))),
    st.sets(st.integers(1, 50)).map(
        lambda one: tuple(2 * value for value in sorted(one | {50}))))


class TreeTestCase(base.TestCase):

    def desired(self, host=HOST, config=None, current=None):
        return tree.build_providers(ROOT, 'node1', host,
                                    config or tree.Config(),
                                    current)


class ReservedTest(TreeTestCase):

    def test_nodes_left_out_reserve_the_percent_of_the_others(self):
        config = tree.Config(reserved_bandwidth={0: 60},
                             reserved_elsewhere=20, bursts={1: 90})
        _root, node0, node1 = self.desired(config=config)
        self.assertEqual([40, 0], [
            tree.compute_free_amount(node.inventories[names.MEM_BW_PCT], 0)
            for node in (node0, node1)])
        self.assertEqual(80, node1.inventories[names.MEM_BW_BURST_PCT][
            'total'])

    def test_guarantees_of_each_control_group_are_reserved(self):
        host = dataclasses.replace(HOST, kept_share=8)
        for reserved, expected in ((0, 8), (5, 8), (20, 20)):
            config = tree.Config(reserved_elsewhere=reserved)
            _root, node, _other = self.desired(host, config)
            self.assertEqual(expected, node.inventories[names.MEM_BW_PCT][
                'reserved'])

    @given(st.integers(0, 200), st.integers(0, 100),
           st.floats(.5, 4).map(lambda ratio: round(ratio, 2)))
    def test_reserved_bandwidth_is_at_most_what_guests_leave(
            self, used, reserved, ratio):
        uuid = names.make_numa_provider_uuid(ROOT, 0)
        config = tree.Config(reserved_elsewhere=reserved,
                             allocation_ratio=ratio)
        _root, node, _other = self.desired(
            config=config, current={uuid: tree.CurrentInventory(used=used)})
        record = node.inventories[names.MEM_BW_PCT]
        capacity = tree.compute_free_amount(record, 0)
        self.assertEqual(100, record['total'])
        self.assertTrue(0 <= record['reserved'] <= reserved)
        if used <= math.floor(100 * ratio):
            self.assertGreaterEqual(capacity, used)
        if record['reserved'] < reserved:
            # One more would be less than what guests hold.
            self.assertGreater(used, (99 - record['reserved']) * ratio)


class DesiredTreeTest(TreeTestCase):

    def test_each_numa_node_is_a_child_with_a_whole_node_of_bandwidth(self):
        root, *nodes = self.desired()
        self.assertEqual(['node1_NUMA0', 'node1_NUMA1'],
                         [node.name for node in nodes])
        for node in nodes:
            self.assertEqual(root.uuid, node.parent_uuid)
            self.assertEqual(
                100, node.inventories[names.MEM_BW_PCT]['total'])

    def test_ways_of_an_l3_are_counted_by_node_and_never_below_use(self):
        host = dataclasses.replace(HOST, l3_ways={0: 9}, l3_ways_least=2)
        _root, node0, node1 = self.desired(host)
        record = node0.inventories[names.L3_WAYS]
        self.assertEqual((9, 0, 2), tuple(
            record[name] for name in ('total', 'reserved', 'min_unit')))
        self.assertNotIn(names.L3_WAYS, node1.inventories)
        used = tree.CurrentInventory(total=12, used=11)
        _root, node0, node1 = tree.build_providers(
            ROOT, 'node1', host, tree.Config(),
            shrinking={(node.uuid, names.L3_WAYS): used
                       for node in (node0, node1)})
        record = node0.inventories[names.L3_WAYS]
        self.assertEqual((11, 2), (record['total'], record['reserved']))
        self.assertEqual(
            0, tree.compute_free_amount(node1.inventories[names.L3_WAYS], 0))

    def test_real_time_is_counted_by_node_and_never_below_use(self):
        host = dataclasses.replace(HOST, rt_permille={0: 900})
        _root, node0, node1 = self.desired(host)
        self.assertEqual(
            (900, 900), (node0.inventories[names.RT_CPU_PERMILLE]['total'],
                         node0.inventories[names.RT_CPU_PERMILLE]['max_unit']))
        self.assertNotIn(names.RT_CPU_PERMILLE, node1.inventories)
        used = tree.CurrentInventory(total=1800, used=1200)
        _root, node0, _node1 = tree.build_providers(
            ROOT, 'node1', host, tree.Config(),
            shrinking={(node0.uuid, names.RT_CPU_PERMILLE): used})
        record = node0.inventories[names.RT_CPU_PERMILLE]
        self.assertEqual((1200, 300), (record['total'], record['reserved']))

    @given(st.integers(1, 100), st.integers(0, 400), st.integers(0, 400))
    def test_bursts_are_offered_as_allowed_and_never_below_use(
            self, pool, allowed, used):
        host = dataclasses.replace(HOST, bursts={0: allowed})
        config = tree.Config(bursts={0: pool})
        _root, node0, node1 = self.desired(host, config)
        _root, node0, _node1 = tree.build_providers(
            ROOT, 'node1', host, config,
            shrinking={(node0.uuid,
                        names.MEM_BW_BURST_PCT): tree.CurrentInventory(
                total=pool, used=used)})
        record = node0.inventories[names.MEM_BW_BURST_PCT]
        self.assertEqual((pool, pool), (record['total'], record['max_unit']))
        single, = struct.unpack('f', struct.pack(
            'f', record['allocation_ratio']))
        for ratio in (record['allocation_ratio'], single):
            self.assertEqual(max(allowed, used), tree.compute_free_amount(
                {**record, 'allocation_ratio': ratio}, 0))
        self.assertNotIn(names.MEM_BW_BURST_PCT, node1.inventories)

    def test_bandwidth_reserved_for_bursts_is_not_guaranteed(self):
        config = tree.Config(reserved_bandwidth={0: 10}, bursts={0: 40})
        _root, node0, node1 = self.desired(config=config)
        self.assertEqual([50, 100], [
            tree.compute_free_amount(node.inventories[names.MEM_BW_PCT], 0)
            for node in (node0, node1)])
        self.assertEqual(40, tree.compute_free_amount(
            node0.inventories[names.MEM_BW_BURST_PCT], 0))

    def test_a_host_that_guarantees_nothing_promises_no_bursts(self):
        host = dataclasses.replace(HOST, capabilities=frozenset())
        _root, node0, _node1 = self.desired(
            host, tree.Config(bursts={0: 40}))
        self.assertNotIn(names.MEM_BW_BURST_PCT, node0.inventories)
        self.assertEqual(0, node0.inventories[names.MEM_BW_PCT]['reserved'])
        _root, node0, _node1 = tree.build_providers(
            ROOT, 'node1', host, tree.Config(bursts={0: 40}),
            shrinking={(node0.uuid,
                        names.MEM_BW_BURST_PCT): tree.CurrentInventory(
                total=40, used=60)})
        self.assertEqual(0, tree.compute_free_amount(
            node0.inventories[names.MEM_BW_BURST_PCT], 0))

    def test_the_uuid_of_a_numa_provider_follows_from_its_host_and_node(self):
        _root, node0, node1 = self.desired()
        self.assertEqual(names.make_numa_provider_uuid(ROOT, 0), node0.uuid)
        self.assertNotEqual(node0.uuid, node1.uuid)
        self.assertNotEqual(
            node0.uuid, names.make_numa_provider_uuid(node0.uuid, 0))

    def test_capabilities_become_traits_of_the_host_and_its_nodes(self):
        for provider in self.desired():
            self.assertIn('CUSTOM_GHSCHED_MEM_BW_MIN', provider.traits)
            self.assertNotIn('CUSTOM_GHSCHED_MEM_BW_PRIORITY',
                             provider.traits)

    def test_the_hosts_own_share_is_reserved_on_the_node_it_was_set_for(self):
        config = tree.Config(reserved_bandwidth={0: 60},
                             allocation_ratio=1.5)
        _root, node0, node1 = self.desired(config=config)
        self.assertEqual(60, node0.inventories[names.MEM_BW_PCT]['reserved'])
        self.assertEqual(0, node1.inventories[names.MEM_BW_PCT]['reserved'])
        self.assertEqual(
            1.5, node1.inventories[names.MEM_BW_PCT]['allocation_ratio'])

    def test_a_share_is_given_in_the_steps_in_which_it_is_held(self):
        host = HostDescription(nodes=(0,), guarantees=multiples(2))
        _root, node = self.desired(host)
        self.assertEqual(2, node.inventories[names.MEM_BW_PCT]['step_size'])

    def test_a_guest_from_before_the_step_can_still_be_moved(self):
        host = HostDescription(nodes=(0,), guarantees=multiples(4))
        uuid = names.make_numa_provider_uuid(ROOT, 0)
        _root, node = self.desired(
            host, tree.Config(reserved_bandwidth={0: 10}),
            {uuid: tree.CurrentInventory(amounts=(6, 8, 10))})
        record = node.inventories[names.MEM_BW_PCT]
        self.assertEqual((2, 16), (record['step_size'], record['reserved']))

    def test_a_share_below_the_least_that_is_held_is_not_given(self):
        host = HostDescription(nodes=(0,), guarantees=multiples(2)[1:])
        _root, node = self.desired(host)
        self.assertEqual(4, node.inventories[names.MEM_BW_PCT]['min_unit'])

    def test_bandwidth_of_which_a_share_is_skipped_offers_what_is_held(self):
        # 22 and 25, but nothing between them (a control of 6 bits).
        host = HostDescription(nodes=(0,), guarantees=(22, 25, 50, 76, 100))
        uuid = names.make_numa_provider_uuid(ROOT, 0)
        for amounts, offered in (((), 100), ((50,), 50), ((50, 25), 25),
                                 ((76,), 22), ((75,), 22), ((23, 50), 25),
                                 ((76, 22), 0)):
            _root, node = self.desired(
                host, current={uuid: tree.CurrentInventory(amounts=amounts)})
            self.assertEqual(offered, tree.compute_free_amount(
                node.inventories[names.MEM_BW_PCT], sum(amounts)), amounts)

    @given(_GUARANTEES, st.lists(st.integers(1, 100), max_size=40),
           st.lists(st.integers(1, 100), max_size=3), st.integers(0, 60))
    def test_shares_held_after_any_allocations_fit_the_node(
            self, guarantees, asked, before, reserved):
        host = HostDescription(nodes=(0,), guarantees=guarantees)
        uuid = names.make_numa_provider_uuid(ROOT, 0)
        config = tree.Config(reserved_bandwidth={0: reserved})
        held, most = host.round_up_guarantee, 100 - reserved
        taken = []
        for amount in before:
            if sum(map(held, taken)) + held(amount) <= most:
                taken.append(amount)
        for amount in asked:
            _root, node = self.desired(
                host, config,
                {uuid: tree.CurrentInventory(amounts=tuple(taken))})
            record = node.inventories[names.MEM_BW_PCT]
            self.assertLessEqual(sum(taken), 100 - record['reserved'])
            if (amount % record['step_size'] == 0
                    and amount >= record['min_unit']
                    and amount <= tree.compute_free_amount(record,
                                                           sum(taken))):
                taken.append(amount)
        self.assertTrue(sum(map(held, taken)) <= most, taken)

    def test_a_host_without_control_has_no_inventory_of_it(self):
        (root,) = self.desired(HostDescription())
        self.assertEqual({}, root.inventories)
        self.assertEqual({'CUSTOM_GHSCHED_DEVICE_NUMA',
                          'CUSTOM_GHSCHED_NUMA_AUTO',
                          *(f'CUSTOM_GHSCHED_{feature.upper()}' for feature
                            in ('guest_channel', 'guest_topology')
                            if feature in NEEDS)}, root.traits)

    def test_slots_that_are_held_stay_and_the_lost_ones_are_reserved(self):
        root, *_ = self.desired(
            HostDescription(nodes=(0,), control_groups=7),
            current={ROOT: tree.CurrentInventory(total=31, used=2)})
        record = root.inventories[names.RESCTRL_GROUP]
        self.assertEqual((31, 24), (record['total'], record['reserved']))

    def test_slots_that_nobody_holds_go(self):
        root, *_ = self.desired(
            HostDescription(nodes=(0,), control_groups=7),
            current={ROOT: tree.CurrentInventory(total=31, used=0)})
        self.assertEqual(7, root.inventories[names.RESCTRL_GROUP]['total'])

    def groups(self, holders, total=0, usable=7, **sharing):
        """Return the inventory of control groups.

        :param holders: who has a unit.
        :param sharing: group by guest.
        """
        root, *_ = self.desired(
            HostDescription(control_groups=usable, sharing=sharing),
            current={ROOT: tree.CurrentInventory(
                total=max(total, len(holders)), used=len(holders),
                holders=frozenset(holders))})
        return root.inventories.get(names.RESCTRL_GROUP)

    def test_bandwidth_saved_by_sharing_is_offered_again(self):
        record = self.groups('abc', 7, a='g', b='g', c='g')
        self.assertEqual((9, 0), (record['total'], record['reserved']))
        self.assertEqual(6, tree.compute_free_amount(record, 3))

    def test_one_that_may_be_about_to_start_is_counted(self):
        record = self.groups('abcd', 7, a='g', b='g', c='g')
        self.assertEqual(5, tree.compute_free_amount(record, 4))

    def test_slots_stay_when_those_who_shared_are_gone(self):
        record = self.groups('ab', 9, a='g')
        self.assertEqual((9, 2), (record['total'], record['reserved']))

    def test_groups_of_guests_without_a_unit_are_counted(self):
        # They joined others, which have left.
        record = self.groups('ab', 7, x='g', y='g')
        self.assertEqual(4, tree.compute_free_amount(record, 2))

    def test_guests_without_a_unit_save_none(self):
        # Eight groups for ten units and three guests that joined.
        record = self.groups('abcdefgh', 15, usable=15, a='g', x='g', y='g')
        self.assertEqual(15 - 8, tree.compute_free_amount(record, 8))

    @given(usable=st.integers(0, 40), total=st.integers(0, 60),
           sharing=st.dictionaries(st.integers(0, 30).map(str),
                                   st.sampled_from('fgh')),
           holders=st.sets(st.integers(0, 60).map(str)))
    def test_free_amounts_are_needed_by_nobody(self, usable, total, sharing,
                                               holders):
        record = self.groups(holders, total, usable, **sharing)
        used = len(holders)
        groups = len(set(sharing.values()))
        alone = len(holders - sharing.keys())
        if record is None:
            self.assertEqual(0, used)
            self.assertLessEqual(usable, groups)
            return
        self.assertEqual(max(0, usable - groups - alone),
                         tree.compute_free_amount(record, used))
        self.assertGreaterEqual(record['total'], total if used else 0)
        self.assertGreaterEqual(record['total'] - record['reserved'], used)

    def test_a_node_tells_which_groups_can_be_shared(self):
        trait = names.make_share_trait('00ff', 1)
        self.assertEqual('CUSTOM_GHSCHED_SHARES_00FF_1', trait)
        root, node0, node1 = self.desired(HostDescription(
            nodes=(0, 1), shares={1: frozenset({trait})}))
        self.assertIn(trait, node1.traits)
        self.assertNotIn(trait, node0.traits | root.traits)

    def test_a_node_without_control_is_there_for_its_devices(self):
        _root, node = self.desired(HostDescription(numa_nodes=(3,)))
        self.assertEqual({}, node.inventories)
        self.assertIn(names.NUMA_NODE_TRAIT, node.traits)
        self.assertEqual(names.make_numa_provider_uuid(ROOT, 3), node.uuid)

    def test_a_node_that_lost_control_keeps_what_is_held(self):
        uuid = names.make_numa_provider_uuid(ROOT, 3)
        _root, node = self.desired(
            HostDescription(numa_nodes=(3,)),
            current={uuid: tree.CurrentInventory(total=100, used=60)})
        record = node.inventories[names.MEM_BW_PCT]
        self.assertEqual((100, 100), (record['total'], record['reserved']))

    def test_closed_inventory_offers_nothing_and_keeps_what_is_held(self):
        record = tree.make_closed_inventory(
            tree.CurrentInventory(total=100, used=60))
        self.assertEqual((100, 100), (record['total'], record['reserved']))
        self.assertEqual(0, tree.compute_free_amount(record, 60))

    @given(usable=st.integers(0, 200), total=st.integers(0, 200),
           used=st.integers(0, 200))
    def test_inventory_never_goes_below_usage(self, usable, total, used):
        used = min(used, total)
        root, *_ = self.desired(
            HostDescription(control_groups=usable),
            current={ROOT: tree.CurrentInventory(total=total, used=used)})
        record = root.inventories.get(names.RESCTRL_GROUP)
        if record is None:
            self.assertEqual(0, used)
            self.assertEqual(0, usable)
        else:
            self.assertGreaterEqual(record['total'], used)
            self.assertEqual(max(usable, used),
                             record['total'] - record['reserved'])
            self.assertGreaterEqual(record['reserved'], 0)
            self.assertEqual(max(0, usable - used),
                             tree.compute_free_amount(record, used))

    def test_the_same_arguments_give_the_same_tree(self):
        self.assertEqual(self.desired(), self.desired())


class FreeTest(base.TestCase):

    def test_overcommit_is_rounded_down_as_placement_does(self):
        record = tree.make_inventory(100, reserved=10, allocation_ratio=1.05)
        self.assertEqual(94 - 60, tree.compute_free_amount(record, 60))

    def test_a_node_reserved_below_its_usage_has_nothing_left(self):
        self.assertEqual(0, tree.compute_free_amount(
            tree.make_inventory(100, reserved=60), 60))
