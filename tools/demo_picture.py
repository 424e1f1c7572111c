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

"""A picture (SVG) of a run of tools/demo.sh, for the README.

usage: tools/demo_picture.py LOG PICTURE, the first being what tools/demo.sh
has printed. It needs rich.
"""

import io
import pathlib
import re
import sys

from rich import console
from rich import text

WIDTH = 92
#: Sections of the demo that are shown, by number.
SECTIONS = ('3', '5', '6')
_STYLES = ((r'^== .*', 'bold yellow'), (r'^\$ .*', 'bold white'),
           (r'^  ok: .*', 'green'))


def shown(log: str) -> str:
    """The lines of the sections, without time stamps of services (pure)."""
    lines, on = [], False
    for line in log.splitlines():
        heading = re.match(r'== (\d+|.)', line)
        if heading:
            on = heading[1] in SECTIONS
        if on:
            lines.append(line if len(line) <= WIDTH
                         else line[:WIDTH - 3] + '...')
    return '\n'.join(lines).strip()


def main() -> None:
    log, picture = map(pathlib.Path, sys.argv[1:])
    screen = console.Console(record=True, width=WIDTH, file=io.StringIO())
    content = text.Text(shown(log.read_text(encoding='utf-8')))
    for pattern, style in _STYLES:
        content.highlight_regex('(?m)' + pattern, style)
    screen.print(content)
    picture.write_text(screen.export_svg(title='tools/demo.sh (simulated)'),
                       encoding='utf-8')


if __name__ == '__main__':
    main()
