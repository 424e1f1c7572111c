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

"""Devices of a retired host whose NUMA nodes have no CPUs."""

from ghsched_placement.features.doctor import retire
from ghsched_placement.providers import names
from ghsched_placement.tests import base
from ghsched_placement.tests.fixtures import clouds

ROOT = clouds.root_uuid('a')


class RetireTest(base.TestCase):

    def test_devices_are_below_the_compute_node_before_nodes_are_deleted(self):
        trait = frozenset({names.NUMA_NODE_TRAIT})
        steps = retire.plan_retirement([
            retire.RetiredProvider(ROOT, 'a', ''),
            retire.RetiredProvider('n1', 'a_NUMA1', ROOT, traits=trait),
            retire.RetiredProvider('n2', 'a_NUMA2', 'n1', traits=trait),
            retire.RetiredProvider('pf', 'a_0000:81:00.0', 'n2',
                                   frozenset({'VF'}))])
        self.assertEqual(
            [('move', 'n2', (ROOT,)), ('delete', 'n1', ()),
             ('move', 'pf', (ROOT,)), ('delete', 'n2', ())],
            [(step.kind, step.provider.uuid, step.value) for step in steps])
