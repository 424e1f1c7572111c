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

"""A server without a key of ghsched, in a cloud with it and in one without."""

import json
from pathlib import Path
import subprocess
import sys
import tempfile

from ghsched_placement.tests import base

JOURNEY = 'ghsched_nova.tests.functional.plain_journey'


class PlainServerTest(base.TestCase):

    def journey(self, kind):
        path = Path(self.enterContext(tempfile.TemporaryDirectory()), 'found')
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-m', JOURNEY, kind, str(path)],
            capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stderr[-3000:])
        found = json.loads(path.read_text())
        self.assertEqual([], [text[-3000:] for text in found['problems']])
        return found

    def test_operations_with_and_without_ghsched_leave_the_same(self):
        stock, ours = self.journey('stock'), self.journey('ghsched')
        self.assertEqual([], stock['replaced'])
        self.assertNotEqual([], ours['replaced'])
        self.assertEqual(len(stock['states']), len(ours['states']))
        for expected, found in zip(stock['states'], ours['states'],
                                   strict=True):
            self.assertEqual(expected, found)
        self.assertEqual(changes(stock), changes(ours))
        self.assertEqual(messages(stock), messages(ours))


def messages(found):
    """Return messages, without those of services that report they are alive.

    Whether one reports once more as its database ends depends on the clock.
    """
    return {text for text in found['messages']
            if not text.startswith('nova.servicegroup.')}


def changes(found):
    """Return requests about the server that change something, by count.

    How often Nova reads an allocation depends on when its periodic tasks run.
    """
    return {line: count for line, count in found['requests'].items()
            if '"GET ' not in line}
