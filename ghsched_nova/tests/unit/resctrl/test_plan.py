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
from pathlib import Path
import tempfile

from hypothesis import given
from hypothesis import strategies as st

from ghsched_nova.lab.emulator import machines
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import differences
from ghsched_nova.resctrl import resolve
from ghsched_nova.resctrl import schemata
from ghsched_nova.tests.fixtures import captured
from ghsched_nova.tests.fixtures import emulated
from ghsched_nova.tests.fixtures import world
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.tests import base

ALL_FOUR = NodePolicy(minimum=20, maximum=60, hardlimit=False, priority=5)


def _lines(host, policy, *host_nodes):
    return resolve.make_desired_lines(
        host,
        resolve.resolve_settings(host, GuestPolicy(nodes=policy), host_nodes))


class ResolveTest(base.TestCase):

    def _refused(self, host, policy, *host_nodes):
        return self.assertRaises(
            resolve.PolicyRefused, resolve.resolve_settings, host,
            GuestPolicy(nodes=policy), host_nodes).reason

    def test_all_four_on_openeuler(self):
        host = captured.openeuler()
        (setting,) = resolve.resolve_settings(
            host, GuestPolicy(nodes=(ALL_FOUR,)), [1]
        )
        self.assertEqual(
            resolve.DomainSetting(domain=1, host_node=1, guest_node=0,
                                  requested=ALL_FOUR, maximum=60, minimum=20,
                                  hardlimit=False, priority=5), setting)
        desired = resolve.make_desired_lines(host, [setting])
        self.assertEqual({'MB': {1: 60}, 'MBHDL': {1: 0}, 'MBPRI': {1: 5},
                          'MBMIN': {1: 20}}, desired)
        self.assertEqual(['MB', 'MBHDL', 'MBPRI', 'MBMIN'], list(desired))

    def test_unrequested_values_are_explicit(self):
        self.assertEqual(
            {'MB': {0: 100}, 'MBHDL': {0: 1}, 'MBPRI': {0: 6},
             'MBMIN': {0: 0}},
            _lines(captured.openeuler(priority_default=6), (NodePolicy(),), 0))

    def test_guest_nodes_may_be_crossed(self):
        desired = _lines(captured.openeuler(),
                         (NodePolicy(maximum=10), NodePolicy(maximum=20)),
                         1, 0)
        self.assertEqual({0: 20, 1: 10}, desired['MB'])

    def test_each_cache_of_a_node_is_set(self):
        host = captured.intel(domains_by_node={0: (0, 1), 1: (2, 3)})
        self.assertEqual({'MB': {2: 40, 3: 40}},
                         _lines(host, (NodePolicy(maximum=40),), 1))

    def test_intel_has_no_value_for_what_it_has_no_line_for(self):
        setting, = resolve.resolve_settings(
            captured.intel(), GuestPolicy(nodes=(NodePolicy(maximum=40),)),
            [0])
        self.assertEqual(
            (40, None, None, None),
            (setting.maximum, setting.minimum, setting.hardlimit,
             setting.priority))

    def test_caps_and_guarantees_are_rounded_up(self):
        for asked, held in ((1, 10), (10, 10), (11, 20), (91, 100)):
            self.assertEqual(
                {'MB': {0: held}},
                _lines(captured.intel(), (NodePolicy(maximum=asked),), 0))
        desired = _lines(captured.openeuler(granularity=5, min_bandwidth=5),
                         (NodePolicy(minimum=11, maximum=13),), 0)
        self.assertEqual(({0: 15}, {0: 15}),
                         (desired['MB'], desired['MBMIN']))

    def test_a_guarantee_of_nothing_is_not_raised_to_the_least_cap(self):
        self.assertEqual({0: 0}, _lines(captured.openeuler(min_bandwidth=10),
                                        (NodePolicy(),), 0)['MBMIN'])

    def test_no_policy_no_setting(self):
        self.assertEqual(
            (), resolve.resolve_settings(captured.intel(), GuestPolicy(), [7]))

    def test_missing_knobs_are_named(self):
        for asked, key, fact in (
                (NodePolicy(minimum=5), 'ghsched:mem_bw_min=5',
                 'Intel RDT of this host knows no guaranteed share'),
                (NodePolicy(maximum=50, hardlimit=False),
                 'ghsched:mem_bw_hardlimit=false',
                 'Intel RDT of this host cannot let a guest exceed'),
                (NodePolicy(priority=1), 'ghsched:mem_bw_priority=1',
                 'knows no priority')):
            reason = self._refused(captured.intel(), (asked,), 0)
            self.assertIn(key, reason)
            self.assertIn(fact, reason)

    def test_a_soft_limit_without_a_cap_needs_nothing(self):
        self.assertEqual({'MB': {0: 100}}, _lines(
            captured.intel(), (NodePolicy(hardlimit=False),), 0))

    def test_neither_limit_where_nobody_knows(self):
        whole = captured.openeuler()
        host = captured.openeuler(dialect=whole.dialect.restrict_to_lines(
            frozenset({'MB', 'MBPRI'})))
        for hardlimit in (True, False):
            self.assertIn('ghsched:mem_bw_hardlimit', self._refused(
                host, (NodePolicy(maximum=50, hardlimit=hardlimit),), 0))

    def test_a_node_without_a_domain_is_named(self):
        host = captured.openeuler(left_out={2: 'it has no CPU'})
        self.assertIn('host NUMA node 2: it has no CPU',
                      self._refused(host, (NodePolicy(10),), 2))
        self.assertIn('host NUMA node 5: it has no domain',
                      self._refused(host, (NodePolicy(10),), 5))

    def test_guest_nodes_and_host_nodes_must_match(self):
        self.assertIn('2 NUMA nodes', self._refused(
            captured.intel(), (NodePolicy(), NodePolicy()), 0))

    def test_two_guest_nodes_on_one_host_node(self):
        self.assertIn('on host NUMA node 0', self._refused(
            captured.openeuler(), (NodePolicy(), NodePolicy()), 0, 0))

    def test_two_guest_nodes_in_one_domain(self):
        host = captured.intel(domains_by_node={0: (0,), 1: (0,)})
        same = NodePolicy(maximum=40)
        self.assertEqual({'MB': {0: 40}}, _lines(host, (same, same), 0, 1))
        self.assertIn('one set of limits', self._refused(
            host, (same, NodePolicy(maximum=50)), 0, 1))


class BandwidthTest(base.TestCase):
    """Caps that are a bandwidth, and no share of one."""

    def _settings(self, host, policy, *host_nodes):
        return resolve.resolve_settings(
            host, GuestPolicy(nodes=policy), host_nodes
        )

    def test_amd_divides_among_the_caches_of_a_node(self):
        # 219726 MiB/s are 1843 eighths of a GB/s; 30 % are 552.96, and a
        # third of that is 184.3.
        host = captured.read_machine('amd-epyc')
        settings = self._settings(host, (NodePolicy(maximum=30),), 1)
        self.assertEqual({8: 185, 9: 185, 10: 185},
                         {x.domain: x.maximum for x in settings})
        self.assertEqual({30.11}, {x.maximum_percent for x in settings})
        self.assertEqual({'MB': {8: 185, 9: 185, 10: 185}},
                         resolve.make_desired_lines(host, settings))

    def test_no_cap_is_the_highest_value(self):
        for machine, highest in (('amd-epyc', 2048),
                                 ('intel-mba-mbps', 2 ** 32 - 1)):
            host = captured.read_machine(machine)
            setting = self._settings(host, (NodePolicy(),), 0)[0]
            self.assertEqual((highest, 100), (setting.maximum,
                                              setting.maximum_percent))
            self.assertEqual(
                {'MB': highest}, host.unused_domain_values
            )

    def test_a_cap_is_not_above_the_highest_value(self):
        host = captured.read_machine('amd-epyc-milan',
                                     node_bandwidth={0: 4 * 10 ** 6})
        setting = self._settings(host, (NodePolicy(maximum=99),), 0)[0]
        self.assertEqual(2048, setting.maximum)

    def test_mibs_are_rounded_up_to_the_granularity(self):
        host = captured.read_machine('intel-mba-mbps')
        setting, = self._settings(host, (NodePolicy(maximum=25),), 1)
        # A quarter of 190734 MiB/s is 47683.5.
        self.assertEqual((47690, 25.0), (setting.maximum,
                                         setting.maximum_percent))

    def test_two_nodes_below_one_cache_add_up(self):
        host = captured.intel(
            dialect=dialects.INTEL_MBPS, no_cap=2 ** 32 - 1,
            domains_by_node={0: (0,), 1: (0,)},
            node_bandwidth={0: 100 * 2 ** 20, 1: 300 * 2 ** 20})
        same = NodePolicy(maximum=50)
        setting, = self._settings(host, (same, same), 0, 1)
        self.assertEqual((200, 50.0), (setting.maximum,
                                       setting.maximum_percent))
        alone, = self._settings(host, (same,), 1)
        self.assertEqual((150, 50.0), (alone.maximum, alone.maximum_percent))

    @given(st.integers(1, 100), st.integers(1, 10 ** 6), st.integers(1, 8))
    def test_no_cap_is_below_what_was_asked(self, asked, speed, caches):
        host = captured.intel(
            dialect=dialects.AMD, no_cap=2048, min_bandwidth=0, granularity=1,
            domains_by_node={0: tuple(range(caches))},
            node_bandwidth={0: speed * 10 ** 6})
        settings = self._settings(host, (NodePolicy(maximum=asked),), 0)
        total = sum(setting.maximum for setting in settings)
        for setting in settings:
            self.assertTrue(1 <= setting.maximum <= 2048)
            if setting.maximum < 2048:
                self.assertGreaterEqual(setting.maximum_percent, asked)
                self.assertGreaterEqual(total * 125, speed * asked / 100)
                # One step less on each cache would be too little.
                self.assertLess((total - caches) * 125, speed * asked / 100)


class FractionTest(base.TestCase):

    def test_a_cap_goes_up_to_what_the_hardware_shows(self):
        host = captured.read_machine('arm-mainline-7.1', cap='hard')
        for asked, held in ((1, 3), (4, 9), (17, 19), (26, 28), (32, 38),
                            (92, 97), (98, 100)):
            setting, = resolve.resolve_settings(
                host, GuestPolicy(nodes=(NodePolicy(maximum=asked),)), (0,))
            self.assertEqual((held, held), (setting.maximum,
                                            setting.maximum_percent))

    def test_neither_limit_where_the_kernel_does_not_say(self):
        host = captured.read_machine('arm-mainline')
        for hardlimit in (True, False):
            asked = NodePolicy(maximum=50, hardlimit=hardlimit)
            self.assertRaises(resolve.PolicyRefused, resolve.resolve_settings,
                              host, GuestPolicy(nodes=(asked,)), (0,))

    def test_nvidia_says_which(self):
        host = captured.read_machine('nvidia-grace')
        for hardlimit in (True, False):
            desired = _lines(host, (NodePolicy(maximum=50,
                                               hardlimit=hardlimit),), 1)
            self.assertEqual({'MB': {1: 50}, 'MB_HLIM': {1: int(hardlimit)}},
                             desired)
        # What a fresh group holds there is not documented.
        self.assertEqual({'MB': 100}, host.unused_domain_values)


class OpenEuler510Test(base.TestCase):

    def test_the_lines_of_the_mount_options(self):
        asked = NodePolicy(minimum=11, maximum=51, hardlimit=False)
        host = captured.read_machine('kunpeng920-openeuler22.03-mbmax')
        self.assertEqual({'MBMAX': {2: 52}, 'MBHDL': {2: 0}, 'MBMIN': {2: 12}},
                         _lines(host, (asked,), 2))

    def test_a_priority_that_the_machine_has_not(self):
        host = captured.read_machine('kunpeng920-openeuler22.03')
        narrow = dataclasses.replace(host.dialect, knobs=tuple(
            dataclasses.replace(knob, maximum=3)
            if knob.role == 'priority' else knob
            for knob in host.dialect.knobs))
        exc = self.assertRaises(
            resolve.PolicyRefused, resolve.resolve_settings,
            dataclasses.replace(host, dialect=narrow),
            GuestPolicy(nodes=(NodePolicy(priority=4),)), (0,))
        self.assertIn('has priorities 0..3', exc.reason)


class WritesTest(base.TestCase):

    CURRENT = schemata.parse_schemata('   MB:0=0000100;1=0000100\n'
                                      'MBPRI:0=0000003;1=0000003\n')

    def test_one_line_each_with_what_differs_alone(self):
        self.assertEqual(
            ('MB:1=60\n', 'MBPRI:0=7;1=5\n'),
            differences.plan_schemata_writes(self.CURRENT, {
                'MB': {0: 100, 1: 60}, 'MBPRI': {1: 5, 0: 7}}))

    def test_nothing_differs_nothing_is_written(self):
        self.assertEqual((), differences.plan_schemata_writes(
            self.CURRENT, {'MB': {0: 100}, 'MBPRI': {1: 3}}))

    def test_other_domains_are_left_alone_or_held(self):
        current = schemata.parse_schemata(
            'MB:0=3;1=100;7=3\nMBPRI:0=3;1=3;7=3\n'
        )
        desired = {'MB': {1: 60}}
        self.assertEqual(
            ('MB:1=60\n',), differences.plan_schemata_writes(current, desired))
        self.assertEqual(
            ('MB:0=100;1=60;7=100\n',),
            differences.plan_schemata_writes(
                current, desired, {'MB': 100, 'MBPRI': 3, 'MBHDL': 1}))

    def test_a_line_or_domain_that_is_not_there_is_named(self):
        for desired in ({'MBHDL': {0: 1}}, {'MB': {4: 1}}):
            line, = desired
            exc = self.assertRaises(
                resolve.PolicyRefused, differences.plan_schemata_writes,
                self.CURRENT, desired)
            self.assertIn(f'no {line} of domain', exc.reason)

    def test_a_value_that_is_no_number_is_not_written_over(self):
        for text in ('unset', '1x', '9' * 5000):
            current = schemata.parse_schemata(f'MB:0={text}\n')
            wrong, = differences.find_schemata_differences(
                current, {'MB': {0: 1}})
            self.assertEqual(text, wrong.found)
            exc = self.assertRaises(
                resolve.PolicyRefused, differences.plan_schemata_writes,
                current,
                {'MB': {0: 1}})
            self.assertIn('is not a number', exc.reason)


class ToleranceTest(base.TestCase):
    """Lines of which it was not measured what they show."""

    TOLERANCE = captured.openeuler().tolerance

    def _written(self, line, found, wanted):
        return differences.plan_schemata_writes(
            schemata.parse_schemata(f'{line}:0={found}\n'),
            {line: {0: wanted}},
            tolerance=self.TOLERANCE,
        )

    def test_a_value_of_an_unmeasured_line_nearby_is_not_written(self):
        for line in ('MB', 'MBMIN'):
            for found, wanted in ((32, 33), (64, 60), (56, 60), (60, 60)):
                self.assertEqual((), self._written(line, found, wanted))

    def test_a_value_far_off_or_zero_is_written(self):
        for line, found, wanted in (
                ('MB', 65, 60), ('MB', 55, 60), ('MBMIN', 0, 1),
                ('MBMIN', 1, 0), ('MBHDL', 0, 1), ('MBPRI', 0, 1),
                ('L3MAX', 32, 33)):
            self.assertEqual((f'{line}:0={wanted}\n',),
                             self._written(line, found, wanted))

    def test_tolerance_of_measured_and_of_other_hosts_is_none(self):
        for dialect in machines.DIALECTS:
            machine = machines.build(dialect, emulated.NODES)
            self.assertEqual({}, world.measured_host(machine).tolerance)
            if not dialect.startswith(('openeuler', 'kunpeng')):
                with tempfile.TemporaryDirectory() as top:
                    self.assertEqual({}, emulated.read_host(
                        emulated.model(dialect), Path(top),
                        world.SPEED).tolerance)
