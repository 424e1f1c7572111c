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

"""Make of a patch of tools/upstream/nova what Launchpad and Gerrit take.

usage: submit.py bug PATCH            print title and text of the bug report
       submit.py commit PATCH BUG TREE  commit the patch on a branch bug/BUG

PATCH is the number of a patch, such as 0001. The text of the report is the
page of the defect in the manual, in the form that Nova asks for. Patches of
one page are one bug, and commits of one branch. TREE is a clone of Nova, whose
origin/master the branch starts from; the commit has the author of its git
configuration, and ``git review`` sends it. Nothing here talks to Launchpad or
to Gerrit.
"""

from collections.abc import Iterable
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PAGES = HERE.parents[1] / 'doc/source/contributor/upstream'

#: Heading in Nova's form, and heading of the page, for each part of a report.
PARTS = (('Description', 'Summary'), ('Steps to reproduce', 'Reproduction'),
         ('Cause', 'Why'), ('Proposed fix', 'A fix'))

ENVIRONMENT = '''\
Nova 34.0.0 and master, and older releases as far as they have this code. The
libvirt driver. The reproduction needs Nova's own tests and no more.'''


def find_patch(number: str) -> pathlib.Path:
    """Return the patch of a number."""
    found = list(HERE.glob(f'nova/{number}-*.patch'))
    if len(found) != 1:
        sys.exit(f'no patch has the number {number}')
    return found[0]


def find_page(patch: pathlib.Path) -> pathlib.Path:
    """Return the page of the manual that names a patch."""
    return next(page for page in sorted(PAGES.glob('*.rst'))
                if patch.name in page.read_text())


def parse_page(text: str) -> tuple[str, dict[str, str]]:
    """Return the title of a page, and the text below each heading."""
    title = re.search(r'^=+\n(.*)\n=+$', text, re.MULTILINE)
    pieces = re.split(r'^(.+)\n-{3,}\n', text, flags=re.MULTILINE)
    if title is None or len(pieces) < 3:
        raise ValueError('no page of a defect')
    return title[1], dict(zip(
        pieces[1::2], map(make_plain, pieces[2::2]), strict=True))


def make_plain(text: str) -> str:
    """Return a text without the marks of reStructuredText."""
    text = re.sub(r':\w+:`([^`<]*?)( <[^`]*>)?`', r'\1', text)
    text = re.sub(r'``(.*?)``', r'\1', text, flags=re.DOTALL)
    return re.sub(r'::$', ':', text, flags=re.MULTILINE).strip()


def list_patches(page: str) -> list[pathlib.Path]:
    """Return the patches that a page names, in order."""
    return [HERE / 'nova' / name for name in re.findall(
        r'tools/upstream/nova/([\w-]+\.patch)', page)]


def list_tests(patches: Iterable[str]) -> list[str]:
    """Return the files that have tests in some patches."""
    return sorted({name for patch in patches for name in re.findall(
        r'^\+\+\+ b/(nova/tests/.*/test_\w+\.py)$', patch, re.MULTILINE)})


def render_bug(page: str, patches: Iterable[str]) -> str:
    """Return title and text of a bug report in the form of Nova.

    :param page: page of the defect in the manual.
    :param patches: patches that fix it.
    """
    title, parts = parse_page(page)
    texts = {heading: parts[name] for heading, name in PARTS}
    texts['Expected result'] = (
        'Tests that the proposed patch adds or changes pass:\n\n'
        + '\n'.join(f'* {name}' for name in list_tests(patches)))
    texts['Actual result'] = 'These tests fail, see the description.'
    texts['Environment'] = ENVIRONMENT
    return f'{title}\n\n' + '\n\n'.join(
        f'{heading}\n{"=" * len(heading)}\n{text}'
        for heading, text in texts.items()) + '\n'


def render_commit(patch: pathlib.Path, bug: str) -> str:
    """Return a patch with the number of its bug.

    :param bug: number of the bug in Launchpad.
    """
    text = patch.read_text().replace('NNNNNNN', bug)
    if patch != list_patches(find_page(patch).read_text())[-1]:
        text = text.replace('Closes-Bug:', 'Partial-Bug:')
    return text


def commit(patch: pathlib.Path, bug: str, tree: str) -> None:
    """Commit a patch on the branch of its bug.

    :param bug: number of the bug in Launchpad.
    :param tree: clone of Nova.
    """
    def run_git(*words: str, text: str | None = None, check: bool = True
                ) -> int:
        return subprocess.run(['git', '-C', tree, *words], text=True,
                              input=text, check=check).returncode

    if run_git('checkout', '-q', f'bug/{bug}', check=False):
        run_git('checkout', '-b', f'bug/{bug}', 'origin/master')
    run_git('am', '--3way', '-', text=render_commit(patch, bug))
    run_git('commit', '--amend', '--no-edit', '--reset-author')


def main() -> None:
    """Print a bug report, or make a commit."""
    words = sys.argv[1:]
    if len(words) == 2 and words[0] == 'bug':
        page = find_page(find_patch(words[1])).read_text()
        print(render_bug(page, [patch.read_text() for patch
                                in list_patches(page)]), end='')
    elif len(words) == 4 and words[0] == 'commit':
        if not words[2].isdecimal():
            sys.exit(f'{words[2]} is no number of a bug')
        commit(find_patch(words[1]), *words[2:])
    else:
        sys.exit(__doc__)


if __name__ == '__main__':
    main()
