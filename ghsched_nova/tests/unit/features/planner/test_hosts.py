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


from ghsched_nova.tests.unit.features.planner import samples
from ghsched_placement.features.planner import hosts
from ghsched_placement.tests import base

BANDWIDTH = 'CUSTOM_MEM_BW_PCT'


class HostTest(base.TestCase):

    def test_nodes_and_what_is_below_them(self):
        one = samples.host(vfs=(4, 0, 2), nodes=3)
        names = [provider.name for provider in one.providers]
        self.assertEqual({names.index(f'one_NUMA{node}'): node
                          for node in range(3)}, one.node_by_provider)
        self.assertEqual({names.index(f'one_0000:0{node}:00.0'): node
                          for node in range(3)}, one.node_by_device_provider)

    def test_a_provider_of_another_making_is_no_node(self):
        one = samples.host()
        strange = dataclasses.replace(one.providers[1], name='one_NUMA7')
        changed = dataclasses.replace(one, providers=(
            one.root, strange, *one.providers[2:]))
        self.assertEqual({2: 1}, changed.node_by_provider)

    def test_each_provider_is_after_its_parent(self):
        one = samples.host(vfs=(1, 1))
        again = hosts.sort_providers_parents_first(one.providers[::-1],
                                                   one.root.uuid)
        seen = set()
        for provider in again:
            self.assertTrue(provider.parent is None
                            or provider.parent in seen)
            seen.add(provider.uuid)
        self.assertEqual(len(one.providers), len(seen))


class AlikeTest(base.TestCase):

    def test_names_do_not_matter(self):
        (group,) = hosts.group_equal_hosts([samples.host('b', vfs=(3,)),
                                            samples.host('a', vfs=(3,))])
        self.assertEqual(('b', 'a'), group.names)

    def test_used_amounts_by_place(self):
        kinds = [samples.host('a'), samples.host('b', used={
            ('_NUMA0', BANDWIDTH): 5}), samples.host('c', used={
                ('_NUMA1', BANDWIDTH): 5}), samples.host('d', cells=False)]
        self.assertEqual(4, len(hosts.group_equal_hosts(kinds)))

    def test_hosts_differ_in_nodes_for_devices(self):
        one = samples.host('a')
        self.assertEqual(2, len(hosts.group_equal_hosts([
            one, dataclasses.replace(one, shows_device_cells=True)])))

    def test_an_amount_of_zero_is_none(self):
        self.assertEqual(1, len(hosts.group_equal_hosts([
            samples.host('a'), samples.host('b', used={('', 'VCPU'): 0})])))
