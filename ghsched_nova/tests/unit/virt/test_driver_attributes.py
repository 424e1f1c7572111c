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

"""Whether the driver's parts use only what the composed driver has.

Their base class is Nova's, which mypy does not know.
"""

import ast
import inspect
from pathlib import Path

from nova.virt import driver as nova_driver
from nova.virt.libvirt import driver

import ghsched_nova
from ghsched_nova.virt import driver_devices
from ghsched_nova.virt import driver_migration
from ghsched_nova.virt import driver_reports
from ghsched_nova.virt import driver_start
from ghsched_placement.tests import base

VIRT = Path(ghsched_nova.__file__).parent / 'virt'


def list_attributes(source, context):
    """Return the names of the attributes of self in a module."""
    return {node.attr for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name) and node.value.id == 'self'
            and isinstance(node.ctx, context)}


class AttributesTest(base.TestCase):

    def test_each_attribute_is_one_of_the_driver_or_of_novas(self):
        # The module that composes them changes Nova when it is imported.
        parts = (driver_reports.ReportingDriver, driver_start.StartingDriver,
                 driver_devices.AttachingDriver,
                 driver_migration.MigratingDriver)
        texts = [path.read_text() for path in sorted(VIRT.glob('driver*.py'))]
        made = {name for text in [*texts, inspect.getsource(driver),
                                      inspect.getsource(nova_driver)]
                for name in list_attributes(text, ast.Store)}
        made |= {node.name for text in texts for node in ast.walk(
            ast.parse(text)) if isinstance(node, ast.FunctionDef)}
        for text in texts:
            self.assertEqual(set(), {
                name for name in list_attributes(text, ast.Load) - made
                if not any(hasattr(part, name) for part in parts)})
