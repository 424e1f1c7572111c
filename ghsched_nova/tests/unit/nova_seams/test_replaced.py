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

"""Declared replacements of functions of Nova, and the page made of them."""

import ast
from collections.abc import Iterator
import importlib.util
import pathlib
import sys

from ghsched_nova.features import declared_scheduler as scheduler
from ghsched_nova.nova_fixes import rows
from ghsched_nova.nova_seams import registry
from ghsched_nova.virt import manager as compute
from ghsched_placement.tests import base

TOP = pathlib.Path(__file__).parents[4]
SEAMS = TOP / 'ghsched_nova/nova_seams'
sys.path.append(str(TOP / 'tools'))
reference_pages = importlib.import_module('reference_pages')


def replaced() -> Iterator[str]:
    """Yield names that features replace or add to, by their calls."""
    for path in (*SEAMS.glob('*.py'),
                 *SEAMS.parent.glob('features/*/nova_seams.py')):
        if path.stem == 'registry':
            continue
        module = importlib.import_module('.'.join(
            path.relative_to(TOP).with_suffix('').parts))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                    'registry.replace_function',
                    'registry.record_addition'):
                yield text_of(node.args[0], module)


def is_private(name: str) -> bool:
    return any(part.startswith('_') and not part.startswith('__')
               for part in name.split('.'))


def text_of(node: ast.expr, module: object) -> str:
    """Return the text of a literal, or of an f-string of module constants."""
    if isinstance(node, ast.JoinedStr):
        return ''.join(text_of(part, module) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return str(getattr(module, ast.unparse(node.value)))
    return str(ast.literal_eval(node))


class ReplacedFunctionsTest(base.TestCase):

    @staticmethod
    def list_names(*kinds):
        return {name for name, use in reference_pages.list_uses()
                if use.kind in kinds}

    def test_declared_replacements_are_the_calls_that_replace(self):
        self.assertEqual(set(replaced()), self.list_names('replaced'))

    def test_replaced_functions_are_few(self):
        tables = {'nova.virt', 'nova.service.SERVICE_MANAGERS',
                  'nova.scheduler.request_filter.ALL_REQUEST_FILTERS'}
        # One of the functions is that of other releases.
        self.assertLessEqual(
            len(self.list_names('replaced') - tables) - 1, 9)

    def test_private_names_relied_on_have_a_reason_and_are_at_most_thirteen(
            self):
        registry.load_all_seams()
        relied_on = {
            seam.name for seam in registry.SEAMS.values()
            if is_private(seam.name) and '.LibvirtDriver.' not in seam.name
            and any('.nova_fixes.' not in user for user in seam.users)}
        self.assertEqual(relied_on, {
            name for name, _use in reference_pages.list_uses()
            if is_private(name)})
        # One of them is that of other releases.
        self.assertLessEqual(len(relied_on) - 1, 13)

    def test_private_method_declared_as_overridden_is_one_of_a_subclass(self):
        for owner, use in reference_pages.list_uses():
            cls, name = registry.find_owner(owner)
            kinds = (compute.GhschedComputeManager,
                     compute.GhschedResourceTracker,
                     *scheduler.GhschedSchedulerManager.__mro__)
            ours = [kind for kind in kinds
                    if kind.__module__.startswith('ghsched_nova')
                    and isinstance(cls, type) and issubclass(kind, cls)
                    and name in vars(kind)]
            self.assertEqual(use.kind == 'overridden', bool(ours), owner)

    def test_page_has_a_row_of_each_replacement_and_each_repair(self):
        for lines, names in (
                (reference_pages.describe_replacements(),
                 self.list_names('replaced')),
                (reference_pages.describe_private_names(),
                 filter(is_private, self.list_names(*registry.USES))),
                (reference_pages.describe_fixes(),
                 [f':doc:`{fix.name} </contributor/upstream/{fix.name}>`'
                  for fix in rows.FIXES])):
            rows_of_page = [line.strip(' *-`') for line in lines
                            if line.startswith('   * - ')][1:]
            self.assertEqual(sorted(name.strip('`') for name in names),
                             sorted(rows_of_page))

    def test_only_seams_and_repairs_replace(self):
        self.assertEqual([], [
            str(path) for path in (TOP / 'ghsched_nova').rglob('*.py')
            if 'tests' not in path.parts
            and path.stem != 'nova_seams'
            and path.parent.name not in ('nova_seams', 'nova_fixes')
            and 'registry.replace_function(' in path.read_text()])
