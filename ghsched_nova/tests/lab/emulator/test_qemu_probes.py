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

from pathlib import Path
import subprocess
import sys
import tempfile
import time

from ghsched_nova.lab.emulator import qemu_probes
from ghsched_placement.tests import base

#: Accepts one client, as libvirtd is, and waits for the next one in accept(2)
#: or in poll(2).
_PROBE = '''
import select, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print(flush=True)
if sys.argv[2] == 'accept':
    server.accept()
else:
    select.select([server], [], [])
'''


class UnblockProbesTest(base.TestCase):
    def setUp(self):
        super().setUp()
        # Short: the path of a socket has 107 characters at most.
        directory = tempfile.TemporaryDirectory(dir='/tmp')  # noqa: S108
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def start_probe(self, name, call):
        directory = self.directory / f'qmp-{name}'
        directory.mkdir()
        process = subprocess.Popen(
            [sys.executable, '-c', _PROBE, directory / 'qmp.monitor', call],
            stdout=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        process.stdout.readline()
        (directory / 'qmp.pid').write_text(f'{process.pid}\n')
        return process

    def test_process_in_accept_is_connected_to_and_goes_on(self):
        process = self.start_probe('stuck', 'accept')
        deadline = time.monotonic() + base.GIVE_UP_S
        while (not qemu_probes.unblock_probes(self.directory)
               and time.monotonic() < deadline):
            time.sleep(0.01)
        self.assertEqual(0, process.wait(base.GIVE_UP_S))

    def test_process_in_poll_is_left_to_libvirtd(self):
        process = self.start_probe('healthy', 'poll')
        self.wait_until_asleep(process.pid)
        self.assertEqual(0, qemu_probes.unblock_probes(self.directory))
        self.assertIsNone(process.poll())

    def wait_until_asleep(self, pid):
        deadline = time.monotonic() + base.GIVE_UP_S
        while (Path(f'/proc/{pid}/stat').read_text().split()[2] != 'S'
               and time.monotonic() < deadline):
            time.sleep(0.01)

    def test_process_that_has_ended_is_skipped(self):
        process = self.start_probe('gone', 'accept')
        process.kill()
        process.wait()
        self.assertEqual(0, qemu_probes.unblock_probes(self.directory))
