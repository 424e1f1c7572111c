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

"""Read what ghsched relies on out of Nova's wheels, without installing them.

usage: signatures.py [DIRECTORY]
       signatures.py --tree TREE

Each release of tools/releases is downloaded to DIRECTORY once (default:
``wheels`` below $GHSCHED_HOME). The signatures of
``ghsched_nova.nova_seams.registry.SEAMS`` are read from the source in it, or
from TREE, a directory with the package nova. The exit status is 0 when all are
as expected.
"""

import ast
import functools
import os
import pathlib
import re
import subprocess
import sys
import zipfile

from ghsched_nova.nova_seams import registry

TOP = pathlib.Path(__file__).resolve().parents[1]
HOME = pathlib.Path(os.environ.get('GHSCHED_HOME', '/var/lib/ghsched'))


def versions() -> list[str]:
    """Return the versions of Nova that tools/releases pins."""
    found = []
    for path in sorted((TOP / 'tools' / 'releases').glob('*.txt')):
        match = re.search(r'^nova===(\S+)$', path.read_text(), re.MULTILINE)
        if match is None:
            raise SystemExit(f'{path} pins no nova')
        found.append(match[1])
    return found


def wheel(version: str, directory: pathlib.Path) -> pathlib.Path:
    """Nova's wheel of a version, downloaded unless it is there."""
    path = directory / f'nova-{version}-py3-none-any.whl'
    if not path.exists():
        subprocess.run(
            [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps',
             '--only-binary', ':all:', '--dest', str(directory),
             f'nova=={version}'], check=True)
    return path


def parameters(source: zipfile.Path | pathlib.Path,
               name: str) -> tuple[str, ...] | None:
    """Parameters of a function; None when it is not there.

    An attribute or a constant has none.

    :param source: directory that has the package nova.
    :param name: dotted; the module, then classes, then the function.
    """
    node = find_definition(source, name)
    if not isinstance(node, ast.FunctionDef):
        return () if node is not None and not isinstance(
            node, ast.ClassDef) else None
    arguments = node.args
    some = [*arguments.posonlyargs, *arguments.args, arguments.vararg,
            *arguments.kwonlyargs, arguments.kwarg]
    told = tuple(one.arg for one in some if one is not None)
    return told[1:] if told[:1] == ('cls',) else told


def find_definition(source: zipfile.Path | pathlib.Path,
                    name: str) -> ast.AST | None:
    """Return a function, a class or an assignment; None if it is not there.

    :param source: directory that has the package nova.
    :param name: dotted; the module, then classes, then the name. Of a package
        the module is returned.
    """
    parts = name.split('.')
    for length in range(len(parts), 0, -1):
        module = _parse(source, '/'.join(parts[:length]))
        if module is not None:
            return _in_module(module, parts[length:])
    return None


@functools.cache
def _parse(source: zipfile.Path | pathlib.Path, stem: str
           ) -> ast.Module | None:
    for path in (source / f'{stem}.py', source / f'{stem}/__init__.py'):
        if path.exists():
            return ast.parse(path.read_text(encoding='utf-8'))
    return None


def _in_module(node: ast.AST, parts: list[str]) -> ast.AST | None:
    for part in parts:
        found = [child for child in ast.iter_child_nodes(node)
                 if isinstance(child, ast.ClassDef | ast.FunctionDef)
                 and child.name == part]
        if not found:
            return _find_assignment(node, part)
        node = found[-1]
    return node


def _find_assignment(node: ast.AST, name: str) -> ast.AST | None:
    """Return what assigns a name in a module, or an attribute of self."""
    return next((
        statement for statement in ast.walk(node)
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)
        for child in ast.walk(statement)
        if isinstance(getattr(child, 'ctx', None), ast.Store) and (
            isinstance(child, ast.Name) and child.id == name
            or isinstance(child, ast.Attribute) and child.attr == name
            and ast.unparse(child.value) == 'self')), None)


def compare(title: str, source: zipfile.Path | pathlib.Path) -> bool:
    """Print what differs in a source, and return whether nothing does."""
    found = [one for name in registry.SEAMS
             if (one := registry.find_mismatch(
                 name, functools.partial(parameters, source))) is not None]
    print(f'nova {title}: {len(registry.SEAMS)} signatures, '
          f'{len(found)} differ')
    for one in found:
        print(f'  {one}')
    return not found


def main() -> int:
    """Compare a tree, or all releases."""
    registry.load_all_seams()
    if sys.argv[1:2] == ['--tree']:
        tree = pathlib.Path(sys.argv[2])
        return int(not compare(str(tree), tree))
    directory = pathlib.Path(sys.argv[1] if len(sys.argv) > 1
                             else HOME / 'wheels')
    directory.mkdir(parents=True, exist_ok=True)
    results = [compare(version, zipfile.Path(wheel(version, directory)))
               for version in versions()]
    return int(not all(results))


if __name__ == '__main__':
    sys.exit(main())
