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

"""Names each class and function that is too long; tools/sizes.py FILE..."""

import ast
from collections.abc import Iterator
from pathlib import Path
import sys

#: Lines from the first decorator to the last line of the body.
LONGEST_CLASS = 300
LONGEST_FUNCTION = 40


def too_long(path: str) -> Iterator[str]:
    """A line of text for each in a file, as other checkers print it."""
    for node in ast.walk(ast.parse(Path(path).read_text(), path)):
        if isinstance(node, ast.ClassDef):
            longest = LONGEST_CLASS
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            longest = LONGEST_FUNCTION
        else:
            continue
        first = min([node.lineno, *(one.lineno
                                    for one in node.decorator_list)])
        lines = (node.end_lineno or first) - first + 1
        if lines > longest:
            yield (f'{path}:{first}: {node.name} has {lines} lines, '
                   f'more than {longest}')


if __name__ == '__main__':
    found = [text for path in sys.argv[1:] for text in too_long(path)]
    print(*found, sep='\n', end='\n' if found else '')
    sys.exit(bool(found))
