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

"""Programs of tools/upstream: bug reports, commits, and what Nova changes."""

import pathlib
import re

import fixtures

from ghsched_placement.tests import base
from tools.upstream import newest
from tools.upstream import submit

HEADINGS = ('Description', 'Steps to reproduce', 'Cause', 'Proposed fix',
            'Expected result', 'Actual result', 'Environment')


class SubmitTest(base.TestCase):

    def test_bug_report_of_each_patch_is_in_the_form_of_nova(self):
        for patch in sorted(submit.HERE.glob('nova/*.patch')):
            page = submit.find_page(patch).read_text()
            with self.subTest(patch.name):
                report = submit.render_bug(page, [patch.read_text()])
                for heading in HEADINGS:
                    self.assertIn(f'\n\n{heading}\n{"=" * len(heading)}\n',
                                  report)
                self.assertIn('* nova/tests/', report)
                self.assertNotIn('``', report)
                self.assertNotIn('ghsched_', report)

    def test_commit_message_is_in_the_form_of_gerrit(self):
        for patch in sorted(submit.HERE.glob('nova/*.patch')):
            text = submit.render_commit(patch, '1234567')
            with self.subTest(patch.name):
                self.assertRegex(
                    text, r'\n\n(Closes|Partial)-Bug: #1234567\n---\n')
                self.assertIn('b/releasenotes/notes/bug-1234567-', text)
                self.assertNotIn('NNNNNNN', text)

    def test_last_patch_of_a_bug_closes_it(self):
        page = (submit.PAGES / 'failed-live-migration.rst').read_text()
        self.assertEqual(
            ['Partial-Bug', 'Partial-Bug', 'Closes-Bug'],
            [word for patch in submit.list_patches(page)
             for word in ('Partial-Bug', 'Closes-Bug')
             if f'\n{word}: ' in submit.render_commit(patch, '1')])

    def test_order_of_submission_has_each_patch_once(self):
        order = (submit.PAGES / 'index.rst').read_text().partition(
            '.. list-table::')[2].partition('.. code-block::')[0]
        for patch in sorted(submit.HERE.glob('nova/*.patch')):
            self.assertEqual(1, len(re.findall(
                rf'(?<!features/){patch.name[:4]}', order)), patch.name)


class NewestTest(base.TestCase):

    def make_nova(self, **modules):
        source = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (source / 'nova').mkdir()
        for name, text in modules.items():
            (source / 'nova' / f'{name}.py').write_text(text)
        return source

    def test_difference_of_a_function_leaves_comments_out(self):
        old = self.make_nova(one='class A:\n    def b(self):\n'
                                 '        return 1  # one\n')
        same = self.make_nova(one='class A:\n\n    def b(self):\n'
                                  '        # One.\n        return 1\n')
        other = self.make_nova(one='class A:\n    def b(self):\n'
                                   '        return 2\n')
        self.assertEqual([], newest.list_differences(
            'nova.one.A.b', old, same))
        self.assertEqual(['-    return 1', '+    return 2'], [
            line for line in newest.list_differences(
                'nova.one.A.b', old, other) if line[0] in '+-'])
        self.assertEqual(['-def b(self):', '-    return 1'], [
            line for line in newest.list_differences(
                'nova.one.A.b', old, self.make_nova(one=''))
            if line[0] in '+-'])

    def test_constant_and_attribute_are_compared(self):
        old = self.make_nova(one='X = 1\nclass A:\n    def __init__(self):\n'
                                 '        self.y = 1\n')
        new = self.make_nova(one='X = 2\nclass A:\n    def __init__(self):\n'
                                 '        self.y = 2\n')
        for name in ('nova.one.X', 'nova.one.A.y'):
            self.assertEqual(2, len([
                line for line in newest.list_differences(name, old, new)
                if line[0] in '+-']), name)

    def test_patch_that_nova_has_is_recognised(self):
        patch = next(newest.PATCHES.glob('0012-*'))
        nova = self.make_nova()
        self.assertEqual('does not apply', newest.describe_patch(patch, nova))
        (nova / 'nova/pci').mkdir()
        (nova / 'nova/pci/stats.py').write_text(
            'class A:\n    def _get_usable_count(self):\n        pass\n')
        self.assertEqual('Nova has it', newest.describe_patch(patch, nova))
