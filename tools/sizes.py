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

"""Names each class, function and module that is too long.

tools/sizes.py FILE...
"""

import ast
from collections.abc import Iterator
import io
from pathlib import Path
import sys
import tokenize

#: Lines from the first decorator to the last line of the body.
LONGEST_CLASS = 300
#: Module without logic: the hooks of Nova's driver, one below the other.
LIST_OF_HOOKS = 'ghsched_nova/virt/driver.py'
LONGEST_FUNCTION = 40
#: Lines of code, without docstrings and comments, of what runs in a cloud.
LONGEST_MODULE = 350

_NO_CODE = frozenset({
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT,
    tokenize.DEDENT, tokenize.ENDMARKER})


def too_long(path: str) -> Iterator[str]:
    """A line of text for each in a file, as other checkers print it."""
    for node in ast.walk(ast.parse(Path(path).read_text(), path)):
        if isinstance(node, ast.ClassDef):
            if path == LIST_OF_HOOKS:
                continue
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


def code_lines(text: str) -> int:
    """Return how many lines have code, without docstrings and comments."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef
                      | ast.AsyncFunctionDef) and ast.get_docstring(
                          node, clean=False) is not None:
            first = node.body[0]
            lines.difference_update(
                range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def too_long_module(path: str) -> Iterator[str]:
    """A line of text if a module of the runtime is too long."""
    if (not path.startswith('ghsched_') or path == LIST_OF_HOOKS
            or {'tests', 'lab'} & set(Path(path).parts)):
        return
    lines = code_lines(Path(path).read_text())
    if lines > LONGEST_MODULE:
        yield (f'{path}:1: the module has {lines} lines of code, more than '
               f'{LONGEST_MODULE}')


if __name__ == '__main__':
    found = [text for path in sys.argv[1:]
             for text in (*too_long(path), *too_long_module(path))]
    print(*found, sep='\n', end='\n' if found else '')
    sys.exit(bool(found))
