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

from importlib import machinery
from importlib import util
import pathlib
import re
from unittest import mock

import ddt
import yaml

from ghsched_nova.features.planner import hostfile
from ghsched_nova.lab.contention import ranges
from ghsched_nova.lab.contention import tables
from ghsched_nova.resctrl import dialects
from ghsched_nova.tests.fixtures import figures
from ghsched_nova.tests.unit.features.planner import test_hostfile
from ghsched_placement.features.density import calibrate
from ghsched_placement.features.density import shipped
from ghsched_placement.tests import base

HOSTS = pathlib.Path(__file__).parents[5] / 'etc' / 'ghsched' / 'hosts'
GUIDE = HOSTS.parents[2] / 'doc' / 'source' / 'planning'


def tool():
    """tools/contention-tables, as a module."""
    path = str(HOSTS.parents[2] / 'tools' / 'contention-tables')
    loader = machinery.SourceFileLoader('contention_tables', path)
    found = util.module_from_spec(util.spec_from_loader(loader.name, loader))
    loader.exec_module(found)
    return found


def document(**changes):
    section = {key: value for key, value in figures.mapping().items()
               if key not in ('name', 'nodes', 'nics')}
    good = yaml.safe_load(yaml.safe_dump(test_hostfile.GOOD))
    return yaml.safe_dump(good | {'contention': section | changes})


class SectionTest(test_hostfile.LoadTestCase):

    def test_other_sections_of_the_file_are_taken_over(self):
        machine = self.load(document()).contention
        self.assertEqual([(0, 2, 8), (1, 2, 9)],
                         [(node.id, node.threads, node.memory_mb)
                          for node in machine.nodes])
        self.assertEqual('h', machine.name)
        self.assertIn('MEM_BW_MIN', machine.controls)

    def test_host_without_a_curve_has_the_closest_measured_one(self):
        for dialect, machine in (('openeuler-6.6', 'Graviton3'),
                                 ('mpam', 'Graviton3'),
                                 ('nvidia-mpam', 'Graviton3'),
                                 ('intel-rdt', 'Skylake'),
                                 ('intel-mba-mbps', 'Skylake'),
                                 ('amd-qos', 'Skylake')):
            found = shipped.load_closest_curve(dialects.BY_NAME[dialect].x86)
            self.assertIn(machine, found.source)
            self.assertEqual('published', found.basis)
        self.assertIn('Graviton3', self.load(document()).contention.curve
                      .source)

    def test_every_control_interface_has_a_closest_curve(self):
        """A new one has to be put to its instruction set."""
        self.assertEqual(
            {'openeuler-6.6', 'openeuler-5.10', 'intel-rdt',
             'intel-mba-mbps', 'amd-qos', 'mpam', 'nvidia-mpam'},
            set(dialects.BY_NAME))

    def test_curve_of_the_host_file_comes_before_the_closest_one(self):
        own = {'basis': 'measured', 'source': 'this host', 'points': [
            {'writes': 0, 'latency': [[0, 1], [0.5, 1.2], [0.8, 2]]}]}
        self.assertEqual('this host', self.load(document(
            latency_curve=own)).contention.curve.source)

    def test_it_may_be_left_out(self):
        self.assertIsNone(
            self.load(yaml.safe_dump(test_hostfile.GOOD)).contention)

    def test_mistakes(self):
        self.refused(document(far_mb=7), 'contention.far_mb: must be')
        self.refused(document(nodes=[]), 'contention.nodes: unknown key')
        self.refused(document(far=7), 'contention.far: unknown key')
        self.refused(test_hostfile.changed(7, 'contention'),
                     'contention: must be a mapping, is a number')


@ddt.ddt
class ShippedTest(base.TestCase):

    @ddt.data('kunpeng920', 'amd-epyc9755')
    def test_the_fitted_demand_is_that_of_the_fit(self, name):
        machine = hostfile.load_host_file(
            str(HOSTS / f'{name}.yaml')
        ).contention
        self.assertEqual('fitted', machine.get_parameter('demand_mb').basis)
        self.assertAlmostEqual(calibrate.estimate_container_bandwidth(machine),
                               machine['demand_mb'], delta=0.1)

    def test_the_fitted_latency_is_that_of_the_fit(self):
        machine = hostfile.load_host_file(
            str(HOSTS / 'kunpeng920.yaml')
        ).contention
        self.assertAlmostEqual(
            calibrate.BIND_GAIN,
            calibrate.get_memory_speedup_of_binding(machine), places=3)

    def test_the_ranges_of_the_guide_are_of_the_shipped_curves(self):
        """Their figures take a minute; contention-tables --check has it."""
        def names(text):
            return re.sub(r'- [0-9./ ]+%?$', '- figures', text,
                          flags=re.MULTILINE)
        of = tool()
        machine = hostfile.load_host_file(
            str(HOSTS / 'kunpeng920.yaml')
        ).contention
        found = ranges.DensityRange((1,), (1,), (1.0,))
        with mock.patch.object(
                ranges, 'predict_random_densities', return_value=found):
            expected = tables.render_density_ranges(
                machine, dict.fromkeys(of.ROWS), of.DRAWS)
        self.assertEqual(
            names(expected),
            names((GUIDE / 'contention-ranges.inc').read_text()))

    def test_classes_of_the_guide_are_of_the_shipped_curves(self):
        """Their figures take minutes; contention-tables --check has them."""
        def names(text):
            return re.sub(r'- [0-9./ ]+$', '- figures', text,
                          flags=re.MULTILINE)
        one = ranges.ClassRange(*((1.0,) for _figure in range(6)))
        with mock.patch.object(
                ranges, 'predict_random_gains_of_classes',
                side_effect=lambda _machine, _curves, _count, cases: [
                    one for _case in cases]):
            expected = tables.render_class_gains(
                hostfile.load_host_file(
                    str(HOSTS / 'kunpeng920.yaml')).contention,
                dict.fromkeys(tool().ROWS), tool().DRAWS)
        self.assertEqual(
            names(expected),
            names((GUIDE / 'contention-classes.inc').read_text()))

    def test_gains_of_classes_are_those_of_the_guide(self):
        """Run tools/contention-tables after a change of these values."""
        machine = hostfile.load_host_file(
            str(HOSTS / 'kunpeng920.yaml')
        ).contention
        specs = {'ghsched:vcpu_classes': 'latency:0-1',
                 'ghsched:mem_bw_priority.latency': '7',
                 'ghsched:device_numa': 'preferred'}
        inside, entrance = ranges.predict_random_gains_of_classes(
            machine, [None], 2, [(specs, 'controller'), (specs, 'entrance')])
        self.assertLess(1.05, inside.traffic_over_guest[0])
        self.assertLess(inside.all_over_guest[-1], 1.0)
        self.assertEqual((1.0, 1.0), entrance.over_guest)
        for one in entrance.traffic_over_guest:
            self.assertAlmostEqual(1.0, one, places=2)

    def test_the_machines_of_the_guide_are_the_shipped_curves(self):
        """tools/contention-tables writes them."""
        self.assertEqual(
            (GUIDE / 'contention-machines.inc').read_text(),
            tables.render_latency_prediction_errors({
                name: curve for name, curve in tool().curves().items()
                if curve}))

    def test_draws_are_those_of_the_ranges_of_the_guide(self):
        """Run tools/contention-tables after a change of these values."""
        machine = hostfile.load_host_file(
            str(HOSTS / 'kunpeng920.yaml')
        ).contention
        found = ranges.predict_random_densities(
            machine, list(tool().curves().values()), 3)
        self.assertEqual(((28, 28, 60), (28, 28, 124)),
                         (found.densities, found.by_latency))
        self.assertEqual([1.0, 1.037, 1.037],
                         [round(one, 3) for one in found.over_static])
