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

"""Print docstrings, names and log lines that break HACKING's rules for words.

usage: tools/words.py FILE...

The first line of a docstring names an act and its object, or a thing; a name
is read without its module; a parameter is described by a noun; a log line has
a fixed text to search for.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
import re
import sys

#: First words of docstrings that leave open what a function returns or does.
FIRST_WORDS = frozenset(
    'What How Who Why Which Where When So Of That Those These One As Else '
    'Nothing Without With By For From To In At On If There It Its Have Let '
    'Tell Say See Hear Mend'.split())

#: First words of a parameter or result that is described by a clause, not by
#: a noun that names it.
FIELD_WORDS = 'what who why those that of it they'.split()

FIELD = re.compile(
    r'^ *:(?:param|ivar|var|returns?|yields?)\b[^:\n]*:\s+('
    + '|'.join(FIELD_WORDS) + r')\b', re.MULTILINE)

#: Files whose parameters may be described by a clause.
IN_NO_CLOUD = re.compile('(^|/)(tests|tools|lab|tempest_plugin)/')

#: Words that no name has, between underscores.
RIDDLES = frozenset('told hear heard beside mend mended anew'.split())

#: Whole names of functions that mean nothing without their module.
BARE = frozenset(
    'of all look left near kept sums counted place held lack'.split())

LEVELS = frozenset('debug info warning error exception critical'.split())

PLACEHOLDER = re.compile(r'%(\(\w+\))?[-#0-9.]*[a-z]')


def _docstring(node: ast.AST) -> Iterator[str]:
    text = ast.get_docstring(node) if isinstance(
        node, (ast.Module, ast.ClassDef, ast.FunctionDef)) else None
    if not text:
        return
    first = re.split(r'[^\w:]', text, maxsplit=1)[0]
    if first in FIRST_WORDS:
        yield f'a docstring begins with "{first}"'
    elif text.startswith(':'):
        yield 'a docstring has no first line'


def _fields(node: ast.AST) -> Iterator[str]:
    text = ast.get_docstring(node) if isinstance(
        node, (ast.Module, ast.ClassDef, ast.FunctionDef)) else None
    for field in FIELD.finditer(text or ''):
        yield f'a parameter or result begins with "{field[1]}"'


def _name(node: ast.AST) -> Iterator[str]:
    if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.arg)):
        return
    name = node.arg if isinstance(node, ast.arg) else node.name
    riddles = RIDDLES.intersection(name.lower().split('_'))
    if riddles:
        yield f'{name}: a name has "{min(riddles)}"'
    elif name.startswith(('test_what_', 'what_')):
        yield f'{name}: a name begins with "what"'
    elif isinstance(node, ast.FunctionDef) and name.strip('_') in BARE:
        yield f'{name}: a name says what it is of'


def _log(node: ast.AST) -> Iterator[str]:
    if not (isinstance(node, ast.Call) and node.args
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == 'LOG'):
        return
    text = node.args[0]
    if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
        yield 'a log line is not a literal text'
    elif len(re.findall('[A-Za-z]{2,}',
                        PLACEHOLDER.sub(' ', text.value))) < 2:
        yield 'a log line has no fixed text to search for'


def broken(path: str) -> Iterator[str]:
    """Yield a line for each rule that a file breaks, as other checkers do."""
    rules = [_docstring, _name, _log]
    if not IN_NO_CLOUD.search(path):
        rules.append(_fields)
    for node in ast.walk(ast.parse(Path(path).read_text(), path)):
        line = getattr(node, 'lineno', 1)
        for rule in rules:
            for text in rule(node):
                yield f'{path}:{line}: {text}'


def main(paths: list[str]) -> int:
    """Print each rule that a file breaks; return 1 if there is any."""
    found = [line for path in paths for line in broken(path)]
    for line in found:
        print(line)
    return bool(found)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
