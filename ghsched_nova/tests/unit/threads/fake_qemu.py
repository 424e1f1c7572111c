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


"""A process whose threads are named as those of a QEMU."""

from pathlib import Path
import subprocess
import sys

import fixtures

#: Names its threads as QEMU does, says that it is ready, and waits.
_PROGRAM = '''
import sys, threading
def run(name):
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as f:
        f.write(name)
    named.wait()
    threading.Event().wait()
names = sys.argv[1:]
named = threading.Barrier(len(names) + 1)
for name in names:
    threading.Thread(target=run, args=(name,), daemon=True).start()
named.wait()
print("ready", flush=True)
for line in sys.stdin:
    named = threading.Barrier(2)
    threading.Thread(target=run, args=(line.strip(),), daemon=True).start()
    named.wait()
    print("ready", flush=True)
'''


class Qemu(fixtures.Fixture):
    """A process that runs, and has a pid file as libvirt writes it.

    :param run_path: the directory of the pid file.
    :param domain: name of the libvirt domain.
    :param threads: names of the threads beside the main one.
    """

    def __init__(self, run_path: Path, domain: str, *threads: str) -> None:
        self._pid_file = Path(run_path, f'{domain}.pid')
        self._threads = threads

    def _setUp(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, '-c', _PROGRAM, *self._threads],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.process.communicate)
        self._wait()
        self._pid_file.write_text(str(self.process.pid))

    def add_thread(self, name: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f'{name}\n')
        self.process.stdin.flush()
        self._wait()

    def _wait(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == 'ready'
