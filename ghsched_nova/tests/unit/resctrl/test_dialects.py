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


from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import ghsched_nova
from ghsched_nova.resctrl import detection
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import rounding
from ghsched_nova.resctrl import schemata
from ghsched_nova.tests.fixtures import captured
from ghsched_placement.flavor import key_names
from ghsched_placement.flavor import keys
from ghsched_placement.providers import names
from ghsched_placement.tests import base

INTEL_INFO = {'MB/delay_linear': '1\n',
              'MB/thread_throttle_mode': 'per-thread\n'}
AMD_INFO = {'MB/delay_linear': '0\n', 'MB/min_bandwidth': '0\n',
            'MB/bandwidth_gran': '1\n'}


def _mpam(step, minimum):
    return {'MB/delay_linear': '1\n', 'MB/bandwidth_gran': f'{step}\n',
            'MB/min_bandwidth': f'{minimum}\n'}


class CapabilitiesTest(base.TestCase):

    def test_openeuler_holds_all(self):
        self.assertEqual(
            {name for name in names.CAPABILITY_TRAITS
             if name.startswith('MEM_BW_')},
            dialects.OPENEULER_66.capabilities())

    def test_intel_holds_hard_caps_alone(self):
        self.assertEqual(
            {'MEM_BW_MAX', 'MEM_BW_HARDLIMIT', 'MEM_BW_MONITOR'},
            dialects.INTEL.capabilities())

    def test_the_others(self):
        cap = {'MEM_BW_MAX', 'MEM_BW_MONITOR'}
        hard, soft = {'MEM_BW_HARDLIMIT'}, {'MEM_BW_SOFTLIMIT'}
        for dialect, held in (
                (dialects.INTEL_MBPS, cap | hard), (dialects.AMD, cap | hard),
                (dialects.MPAM, cap), (dialects.NVIDIA, cap | hard | soft)):
            self.assertEqual(held, dialect.capabilities())

    def test_openeuler_without_a_hardlimit_line_promises_neither(self):
        # What such hardware does with a cap while bandwidth is idle is not
        # documented.
        held = dialects.OPENEULER_66.restrict_to_lines(
            frozenset({'MB', 'MBPRI'})).capabilities()
        self.assertEqual({'MEM_BW_MAX', 'MEM_BW_PRIORITY', 'MEM_BW_MONITOR'},
                         held)

    def test_a_dialect_is_found_by_its_name(self):
        for dialect in dialects.ALL:
            self.assertIs(dialect, dialects.BY_NAME[dialect.name])


class DetectTest(base.TestCase):

    def _detect(self, info, text):
        return detection.detect_dialect(info, schemata.parse_schemata(text))

    def _why(self, info, text):
        root = schemata.parse_schemata(text)
        self.assertIsNone(detection.detect_dialect(info, root))
        return detection.explain_unknown_dialect(info, root)

    def test_openeuler_is_known_by_its_lines(self):
        found = self._detect({}, 'MB:0=100\nMBHDL:0=1\nMBPRI:0=3\nMBMIN:0=0')
        self.assertEqual(dialects.OPENEULER_66, found)

    def test_only_the_knobs_that_are_there_are_kept(self):
        found = self._detect({}, 'MB:0=100\nMBPRI:0=3')
        self.assertEqual(['MB', 'MBPRI'], [k.line for k in found.knobs])
        self.assertIsNone(found.find_knob('minimum'))

    def test_intel_is_known_by_its_throttle_mode(self):
        self.assertEqual(dialects.INTEL,
                         self._detect(INTEL_INFO, 'L3:0=f\nMB:0=100'))

    def test_intel_before_5_12_is_known_by_its_steps(self):
        def info(granularity, minimum):
            return {'MB/delay_linear': '1', 'MB/min_bandwidth': f'{minimum}',
                    'MB/bandwidth_gran': f'{granularity}'}

        for event, lines, dialect in (
                (set(), 'MB:0=100', dialects.INTEL),
                (set(), 'MB:0=4294967295', dialects.INTEL_MBPS)):
            self.assertEqual(dialect, detection.detect_dialect(
                info(10, 10), schemata.parse_schemata(lines), event))
        for steps_ in ((1, 1), (13, 13), (10, 1), (10, 0)):
            self.assertNotEqual(dialects.INTEL, self._detect(
                info(*steps_), 'MB:0=100'))

    def test_mb_alone_is_not_intel(self):
        why = self._why({'MB/delay_linear': '1'}, 'MB:0=100')
        self.assertIn('no info/MB/thread_throttle_mode', why)

    def test_a_value_out_of_range_is_not_intel_in_percent(self):
        for value in (0, 101, 2048, 4294967295):
            root = schemata.parse_schemata(f'MB:0=100;1={value}')
            self.assertIn(
                f'MB of domain 1 is {value}, outside 1..100',
                detection.explain_mismatch(dialects.INTEL, INTEL_INFO, root))

    def test_the_software_controller_is_known_by_its_file(self):
        for value in (1, 100, 101, 4294967295):
            root = schemata.parse_schemata(f'MB:0={value}')
            self.assertEqual(dialects.INTEL_MBPS, detection.detect_dialect(
                INTEL_INFO, root, {'mba_MBps_event'}))

    def test_or_by_a_cap_above_100(self):
        self.assertEqual(dialects.INTEL_MBPS,
                         self._detect(INTEL_INFO, 'MB:0=50;1=4294967295'))
        self.assertIn('no file mba_MBps_event',
                      self._why(INTEL_INFO, 'MB:0=0'))

    def test_amd_has_no_delay_and_no_lowest_cap(self):
        for value in (0, 16, 100, 2048, 4096):
            self.assertEqual(dialects.AMD,
                             self._detect(AMD_INFO, f'SMBA:0=1\nMB:0={value}'))
        for file, text in (('delay_linear', '1'), ('min_bandwidth', '10'),
                           ('bandwidth_gran', '10')):
            self.assertIn(f'info/MB/{file} is not', self._why(
                AMD_INFO | {f'MB/{file}': text}, 'MB:0=2048'))

    def test_mpam_is_known_by_its_steps(self):
        for step, minimum in rounding.FRACTIONS:
            info = _mpam(step, minimum)
            self.assertEqual(dialects.MPAM, self._detect(info, 'MB:3=100'))
            for more in ('MB/features', 'MB_MON/mon_features',
                         'MB/thread_throttle_mode'):
                self.assertIn(
                    f'there is an info/{more}', detection.explain_mismatch(
                        dialects.MPAM, info | {more: ''},
                        schemata.parse_schemata('MB:3=100')))
        for step, minimum in ((10, 9), (7, 5), ('x', 1), (0, 1)):
            self.assertIn('those of no MPAM control',
                          self._why(_mpam(step, minimum), 'MB:3=100'))

    def test_mpam_masks_are_sparse(self):
        self.assertIn('L3/sparse_masks is not 1', self._why(
            _mpam(1, 1) | {'L3/sparse_masks': '0\n'}, 'MB:3=100'))

    def test_nvidia_is_known_by_its_line_or_file(self):
        self.assertEqual(
            dialects.NVIDIA,
            self._detect(_mpam(1, 1), 'MB:0=100\nMB_HLIM:0=0\nL3_MAX:1=100'))
        found = self._detect(_mpam(1, 1) | {'MB/max_lim': '2'}, 'MB:0=100')
        self.assertEqual(('nvidia-mpam', None),
                         (found.name, found.find_knob('hardlimit')))

    def test_openeuler_5_10_by_its_features(self):
        info = {'MB/features': 'mbPrio@3\nmbHdl@1\nmbMax@100\n'}
        found = self._detect(
            info, 'L3PBM:0=f\nMBMAX:0=100\nMBPRI:0=1\nMBHDL:0=1\nMBPBM:0=f')
        self.assertEqual('openeuler-5.10', found.name)
        self.assertEqual(['MBMAX', 'MBHDL', 'MBPRI'],
                         [knob.line for knob in found.knobs])
        self.assertEqual(3, found.find_knob('priority').maximum)

    def test_features_that_make_no_sense_are_passed_over(self):
        for text in ('mbPrio', 'mbPrio@', 'mbPrio@x', 'mbPrio@99', '@@', ''):
            found = self._detect({'MB/features': text}, 'MB:0=1\nMBPRI:0=1')
            self.assertEqual(7, found.find_knob('priority').maximum)

    def test_openeuler_5_10_without_a_cap(self):
        info = {'MB/features': 'mbMin@100'}
        self.assertIn('has no line MBMAX or MB',
                      self._why(info, 'MBMIN:0=0'))
        self.assertIn('has the lines MBMAX and MB',
                      self._why(info, 'MBMAX:0=1\nMB:0=1'))

    def test_a_line_of_another_dialect_is_noted(self):
        for line in ('MBMAX', 'MB_HLIM', 'MBPBM'):
            for info, more in ((INTEL_INFO, ''), ({}, 'MBPRI:0=1\n')):
                text = f'MB:0=100\n{more}{line}:0=1'
                found = self._detect(info, text)
                self.assertEqual(
                    (
                        f'the line {line} is not known to ghsched and never '
                        'written; the root group holds 0=1',
                    ),
                    detection.describe_unused_controls(
                        found, schemata.parse_schemata(text)
                    ),
                )

    def test_the_dialect_that_knows_most_lines_is_chosen(self):
        # Without max_lim mainline MPAM would fit as well.
        found = self._detect(_mpam(1, 1), 'MB:0=100\nMB_HLIM:0=0\nMB_X:0=1')
        self.assertEqual('nvidia-mpam', found.name)

    def test_a_value_that_is_no_number_is_nobodys(self):
        self.assertIn('is not a number', self._why(INTEL_INFO, 'MB:0=max'))

    def test_openeuler_5_10_is_not_6_6(self):
        root = schemata.parse_schemata('MB:0=100\nMBPRI:0=3')
        self.assertIn(
            'there is an info/MB/features',
            detection.explain_mismatch(
                dialects.OPENEULER_66, {'MB/features': 'mbPrio@7'}, root
            ),
        )

    @given(st.dictionaries(
        st.sampled_from(sorted(
            {file for dialect in dialects.ALL
             for file in (*dialect.evidence.files, *dialect.evidence.no_files,
                          *dialect.evidence.any_file, 'MB/min_bandwidth',
                          'MB/bandwidth_gran', 'L3/sparse_masks')})),
        st.sampled_from(('', '0', '1', '10', '50', 'mbPrio@3', '\udcff'))),
        st.lists(st.tuples(
            st.sampled_from(('MB', 'MBMAX', 'MBMIN', 'MBHDL', 'MBPRI',
                             'MBPBM', 'MB_HLIM', 'L3')),
            st.sampled_from((0, 1, 3, 100, 2048, 4294967295))),
            unique_by=lambda line: line[0]),
        st.booleans())
    def test_a_host_speaks_one_dialect_or_none(self, info, lines, event):
        root = schemata.parse_schemata(
            '\n'.join(f'{n}:0={v}' for n, v in lines)
        )
        files = {'mba_MBps_event'} if event else set()
        fitting = detection.list_fitting_dialects(info, root, files)
        found = detection.detect_dialect(info, root, files)
        names_ = [dialect.name for dialect in fitting]
        if found:
            self.assertEqual(names_, [found.name])
        else:
            self.assertNotEqual(1, len(names_))
        for dialect in fitting:
            self.assertIsNone(
                detection.explain_mismatch(dialect, info, root, files)
            )
        self.assertTrue(detection.explain_unknown_dialect(info, root, files))


class CompletenessTest(base.TestCase):
    """Page of the manual and captured tree of each dialect."""

    PAGES = Path(ghsched_nova.__file__).parents[1] / 'doc/source/admin'

    def test_each_has_a_page_that_names_its_lines(self):
        if not self.PAGES.is_dir():
            self.skipTest('the manual is not installed')
        index = (self.PAGES / 'dialects/index.rst').read_text()
        for dialect in dialects.ALL:
            page = self.PAGES / f'dialects/{dialect.name}.rst'
            text = page.read_text()
            self.assertIn(f'\n   {dialect.name}\n', index)
            for line in (*(knob.line for knob in dialect.knobs),
                         *dialect.passive):
                self.assertIn(f'``{line}``', text, page)
            for key in key_names.KEYS:
                if key.name.startswith('mem_bw') or key is keys.MONITOR:
                    self.assertIn(f'``{key.name}``', text, page)

    def test_each_has_a_captured_tree(self):
        seen = set()
        for machine in captured.all_machines():
            try:
                host = captured.read_machine(
                    machine, node_bandwidth={0: 1000, 1: 1000})
            except resctrl_host.ResctrlUnavailable:
                continue
            seen.add(host.dialect.name)
        self.assertEqual(
            {*dialects.BY_NAME, dialects.UNCONTROLLED.name}, seen)
