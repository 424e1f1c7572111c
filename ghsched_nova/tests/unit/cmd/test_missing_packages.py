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

"""Programs without Nova or mfusepy end with one sentence."""

import contextlib
import io
from unittest import mock

import ddt

from ghsched_nova.cmd import compute
from ghsched_nova.cmd import scheduler
from ghsched_nova.lab.emulator import programs
from ghsched_placement.tests import base


@ddt.ddt
class MissingPackagesTest(base.TestCase):

    def lose(self, package):
        self.enterContext(mock.patch(
            'importlib.import_module', side_effect=ModuleNotFoundError(
                f'No module named {package!r}', name=package)))

    @ddt.data((compute.main, 'ghsched-nova-compute'),
              (scheduler.main, 'ghsched-nova-scheduler'))
    @ddt.unpack
    def test_program_without_nova_says_so(self, main, program):
        self.patch_argv()
        self.lose('nova')
        error = self.assertRaises(SystemExit, main)
        self.assertTrue(str(error).startswith(
            f'{program}: Nova is not installed'), error)

    @ddt.data((programs.run_resctrl_emulator, 'ghsched-resctrl-emulator'),
              (programs.run_testhost, 'ghsched-testhost'))
    @ddt.unpack
    def test_emulator_without_mfusepy_says_so(self, run, program):
        self.lose('mfusepy')
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed):
            self.assertEqual(2, run())
        self.assertTrue(printed.getvalue().startswith(
            f'{program}: mfusepy is not installed'), printed.getvalue())

    def test_other_missing_module_is_not_called_nova(self):
        self.patch_argv()
        self.lose('eventlet')
        self.assertRaises(ModuleNotFoundError, compute.main)
        self.assertRaises(ModuleNotFoundError, programs.run_testhost)

    def patch_argv(self):
        self.enterContext(mock.patch('sys.argv', ['ghsched-nova-compute']))
