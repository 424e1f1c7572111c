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

"""Interrupts of VFIO."""

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.features.interrupts import model
from ghsched_placement.base import cpulist
from ghsched_placement.tests import base

INTERRUPTS = '''\
            CPU0       CPU1
  24:          5          9  IR-PCI-MSI 524288-edge      nvme0q0
 152:         10          2  IR-PCI-MSI 5-edge  vfio-msix[0](0000:18:00.2)
 153:          0          1  IR-PCI-MSI 6-edge  vfio-msix[1](0000:18:00.2)
 154:          0          0  ITS-MSI 12582912 Edge  vfio-msi[0](0000:7d:01.1)
 155:          3          0  GICv3 78 Level  vfio-intx(0001:00:00.0), usb1
 NMI:          1          1  Non-maskable interrupts
'''


class CountsTest(base.TestCase):

    def test_all_vectors_of_a_device_are_summed_up(self):
        self.assertEqual({'0000:18:00.2': 13, '0000:7d:01.1': 0,
                          '0001:00:00.0': 3},
                         model.count_interrupts_by_device(INTERRUPTS))

    @given(st.lists(st.lists(st.integers(0, 2 ** 32), min_size=2,
                             max_size=2), max_size=5))
    def test_output_of_the_kernel_is_read(self, vectors):
        text = INTERRUPTS + ''.join(
            f'{number}: {a:10} {b:10} IR-PCI-MSI 1-edge '
            f'vfio-msix[{number}](0000:01:00.0)\n'
            for number, (a, b) in enumerate(vectors))
        self.assertEqual(
            sum(map(sum, vectors)),
            model.count_interrupts_by_device(text).get('0000:01:00.0', 0))

    @given(st.text())
    def test_any_text_is_read(self, text):
        self.assertEqual(
            {}, model.count_interrupts_by_device(text.replace('vfio', '')))


class ParseTest(base.TestCase):

    def test_lines_of_vfio_are_read(self):
        self.assertEqual(
            [(152, 'vfio-msix[0](0000:18:00.2)', '0000:18:00.2', 12, True),
             (153, 'vfio-msix[1](0000:18:00.2)', '0000:18:00.2', 1, True),
             (154, 'vfio-msi[0](0000:7d:01.1)', '0000:7d:01.1', 0, True),
             (155, 'vfio-intx(0001:00:00.0)', '0001:00:00.0', 3, False)],
            [(one.number, one.name, one.device, one.count, one.is_exclusive)
             for one in model.parse_interrupts(INTERRUPTS)])
        self.assertEqual(
            [True, True, True, False],
            [
                one.can_bypass_host
                for one in model.parse_interrupts(INTERRUPTS)])

    def test_devices_that_share_a_wire(self):
        text = ('155: 3 0 GICv3 78 Level  vfio-intx(0001:00:00.0), '
                'vfio-intx(0001:00:00.1)')
        self.assertEqual([('0001:00:00.0', False), ('0001:00:00.1', False)],
                         [(one.device, one.is_exclusive)
                          for one in model.parse_interrupts(text)])

    @given(st.text(st.sampled_from('vfio-msx[0](:18.2), \n9I'))
           | st.text())
    def test_any_text_is_parsed(self, text):
        for one in model.parse_interrupts(text):
            self.assertIn(one.name, text)
            self.assertTrue(model.is_vfio_interrupt_name(one.name))


NODES = {0: frozenset(range(4)), 1: frozenset(range(4, 8))}
CPUS = st.frozensets(st.integers(0, 9), min_size=1)
ROUTES = st.builds(model.IrqAffinity, CPUS, CPUS,
                   st.none() | st.integers(0, 2))


class PlanTest(base.TestCase):

    GUEST = model.InterruptGuest('uuid', 'web', frozenset({'0000:18:00.2'}))
    FOUND = ((GUEST, model.parse_interrupts(INTERRUPTS)[0]),)

    def plan(self, route, kept=(), nodes=NODES):
        return model.plan_interrupt_actions(
            self.FOUND, {152: route}, model.HostCpus(nodes, frozenset(kept)))

    def test_an_interrupt_goes_to_cpus_that_no_guest_has(self):
        (action,), problems = self.plan(model.IrqAffinity(
            frozenset(range(8)), frozenset({2}), 1), kept={5, 6, 7})
        self.assertEqual(('4', 'it may go to CPUs 0-7, and goes to 2', ()),
                         (action.line, action.reason, problems))
        self.assertEqual('interrupt 152 of 0000:18:00.2: CPUs 4',
                         action.details)

    def test_a_device_without_a_node_has_those_of_all(self):
        (action,), _problems = self.plan(
            model.IrqAffinity(frozenset({2})), kept={2, 3})
        self.assertEqual('0-1,4-7', action.line)

    def test_a_choice_among_them_is_left(self):
        self.assertEqual(((), ()), self.plan(
            model.IrqAffinity(frozenset({6, 99}), node=1), kept={4}))

    def test_a_node_of_guests_alone_is_a_problem(self):
        actions, (problem,) = self.plan(
            model.IrqAffinity(frozenset({6}), node=1), kept=NODES[1])
        self.assertEqual((), actions)
        self.assertEqual(
            'guest uuid: interrupts of 0000:18:00.2 stay where they are: '
            'NUMA node 1 has no CPU that no guest has for itself',
            str(problem))

    def test_vanished_entries_are_left_alone(self):
        self.assertEqual(((), ()), model.plan_interrupt_actions(
            self.FOUND, {}, model.HostCpus(NODES)))

    def test_bypassing_or_shared_interrupts_are_not_steered(self):
        every = model.InterruptGuest('uuid', 'web', frozenset(
            model.count_interrupts_by_device(INTERRUPTS)))
        wired = INTERRUPTS.replace(', usb1', '')
        for text, bypass, numbers in (
                (INTERRUPTS, False, [152, 153, 154]), (INTERRUPTS, True, []),
                (wired, False, [152, 153, 154, 155]), (wired, True, [155])):
            found = model.select_steerable_interrupts(
                [every], model.parse_interrupts(text), bypass)
            self.assertEqual(numbers, [one.number for _, one in found])

    @given(ROUTES, st.frozensets(st.integers(0, 7)))
    def test_it_ends_on_housekeeping_cpus_and_is_written_once(self, route,
                                                              kept):
        actions, problems = self.plan(route, kept)
        place = NODES.get(route.node, frozenset()) if (
            route.node is not None) else frozenset(range(8))
        self.assertEqual(not place - kept, bool(problems))
        for action in actions:
            self.assertEqual(place - kept, action.cpus)
            self.assertEqual(action.cpus, cpulist.parse_cpu_list(action.line))
            self.assertEqual(((), ()), self.plan(
                model.IrqAffinity(action.cpus, node=route.node), kept))
        if not actions and not problems:
            self.assertLessEqual(route.cpus & frozenset(range(8)),
                                 place - kept)
