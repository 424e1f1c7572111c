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
import statistics

from oslo_config import cfg
import yaml

from ghsched_nova import conf
from ghsched_nova import privsep
from ghsched_placement.contention import shipped
from ghsched_placement.tests import base


class ListedOptionsTest(base.TestCase):

    def test_privsep_sections_are_those_of_our_contexts(self):
        listed = {group.name: {opt.name: opt.default for opt in opts}
                  for group, opts in conf.list_opts()}
        for context, capabilities in (
                (privsep.context, ['CAP_DAC_OVERRIDE']),
                (privsep.threads, ['CAP_SYS_NICE']),
                (privsep.memory, ['CAP_DAC_OVERRIDE', 'CAP_SYS_NICE',
                                  'CAP_SYS_PTRACE']),
                (privsep.connections, [])):
            section = listed[context.cfg_section]
            self.assertEqual(set(context.conf), set(section))
            self.assertEqual(capabilities, section['capabilities'])


class RegisteredTest(base.TestCase):

    def test_what_is_set_in_one_does_not_reach_another(self):
        one, other = cfg.ConfigOpts(), cfg.ConfigOpts()
        for options in (one, other):
            conf.register(options)
            conf.register(options)
            options([], project='nova', default_config_files=[],
                    default_config_dirs=[])
        one.set_override('control_threads', 'all', 'ghsched')
        self.assertEqual(('all', 'vcpus'), (one.ghsched.control_threads,
                                            other.ghsched.control_threads))


class CheckedTest(base.TestCase):

    def section(self, text):
        path = self.create_tempfiles([('nova', text)])[0]
        options = cfg.ConfigOpts()
        conf.register(options)
        options([], project='nova', default_config_files=[path],
                default_config_dirs=[])
        return options.ghsched

    def test_each_option_that_is_wrong_is_named(self):
        for line, words in (
                ('reserved_bandwidth = node0:10', "'node0' is no NUMA node"),
                ('reserved_bandwidth = 0:101', 'less than or equal'),
                ('reserved_bandwidth = 10', 'NAME:VALUE'),
                ('node_bandwidth = x:5', "'x' is no NUMA node"),
                ('default_bandwidth_max = lots', 'lots'),
                ('control_threads = some', 'some')):
            error = self.assertRaises(
                ValueError, conf.check,
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
            conf.check(section)
            config = conf.tree_config(section)
            self.assertEqual(reserved, [config.reserved(node)
                                        for node in range(2)], text)

    def test_nodes_left_out_have_no_other_option(self):
        for option in ('node_bandwidth', 'bandwidth_bursts'):
            error = self.assertRaises(ValueError, conf.check, self.section(
                f'[ghsched]\n{option} = *:10\n'))
            self.assertIn("'*' is no NUMA node", str(error))

    def test_default_is_what_the_shipped_curves_leave(self):
        ends = []
        for path in sorted(shipped.DIRECTORY.iterdir()):
            lines = yaml.safe_load(path.read_text())['points']
            line = min(lines, key=lambda one: abs(one['writes'] - 0.2))
            ends.append(max(use for use, _latency in line['latency']))
        self.assertEqual(2, len(ends))
        kept = conf.tree_config(self.section('')).reserved(0)
        self.assertAlmostEqual(statistics.mean(ends), 1 - kept / 100,
                               delta=.01)

    def test_what_is_right_is_passed(self):
        conf.check(self.section(''))
        conf.check(self.section(
            '[ghsched]\nreserved_bandwidth = 0:10,1:20\n'))
