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
"""Options of ghsched, and what is made of them."""

from pathlib import Path
import re
import statistics

from oslo_config import cfg
import yaml

from ghsched_nova.base import privsep
from ghsched_nova import conf
from ghsched_placement.features.density import shipped
from ghsched_placement.tests import base

TOP = Path(conf.__file__).parents[2]

#: Options that a cloud may need; all others are for tuning.
ESSENTIAL = (
    'reserved_bandwidth', 'node_bandwidth', 'bandwidth_cap',
    'bandwidth_accounting', 'default_bandwidth_max', 'group_sharing',
    'reserved_control_groups', 'bandwidth_bursts', 'burst_risk', 'nova_fixes')


class ListedOptionsTest(base.TestCase):

    def test_privsep_sections_are_those_of_our_contexts(self):
        listed = {group.name: {opt.name: opt.default for opt in opts}
                  for group, opts in conf.list_opts()}
        for context, capabilities in (
                (privsep.context, ['CAP_DAC_OVERRIDE']),
                (privsep.threads, ['CAP_SYS_NICE']),
                (privsep.memory, ['CAP_DAC_OVERRIDE', 'CAP_SYS_NICE',
                                  'CAP_SYS_PTRACE']),
                (privsep.connections, []),
                (privsep.counters, ['CAP_PERFMON'])):
            section = listed[context.cfg_section]
            self.assertEqual(set(context.conf), set(section))
            self.assertEqual(capabilities, section['capabilities'])


class RegisteredTest(base.TestCase):

    def test_settings_of_one_do_not_reach_another(self):
        one, other = cfg.ConfigOpts(), cfg.ConfigOpts()
        for options in (one, other):
            conf.register_opts(options)
            conf.register_opts(options)
            options([], project='nova', default_config_files=[],
                    default_config_dirs=[])
        one.set_override('control_threads', 'all', 'ghsched')
        self.assertEqual(('all', 'vcpus'), (one.ghsched.control_threads,
                                            other.ghsched.control_threads))


class NumberOfOptionsTest(base.TestCase):

    def test_options_are_at_most_38(self):
        self.assertLessEqual(len(conf.OPTS), 38)

    def test_deprecated_options_are_apart_and_say_why(self):
        self.assertEqual([], [one.name for one in conf.OPTS
                              if one.deprecated_for_removal])
        for option in conf.DEPRECATED_OPTS:
            self.assertTrue(option.deprecated_for_removal, option.name)
            self.assertTrue(option.deprecated_reason, option.name)

    def test_essential_options_are_those_of_the_manual(self):
        page = (TOP / 'doc' / 'source' / 'admin'
                / 'nova-conf.rst').read_text()
        self.assertEqual(10, len(ESSENTIAL))
        self.assertLessEqual(set(ESSENTIAL),
                             {option.name for option in conf.OPTS})
        self.assertEqual(list(ESSENTIAL), re.findall(
            r'^``([a-z0-9_]+)``$', page, re.MULTILINE))


class CheckedTest(base.TestCase):

    def section(self, text):
        path = self.create_tempfiles([('nova', text)])[0]
        options = cfg.ConfigOpts()
        conf.register_opts(options)
        options([], project='nova', default_config_files=[path],
                default_config_dirs=[])
        return options.ghsched

    def test_each_option_that_is_wrong_is_named(self):
        for line, words in (
                ('reserved_bandwidth = node0:10',
                 "'node0' is not a NUMA node"),
                ('reserved_bandwidth = 0:101', 'less than or equal'),
                ('reserved_bandwidth = 10', 'NAME:VALUE'),
                ('node_bandwidth = x:5', "'x' is not a NUMA node"),
                ('default_bandwidth_max = lots', 'lots'),
                ('control_threads = some', 'some'),
                ('bottleneck_thresholds = cpu_lod:5',
                 "'cpu_lod' is not one of cpu_load, "),
                ('l3_ways_shared =', 'empty')):
            error = self.assertRaises(
                ValueError, conf.check_options,
                self.section(f'[ghsched]\n{line}\n'))
            self.assertIn('[ghsched]' + line.split()[0], str(error))
            self.assertIn(words, str(error))

    def test_reserved_bandwidth_of_the_nodes_left_out(self):
        for text, reserved in (
                ('', [20, 20]), ('reserved_bandwidth = 0:10', [10, 0]),
                ('reserved_bandwidth =', [0, 0]),
                ('reserved_bandwidth = *:0', [0, 0]),
                ('reserved_bandwidth = 0:10,*:25', [10, 25])):
            section = self.section(f'[ghsched]\n{text}\n')
            conf.check_options(section)
            config = conf.make_tree_config(section)
            self.assertEqual(reserved, [config.get_reserved_percent(node)
                                        for node in range(2)], text)

    def test_nodes_left_out_have_no_other_option(self):
        for option in ('node_bandwidth', 'bandwidth_bursts'):
            error = self.assertRaises(
                ValueError,
                conf.check_options,
                self.section(f'[ghsched]\n{option} = *:10\n'),
            )
            self.assertIn("'*' is not a NUMA node", str(error))

    def test_default_is_what_the_shipped_curves_leave(self):
        """The default comes from two of the machines."""
        ends = []
        for name in ('mess-graviton3.yaml', 'mess-skylake.yaml'):
            path = shipped.DIRECTORY / name
            lines = yaml.safe_load(path.read_text())['points']
            line = min(lines, key=lambda one: abs(one['writes'] - 0.2))
            ends.append(max(use for use, _latency in line['latency']))
        kept = conf.make_tree_config(self.section('')).get_reserved_percent(0)
        self.assertAlmostEqual(statistics.mean(ends), 1 - kept / 100,
                               delta=.01)

    def test_correct_input_passes(self):
        conf.check_options(self.section(''))
        conf.check_options(self.section(
            '[ghsched]\nreserved_bandwidth = 0:10,1:20\n'))
