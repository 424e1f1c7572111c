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

"""Compares the size of each room with its budget in tools/house.

A room is a folder; lines are those of code, without docstrings and comments
(tools/sizes.py). ``core`` is what runs in a cloud and is no feature, ``all``
has the features too, ``spine`` is what the manual's page on the design tells a
new reader to read. ``imports`` are imports of a feature by the core, and
``mentions`` are the lines of the core that import a feature or use what they
have imported. Laboratory and tests count for none of these. The modules
``features/declared*`` list the features for the programs that are composed of
them: an import of such a list is no import of a feature.

A budget that is far too high is an error as well, so that it falls with what
it bounds. ``house.py --write`` sets all budgets to what is there.
"""

import ast
from collections import Counter
from pathlib import Path
import re
import sys

from sizes import code_lines

TOP = Path(__file__).resolve().parents[1]
TABLE = TOP / 'tools/house'
DESIGN = TOP / 'doc/source/contributor/design.rst'
PACKAGES = ('ghsched_nova', 'ghsched_placement')
#: Room below its budget, as a part of the budget and as a number.
SLACK, LEAST_SLACK = .05, 20


def runtime_modules() -> dict[str, Path]:
    """Return the path of each module of the runtime, by its dotted name."""
    return {'.'.join(path.relative_to(TOP).with_suffix('').parts): path
            for package in PACKAGES
            for path in sorted((TOP / package).rglob('*.py'))
            if not {'tests', 'lab'} & set(path.relative_to(TOP).parts)}


def is_feature(module: str) -> bool:
    return '.features.' in f'{module}.'


def is_declaration(module: str) -> bool:
    """Whether a module is a list of features, or a name in one."""
    return '.features.declared' in module


def find_features(tree: ast.Module) -> dict[str, int]:
    """Return the names that imports bind to features, with their lines."""
    return {alias.asname or alias.name: node.lineno
            for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if is_feature(name := f'{node.module}.{alias.name}')
            and not is_declaration(name)}


def count_mentions(tree: ast.Module, features: dict[str, int]) -> int:
    """Return how many lines import a feature or use one that is imported."""
    return len({*features.values(), *(
        node.lineno for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in features)})


def list_spine() -> list[str]:
    """Return the modules of the spine, as the manual lists them."""
    text = DESIGN.read_text().partition('reads the spine')[2]
    text = text.partition('Code that runs next to Nova')[0]
    return re.findall(r'^\* ``(ghsched_[\w.]+)``$', text, re.M)


def count() -> Counter[str]:
    """Return what there is of each that has a budget."""
    found: Counter[str] = Counter()
    modules = runtime_modules()
    lines = {name: code_lines(path.read_text())
             for name, path in modules.items()}
    for name, path in modules.items():
        found['all'] += lines[name]
        depth = 3 if is_feature(name) else 2
        room = '/'.join(name.split('.')[:depth])
        found[room.removesuffix('/__init__')] += lines[name]
        if not is_feature(name):
            tree = ast.parse(path.read_text())
            features = find_features(tree)
            found['core'] += lines[name]
            found['imports'] += len(features)
            found['mentions'] += count_mentions(tree, features)
    found['spine'] = sum(lines[name] for name in list_spine())
    return +found


def read_budgets() -> dict[str, int]:
    """Return the budgets of the table."""
    rows = (line.split() for line in TABLE.read_text().splitlines()
            if line and not line.startswith('#'))
    return {name: int(number) for number, name in rows}


def write_budgets(found: Counter[str]) -> None:
    """Set all budgets to what is there."""
    head = [line for line in TABLE.read_text().splitlines()
            if line.startswith('#')] if TABLE.exists() else []
    TABLE.write_text('\n'.join([*head, *(
        f'{found[name]:6d}  {name}' for name in sorted(found))]) + '\n')


def compare(found: Counter[str], budgets: dict[str, int]) -> list[str]:
    """Return a line of text for each budget that does not fit."""
    wrong = [f'{name}: has no budget in tools/house'
             for name in sorted(found.keys() - budgets.keys())]
    for name, budget in budgets.items():
        least = budget - max(LEAST_SLACK, int(SLACK * budget))
        if found[name] > budget:
            wrong.append(f'{name}: {found[name]}, more than its budget of '
                         f'{budget} in tools/house')
        elif found[name] < least:
            wrong.append(f'{name}: {found[name]}; lower its budget of '
                         f'{budget} in tools/house')
    return wrong


if __name__ == '__main__':
    if sys.argv[1:] == ['--write']:
        write_budgets(count())
    found = compare(count(), read_budgets())
    print(*found, sep='\n', end='\n' if found else '')
    sys.exit(bool(found))
