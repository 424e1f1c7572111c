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

"""Run tests by name in the work tree of the current directory.

usage: run_tests.py NAME...

NAME is a module, or a test as ``module.Class.method``. The class may be a
mix-in, and the method may have ``ddt`` data: what they become is run.
"""

from collections.abc import Iterator
import re
import sys
import unittest

from testtools import run


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """Yield the tests of a suite and of the suites in it."""
    for entry in suite:
        if isinstance(entry, unittest.TestSuite):
            yield from tests_of(entry)
        else:
            yield entry


def names_of(test: unittest.TestCase) -> Iterator[str]:
    """Yield the names that a test can be asked for by."""
    method = re.sub(r'_\d+(_.*)?$', '', test.id().rsplit('.', 1)[-1])
    for scope in type(test).__mro__:
        yield scope.__module__
        for name in (method, test.id().rsplit('.', 1)[-1]):
            yield f'{scope.__module__}.{scope.__qualname__}.{name}'


def is_import_error(test: unittest.TestCase) -> bool:
    """Whether a test stands for a module that cannot be imported."""
    return type(test).__name__ == '_FailedTest'


def module_of(name: str) -> str:
    """Return the module of a test, or a module itself."""
    return re.sub(r'\.[A-Z_]\w*\.test\w*$', '', name)


def main() -> int:
    """Run the tests that the command line names."""
    wanted = set(sys.argv[1:])
    suite = unittest.defaultTestLoader.loadTestsFromNames(
        sorted({module_of(name) for name in wanted}))
    chosen = unittest.TestSuite(
        test for test in tests_of(suite)
        if is_import_error(test) or wanted.intersection(names_of(test)))
    runner = run.TestToolsTestRunner(stdout=sys.stdout)
    return int(not runner.run(chosen).wasSuccessful())


if __name__ == '__main__':
    sys.exit(main())
