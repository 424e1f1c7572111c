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

from dataclasses import replace
import itertools

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.tests.fixtures import figures
from ghsched_placement.features.density import calibrate
from ghsched_placement.features.density import density
from ghsched_placement.features.density.queueing import Enforcement
from ghsched_placement.features.density import workload as workloads
from ghsched_placement.features.density.workload import REFERENCE
from ghsched_placement.features.density.workload import Workload
from ghsched_placement.flavor import policy
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

MACHINE = figures.machine(fit={'containers': 28, 'passes': False})
NOISY = replace(REFERENCE, neighbour_mb=60000.0)


class PredictTest(base.TestCase):

    def test_a_curve_begins_at_one_and_does_not_fall(self):
        for scenario in workloads.SCENARIOS:
            curve = density.predict_latencies(MACHINE, scenario)
            self.assertEqual(density.LatencyPoint(1, 1.0), curve.points[0])
            values = [point.p99 for point in curve.points]
            self.assertEqual(sorted(values), values)

    def test_density_is_the_last_below_the_line(self):
        curve = density.predict_latencies(MACHINE, 'none')
        self.assertEqual('latency', curve.binds)
        self.assertEqual(curve.density + 1, curve.first_failing)
        self.assertLess(curve.points[curve.density - 1].p99, density.LINE)
        self.assertGreaterEqual(curve.points[curve.density].p99,
                                density.LINE)
        self.assertEqual(curve.density, curve.latency_density)

    def test_the_memory_of_the_guests_binds_where_latency_does_not(self):
        curve = density.predict_latencies(
            MACHINE.replace_parameter('demand_mb', 100.0), 'ghsched')
        self.assertEqual((60, None, 'guest memory'),
                         (curve.density, curve.first_failing, curve.binds))
        self.assertGreater(curve.latency_density, 60)

    def test_other_resources_bind(self):
        light = MACHINE.replace_parameter('demand_mb', 80.0)
        for change, density_, binds in (
                ({'container_memory_mb': 1024, 'vfs': 10}, 20, 'guest VFs'),
                ({'container_memory_mb': 1, 'vfs': 999, 'vcpus': 16}, 16,
                 'guest vCPUs'),
                ({'guests': 9}, 60, 'host CPUs or memory')):
            curve = density.predict_latencies(
                light, 'static', workload=replace(REFERENCE, **change))
            self.assertEqual((density_, binds), (curve.density, curve.binds))

    def test_no_more_than_asked(self):
        curve = density.predict_latencies(MACHINE, 'static', max_containers=5)
        self.assertEqual((5, 5, 'most'), (len(curve.points), curve.density,
                                          curve.binds))

    def test_control_and_locality_help(self):
        none, static, ours = (
            density.predict_latencies(MACHINE, scenario, workload=NOISY)
            for scenario in workloads.SCENARIOS)
        self.assertLess(none.density, static.density)
        self.assertLess(static.density, ours.density)
        self.assertGreater(none.alone, static.alone)
        self.assertGreater(static.alone, ours.alone)

    def test_keys_that_say_nothing_change_nothing(self):
        free = GuestPolicy((NodePolicy(),) * 2)
        self.assertAlmostEqual(
            density.predict_p99(MACHINE, 'static', 50, workload=NOISY),
            density.predict_p99(MACHINE, 'ghsched', 50, free, NOISY))

    def test_many_small_guests(self):
        small = Workload(guests=256, vcpus=4, memory_mb=8192, nodes=1, vfs=2)
        curve = density.predict_latencies(MACHINE, 'static', workload=small)
        self.assertEqual(64, len(curve.points))

    def test_without_vfs_only_the_devices_are_gone(self):
        without = replace(REFERENCE, vfs=0)
        still = figures.machine(dma_mb=figures.figure(0))
        for scenario in workloads.SCENARIOS:
            curve = density.predict_latencies(
                MACHINE, scenario, workload=without)
            self.assertEqual(
                density.predict_latencies(still, scenario, workload=REFERENCE),
                curve)
            self.assertGreaterEqual(
                curve.latency_density,
                density.predict_latencies(MACHINE, scenario).latency_density)

    def test_guests_without_vfs_are_full_of_memory_or_vcpus(self):
        light = MACHINE.replace_parameter('demand_mb', 80.0)
        for change, binds in (({}, 'guest memory'),
                              ({'vcpus': 16}, 'guest vCPUs')):
            curve = density.predict_latencies(
                light, 'static', workload=replace(REFERENCE, vfs=0, **change))
            self.assertEqual(binds, curve.binds)

    def test_a_guest_without_vfs_is_given_none_to_see(self):
        keys = density.make_default_policy(MACHINE, replace(REFERENCE, vfs=0))
        self.assertEqual('none', keys.device_numa)

    def test_buffers_on_the_own_node_of_a_container(self):
        near = replace(REFERENCE, own_buffers=True)
        for scenario in ('static', 'ghsched'):
            slots = workloads.list_guest_nodes(
                MACHINE, near, scenario, density.make_default_policy(MACHINE)
                if scenario == 'ghsched' else None)
            self.assertEqual({True}, {
                path.origin == path.memory for slot in slots
                for path in slot.paths})
            # DMA comes from where the NIC is, and all of it does.
            for slot in slots:
                self.assertAlmostEqual(MACHINE['dma_mb'], sum(
                    flow.demand for flow in slot.flows
                    if flow.group == workloads.DEVICES))
            self.assertGreater(
                density.predict_latencies(MACHINE, scenario,
                                          workload=near).latency_density,
                density.predict_latencies(MACHINE, scenario).latency_density)
        self.assertEqual(
            density.predict_latencies(MACHINE, 'none'),
            density.predict_latencies(MACHINE, 'none', workload=near))

    def test_keys_as_extra_specs(self):
        specs = {'ghsched:mem_bw_min': '50',
                 'ghsched:device_numa': 'preferred'}
        policy = GuestPolicy(nodes=(NodePolicy(50),) * 2,
                             device_numa='preferred')
        self.assertEqual(density.predict_latencies(MACHINE, 'ghsched', policy),
                         density.predict_latencies(MACHINE, 'ghsched', specs))
        self.assertEqual(policy, density.make_default_policy(MACHINE))

    def test_mistakes(self):
        for words, call in (
                ("'x' is not one of",
                 lambda: density.predict_latencies(MACHINE, 'x')),
                ('no guest of 999', lambda: density.predict_latencies(
                    MACHINE, 'static', workload=Workload(vcpus=999))),
                ('enforce MEM_BW_MIN', lambda: density.predict_latencies(
                    figures.machine(controls=['MEM_BW_MAX']), 'ghsched',
                    {'ghsched:mem_bw_min': '5'})),
                ('guest with 1 NUMA', lambda: density.predict_latencies(
                    MACHINE, 'ghsched', GuestPolicy((NodePolicy(5),))))):
            error = self.assertRaises(ValueError, call)
            self.assertIn(words, str(error))

    @given(st.integers(0, 100), st.integers(1, 40))
    def test_a_guarantee_never_costs_its_own_guest(self, minimum, count):
        def latency(share):
            keys = GuestPolicy((NodePolicy(share),) * 2)
            return density.predict_p99(
                MACHINE, 'ghsched', count, keys,
                NOISY) * density.predict_latencies(
                    MACHINE, 'ghsched', keys, 1, NOISY).alone
        self.assertLessEqual(latency(minimum), latency(0) + 1e-9)


class VcpuClassTest(base.TestCase):
    """A guest on one NUMA node, whose memory is a queue (M/M/1).

    With use d of a container and n containers, an access takes 1 / (1 - n d)
    times as long as on an idle machine. Before all others it takes
    1 + n d / (1 - d), as an access in service is never interrupted, and
    after the observed container 1 + n d / (1 - d) / (1 - n d). Alone it takes
    1 / (1 - d).
    """

    USE = 0.009
    CLASSES = 'ghsched:vcpu_classes'

    def predict(self, scope, **keys):
        machine = figures.machine(
            nodes=[{'id': 0, 'threads': 320, 'memory_mb': 1048576}],
            demand_mb=figures.figure(100000 * self.USE))
        return density.predict_latencies(
            replace(machine, enforcement=Enforcement(scope)), 'ghsched', {
                f'ghsched:{key.replace("__", ".")}': value
                for key, value in keys.items()},
            workload=Workload(guests=1, vcpus=80, nodes=1, vfs=0))

    def test_class_goes_before_the_other_containers_of_its_guest(self):
        use = self.USE
        expected = {
            n: (1 - use) * (1 + n * use / (1 - use)) for n in (2, 9, 30)}
        for keys in ({'mem_bw_priority__a': '7'}, {'mem_bw_min__a': '1'}):
            found = self.predict('controller', vcpu_classes='a:0-1', **keys)
            for n, p99 in expected.items():
                self.assertAlmostEqual(p99, found.points[n - 1].p99)
            # n - 1 < 0.1 / d = 11.1
            self.assertEqual(12, found.latency_density)
            # n d / (1 - n d) < 0.1 + d
            self.assertEqual(10, found.all_density)

    def test_class_gains_nothing_where_priority_acts_at_the_entrance(self):
        # n d < 1 - (1 - d) / 1.1
        for scope, keys in (
                ('entrance', {'vcpu_classes': 'a:0-1',
                              'mem_bw_priority__a': '7'}),
                ('controller', {'vcpu_classes': 'a:0-1'}),
                ('controller', {'mem_bw_priority': '7'})):
            found = self.predict(scope, **keys)
            self.assertEqual((11, 11), (found.latency_density,
                                        found.all_density))
            self.assertAlmostEqual((1 - self.USE) / (1 - 9 * self.USE),
                                   found.points[8].p99)

    def test_class_of_all_containers_is_as_keys_of_the_guest(self):
        self.assertEqual(
            self.predict('controller', mem_bw_priority='7').points,
            self.predict('controller', vcpu_classes='a:0-79',
                         mem_bw_priority__a='7').points)

    def test_class_on_the_vcpus_of_others_does_not_help_the_observed(self):
        found = self.predict('controller', vcpu_classes='a:2-3',
                             mem_bw_priority__a='7')
        self.assertEqual(10, found.latency_density)

    def test_containers_are_counted_once_in_the_class_of_their_vcpus(self):
        keys = policy.parse_policy(
            {self.CLASSES: 'a:0-1,82-85,b:158-159',
             'ghsched:mem_bw_priority.a': '7', 'ghsched:mem_bw_max.b': '50'},
            2, 160)
        slots = workloads.list_guest_nodes(MACHINE, REFERENCE, 'ghsched', keys)
        # The class of the first container comes first.
        self.assertEqual(
            [('guest0.a', 1), ('guests', 6), ('guests', 5), ('guest0.a', 2)],
            [(slot.paths[0].group, slot.count_containers(28))
             for slot in slots if slot.guest == 0
             and slot.count_containers(28)])
        for number in (1, 13, 28, 160, 200):
            self.assertEqual(number, sum(slot.count_containers(number)
                                         for slot in slots))
        controls = workloads.make_bandwidth_controls(MACHINE, REFERENCE, keys)
        self.assertEqual((7, 7), tuple(
            controls['guest1.a', node].priority for node in (2, 3)))
        self.assertEqual((100, 50), tuple(
            controls['guest1.b', node].maximum for node in (2, 3)))


class PlacesTest(base.TestCase):

    def test_each_guest_has_nodes_of_one_socket_to_itself(self):
        self.assertEqual(((0, 1), (2, 3)),
                         workloads.place_guests(MACHINE, REFERENCE, 'static'))

    def test_guests_share_nodes_that_are_large_enough(self):
        machine = figures.machine(nodes=[
            {'id': node, 'threads': 256, 'memory_mb': 524288, 'socket': node}
            for node in range(2)])
        self.assertEqual(((0, 1), (0, 1)),
                         workloads.place_guests(machine, REFERENCE, 'static'))
        self.assertEqual(
            25, density.make_default_policy(machine).nodes[0].minimum)

    def test_all_traffic_is_there_once(self):
        for scenario, (workload, of_device) in itertools.product(
                workloads.SCENARIOS,
                ((NOISY, 78.125), (replace(NOISY, vfs=0), 0.0))):
            slots = workloads.list_guest_nodes(MACHINE, workload, scenario,
                                               None)
            asked = workloads.list_memory_flows(MACHINE, workload, slots, 13)
            self.assertEqual(
                13, sum(slot.count_containers(13) for slot in slots))
            self.assertAlmostEqual(
                13 * (340 + of_device) + 4 * 60000,
                sum(flow.demand for flow in asked))
            for slot in slots:
                self.assertAlmostEqual(
                    1.0, sum(path.part for path in slot.paths))


class CompareTest(base.TestCase):

    def test_a_line_of_which_no_density_was_published_has_no_ratio(self):
        fitted = MACHINE.replace_parameter(
            'demand_mb', calibrate.estimate_container_bandwidth(MACHINE))
        other = figures.machine(name='other',
                                fit={'containers': 30, 'passes': True})
        other = other.replace_parameter('demand_mb',
                                        calibrate.estimate_container_bandwidth(
                                            other))
        report = density.predict_scenarios(fitted, against=other)
        ours = report.get_curve('ghsched').density
        self.assertEqual([report.get_curve('static').density, 30],
                         [ratio.line for ratio in report.ratios])
        self.assertAlmostEqual(ours / 30, report.ratios[1].value)

    def test_ratios_of_other_workloads_are_against_densities(self):
        fitted = MACHINE.replace_parameter(
            'demand_mb', calibrate.estimate_container_bandwidth(MACHINE))
        report = density.predict_scenarios(fitted, against=fitted,
                                           workload=replace(REFERENCE))
        none, static, ours = (curve.density for curve in report.curves)
        self.assertEqual(
            [(none, 'density'), (static, 'density'), (none, 'density')],
            [(ratio.line, ratio.line_is) for ratio in report.ratios])
        self.assertEqual(ours / none, report.ratios[0].value)

    def test_every_fitted_figure_is_moved_both_ways(self):
        other = figures.machine(name='other')
        shifts = density.compute_sensitivity(MACHINE, against=other)
        self.assertEqual(
            [(name, parameter, factor) for name in ('host', 'other')
             for parameter in ('far_latency', 'demand_mb')
             for factor in (0.8, 1.2)],
            [(shift.machine, shift.parameter.name, shift.factor)
             for shift in shifts])
        ratios = {shift.report.ratios[0].value for shift in shifts[:4]}
        self.assertGreater(len(ratios), 1)


class SearchTest(base.TestCase):

    def test_it_finds_keys_that_others_need(self):
        found = density.search_best_policy(MACHINE, NOISY)
        self.assertGreater(found.curve.density,
                           density.predict_latencies(MACHINE, 'static',
                                                     workload=NOISY).density)
        self.assertEqual(found.curve, density.predict_latencies(
            MACHINE, 'ghsched', found.keys, workload=NOISY))
        self.assertEqual(found, density.search_best_policy(MACHINE, NOISY))

    def test_nothing_is_asked_that_is_not_needed(self):
        found = density.search_best_policy(
            MACHINE.replace_parameter('demand_mb', 100.0))
        self.assertEqual((NodePolicy(),) * 2, found.keys.nodes)
        self.assertEqual((2, 1), (found.guests, found.tried))

    def test_only_what_the_host_can_hold_is_tried(self):
        machine = figures.machine(controls=['MEM_BW_MAX', 'MEM_BW_HARDLIMIT'])
        found = density.search_best_policy(machine, NOISY)
        self.assertEqual(
            {(0, None, True)},
            {(node.minimum, node.priority, node.hardlimit)
             for node in found.keys.nodes})
        self.assertLessEqual(found.tried, 5)


class CalibrateTest(base.TestCase):

    def test_demand_gives_the_published_point(self):
        for containers, passes, expected in ((28, False, 27),
                                             (48, True, 48)):
            machine = figures.machine(fit={'containers': containers,
                                           'passes': passes})
            fitted = machine.replace_parameter(
                'demand_mb', calibrate.estimate_container_bandwidth(machine))
            self.assertEqual(expected,
                             density.predict_latencies(fitted, 'none').density)

    def test_nothing_to_fit_to(self):
        self.assertRaises(ValueError, calibrate.estimate_container_bandwidth,
                          figures.machine())

    def test_the_gain_of_binding_one_instance(self):
        machine = MACHINE.replace_parameter('far_latency', 1.451)
        self.assertAlmostEqual(
            calibrate.BIND_GAIN,
            calibrate.get_memory_speedup_of_binding(machine), places=3)
