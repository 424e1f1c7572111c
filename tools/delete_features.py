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
reference, and the tests that use them: functions and entries of tables where a
test is in no folder of theirs. Of the rest every module must be importable,
the sample configuration, the reference and the manual must be made, and the
unit tests must pass but for those of the manual's prose. What fails is
printed, and the tests that went although they are in no folder of a feature.
The last line counts the features.

With --in-place it deletes the features from the tree itself, runs nothing, and
says what is left to do by hand.

usage: tools/delete_features.py [--tests none|some|all] [FEATURE]...
       tools/delete_features.py --in-place FEATURE...
  --tests  unit tests that run: those that mention the feature or a key, class
           or capability of its record, before it is deleted, and those that
           read files of the tree (some, the default), or all
  FEATURE  name of a folder in features/; all by default
"""

import argparse
import ast
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import configparser
from dataclasses import dataclass
from dataclasses import field
import json
from pathlib import Path
import re
import shutil
import subprocess
import sys
import tempfile

from house import PACKAGES
from house import TOP

#: Imports the modules that are named in its standard input, and runs the tests
#: of those that are marked. A distribution that is not installed, such as
#: Watcher, is no failure.
IMPORT = '''
import importlib, sys, unittest
suite = unittest.TestSuite()
for line in sys.stdin.read().splitlines():
    mark, name = line.split()
    try:
        module = importlib.import_module(name)
    except unittest.SkipTest:
        continue
    except Exception as error:
        if type(error) is not ModuleNotFoundError or 'ghsched' in error.name:
            print(f'{name}: {error!r}')
        continue
    if mark == 'run':
        suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
sys.exit(not unittest.TextTestRunner().run(suite).wasSuccessful())
'''
#: Prints the names that each feature declares: keys, capabilities, classes.
NAMES = '''
import json
from ghsched_placement.features import declared
print(json.dumps({one.name: sorted(
    {key.name for key in one.keys + one.node_keys} | {*one.capabilities}
    | {resource.name.removeprefix('CUSTOM_') for resource in one.resources})
    for one in declared.FEATURES}))
'''
MAKE_CONFIGURATION = (
    '-m', 'oslo_config.generator', '--config-file',
    'etc/ghsched/ghsched-config-generator.conf', '--output-file', '/dev/null')
MAKE_REFERENCE = ('tools/reference_pages.py',)
#: Reads all pages and resolves their references, and writes none.
MAKE_MANUAL = ('-m', 'sphinx', '-W', '--keep-going', '-q', '-b', 'dummy',
               'doc/source', 'doc/build')

#: Tests with tables of modules, whose entries go with the feature.
GUARDS = tuple(f'ghsched_nova/tests/unit/{name}.py' for name in (
    'base/test_privsep', 'test_imports', 'test_shared_objects',
    'test_time_limits'))

#: Compares commands, options and log lines of the manual's prose with the
#: code. The prose of a deleted feature is deleted by hand.
PROSE = 'ghsched_nova.tests.unit.test_manual'

#: Seconds within which one program must end.
TIMEOUT_S = 3600
#: Statements of tests with entries, of which each may be for a feature.
TABLES = (ast.Dict, ast.Tuple, ast.Set, ast.List)
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


def is_test_file(module: str) -> bool:
    return module.rpartition('.')[2].startswith('test_')


def _unwrap(node: ast.expr | None) -> ast.expr | None:
    """Return the argument of a call with one, else the expression itself."""
    if isinstance(node, ast.Call) and len(node.args) == 1:
        return node.args[0]
    return node


def read_needs(top: Path) -> dict[str, tuple[str, ...]]:
    """Return the features that each feature of a tree needs."""
    text = (top / PACKAGES[1] / 'features/declared_needs.py').read_text()
    found: dict[str, tuple[str, ...]] = next(
        ast.literal_eval(node) for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Dict))
    return found


def read_names(top: Path) -> dict[str, list[str]]:
    """Return the names that the features of a tree declare, by feature."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, '-W', 'ignore', '-c', NAMES], cwd=top, text=True,
        capture_output=True, timeout=TIMEOUT_S, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def add_dependents(feature: str,
                   needs: dict[str, tuple[str, ...]]) -> set[str]:
    """Return a feature with all that need it, directly or by others."""
    found = {feature}
    for name, needed in needs.items():  # those that are needed come first
        if found & {*needed}:
            found.add(name)
    return found


class Cutter(ast.NodeVisitor):
    """Cuts features out of the text of a list of features.

    What stays keeps its comments and its layout.

    :param text: source of the list.
    :param features: names of the deleted features.
    """

    def __init__(self, text: str, features: set[str]) -> None:
        self._source = text.encode()
        self.tree = ast.parse(text)
        self._features = features
        self._gone = {name for name, origin in find_imports(self.tree)
                      if find_owner(origin) in features}
        self._lines = [0, *(match.end() for match
                            in re.finditer(b'\n', self._source))]
        self._cuts: list[tuple[int, int, bytes]] = []

    def cut(self) -> str:
        """Return the text without the features."""
        self.visit(self.tree)
        return self._apply()

    def cut_tables(self) -> str:
        """Return the text of a test with its tables cut, and no more.

        Tables are the constants of the module, and all dictionaries.
        """
        for one in self.tree.body:
            if isinstance(one, ast.Assign):
                self.visit(one)
            else:
                for node in ast.walk(one):
                    if isinstance(node, ast.Dict):
                        self._cut_items(node)
        return self._apply()

    def _apply(self) -> str:
        text, done = b'', 0
        for start, end, instead in sorted(
                set(self._cuts), key=lambda cut: (cut[0], -cut[1])):
            if end > done:      # Else it lies within a longer one.
                text += self._source[done:start] + instead
                done = end
        return (text + self._source[done:]).decode()

    def _has_gone(self, node: ast.AST) -> bool:
        return any(
            isinstance(one, ast.Name) and one.id in self._gone
            or isinstance(one, ast.Constant)
            and (one.value in self._features
                 or find_owner(str(one.value).replace('/', '.'))
                 in self._features)
            for one in ast.walk(node))

    def _find_span(self, *nodes: ast.expr) -> tuple[int, int]:
        first, last = nodes[0], nodes[-1]
        return (self._lines[first.lineno - 1] + first.col_offset,
                self._lines[(last.end_lineno or 0) - 1]
                + (last.end_col_offset or 0))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if {alias.asname or alias.name for alias in node.names} & self._gone:
            self._cuts.append((self._lines[node.lineno - 1],
                               self._lines[node.end_lineno or 0], b''))

    def _cut_elements(self, node: ast.Tuple | ast.Set | ast.List) -> None:
        self._cut_each([(one,) for one in node.elts],
                       isinstance(node, ast.Tuple))

    visit_Tuple = visit_Set = _cut_elements

    def _cut_items(self, node: ast.Dict) -> None:
        self._cut_each([(key, value) for key, value
                        in zip(node.keys, node.values, strict=True)
                        if key is not None])

    visit_Dict = _cut_items

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._cut_each([(one,) for one in node.bases])

    def _cut_each(self, groups: Sequence[tuple[ast.expr, ...]],
                  needs_comma: bool = False) -> None:
        """Cut each group of nodes that names a feature, with its comma."""
        spans = [self._find_span(*nodes) for nodes in groups]
        left = [number for number, nodes in enumerate(groups)
                if not any(map(self._has_gone, nodes))]
        for number in left:
            for node in groups[number]:
                self.visit(node)
        if len(left) == len(groups):
            return
        start, end = spans[0][0], spans[-1][1]
        follows = re.match(rb'\s*,', self._source[end:])
        if not left:
            self._cuts.append((start, end + len(follows[0]) if follows
                               else end, b''))
            return
        for number in left:
            self._cuts.append((start, spans[number][0], b''))
            start = spans[min(number + 1, len(spans) - 1)][0]
        comma = needs_comma and len(left) == 1 and not follows
        self._cuts.append((spans[left[-1]][1], end, b',' * comma))


@dataclass
class Gone:
    """Dotted names that have been cut out of tests and of the laboratory.

    :param features: names of the deleted features.
    :param bases: dotted names of the bases of each class.
    """

    features: set[str]
    names: set[str] = field(default_factory=set)
    tests: set[str] = field(default_factory=set)
    bases: dict[str, list[str]] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether a dotted name has been deleted, or all that has it."""
        return find_owner(name) in self.features or name in self.names

    def has_method(self, owner: str, method: str) -> bool:
        """Whether a method has been cut out of a class or of its bases."""
        return f'{owner}.{method}' in self.names or any(
            self.has_method(base, method)
            for base in self.bases.get(owner, ()))


class Pruner(Cutter):
    """Cuts what uses features out of a module that belongs to none.

    That are entries of tables, functions, and methods of classes. A class goes
    with its ``setUp``, or when no method is left.

    :param module: dotted name of the module.
    :param gone: what has been cut; what is cut here is added.
    """

    def __init__(self, text: str, module: str, gone: Gone) -> None:
        super().__init__(text, gone.features)
        self._module = self._owner = module
        self._all = gone
        self._origins = dict(find_imports(self.tree))

    def cut(self) -> str:
        """Return the text that is left; empty without a definition."""
        left = [node for node in self.tree.body if not self._prune(node)]
        defined = (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
        if self._cuts and not any(
                isinstance(node, ast.ClassDef if is_test_file(self._module)
                           else defined) for node in left):
            return ''
        return self._apply()

    def _resolve(self, node: ast.expr) -> str:
        """Return the dotted name that an expression stands for."""
        if isinstance(node, ast.Attribute):
            return f'{self._resolve(node.value)}.{node.attr}'
        if isinstance(node, ast.Name):
            return self._origins.get(node.id, f'{self._module}.{node.id}')
        return ''

    def _has_gone(self, node: ast.AST) -> bool:
        local = {one.arg if isinstance(one, ast.arg) else one.id
                 for one in ast.walk(node) if isinstance(one, ast.arg)
                 or isinstance(one, ast.Name)
                 and isinstance(one.ctx, ast.Store)}
        return any(
            isinstance(one, ast.Name) and one.id not in local
            and self._all.has(self._resolve(one))
            or isinstance(one, ast.Attribute)
            and (self._all.has(self._resolve(one))
                 or isinstance(one.value, ast.Name)
                 and one.value.id in ('self', 'cls')
                 and self._all.has_method(self._owner, one.attr))
            or isinstance(one, ast.Constant)
            and re.fullmatch(r'[\w.:]+', str(one.value))
            and find_owner(str(one.value)) in self._features
            for one in ast.walk(node))

    def _prune(self, node: ast.stmt) -> bool:
        """Cut what uses a feature out of a statement.

        :returns: whether nothing of it is left.
        """
        if isinstance(node, ast.ImportFrom):
            is_gone = any(self._all.has(f'{node.module}.{alias.name}')
                          for alias in node.names)
        elif isinstance(node, ast.ClassDef):
            is_gone = self._prune_class(node)
        elif not self._has_gone(node):
            return False
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(
                table := _unwrap(node.value), TABLES):
            self.visit(table)
            return False
        else:
            is_gone = True
        if is_gone:
            self._cut_statement(node)
        return is_gone

    def _prune_class(self, node: ast.ClassDef) -> bool:
        name = f'{self._module}.{node.name}'
        self._all.bases[name] = [*map(self._resolve, node.bases)]
        if any(map(self._has_gone, (*node.bases, *node.decorator_list))):
            return True
        self._owner = name
        gone = [one for one in node.body if self._prune(one)]
        self._owner = self._module
        left = [one for one in node.body if one not in gone
                and isinstance(one, ast.FunctionDef)]
        return bool(gone) and not left or any(
            getattr(one, 'name', '') == 'setUp' for one in gone)

    def _cut_statement(self, node: ast.stmt) -> None:
        decorators = getattr(node, 'decorator_list', [])
        first = min(one.lineno for one in (node, *decorators)) - 1
        lines = self._source.splitlines()
        while first and lines[first - 1].lstrip().startswith(b'#'):
            first -= 1
        self._cuts.append((self._lines[first],
                           self._lines[node.end_lineno or 0], b''))
        owner = f'{self._owner}.{node.name}' if isinstance(
            node, ast.ClassDef) else self._owner
        self._all.tests |= {
            f'{owner}.{one.name}' for one in ast.walk(node)
            if isinstance(one, ast.FunctionDef)
            and one.name.startswith('test_')}
        names = [node.name] if isinstance(
            node, ast.FunctionDef | ast.ClassDef) else [
            one.id for one in ast.walk(node) if isinstance(one, ast.Name)
            and isinstance(one.ctx, ast.Store)]
        self._all.names |= {f'{self._owner}.{name}' for name in names}

    visit_List = Cutter._cut_elements


@dataclass
class Copy:
    """Tree without a feature: a copy, or the tree itself.

    :param features: the feature and those that need it.
    :param words: names that the records of these features declare.
    :param shared_tests: deleted tests that were in no folder of a feature.
    """

    top: Path
    feature: str
    features: set[str]
    words: tuple[str, ...]
    shared_tests: list[str] = field(default_factory=list)

    def delete(self) -> None:
        """Delete the features, their entries in lists, and their tests."""
        for package in PACKAGES:
            for folder in (self.top / package).rglob('features'):
                for name in self.features:
                    shutil.rmtree(folder / name, ignore_errors=True)
            self._edit(f'{package}/features/declared*.py',
                       lambda text: Cutter(text, self.features).cut())
        for name in GUARDS:
            self._edit(name, lambda text: Cutter(
                text, self.features).cut_tables())
        names = '|'.join(self.features)
        feature = rf'features[./](?:{names})\b'
        self._drop('setup.cfg',
                   rf'.*{feature}(?: =\n(?:    .*\n)*|.*\n)')
        self._drop('doc/source/contributor/design.rst',
                   rf'(?:    ``(?:{names})``  |#\. ``\w+\.{feature}).*\n'
                   r'(?:   \S.*\n)*')
        self._drop('doc/source/reference/**/*.rst',
                   rf'\.\. made of \S+ (?:\S*{feature}|(?:{names})\.)'
                   r'(?:.*\n)*?\.\. end\n')
        self._drop('etc/ghsched/prometheus/*.yaml',
                   rf'( +)# feature: (?:{names})\n\1- .*\n(?:(?:\1 .*)?\n)*')
        self._prune_others()

    def _edit(self, pattern: str, change: Callable[[str], str]) -> None:
        for path in self.top.glob(pattern):
            path.write_text(change(path.read_text()))

    def _drop(self, pattern: str, lines: str) -> None:
        """Delete the lines that a regular expression matches from files."""
        self._edit(pattern, lambda text: re.sub(f'^{lines}', '', text,
                                                flags=re.M))

    def install(self) -> None:
        """Write the metadata of a distribution, which hides an installed one.
        """
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(self.top / 'setup.cfg')
        folder = self.top / 'ghsched.egg-info'
        folder.mkdir(exist_ok=True)
        (folder / 'PKG-INFO').write_text(
            'Metadata-Version: 2.1\nName: ghsched\nVersion: 0\n')
        (folder / 'entry_points.txt').write_text('\n'.join(
            f'[{group}]{entries}\n'
            for group, entries in parser['entry_points'].items()))

    def _prune_others(self) -> None:
        """Cut what uses the features out of tests and of the laboratory.

        What uses a function that was cut is cut as well.
        """
        gone = Gone(self.features)
        texts = {name: path.read_text()
                 for name, path in list_modules(self.top).items()
                 if re.search(r'\.(lab|tests)\.', name)}
        words = {*self.features}
        while words:
            before = {*gone.names}
            word = re.compile(rf'\b({"|".join(map(re.escape, words))})\b')
            for name in [name for name, text in texts.items()
                         if word.search(text)]:
                texts[name] = Pruner(texts[name], name, gone).cut()
                if not texts[name]:
                    gone.names.add(name)
            words = {name.rpartition('.')[2] for name in gone.names - before}
        names = '|'.join(name.rpartition('.')[2] for name, text
                         in texts.items() if not text)
        self._drop('tools/releases/functional',
                   rf'\\\.(?:{names})\\\..*\n')
        for name, path in list_modules(self.top).items():
            if not texts.get(name, name):
                path.unlink()
            elif name in texts:
                path.write_text(texts[name])
        self.shared_tests = sorted(name for name in gone.tests
                                   if '.unit.' in name or 'nova' not in name)

    def check(self, tests: str, chosen: Container[str]) -> Iterator[str]:
        """Yield what fails in the copy.

        :param chosen: names of the unit tests that ``some`` runs.
        """
        modules = list_modules(self.top)
        # Nova chooses a concurrency mode for its services, tests another.
        yield from self._run('-c', IMPORT, given='\n'.join(
            f'load {name}' for name in modules
            if not re.search(r'\.(lab|tests)\.', name))).stdout.splitlines()
        for program in (MAKE_CONFIGURATION, MAKE_REFERENCE, MAKE_MANUAL):
            done = self._run(*program)
            if done.returncode:
                yield f'{" ".join(program)}: {done.stderr.strip()}'
        unit_tests = [name for name in modules if is_test(name)
                      and is_test_file(name)
                      and not re.search(r'\.(functional|lab)\.', name)]
        done = self._run('-c', IMPORT, given='\n'.join(
            ('run ' if name != PROSE and (
                tests == 'all' or tests == 'some' and name in chosen)
             else 'load ') + name for name in unit_tests))
        yield from done.stdout.splitlines()
        if done.returncode:
            yield from dict.fromkeys(_FAILED.findall(done.stderr)
                                     or [done.stderr])

    def choose_tests(self) -> set[str]:
        """Return the tests that the deletion may break.

        They mention the feature or a name of its record, as their fixtures
        may, or read files of the tree.
        """
        word = re.compile(
            rf'\b(?:CUSTOM_)?(?:{"|".join((self.feature, *self.words))})\b'
            r'|\b__file__\b', re.IGNORECASE)
        texts = {name: path.read_text() for name, path
                 in list_modules(self.top).items() if is_test(name)}
        found = {name for name, text in texts.items() if word.search(text)}
        fixtures = '|'.join(name.rpartition('.')[2] for name in found
                            if '.fixtures.' in name)
        imported = re.compile(rf'^ *from .*\bimport \(?\s*(?:{fixtures})\b',
                              re.M)
        return found | {name for name, text in texts.items()
                        if fixtures and imported.search(text)}

    def _run(self, *command: str, given: str = ''
             ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603
            [sys.executable, '-W', 'ignore', *command], cwd=self.top,
            input=given, text=True, capture_output=True, timeout=TIMEOUT_S,
            check=False)


def delete_in_place(copy: Copy) -> None:
    """Delete features from the tree and print what is left to be done."""
    copy.delete()
    pages = sorted(
        str(path.relative_to(copy.top))
        for path in (copy.top / 'doc/source').rglob('*.rst')
        if re.search(rf'^\.\. feature: ({"|".join(copy.features)})$',
                     path.read_text(), re.M))
    core = '\n'.join(
        path.read_text() for name, path in list_modules(copy.top).items()
        if not re.search(r'\.(features|lab|tests)\.', name))
    kept = [word for word in copy.words if re.search(rf'\b{word}\b', core)]
    print(f'deleted: {", ".join(sorted(copy.features))}',
          'deleted tests of other parts:', *_indent(copy.shared_tests),
          'pages of the manual to delete or to shorten:', *_indent(pages),
          'keys, classes and options that the core keeps (declared.py): '
          + (', '.join(kept) or 'none'),
          'then: tools/reference_pages.py, tools/house.py --write', sep='\n')


def check_without(copy: Copy, tests: str) -> bool:
    """Delete features from a copy, print what fails, and return whether any.

    :param copy: features to delete; its tree is made here.
    """
    chosen = copy.choose_tests()
    with tempfile.TemporaryDirectory() as folder:
        copy.top = Path(folder, 'tree')
        shutil.copytree(TOP, copy.top, symlinks=True,
                        ignore=shutil.ignore_patterns(
                            '.git', '.mypy_cache',
                            '.hypothesis', '.stestr'))
        copy.delete()
        copy.install()
        failures = list(copy.check(tests, chosen))
    others = ', '.join(sorted(copy.features - {copy.feature})) or 'no other'
    print(f'{"FAIL" if failures else "ok"}  {copy.feature} (with it: {others};'
          f' tests of others: {len(copy.shared_tests)}): '
          f'{len(failures)} failures', *_indent(failures),
          *_indent(copy.shared_tests, '- '), sep='\n', flush=True)
    return bool(failures)


def _indent(lines: Iterable[str], mark: str = '') -> Iterator[str]:
    return (f'    {mark}{line}' for line in lines)


def main() -> int:
    """Delete features in turn; return 1 if something fails, else 0."""
    parser = argparse.ArgumentParser(
        description='Delete each feature in turn from a copy of the tree.')
    parser.add_argument('--tests', choices=('none', 'some', 'all'),
                        default='some')
    parser.add_argument('--in-place', action='store_true')
    parser.add_argument('features', nargs='*', metavar='FEATURE')
    arguments = parser.parse_args()
    needs, names = read_needs(TOP), read_names(TOP)
    if unknown := {*arguments.features} - needs.keys():
        parser.error(f'no such feature: {", ".join(sorted(unknown))}')
    if arguments.in_place and not arguments.features:
        parser.error('--in-place needs the name of a feature')
    copies = []
    for feature in arguments.features or needs:
        features = add_dependents(feature, needs)
        copies.append(Copy(TOP, feature, features, tuple(sorted(
            {name for one in features for name in names.get(one, ())}))))
    if arguments.in_place:
        for copy in copies:
            delete_in_place(copy)
        return 0
    failed = sum(check_without(copy, arguments.tests) for copy in copies)
    print(f'{len(copies) - failed} passed, {failed} failed')
    return int(bool(failed))


if __name__ == '__main__':
    sys.exit(main())
