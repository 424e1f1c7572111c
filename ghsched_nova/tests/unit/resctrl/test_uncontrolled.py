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

"""Kernels that control or monitor something, but not memory bandwidth; and
hosts whose nodes or processors are not what they look like."""

import dataclasses
from pathlib import Path
import shutil
import tempfile

from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_nova.tests.fixtures import captured
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

WAYS = GuestPolicy(nodes=(NodePolicy(l3_ways=3),))


def build_without_bandwidth(dialect, nodes=emulated.NODES):
    """Return an emulated machine without the MB line and info/MB."""
    machine = machines.build(dialect, nodes)
    return dataclasses.replace(
        machine, lines=tuple(line for line in machine.lines
                             if not line.name.startswith('MB')),
        info_files=tuple((path, text) for path, text in machine.info_files
                         if not path.startswith('MB')), cap='')


class UncontrolledTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.top)

    def test_l3_ways_and_monitor_are_offered_without_bandwidth(self):
        for dialect, ways in (('intel', 18), ('mpam', 14)):
            top = self.top / dialect
            host = emulated.read_host(kernel.ResctrlModel(
                build_without_bandwidth(dialect), emulated.NoThreads()), top)
            self.assertEqual({'L3_WAYS', 'MEM_BW_MONITOR'},
                             host.capabilities(), dialect)
            told = host.make_description()
            self.assertEqual(((), {0: ways, 1: ways}),
                             (told.nodes, told.l3_ways))
            self.assertGreater(told.control_groups, 0)

    def test_bandwidth_is_refused_with_the_reason(self):
        host = emulated.read_host(kernel.ResctrlModel(
            build_without_bandwidth('intel'), emulated.NoThreads()), self.top)
        self.assertEqual((), resolve.resolve_settings(host, WAYS, (0,)))
        for asked in ({'minimum': 10}, {'maximum': 50}, {'priority': 3}):
            error = self.assertRaises(
                resolve.PolicyRefused, resolve.resolve_settings, host,
                GuestPolicy(nodes=(NodePolicy(**asked),)), (0,))
            self.assertIn('without control of memory bandwidth', str(error))
        error = self.assertRaises(resolve.PolicyRefused,
                                  resolve.make_common_cap_policy, host, 40)
        self.assertIn('knows no cap', str(error))

    def test_guest_gets_its_ways(self):
        made = world.World(self.top, build_without_bandwidth('intel'),
                           ('ghsched', 'ghsched'))
        made.guests = [dataclasses.replace(
            guest, monitor=True, ways=resolve.resolve_l3_ways(
                made.host, WAYS, (number,)))
            for number, guest in enumerate(made.guests)]
        self.assertEqual((), made.reconcile(cache=made.host.cache).problems)
        for number, guest in enumerate(made.guests):
            self.assertIn(guest.group, made.groups())
            masks = made.schemata(guest.group).values('L3', 16)
            self.assertEqual(3, masks[number].bit_count())
            self.assertFalse(masks[number]
                             & made.schemata('').values('L3', 16)[number])

    def test_processor_that_controls_and_measures_nothing_is_refused(self):
        machine = dataclasses.replace(build_without_bandwidth('intel'),
                                      lines=(), monitors=())
        self.assertRaises(
            resctrl_host.ResctrlUnavailable, emulated.read_host,
            kernel.ResctrlModel(dataclasses.replace(machine, lines=(
                machines.Line('L2', 'l3', 1, 3, 3, base=16, info='L2'),)),
                emulated.NoThreads()), self.top)


class EvidenceTest(base.TestCase):

    def read(self, machine, change=lambda top: None):
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        shutil.copytree(captured.MACHINES / machine, top, dirs_exist_ok=True)
        change(top)
        return resctrl_host.read_host(top / 'resctrl', top / 'sysfs')

    def remove_masks(self, top):
        """Make MPAM a kernel that controls bandwidth alone."""
        shutil.rmtree(top / 'resctrl/info/L3')
        (top / 'resctrl/schemata').write_text('    MB:5=100;71=100\n')

    def test_mpam_is_that_of_arm_processors_alone(self):
        error = self.assertRaises(resctrl_host.ResctrlUnavailable, self.read,
                                  'arm-mainline', self.remove_masks)
        self.assertIn('not Arm processors', error.reason)

        def change(top):
            self.remove_masks(top)
            register = (top / 'sysfs/devices/system/cpu/cpu0/regs'
                        / 'identification/midr_el1')
            register.parent.mkdir(parents=True)
            register.write_text('0x00000000410fd4f0\n')

        self.assertEqual('mpam', self.read('arm-mainline',
                                           change).dialect.name)

    def test_counters_at_the_memory_are_known_without_max_lim(self):
        def change(top):
            for name in ('MB/max_lim', 'MB/schema_format'):
                (top / 'resctrl/info' / name).unlink()
            (top / 'resctrl/schemata').write_text(
                'MB:0=100;1=100\nL3:0=fff;1=fff\n')

        host = self.read('nvidia-vera', change)
        self.assertEqual(('counter_bytes', 'mon_MB_'), (
            host.dialect.monitor.unit, host.dialect.monitor.prefix))
        self.assertNotIn('MEM_BW_SOFTLIMIT', host.capabilities())

    def test_rates_of_openeuler_are_not_taken_for_counters(self):
        for machine in ('kunpeng920b-openeuler24.03',
                        'kunpeng950-openeuler24.03'):
            path = captured.MACHINES / machine / 'resctrl/schemata'
            rows = [row for row in path.read_text().splitlines(True)
                    if row.strip().startswith(('MB:', 'L3:'))]
            self.assertRaises(
                resctrl_host.ResctrlUnavailable, self.read, machine,
                lambda top, rows=rows: (top / 'resctrl/schemata').write_text(
                    ''.join(rows)))

    def test_node_without_memory_is_not_offered(self):
        for text, nodes in (('0\n', (0,)), ('0-1\n', (0, 1)),
                            ('', (0, 1)), ('x\n', (0, 1))):
            host = self.read('intel-xeon-2s', lambda top, text=text: (
                top / 'sysfs/devices/system/node/has_memory').write_text(
                    text))
            self.assertEqual(nodes, host.make_description().nodes, text)
            if len(nodes) == 1:
                self.assertEqual({1: 'it has no memory'}, host.left_out)
