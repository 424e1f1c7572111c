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

"""Names the classes of tests that break the scheme; test_names.py FILE...

A class that has tests is a ``...Test`` in a file ``test_*.py``; what such
classes share is a ``...TestCase``, or a ``...Mixin`` if it is no test case
itself. All of them come from ``ghsched_placement.tests.base.TestCase``, which
alone knows another library's.

What tests of more than one room use (a room is a folder of tests) is in
``tests/fixtures/`` of its package, and so is a fixture class that more than
one module uses. A name that a test takes from a module of ours must be there:
mypy does not read tests, and one that runs in another stage would fail there
only. FILE are the files of both packages' tests.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
import sys

BASE = 'ghsched_placement.tests.base'


class Module:
    """Definitions and imports of a file of tests.

    :ivar name: with dots, as it is imported.
    :ivar classes: those at the top of the file, by name.
    :ivar used: lines by what it uses of other modules, with its module.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = path.removesuffix('.py').replace('/', '.')
        tree = ast.parse(Path(path).read_text(), path)
        body = tree.body
        self.classes = {node.name: node for node in body
                        if isinstance(node, ast.ClassDef)}
        self._imported = {
            alias.asname or alias.name: f'{node.module}.{alias.name}'
            for node in body if isinstance(node, ast.ImportFrom)
            for alias in node.names}
        #: Names of modules that are names of variables as well.
        self.hidden = {
            self._imported[name] for node in ast.walk(tree)
            if (name := getattr(node, 'arg', None) or (
                node.id if isinstance(node, ast.Name)
                and isinstance(node.ctx, ast.Store) else None))
            in self._imported}
        self.used = {
            f'{self._imported[node.value.id]}.{node.attr}': node.lineno
            for node in ast.walk(tree) if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in self._imported}
        self.used.update(dict.fromkeys(self._imported.values(), 1))
        self.patched = {
            f'{self._imported[node.args[0].id]}.{node.args[1].value}':
            node.lineno for node in ast.walk(tree) if is_patch(node)
            and node.args[0].id in self._imported}

    def bases(self, name: str) -> list[str]:
        """Return the bases of a class, each with its module's name."""
        found = []
        for base in self.classes[name].bases:
            first, _, rest = ast.unparse(base).partition('.')
            origin = self._imported.get(
                first, f'{self.name}.{first}' if first in self.classes
                else first)
            found.append(f'{origin}.{rest}' if rest else origin)
        return found


def is_patch(node: ast.AST) -> bool:
    """Whether a call replaces or reads an attribute that a string names."""
    match node:
        case ast.Call(func=ast.Attribute(attr='MockPatchObject' | 'object'),
                      args=[ast.Name(), ast.Constant(str()), *_]):
            return True
    return False


def names_of(path: Path) -> set[str]:
    """Return the names that a module binds at its top, at any depth of ifs."""
    found = set()
    todo = list(ast.parse(path.read_text()).body)
    while todo:
        node = todo.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Import() | ast.ImportFrom():
                found |= {(alias.asname or alias.name).partition('.')[0]
                          for alias in node.names}
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case _:
                todo += ast.iter_child_nodes(node)
    return found


def find_missing(modules: list[Module]) -> Iterator[str]:
    """Yield a line of text for each name that its module does not have."""
    names: dict[Path, set[str]] = {}
    for module in modules:
        for name, line in {**module.used, **module.patched}.items():
            owner, _, attribute = name.rpartition('.')
            path = Path(owner.replace('.', '/') + '.py')
            if not owner.startswith('ghsched_') or not path.is_file() or (
                    owner in module.hidden or attribute.startswith('__')):
                continue
            if path not in names:
                names[path] = names_of(path)
            if attribute not in names[path]:
                yield f'{module.path}:{line}: {owner} has no {attribute}'


def has_tests(node: ast.ClassDef) -> bool:
    return any(isinstance(one, ast.FunctionDef)
               and one.name.startswith('test') for one in ast.walk(node))


class Scheme:
    """The classes of all files, of which some are tests."""

    def __init__(self, modules: list[Module]) -> None:
        self._bases = {f'{module.name}.{name}': module.bases(name)
                       for module in modules for name in module.classes}

    def is_ours(self, name: str) -> bool:
        return name == f'{BASE}.TestCase' or any(
            map(self.is_ours, self._bases.get(name, ())))

    def broken(self, module: Module) -> Iterator[str]:
        """A line of text for each class, as other checkers print it."""
        for name, node in module.classes.items():
            reason = self._reason(module, name, has_tests(node))
            if reason:
                yield f'{module.path}:{node.lineno}: {name} {reason}'

    def _reason(self, module: Module, name: str, tests: bool) -> str:
        bases = self._bases[f'{module.name}.{name}']
        inherits = any(one.endswith('Test') for one in bases)
        if not self.is_ours(f'{module.name}.{name}'):
            if tests and name.endswith('Mixin') and not bases:
                return ''
            return (f'is not derived from {BASE}.TestCase'
                    if tests or name.endswith(('Test', 'TestCase')) or inherits
                    else '')
        if not name.endswith('Test'):
            if tests or inherits:
                return 'has tests and is not named ...Test'
            return '' if name.endswith('TestCase') else (
                'is a test case and is not named ...TestCase')
        return ('' if Path(module.path).name.startswith('test_')
                else 'is in a file that is not named test_*.py')


def misplaced(modules: list[Module]) -> Iterator[str]:
    """A line of text for each use of what is not in ``tests/fixtures/``."""
    by_name = {module.name: module for module in modules}
    for module in modules:
        for name, line in module.used.items():
            owner, _, attribute = name.rpartition('.')
            of = by_name.get(owner)
            if of is None or Path(of.path).parent.name == 'fixtures' or (
                    owner == BASE):
                continue
            shown = f'{module.path}:{line}: {owner}.{attribute}'
            if Path(of.path).parent != Path(module.path).parent:
                yield f'{shown} is of another room, and not in tests/fixtures/'
            elif attribute in of.classes and (
                    'fixtures.Fixture' in of.bases(attribute)):
                yield f'{shown} is a fixture, and not in tests/fixtures/'


if __name__ == '__main__':
    modules = [Module(path) for path in sys.argv[1:]]
    scheme = Scheme(modules)
    found = [text for module in modules for text in scheme.broken(module)]
    found += misplaced(modules)
    found += find_missing(modules)
    print(*found, sep='\n', end='\n' if found else '')
    sys.exit(bool(found))
