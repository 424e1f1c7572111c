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

"""Our providers in Nova's own tree of them."""

from nova.compute import provider_tree

from ghsched_nova.virt import providers
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import names
from ghsched_placement.providers import tree
from ghsched_placement.tests import base

ROOT = '3a0e6a0c-7e0a-4b0f-9e59-8d1c2a6a2f11'
NODE = names.make_numa_provider_uuid(ROOT, 0)
CONFIG = tree.Config(bursts={0: 40})


class NodeTestCase(base.TestCase):
    """A host of one NUMA node, and what Placement has of it."""

    def setUp(self):
        super().setUp()
        self.tree = provider_tree.ProviderTree()
        self.tree.new_root('node1', ROOT)
        self.used, self.asked = {}, 0

    def update(self, bursts=None, config=CONFIG, nodes=(0,), **more):
        providers.update_inventories(
            self.tree, 'node1', HostDescription(
                nodes=nodes, capabilities=frozenset({'MEM_BW_MIN'}),
                bursts=bursts or {}, **more), config, 0, self.usages,
            lambda uuid, name: {})
        return {name: tree.compute_free_amount(record, 0) for name, record
                in self.tree.data(NODE).inventory.items()}

    def usages(self, uuid):
        self.asked += 1
        return self.used


class ReservedTest(NodeTestCase):

    KEPT = tree.Config(reserved_elsewhere=20)

    def free(self, config):
        return self.update(config=config)[names.MEM_BW_PCT]

    def test_new_host_reserves_without_a_question(self):
        for _ in range(2):
            self.assertEqual(80, self.free(self.KEPT))
        self.assertEqual(0, self.asked)

    def test_more_is_reserved_as_guests_leave(self):
        self.free(tree.Config())
        for used, capacity in ((100, 100), (95, 95), (80, 80), (10, 80)):
            self.used = {names.MEM_BW_PCT: used}
            self.assertEqual(capacity, self.free(self.KEPT))
        self.asked = 0
        self.assertEqual(80, self.free(self.KEPT))
        self.assertEqual(0, self.asked)

    def test_less_is_reserved_without_a_question(self):
        self.free(self.KEPT)
        self.assertEqual(100, self.free(tree.Config()))
        self.assertEqual(0, self.asked)


class BurstsTest(NodeTestCase):

    def test_more_is_offered_without_a_question(self):
        self.assertEqual({names.MEM_BW_PCT: 60, names.MEM_BW_BURST_PCT: 40},
                         self.update())
        found = self.update({0: 60})
        self.assertEqual(60, found[names.MEM_BW_BURST_PCT])
        self.assertEqual(found, self.update({0: 60}))
        self.assertEqual(0, self.asked)

    def test_less_is_offered_as_far_as_nobody_holds_it(self):
        self.update({0: 80})
        self.used = {names.MEM_BW_BURST_PCT: 70}
        self.assertEqual(70, self.update({0: 50})[names.MEM_BW_BURST_PCT])
        self.used = {names.MEM_BW_BURST_PCT: 30}
        self.assertEqual(50, self.update({0: 50})[names.MEM_BW_BURST_PCT])

    def test_nothing_is_kept_any_more(self):
        self.update({0: 80})
        self.used = {names.MEM_BW_BURST_PCT: 70}
        self.assertEqual({names.MEM_BW_PCT: 100, names.MEM_BW_BURST_PCT: 0},
                         self.update(config=tree.Config()))
        self.used = {}
        self.assertEqual({names.MEM_BW_PCT: 100},
                         self.update(config=tree.Config()))

    def test_a_node_that_is_gone_keeps_what_guests_hold(self):
        self.update({0: 80}, l3_ways={0: 4})
        self.used = {names.MEM_BW_BURST_PCT: 70, names.L3_WAYS: 3}
        self.assertEqual({names.MEM_BW_BURST_PCT: 0, names.L3_WAYS: 0},
                         self.update(nodes=(1,)))
        self.used = {}
        providers.update_inventories(self.tree, 'node1',
                                     HostDescription(nodes=(1, )), CONFIG, 0,
                                     self.usages, lambda uuid, name: {})
        self.assertFalse(self.tree.exists(NODE))
