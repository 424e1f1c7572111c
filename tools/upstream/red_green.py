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

"""Run the tests of patches without the patches and with them.

usage: red_green.py [--modules] TREE DIRECTORY [PART]...

TREE is a git work tree of one commit, which is changed. DIRECTORY and those in
it have the patches. A patch is as ``git
format-patch`` writes it. Below its ``---`` line it may have a line such as
``For: 31 32 33``: the releases that it is meant for, if not the newest.
"""

import argparse
import ast
from collections.abc import Iterator, Sequence
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import time

#: Seconds that one test may take.
TEST_TIMEOUT_S = 160
#: Program that runs tests by name.
RUN_TESTS = pathlib.Path(__file__).with_name('run_tests.py')
#: Options of "git apply" for the tests of a patch and for the rest of it.
TESTS = '--include=nova/tests/*'
REST = '--exclude=nova/tests/*'


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Number of tests that were run, and the names of those that failed."""

    total: int
    failed: frozenset[str]

    def __str__(self) -> str:
        if self.failed:
            return f'{len(self.failed)}/{self.total} fail'
        return f'{self.total}/{self.total} pass'


@dataclasses.dataclass(frozen=True)
class Row:
    """Result of one patch, as a line of the table."""

    name: str
    applies: str
    red: str = '-'
    green: str = '-'
    is_good: bool = True
    seconds: float = 0

    def __str__(self) -> str:
        return (f'{self.name:34} {self.applies:22} {self.red:11} '
                f'{self.green:13} {self.seconds:7.0f}  '
                f'{"ok" if self.is_good else "FAILED"}')


class Tree:
    """A Nova source tree that patches are applied to, one after the other."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def git(self, *arguments: str) -> str:
        """Return the output of a git command in the tree."""
        return subprocess.run(
            ['git', *arguments], cwd=self.path, check=True,
            capture_output=True, text=True).stdout

    def reset(self) -> None:
        """Remove all changes."""
        self.git('reset', '-q', '--hard')
        self.git('clean', '-q', '-f', '-d')

    def apply(self, patch: pathlib.Path, option: str) -> None:
        """Apply a part of a patch."""
        self.git('apply', option, str(patch))

    def can_apply(self, patch: pathlib.Path) -> bool:
        """Whether the whole patch applies to the clean tree."""
        return subprocess.run(
            ['git', 'apply', '--check', str(patch)], cwd=self.path,
            check=False, capture_output=True).returncode == 0

    def changed_tests(self) -> dict[str, bool]:
        """Return the tests that were added or changed, in order.

        :returns: whether a test was added, by its name.
        """
        self.git('add', '-A', 'nova/tests')
        found = {}
        for name in self.git('diff', '--cached', '--name-only').split():
            if re.search(r'/test_\w+\.py$', name):
                before = dict(_tests_in(self._committed(name)))
                now = _tests_in((self.path / name).read_text())
                module = name.removesuffix('.py').replace('/', '.')
                found.update({f'{module}.{test}': test not in before
                              for test, text in now
                              if before.get(test) != text})
        return found

    def _committed(self, name: str) -> str:
        try:
            return self.git('show', f'HEAD:{name}')
        except subprocess.CalledProcessError:
            return ''

    def run(self, python: str, tests: Sequence[str]) -> Outcome:
        """Run tests by name and return their outcome.

        A module that cannot be imported counts as one failed test.
        """
        result = subprocess.run(
            [python, '-W', 'ignore', str(RUN_TESTS), *tests],
            cwd=self.path, check=False, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={
                **os.environ, 'PYTHONPATH': str(self.path),
                'OS_TEST_TIMEOUT': str(TEST_TIMEOUT_S),
                'OS_STDOUT_CAPTURE': '1', 'OS_STDERR_CAPTURE': '1'})
        output = result.stdout
        count = re.findall(r'^Ran (\d+) tests? in', output, re.MULTILINE)
        failed = frozenset(re.findall(r'^(?:FAIL|ERROR): (\S+)', output,
                                      re.MULTILINE))
        if result.returncode and not failed:
            failed = frozenset({'run'})
        with (self.path.parent / 'last-run.log').open('w') as log:
            log.write(output)
        return Outcome(max(int(count[0]) if count else 0, len(failed)),
                       failed)


def _tests_in(source: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each test of a module."""
    for scope in ast.parse(source).body:
        if isinstance(scope, ast.ClassDef):
            for node in scope.body:
                if (isinstance(node, ast.FunctionDef)
                        and node.name.startswith('test')):
                    yield f'{scope.name}.{node.name}', ast.dump(node)


def _module(test: str) -> str:
    """Return the module of a test that is named by module, class, method."""
    return test.rsplit('.', 2)[0]


def check(tree: Tree, patch: pathlib.Path, with_modules: bool) -> Row:
    """Run the tests of one patch without it and with it."""
    begin = time.monotonic()
    name = patch.stem
    releases = re.search(r'^For: (.*)$', patch.read_text(), re.MULTILINE)
    tree.reset()
    if not tree.can_apply(patch):
        return Row(name, f'no: for {releases[1]}' if releases else 'no',
                   is_good=bool(releases))
    tree.apply(patch, TESTS)
    changed = tree.changed_tests()
    tests = list(changed)
    red = tree.run(sys.executable, tests)
    tree.apply(patch, REST)
    if with_modules:
        tests = sorted({_module(test) if '.unit.' in test else test
                        for test in tests})
    green = tree.run(sys.executable, tests)
    tree.reset()
    # Each module that the patch adds tests to has to notice the defect.
    missed = ({_module(test) for test, is_added in changed.items() if is_added}
              - {_module(test) for test in red.failed})
    # One that cannot be imported is named by its last word.
    missed = {module for module in missed if 'unittest.loader._FailedTest.'
              + module.rpartition('.')[2] not in red.failed}
    return Row(name, 'yes', str(red), str(green),
               bool(red.failed and not missed and not green.failed
                    and green.total), time.monotonic() - begin)


def main() -> int:
    """Check all patches, one line each."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--modules', action='store_true')
    parser.add_argument('tree', type=pathlib.Path)
    parser.add_argument('directory', type=pathlib.Path)
    parser.add_argument('parts', nargs='*')
    arguments = parser.parse_args()
    tree = Tree(arguments.tree.resolve())
    print(f'{"patch":34} {"applies":22} {"without":11} {"with":13} seconds')
    rows = []
    for patch in sorted(arguments.directory.resolve().rglob('*.patch')):
        if all(part not in patch.stem for part in arguments.parts or ['']):
            continue
        rows.append(check(tree, patch, arguments.modules))
        print(rows[-1], flush=True)
    bad = [row for row in rows if not row.is_good]
    print(f'{len(rows)} patches, {len(bad)} failed')
    return int(bool(bad) or not rows)


if __name__ == '__main__':
    sys.exit(main())
