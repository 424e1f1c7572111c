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

"""Calls of the privileged helpers that an unprivileged nova-compute can make.
"""

import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile

from ghsched_nova.tests.fixtures import fake_qemu
from ghsched_placement.tests import base

PROGRAM = ('from ghsched_nova.tests.fixtures import privsep_attacks; '
           'privsep_attacks.main()')


class NobodyTest(base.TestCase):
    """All of it with the real daemons, which run as root."""

    def setUp(self):
        super().setUp()
        if os.getuid():
            self.skipTest('only root can start the helpers')
        top = Path(self.enterContext(tempfile.TemporaryDirectory(
            dir='/var/tmp')))    # which nobody can enter
        top.chmod(0o755)
        self.own, self.run_path = top / 'own', top / 'run'
        for path in (self.own, self.run_path):
            path.mkdir()
        shutil.chown(self.own, 'nobody')
        self.secret = top / 'secret'
        self.secret.write_text('root only')
        self.secret.chmod(0o600)
        self.qemu = self.useFixture(fake_qemu.Qemu(self.run_path, 'web'))

    def found(self):
        done = subprocess.run(
            [sys.executable, '-c', PROGRAM, self.own, self.secret,
             self.run_path], capture_output=True, text=True,
            timeout=base.GIVE_UP_S)
        self.assertEqual(0, done.returncode, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def test_attacks_of_another_user_are_refused_and_nothing_hangs(self):
        before = sorted(os.sched_getaffinity(1))
        found = self.found()
        for attack in ('read by path', 'read of another', 'write by path',
                       'own class', 'class above the limit', 'pin init',
                       'memory of another', 'counters of another',
                       'counters beside another'):
            self.assertEqual('OutOfBounds', found[attack][0], found[attack])
        self.assertEqual(['returned', ''], found['guest'])
        # Every kernel counts the time of a thread; QEMU sleeps.
        self.assertEqual('returned', found['counters'][0], found['counters'])
        self.assertEqual(2, len(found['counters'][1]))
        self.assertIn('cpu_ns', found['counters'][1][0])
        self.assertEqual(os.SCHED_BATCH, os.sched_getscheduler(
            self.qemu.process.pid))
        self.assertEqual('root only', self.secret.read_text())
        self.assertEqual(os.SCHED_OTHER, found['class'])
        self.assertEqual(before, found['init'])
        error, words, seconds = found['stopped']
        self.assertEqual('HelperTimeout', error, words)
        self.assertIn('ghsched_threads_privsep', words)
        self.assertLess(seconds, base.GIVE_UP_S)
        self.assertEqual(['returned', found['goes on'][2]],
                         found['goes on'][:2])
        self.assertEqual('HelperTimeout', found['too long'][0])
        self.assertEqual(['returned', True], found['channel is closed'])
