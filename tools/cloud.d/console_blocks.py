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

"""Commands and sample output of the console blocks of a page.

A block is ``.. code-block:: console``. A line that begins with the prompt
``# `` is a command, which continues as long as its lines end with a
backslash; the lines up to the next prompt are its sample output. There ``...``
stands for any text, and blanks for any number of blanks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
import re

_DIRECTIVE = '.. code-block:: console'
_PROMPT = '# '
_ANY = '...'


@dataclass(frozen=True)
class Step:
    """A command of a page.

    :param line: number of its line on the page, from 1 on.
    :param sample: lines of its sample output; empty if the page has none.
    """

    line: int
    command: str
    sample: tuple[str, ...] = ()

    def find_difference(self, status: int, output: str) -> str:
        """Return how a run differs from the page; empty if it does not.

        A command whose sample output is not on the page has to succeed. A
        reader sees of the others what they print.

        :param status: exit status of the command.
        """
        if not self.sample:
            return f'exit status {status}' if status else ''
        pattern = '.*'.join(
            r'\s+'.join(map(re.escape, part.split()))
            for part in '\n'.join(self.sample).split(_ANY))
        if re.fullmatch(pattern, _strip_blanks(output), re.DOTALL):
            return ''
        return 'the page has other output:\n' + '\n'.join(self.sample)


def _strip_blanks(text: str) -> str:
    return ' '.join(text.split())


def read_steps(page: str) -> Iterator[Step]:
    """Yield the commands of a page's console blocks, in order."""
    inside = False
    block: list[tuple[int, str]] = []
    for number, line in enumerate(page.splitlines(), 1):
        if line == _DIRECTIVE:
            inside = True
        elif line and not line.startswith(' '):
            inside = False
        elif inside and line:
            block.append((number, line.strip()))
    yield from _group(block)


def _group(block: list[tuple[int, str]]) -> Iterator[Step]:
    place = 0
    while place < len(block):
        first, line = block[place]
        words = [line.removeprefix(_PROMPT)]
        place += 1
        while words[-1].endswith('\\'):
            words.append(block[place][1])
            place += 1
        end = place
        while end < len(block) and not block[end][1].startswith(_PROMPT):
            end += 1
        yield Step(first, '\n'.join(words),
                   tuple(text for _, text in block[place:end]))
        place = end
