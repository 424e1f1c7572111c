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

"""Checks of the installed Nova in ``ghsched-status``."""

from nova import version

from ghsched_nova.features.doctor import nova_changes
from ghsched_nova.nova_fixes import rows
from ghsched_nova.nova_seams import registry
from ghsched_nova.tests.fixtures import nova_parts


class StatusTest(nova_parts.BasePartsTestCase):

    def test_functions_match_and_no_part_is_off(self):
        self.assertEqual(['matches'] * len(registry.SEAMS),
                         [row[2].removesuffix(' (fix)') for row
                          in nova_changes.list_nova_functions()])
        self.assertEqual({}, dict(nova_changes.list_disabled_parts()))

    def test_part_that_is_off_is_listed_with_function_and_version(self):
        self.lose('nova.limit.placement._get_deltas')
        text = str(dict(nova_changes.list_disabled_parts()))
        self.assertIn('nova.limit.placement._get_deltas', text)
        self.assertIn(version.version_string(), text)

    def test_check_of_nova_names_what_is_off(self):
        self.assertEqual(['ok'], [one.status for one
                                  in nova_changes.check_nova_functions()])
        self.lose('nova.limit.placement._get_deltas')
        check, = nova_changes.check_nova_functions()
        self.assertEqual('error', check.status)
        self.assertIn('the unified limits of resources of ghsched is off in '
                      'nova-api', check.text)
        self.assertTrue(check.remedy)

    def test_lists_have_a_row_for_each_name(self):
        self.assertEqual([fix.name for fix in rows.FIXES],
                         [row[0] for row in nova_changes.list_nova_fixes()])
        self.assertEqual(
            sorted(registry.SEAMS),
            [row[0] for row in nova_changes.list_nova_functions()],
        )
        self.assertIn('"Fix": "a"', nova_changes.render_rows(
            ['Fix'], [['a']], 'json'))
        self.assertIn('| a ', nova_changes.render_rows(
            ['Fix'], [['a']], 'table'))
