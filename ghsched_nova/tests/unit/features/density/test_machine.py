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

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.tests.fixtures import figures
from ghsched_placement.features.density.machine import Machine
from ghsched_placement.features.density.machine import MachineError
from ghsched_placement.features.density import queueing
from ghsched_placement.tests import base

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 999) | st.floats()
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(['id', 'value', 'basis', 'source', 'containers']),
        inner, max_size=3), max_leaves=5)

ENFORCEMENT = {'scope': 'entrance', 'cap_window_us': 10, 'basis': 'assumed',
               'source': 'a test'}


class FromMappingTest(base.TestCase):

    def test_good(self):
        machine = figures.machine(fit={'containers': 28, 'passes': False})
        self.assertEqual(36000.0, machine['far_mb'])
        self.assertEqual('fitted', machine.get_parameter('demand_mb').basis)
        self.assertEqual(28, machine.fit.containers)
        self.assertEqual((0, 0, 1, 1),
                         tuple(node.socket for node in machine.nodes))

    def test_enforcement_is_exact_unless_given(self):
        self.assertEqual(queueing.Enforcement('controller', 0.0),
                         figures.machine().enforcement)
        self.assertEqual(
            queueing.Enforcement('entrance', 10.0),
            figures.machine(enforcement=ENFORCEMENT).enforcement)

    def test_mistakes_are_named(self):
        for change, reason in (
                ({'nodes': []}, 'nodes: must be a list that is not empty'),
                ({'nodes': [7]}, 'nodes[0]: must be a mapping'),
                ({'nodes': [{'id': -1}]}, 'nodes[0].id: must be a whole'),
                ({'nodes': figures.mapping()['nodes'] * 2}, 'is given twice'),
                ({'nics': [9]}, 'nics: the host has no NUMA node 9'),
                ({'controls': ['x']}, "controls: 'x' is not one of MEM_BW"),
                ({'fit': {'containers': 1, 'passes': True}}, 'fit: '),
                ({'fit': 28}, 'fit: must be a mapping'),
                ({'far_mb': None}, 'far_mb: is missing'),
                ({'far_mb': 7}, 'far_mb: must be a mapping of value'),
                ({'far_mb': figures.figure('7')}, 'far_mb.value: must be a n'),
                ({'far_latency': figures.figure(0.9)}, 'a number from 1'),
                ({'far_mb': figures.figure(7, 'guessed')}, "'guessed' is"),
                ({'far_mb': dict(figures.figure(7), source=' ')}, 'must say'),
                ({'dma_mb': figures.figure(999)}, 'is part of demand_mb'),
                ({'enforcement': 7}, 'enforcement: must be a mapping'),
                ({'enforcement': dict(ENFORCEMENT, scope='x')},
                 "enforcement.scope: 'x' is not one of controller, entrance"),
                ({'enforcement': dict(ENFORCEMENT, cap_window_us=-1)},
                 'enforcement.cap_window_us.value: must be a number from 0'),
                ({'enforcement': dict(ENFORCEMENT, source='')}, 'must say'),
                ({'far': figures.figure(7)}, 'far: unknown key')):
            error = self.assertRaises(MachineError, figures.machine, **change)
            self.assertIn(reason, str(error))
            self.assertIsInstance(error, ValueError)

    @given(st.sampled_from([*figures.mapping(), 'fit', 'controls',
                            'enforcement']), JUNK)
    def test_junk_is_taken_or_refused_and_nothing_else(self, key, junk):
        try:
            Machine.from_mapping(figures.mapping(**{key: junk}))
        except MachineError as error:
            self.assertTrue(str(error))


class MachineTest(base.TestCase):

    def test_another_value(self):
        machine = figures.machine()
        self.assertEqual(9.0,
                         machine.replace_parameter('far_mb', 9.0)['far_mb'])
        self.assertEqual(36000.0, machine['far_mb'])

    def test_links(self):
        machine = figures.machine()
        self.assertIsNone(machine.get_link(1, 1))
        self.assertEqual(('near', 0, 1), machine.get_link(0, 1))
        self.assertEqual(('far', 0, 1), machine.get_link(0, 3))
        self.assertEqual(machine.get_link(1, 2), machine.get_link(0, 3))
