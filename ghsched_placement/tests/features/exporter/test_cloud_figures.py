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

from ghsched_placement.features.exporter import cloud_figures
from ghsched_placement.features.planner import flavor_counts
from ghsched_placement.fit import fitting
from ghsched_placement.fit import lack
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds


class AmountsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.found = {
            (one.node, one.resource_class): dataclasses.astuple(one)[3:]
            for one in cloud_figures.list_host_amounts(clouds.host(
                clouds.node(0, used=30, reserved=10), clouds.node(1),
                clouds.pf('0000:01:00.0', 0, used=1),
                clouds.pf('0000:02:00.0', 0, used=3),
                clouds.pf('0000:03:00.0', None), VCPU=16,
                used={'VCPU': 6}))}

    def test_amounts_of_nodes_are_without_what_is_reserved(self):
        self.assertEqual((90, 30, 60), self.found[0, names.MEM_BW_PCT])
        self.assertEqual((100, 0, 100), self.found[1, names.MEM_BW_PCT])

    def test_vfs_are_summed_over_the_pfs_of_a_node(self):
        self.assertEqual((16, 4, 12), self.found[0, clouds.VF])
        self.assertEqual((8, 0, 8), self.found[None, clouds.VF])

    def test_resources_of_the_host_have_no_node(self):
        self.assertEqual((16, 6, 10), self.found[None, 'VCPU'])
        self.assertEqual((31, 0, 31), self.found[None, names.RESCTRL_GROUP])

    def test_overused_inventory_has_nothing_free(self):
        host = clouds.host(clouds.node(0, used=95, reserved=10))
        found, = (one.free for one in cloud_figures.list_host_amounts(host)
                  if one.resource_class == names.MEM_BW_PCT)
        self.assertEqual(0, found)


class VerdictsTest(base.TestCase):

    def test_hosts_without_room_count_for_each_resource_once(self):
        found = flavor_counts.add_up_verdicts('f', [
            (fitting.Verdict('a', guests=3), 1),
            (fitting.Verdict('b', guests=1), 1),
            (fitting.Verdict('c', lacks=(
                lack.Lack(0, lack.BANDWIDTH), lack.Lack(1, lack.BANDWIDTH),
                lack.Lack(None, lack.GROUPS))), 1),
            (fitting.Verdict('d', lacks=(lack.Lack(0, lack.BANDWIDTH),)), 1)],
            2)
        self.assertEqual(
            flavor_counts.FlavorCapacity('f', 2, 4, 2, {
                lack.BANDWIDTH: 2, lack.GROUPS: 1}, found.binding), found)
