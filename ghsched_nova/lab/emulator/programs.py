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

"""Programs of the emulator; without mfusepy they end with one sentence."""

import importlib
import sys


def run_resctrl_emulator() -> int:
    """Run ``ghsched-resctrl-emulator``; return the exit status."""
    return _run('ghsched-resctrl-emulator', 'resctrl')


def run_testhost() -> int:
    """Run ``ghsched-testhost``; return the exit status."""
    return _run('ghsched-testhost', 'testhost')


def _run(program: str, name: str) -> int:
    """Run the ``main()`` of a module of the emulator.

    :param program: name of the program.
    :param name: name of the module in this package.
    :returns: exit status; 2 without mfusepy.
    """
    try:
        module = importlib.import_module(f'ghsched_nova.lab.emulator.{name}')
    except ModuleNotFoundError as error:
        if error.name != 'mfusepy':
            raise
        print(f'{program}: mfusepy is not installed for {sys.executable}: '
              'pip install mfusepy', file=sys.stderr)
        return 2
    return int(module.main())
