#!/usr/bin/env python3
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

"""Deletes each feature in turn from a copy of the tree and checks the rest.

A feature goes with the features that need it
(ghsched_placement.features.declared_needs): their folders, their entries in
the lists of features (features/declared*.py), in setup.cfg and in the
reference, and the tests that import them. Of the rest every module must be
importable, the sample configuration and the reference must be made, and the
unit tests must pass. What fails is printed, and the tests that went although
they are in no folder of a feature.

usage: tools/delete_features.py [--tests none|some|all] [FEATURE]...
  --tests  unit tests that run: those that mention a deleted feature (some, the
           default), or all
  FEATURE  name of a folder in features/; all by default
"""

import argparse
import ast
from collections.abc import Iterable
from collections.abc import Iterator
import configparser
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
import re
import shutil
import subprocess
import sys
import tempfile

from house import PACKAGES
from house import TOP

#: Imports the modules that are named in its standard input. A distribution
#: that is not installed, such as Watcher, is no failure.
IMPORT = '''
import importlib, sys
for name in sys.stdin.read().split():
    try:
        importlib.import_module(name)
    except Exception as error:
        if 'ghsched' in getattr(error, 'name', 'ghsched'):
            print(f'{name}: {error!r}')
'''
#: Imports test modules as well, and runs those that are marked.
TEST = '''
import importlib, sys, unittest
suite = unittest.TestSuite()
for line in sys.stdin.read().splitlines():
    mark, name = line.split()
    try:
        module = importlib.import_module(name)
    except unittest.SkipTest:
        continue
    except Exception as error:
        print(f'{name}: {error!r}')
        continue
    if mark == 'run':
        suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())
'''
MAKE_CONFIGURATION = (
    '-m', 'oslo_config.generator', '--config-file',
    'etc/ghsched/ghsched-config-generator.conf', '--output-file', '/dev/null')
MAKE_REFERENCE = ('tools/reference_pages.py',)

#: Tests with tables of modules, whose entries go with the feature.
GUARDS = tuple(f'ghsched_nova/tests/unit/{name}.py' for name in (
    'base/test_privsep', 'test_imports', 'test_shared_objects',
    'test_time_limits'))

#: Seconds within which one program must end.
TIMEOUT_S = 3600
_PART = re.compile(r'^\.\. made of \S+ (\S+).*?^\.\. end$\n', re.M | re.S)
_FAILED = re.compile(r'^(?:ERROR|FAIL): .*|^\w*(?:Error|Exception)\b.*', re.M)


def find_owner(module: str) -> str:
    """Return the feature that a dotted name belongs to; empty for none."""
    _, _, rest = module.partition('.features.')
    name = re.split('[.:]', rest, maxsplit=1)[0]
    return '' if name.startswith(('declared', '__init__')) else name


def find_imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each name that imports bind, with the dotted name it is for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield (alias.asname or alias.name,
                       f'{node.module}.{alias.name}')


def list_modules(top: Path) -> dict[str, Path]:
    """Return the modules of a tree and of its tests, by dotted name."""
    return {'.'.join(path.relative_to(top).with_suffix('').parts): path
            for package in PACKAGES
            for path in sorted((top / package).rglob('*.py'))
            if path.name != '__init__.py'}


def is_test(module: str) -> bool:
    return '.tests.' in module


def read_needs(top: Path) -> dict[str, tuple[str, ...]]:
    """Return the features that each feature of a tree needs."""
    text = (top / PACKAGES[1] / 'features/declared_needs.py').read_text()
    found: dict[str, tuple[str, ...]] = next(
        ast.literal_eval(node) for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Dict))
    return found


def add_dependents(feature: str,
                   needs: dict[str, tuple[str, ...]]) -> set[str]:
    """Return a feature with all that need it, directly or by others."""
    found = {feature}
    for name, needed in needs.items():  # those that are needed come first
        if found & {*needed}:
            found.add(name)
    return found


class Cutter(ast.NodeTransformer):
    """Removes features from the syntax tree of a list of features.

    :param gone: names that the list has imported from deleted features.
    :param features: names of the deleted features.
    """

    def __init__(self, gone: set[str], features: set[str]) -> None:
        self._gone = gone
        self._features = features

    def _has_gone(self, node: ast.AST | None) -> bool:
        return node is not None and any(
            isinstance(one, ast.Name) and one.id in self._gone
            or isinstance(one, ast.Constant)
            and (one.value in self._features
                 or find_owner(str(one.value).replace('/', '.'))
                 in self._features)
            for one in ast.walk(node))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        node.names = [alias for alias in node.names
                      if (alias.asname or alias.name) not in self._gone]
        return node if node.names else None

    def _cut_elements(self, node: ast.Tuple | ast.Set) -> ast.AST:
        node.elts = [one for one in node.elts if not self._has_gone(one)]
        return self.generic_visit(node)

    visit_Tuple = visit_Set = _cut_elements

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        items = [(key, value)
                 for key, value in zip(node.keys, node.values, strict=True)
                 if not self._has_gone(key) and not self._has_gone(value)]
        node.keys = [key for key, _value in items]
        node.values = [value for _key, value in items]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.bases = [one for one in node.bases if not self._has_gone(one)]
        return self.generic_visit(node)

    def cut_tables(self, tree: ast.Module) -> ast.Module:
        """Return the tree of a test with its tables cut, and no more.

        Tables are the constants of the module, and all dictionaries.
        """
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                self.visit_Dict(node)
        tree.body = [self.visit(one) if isinstance(one, ast.Assign) else one
                     for one in tree.body]
        return tree


@dataclass
class Copy:
    """Copy of the tree without a feature.

    :param features: the feature and those that need it.
    :param shared_tests: deleted tests that were in no folder of a feature.
    """

    top: Path
    feature: str
    features: set[str]
    shared_tests: list[str] = field(default_factory=list)

    def delete(self) -> None:
        """Delete the features, their entries in lists, and their tests."""
        for package in PACKAGES:
            for folder in (self.top / package).rglob('features'):
                for name in self.features:
                    shutil.rmtree(folder / name, ignore_errors=True)
            for path in (self.top / package / 'features').glob('declared*.py'):
                self._cut_list(path)
        for name in GUARDS:
            tree = ast.parse((self.top / name).read_text())
            (self.top / name).write_text(ast.unparse(
                Cutter(set(), self.features).cut_tables(tree)))
        setup = self.top / 'setup.cfg'
        setup.write_text(''.join(
            line for line in setup.read_text().splitlines(keepends=True)
            if find_owner(line.replace('/', '.')) not in self.features))
        self._install(setup)
        design = self.top / 'doc/source/contributor/design.rst'
        design.write_text(re.sub(
            rf'^    ``({"|".join(self.features)})``  .*\n', '',
            design.read_text(), flags=re.M))
        for page in (self.top / 'doc/source/reference').rglob('*.rst'):
            page.write_text(_PART.sub(
                lambda part: '' if self._is_gone(part[1]) else part[0],
                page.read_text()))
        self._delete_importers()

    def _is_gone(self, name: str) -> bool:
        return find_owner(f'.features.{name.rpartition("features.")[2]}'
                          ) in self.features

    def _cut_list(self, path: Path) -> None:
        tree = ast.parse(path.read_text())
        gone = {name for name, origin in find_imports(tree)
                if find_owner(origin) in self.features}
        path.write_text(ast.unparse(Cutter(gone, self.features).visit(tree)))

    def _install(self, setup: Path) -> None:
        """Write the metadata of a distribution, which hides an installed one.
        """
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(setup)
        folder = self.top / 'ghsched.egg-info'
        folder.mkdir(exist_ok=True)
        (folder / 'PKG-INFO').write_text(
            'Metadata-Version: 2.1\nName: ghsched\nVersion: 0\n')
        (folder / 'entry_points.txt').write_text('\n'.join(
            f'[{group}]{entries}\n'
            for group, entries in parser['entry_points'].items()))

    def _delete_importers(self) -> None:
        """Delete tests that import a deleted module, and then their importers.
        """
        modules = {name: path for name, path in list_modules(self.top).items()
                   if is_test(name)}
        origins = {name: {origin for _name, origin in find_imports(
            ast.parse(path.read_text()))} for name, path in modules.items()}
        gone: set[str] = set()
        while found := {
                name for name in modules.keys() - gone
                if any(find_owner(origin) in self.features
                       and not is_test(origin)
                       or {origin, origin.rpartition('.')[0]} & gone
                       for origin in origins[name])}:
            gone |= found
        for name in gone:
            modules[name].unlink()
        self.shared_tests = sorted(name for name in gone
                                   if '.unit.' in name or 'nova' not in name)

    def check(self, tests: str) -> Iterator[str]:
        """Yield what fails in the copy."""
        modules = list_modules(self.top)
        yield from self._run('-c', IMPORT, given='\n'.join(
            name for name in modules
            if not re.search(r'\.(lab|tests)\.', name))).stdout.splitlines()
        for program in (MAKE_CONFIGURATION, MAKE_REFERENCE):
            done = self._run(*program)
            if done.returncode:
                yield f'{" ".join(program)}: {done.stderr.strip()}'
        unit_tests = {name: path for name, path in modules.items()
                      if '.tests.' in name and path.stem.startswith('test_')
                      and not re.search(r'\.(functional|lab)\.', name)}
        mentions = re.compile(rf'\b{self.feature}\b')
        done = self._run('-c', TEST, given='\n'.join(
            ('run ' if tests == 'all' or tests == 'some'
             and mentions.search(path.read_text()) else 'load ') + name
            for name, path in unit_tests.items()))
        yield from done.stdout.splitlines()
        if done.returncode:
            yield from dict.fromkeys(_FAILED.findall(done.stderr)
                                     or [done.stderr])

    def _run(self, *command: str, given: str = ''
             ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603
            [sys.executable, '-W', 'ignore', *command], cwd=self.top,
            input=given, text=True, capture_output=True, timeout=TIMEOUT_S,
            check=False)


def check_without(feature: str, features: set[str], tests: str) -> bool:
    """Delete features from a copy, print what fails, and return whether any.

    :param feature: the feature for which the others go.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder, 'tree'), feature, features)
        shutil.copytree(TOP, copy.top, symlinks=True,
                        ignore=shutil.ignore_patterns(
                            '.git', '__pycache__', '.mypy_cache',
                            '.hypothesis', '.stestr'))
        copy.delete()
        failures = list(copy.check(tests))
    others = ', '.join(sorted(features - {feature})) or 'no other'
    print(f'{feature} (with it: {others}; tests of others: '
          f'{len(copy.shared_tests)}): {len(failures)} failures',
          *_indent(copy.shared_tests, '- '), *_indent(failures), sep='\n',
          flush=True)
    return bool(failures)


def _indent(lines: Iterable[str], mark: str = '') -> Iterator[str]:
    return (f'    {mark}{line}' for line in lines)


def main() -> int:
    """Delete features in turn; return 1 if something fails, else 0."""
    parser = argparse.ArgumentParser(
        description='Delete each feature in turn from a copy of the tree.')
    parser.add_argument('--tests', choices=('none', 'some', 'all'),
                        default='some')
    parser.add_argument('features', nargs='*', metavar='FEATURE')
    arguments = parser.parse_args()
    needs = read_needs(TOP)
    failed = [feature for feature in arguments.features or needs
              if check_without(feature, add_dependents(feature, needs),
                               arguments.tests)]
    return int(bool(failed))


if __name__ == '__main__':
    sys.exit(main())
