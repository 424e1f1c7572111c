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


from ghsched_nova.lab.emulator import machines
from ghsched_placement.tests import base


class MachinesTest(base.TestCase):
    def test_nodes_are_split_evenly(self):
        self.assertEqual('0=0;1=1', machines.evenly(range(2), 2))
        self.assertEqual('0=0;1=1-2;2=3-4', machines.evenly(range(5), 3))
        self.assertRaises(
            machines.BadMachine, machines.evenly, range(1), 2
        )

    def test_every_cpu_is_in_one_node(self):
        for cpus in range(2, 65):
            text = machines.evenly(range(cpus), 2)
            machine = machines.build('intel', text)
            self.assertEqual(frozenset(range(cpus)), machine.cpus)

    def test_openeuler_cache_ids_are_sparse(self):
        machine = machines.build('openeuler66', '0=0;1=1')
        self.assertEqual((0, 1), machine.domains('node'))
        self.assertEqual((1, 122), machine.domains('l3'))

    def test_a_node_can_have_several_caches(self):
        machine = machines.build('amd', '0=0-3;1=4;2=')
        self.assertEqual((0, 1, 8), machine.domains('l3'))
        self.assertEqual({0, 1}, set(machine.cache_of(1).cpus))
        self.assertEqual(1, machine.cache_of(2).id)
        self.assertEqual(-1, machine.nodes[2].l3)

    def test_a_cache_can_have_several_nodes(self):
        machine = machines.build('intel-snc-cdp', '0=0;2=1;5=2;7=3')
        self.assertEqual((0, 1), machine.domains('l3'))
        self.assertEqual(machines.Cache(0, frozenset({0, 1})),
                         machine.cache_of(1))

    def test_nodes_of_memory_alone(self):
        for dialect, ids in (('openeuler66', (0,)), ('nvidia', (0, 3))):
            machine = machines.build(dialect, '0=0;3=')
            self.assertEqual(ids, machine.domains('node'))

    def test_every_dialect_can_be_built(self):
        for dialect in machines.DIALECTS:
            machine = machines.build(dialect, '0=0-3;1=4-7')
            self.assertEqual(dialect, machine.dialect)
            self.assertIsNotNone(machine.line(machine.cap))
            self.assertEqual(frozenset(range(8)), machine.cpus)

    def test_bad_descriptions(self):
        for nodes in ('', '0', 'x=0', '0=0;0=1', '0=0;1=0', '0=a'):
            self.assertRaises(
                machines.BadMachine, machines.build, 'intel', nodes
            )
        for dialect, more in (
            ('sparc', {}), ('intel', {'closids': 0}),
            ('intel', {'without': ['MBMIN']}),
        ):
            self.assertRaises(
                machines.BadMachine, machines.build, dialect, '0=0', **more
            )

    def test_a_line_can_be_left_out(self):
        machine = machines.build('openeuler66', '0=0', without=['L3PRI'])
        self.assertIsNone(machine.line('L3PRI'))
        self.assertIsNotNone(machine.line('L3'))
