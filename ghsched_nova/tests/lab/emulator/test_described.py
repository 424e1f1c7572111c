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


"""Emulated kernels that describe their controls."""

from ghsched_nova.lab.emulator import described
from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import resctrl
from ghsched_nova.tests.fixtures import emulated
from ghsched_placement.tests import base

TOP = '/info/MB/resource_schemata'
PROPERTIES = {'type', 'unit', 'scale', 'resolution', 'tolerance', 'min',
              'max', 'scope'}


class DescribedTest(base.TestCase):

    def _rows(self, model, group=''):
        rows = (row.strip().partition(':') for row in model.read(
            f'{group}/schemata').splitlines())
        return {name: values for name, _colon, values in rows}

    def test_the_layout_is_that_of_the_proof_of_concept(self):
        for name, tree in (
                ('mpam-described', {'MB': {'MB_MAX'}, 'MB_MIN': set()}),
                ('intel-regions', {'MB': set()} | {
                    f'MB_REGION{n}_{word}': set() for n in (0, 1)
                    for word in ('OPT', 'MIN', 'MAX')}),
                ('intel-optimal', {'MB': {'MB_OPT'}, 'MB_MAX': set(),
                                   'MB_MIN': set()}),
                ('amd-gmb', {'MB': set(), 'GMB': set()}),
                ('riscv', {'MB_MIN': set(), 'MB_WGHT': set()})):
            model = emulated.model(name)
            top = TOP.removesuffix('ta' if name == 'intel-optimal' else '')
            self.assertEqual(set(tree), set(model.listdir(top)), name)
            for line, inside in tree.items():
                self.assertEqual(PROPERTIES | inside,
                                 set(model.listdir(f'{top}/{line}')), line)

    def test_amd_says_what_the_list_says(self):
        model = emulated.model('amd-gmb')
        for path, text in (('MB/unit', 'GBps'), ('MB/resolution', '8'),
                           ('MB/scope', 'L3'), ('GMB/scope', 'NODE'),
                           ('GMB/max', '4096'), ('GMB/min', '1'),
                           ('GMB/type', 'scalar linear')):
            self.assertEqual(f'{text}\n', model.read(f'{TOP}/{path}'))
        self.assertEqual('0=4096;1=4096', self._rows(model)['GMB'])

    def test_a_line_follows_the_one_that_it_backs(self):
        model = emulated.model('mpam-described')
        for line, percent, fraction in (('MB:5=50', 50, 32768),
                                        ('MB_MAX:5=16384', 26, 16384)):
            model.write('/schemata', f'{line}\n')
            rows = self._rows(model)
            self.assertTrue(rows['MB'].startswith(f'5={percent};'), rows)
            self.assertTrue(rows['MB_MAX'].startswith(f'5={fraction};'), rows)

    def test_a_value_goes_to_the_nearest_step(self):
        model = emulated.model('mpam-described')
        for value, shown in ((0, 0), (255, 0), (256, 512), (24248, 24064),
                             (65535, 65535)):
            model.write('/schemata', f'MB_MIN:5={value}\n')
            self.assertTrue(self._rows(model)['MB_MIN'].startswith(
                f'5={shown};'), value)

    def test_riscv_shares_out_no_more_than_there_is(self):
        model = emulated.model('riscv')
        self.assertEqual('72=756;73=756', self._rows(model)['MB_MIN'])
        model.mkdir('/a')
        self.assertEqual('72=1;73=1', self._rows(model, '/a')['MB_MIN'])
        self.assertRaises(kernel.ResctrlError, model.write, '/a/schemata',
                          'MB_MIN:72=2\n')
        model.write('/schemata', 'MB_MIN:72=1\n')
        model.write('/a/schemata', 'MB_MIN:72=756\n')
        self.assertRaises(kernel.ResctrlError, model.write, '/a/schemata',
                          'MB_MIN:72=757\n')

    def test_each_machine_is_known_on_the_command_line(self):
        for name in described.MACHINES:
            error = self.assertRaises(SystemExit, resctrl.main, [
                '--dialect', name, '--nodes', 'x', '/nowhere'])
            self.assertEqual(2, error.code)     # the nodes, not the name
