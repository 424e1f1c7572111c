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
    parts = name.split('.')
    for length in range(len(parts) - 1, 0, -1):
        stem = '/'.join(parts[:length])
        for path in (source / f'{stem}.py', source / f'{stem}/__init__.py'):
            if path.exists():
                return _in_module(
                    ast.parse(path.read_text(encoding='utf-8')),
                    parts[length:])
    return None


def _in_module(node: ast.AST, parts: list[str]) -> tuple[str, ...] | None:
    """Return parameters of what is in a module; () of an attribute."""
    for part in parts:
        found = [child for child in ast.iter_child_nodes(node)
                 if isinstance(child, ast.ClassDef | ast.FunctionDef)
                 and child.name == part]
        if not found:
            return () if _assigns(node, part) else None
        node = found[-1]
    if not isinstance(node, ast.FunctionDef):
        return None
    arguments = node.args
    some = [*arguments.posonlyargs, *arguments.args, arguments.vararg,
            *arguments.kwonlyargs, arguments.kwarg]
    told = tuple(one.arg for one in some if one is not None)
    return told[1:] if told[:1] == ('cls',) else told


def _assigns(node: ast.AST, name: str) -> bool:
    """Whether a module or a class assigns a name, or an attribute of self."""
    return any(
        isinstance(child, ast.Name) and child.id == name
        or isinstance(child, ast.Attribute) and child.attr == name
        and ast.unparse(child.value) == 'self'
        for child in ast.walk(node)
        if isinstance(getattr(child, 'ctx', None), ast.Store))


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
