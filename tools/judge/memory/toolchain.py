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
"""Check the compiler and cmake before a memory simulator is built."""

import re
import shutil
import subprocess  # noqa: S404

#: Oldest cmake that Ramulator2 accepts (its README and CMakeLists.txt).
CMAKE_MINIMUM = (3, 14)


class ToolchainError(Exception):
    """A program that the build needs is missing or too old."""


def check_compiler(standard):
    """Refuse a machine whose g++ cannot compile a C++ standard.

    :param standard: as g++ names it, for example ``c++20``.
    :raises ToolchainError: if g++ is missing or too old.
    """
    _check_installed('g++')
    tried = subprocess.run(
        ['g++', f'-std={standard}', '-fsyntax-only', '-x', 'c++', '-'],
        input='', text=True, capture_output=True, timeout=60)
    if tried.returncode:
        raise ToolchainError(
            f'g++ {_get_version("g++")} is too old or broken: it cannot '
            f'compile {standard}: {tried.stderr.strip()}')


def check_cmake():
    """Refuse a machine whose cmake cannot build Ramulator2.

    :raises ToolchainError: if cmake is missing or too old.
    """
    _check_installed('cmake')
    version = _get_version('cmake')
    found = tuple(map(int, re.findall(r'\d+', version)[:2]))
    if found < CMAKE_MINIMUM:
        minimum = '.'.join(map(str, CMAKE_MINIMUM))
        raise ToolchainError(f'cmake {version or "without a version"} is too '
                             f'old: the build needs {minimum} or newer')


def _check_installed(program):
    """Refuse a machine that has no such program."""
    if shutil.which(program) is None:
        raise ToolchainError(f'{program} is not installed: the build needs it')


def _get_version(program):
    """Return the version that a program prints; empty if it prints none."""
    printed = subprocess.run([program, '--version'], text=True, check=False,
                             capture_output=True, timeout=60).stdout
    found = re.search(r'\d+(\.\d+)+', printed.partition('\n')[0])
    return found[0] if found else ''
