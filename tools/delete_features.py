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

"""Deletes each feature in turn from a copy of the tree and imports the rest.

A feature goes with the features that import it and with its entries in the
lists of features (features/declared*.py). Everything else of the runtime must
be importable. What keeps modules from being imported is printed.

usage: tools/delete_features.py [FEATURE]...
  FEATURE  name of a folder in features/; all by default
"""

import ast
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile

from house import PACKAGES
from house import TOP

#: Imports the modules that are named in its standard input.
IMPORT = '''
import importlib, sys
for name in sys.stdin.read().split():
    try:
        importlib.import_module(name)
    except Exception as error:
        print(f'{name}: {error!r}')
'''


def find_owner(module: str) -> str:
    """Return the feature that a dotted name belongs to; empty for none."""
    _, _, rest = module.partition('.features.')
    name = rest.partition('.')[0]
    return '' if name.startswith(('declared', '__init__')) else name


def list_imports(tree: ast.Module) -> dict[str, str]:
    """Return the features of the names that imports bind, by name."""
    return {alias.asname or alias.name: owner
            for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if (owner := find_owner(f'{node.module}.{alias.name}'))}


def list_modules(top: Path) -> dict[str, Path]:
    """Return the modules of a tree's runtime, by dotted name."""
    return {'.'.join(path.relative_to(top).with_suffix('').parts): path
            for package in PACKAGES for path in (top / package).rglob('*.py')
            if not {'tests', 'lab'} & set(path.relative_to(top).parts)}


def map_importers(top: Path) -> dict[str, set[str]]:
    """Return for each feature the features that import it."""
    found: dict[str, set[str]] = {}
    for name, path in list_modules(top).items():
        if importer := find_owner(name):
            found.setdefault(importer, set())
            for owner in list_imports(ast.parse(path.read_text())).values():
                found.setdefault(owner, set()).add(importer)
    return found


def add_importers(feature: str, importers: dict[str, set[str]]) -> set[str]:
    """Return a feature with all that import it, directly or by others."""
    found, todo = set(), {feature}
    while todo:
        one = todo.pop()
        found.add(one)
        todo |= importers[one] - found
    return found


class Cutter(ast.NodeTransformer):
    """Removes features from the syntax tree of a list of features.

    :param gone: names that the list has imported from deleted features.
    """

    def __init__(self, gone: set[str]) -> None:
        self._gone = gone

    def _has_gone(self, node: ast.AST) -> bool:
        return any(isinstance(one, ast.Name) and one.id in self._gone
                   for one in ast.walk(node))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        node.names = [alias for alias in node.names
                      if (alias.asname or alias.name) not in self._gone]
        return node if node.names else None

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        node.elts = [one for one in node.elts if not self._has_gone(one)]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.bases = [one for one in node.bases if not self._has_gone(one)]
        return self.generic_visit(node)


def delete(top: Path, features: set[str]) -> None:
    """Delete features from a copy of the tree."""
    for package in PACKAGES:
        folder = top / package / 'features'
        for name in features:
            shutil.rmtree(folder / name, ignore_errors=True)
        for path in folder.glob('declared*.py'):
            tree = ast.parse(path.read_text())
            gone = {name for name, owner in list_imports(tree).items()
                    if owner in features}
            path.write_text(ast.unparse(Cutter(gone).visit(tree)))


def list_failures(top: Path) -> list[str]:
    """Import all modules of a tree; return those that fail, with the error."""
    names = [name for name in sorted(list_modules(top))
             if not name.endswith('__init__')]
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', IMPORT],
                          cwd=top, input='\n'.join(names), text=True,
                          capture_output=True, timeout=600, check=False)
    return [*done.stdout.splitlines(),
            *([f'the import ended: {done.stderr}'] if done.returncode else ())]


def main(chosen: list[str]) -> int:
    """Delete features, print what fails, and return how many failed."""
    importers = map_importers(TOP)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        def copy(name: str) -> Path:
            top = Path(folder, name)
            for package in PACKAGES:
                shutil.copytree(TOP / package, top / package,
                                ignore=shutil.ignore_patterns(
                                    'tests', '__pycache__'))
            return top

        before = set(list_failures(copy('whole')))
        for feature in chosen or sorted(importers):
            features = add_importers(feature, importers)
            top = copy(feature)
            delete(top, features)
            failures = set(list_failures(top)) - before
            shutil.rmtree(top)
            errors = sorted({text.partition(': ')[2] for text in failures})
            others = ', '.join(sorted(features - {feature})) or 'no other'
            print(f'{feature} (with it: {others}): {len(failures)} modules '
                  'cannot be imported', *errors, sep='\n    ', flush=True)
            failed += bool(failures)
    return failed


if __name__ == '__main__':
    sys.exit(min(1, main(sys.argv[1:])))
