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

"""Put the source tree on the path; a benchmark imports this module first.

This source tree comes before an installed ghsched, in child processes too. A
missing module ends the benchmark with the command that installs it.
"""

import os
from pathlib import Path
import sys
from types import TracebackType

TOP = Path(__file__).resolve().parents[2]

#: Extra of setup.cfg that has a module; what is not here comes with ghsched
#: or is in test-requirements.txt.
_EXTRAS = {'libvirt': 'libvirt', 'mfusepy': 'testing', 'nova': 'nova',
           'placement': 'plan'}
_TESTS = {'ddt', 'fixtures', 'gabbi', 'hypothesis', 'osprofiler', 'oslotest',
          'psycopg2', 'pymysql', 'requests_mock', 'testtools',
          'wsgi_intercept'}


def install_command(module: str) -> str:
    """Return the command that installs a module that is missing."""
    name = module.partition('.')[0]
    if name in _TESTS:
        what = f'-r {TOP / "test-requirements.txt"}'
    elif name in _EXTRAS:
        what = f"'{TOP}[{_EXTRAS[name]}]'"
    else:
        what = str(TOP)
    return f'{sys.executable} -m pip install {what}'


def _report(kind: type[BaseException], error: BaseException,
            trace: TracebackType | None) -> None:
    """Name a missing module in place of a traceback; show help all the same.
    """
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        sys.__excepthook__(kind, error, trace)
        return
    if {'-h', '--help'}.intersection(sys.argv[1:]):
        print(sys.modules['__main__'].__doc__)
    print(f'{Path(sys.argv[0]).name}: the Python module {error.name} is '
          f'missing; install it with\n    {install_command(error.name)}',
          file=sys.stderr)


def _prepare() -> None:
    sys.path.insert(0, str(TOP))
    os.environ['PYTHONPATH'] = os.pathsep.join(
        [str(TOP), *filter(None, [os.environ.get('PYTHONPATH')])])
    sys.excepthook = _report


# Not where a test imports a benchmark.
if Path(sys.argv[0]).resolve().parent == Path(__file__).resolve().parent:
    _prepare()
