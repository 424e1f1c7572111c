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

"""Report what a newer Nova changes of what ghsched relies on.

usage: newest.py OLD NEW REPORT

OLD and NEW are versions of the package index, whose wheels are downloaded
without being installed, or directories with the package nova. NEW may be
``newest``, a release candidate too. REPORT is written. It lists the names of
Nova that ghsched relies on, with the difference of each that changed, and the
state of each repair and patch. The exit status is 1 if a name is missing or
has other parameters.
"""

import ast
from collections.abc import Iterator
import difflib
import functools
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

from ghsched_nova.nova_fixes import rows
from ghsched_nova.nova_seams import registry
from tools import signatures

PATCHES = signatures.TOP / 'tools/upstream/nova'


def open_source(text: str, directory: pathlib.Path) -> pathlib.Path:
    """Return a directory with the package nova, and download it if needed.

    :param text: version, ``newest`` or directory.
    """
    if pathlib.Path(text, 'nova').is_dir():
        return pathlib.Path(text)
    subprocess.run(
        [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps',
         '--only-binary', ':all:', '--dest', str(directory),
         *(['--pre', 'nova'] if text == 'newest' else [f'nova=={text}'])],
        check=True)
    wheel, = directory.glob('nova-*.whl')
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(directory)
    return directory


def read_version(source: pathlib.Path) -> str:
    """Return the version of a Nova, as its metadata has it."""
    for path in (*source.glob('nova-*.dist-info/METADATA'),
                 *source.glob('PKG-INFO')):
        found = re.search(r'^Version: (\S+)$', path.read_text(), re.MULTILINE)
        if found is not None:
            return found[1]
    return str(source)


def list_differences(name: str, old: pathlib.Path, new: pathlib.Path
                     ) -> list[str]:
    """Return the difference of a definition, without comments and blanks."""
    before, after = (
        [] if node is None else ast.unparse(node).splitlines()
        for node in (signatures.find_definition(source, name)
                     for source in (old, new)))
    return list(difflib.unified_diff(before, after, lineterm='', n=2))[2:]


def is_in_source(source: pathlib.Path, module: str, text: str) -> bool:
    """Whether a module has a text, whatever the white space."""
    path = source.joinpath(*module.split('.')).with_suffix('.py')
    return path.exists() and text in ' '.join(path.read_text().split())


def describe_patch(patch: pathlib.Path, source: pathlib.Path) -> str:
    """Return whether Nova has a patch, or whether the patch applies."""
    texts = [(module, text) for fix in rows.FIXES
             for number, module, text in fix.fixed_source
             if patch.name.startswith(number)]
    if texts and all(is_in_source(source, *one) for one in texts):
        return 'Nova has it'
    applies = subprocess.run(
        ['git', 'apply', '--check', '--exclude=nova/tests/*',
         '--exclude=releasenotes/*', '--exclude=doc/*', str(patch)],
        cwd=source, check=False, capture_output=True).returncode == 0
    return 'applies' if applies else 'does not apply'


def write_report(old: pathlib.Path, new: pathlib.Path) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f'# Nova {read_version(old)} and {read_version(new)}'
    yield ''
    missing = list_missing(new)
    yield f'## {len(missing)} of {len(registry.SEAMS)} names do not match'
    yield ''
    yield from (f'* {one}' for one in missing)
    changed = {name: lines for name in sorted(registry.SEAMS)
               if (lines := list_differences(name, old, new))}
    yield ''
    yield '## Patches'
    yield ''
    for patch in sorted(PATCHES.glob('*.patch')):
        yield f'* {patch.stem}: {describe_patch(patch, new)}'
    yield ''
    yield f'## {len(changed)} names with another source'
    for name, lines in changed.items():
        yield from ('', f'### {name}', '',
                    f'Used by {", ".join(sorted(registry.SEAMS[name].users))}',
                    '', '```diff', *lines, '```')


def list_missing(source: pathlib.Path) -> list[registry.Mismatch]:
    """Return the names that a Nova lacks or has with other parameters."""
    return [one for name in sorted(registry.SEAMS)
            if (one := registry.find_mismatch(name, functools.partial(
                signatures.parameters, source))) is not None]


def main() -> int:
    """Write the report, and print its headings."""
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    registry.load_all_seams()
    with tempfile.TemporaryDirectory() as work:
        old, new = (open_source(text, pathlib.Path(work, name)) for text, name
                    in zip(sys.argv[1:3], ('old', 'new'), strict=True))
        lines = list(write_report(old, new))
        failed = bool(list_missing(new))
    pathlib.Path(sys.argv[3]).write_text('\n'.join(lines) + '\n')
    print('\n'.join(line for line in lines if re.match('##? ', line)))
    return int(failed)


if __name__ == '__main__':
    sys.exit(main())
