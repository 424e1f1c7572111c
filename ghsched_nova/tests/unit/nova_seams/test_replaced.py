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

"""The manual names each function of Nova that a feature replaces."""

import ast
from collections.abc import Iterator
import importlib
import pathlib

from ghsched_placement.tests import base

TOP = pathlib.Path(__file__).parents[4]
SEAMS = TOP / 'ghsched_nova/nova_seams'
PAGE = TOP / 'doc/source/reference/nova-changes.rst'


def replaced() -> Iterator[str]:
    """Yield names that features hand to registry.replace() and record()."""
    for path in SEAMS.glob('*.py'):
        if path.stem == 'registry':
            continue
        module = importlib.import_module(
            f'ghsched_nova.nova_seams.{path.stem}')
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                    'registry.replace', 'registry.record'):
                yield text_of(node.args[0], module)


def text_of(node: ast.expr, module: object) -> str:
    """Return the text of a literal, or of an f-string of module constants."""
    if isinstance(node, ast.JoinedStr):
        return ''.join(text_of(part, module) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return str(getattr(module, ast.unparse(node.value)))
    return str(ast.literal_eval(node))


class ReplacedFunctionsTest(base.TestCase):

    def test_page_names_what_features_replace_and_nothing_else(self):
        listed = {line.strip(' *-`') for line in
                  PAGE.read_text().partition('Replaced functions')[2]
                  .splitlines() if line.startswith('   * - ``nova.')}
        self.assertEqual(set(replaced()), listed)
        self.assertGreater(len(listed), 10)

    def test_only_seams_and_repairs_replace(self):
        self.assertEqual([], [
            str(path) for path in (TOP / 'ghsched_nova').rglob('*.py')
            if 'tests' not in path.parts and path.parent.name not in (
                'nova_seams', 'nova_fixes')
            and 'registry.replace(' in path.read_text()])
