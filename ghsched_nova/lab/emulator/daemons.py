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

"""Starts and stops the daemons of a test host, and lists which run."""

from collections.abc import Callable
from collections.abc import Collection
import contextlib
import os
from pathlib import Path
import signal
import subprocess  # noqa: S404
import time

from ghsched_nova.lab.emulator import resctrl

#: Seconds that a daemon may take to come up, or to end when asked.
START_TIMEOUT = 600.0
STOP_TIMEOUT = 20.0
#: Where our packages are, for daemons that are Python.
_ROOT = Path(__file__).parents[3]


class HostError(Exception):
    """The test host refuses a request; the text is the reason."""


class Daemons:
    """The daemons of one host, by name.

    :param directory: of their pid files and logs.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def pid(self, name: str) -> int:
        """Return the pid of a daemon that runs, else 0."""
        try:
            with open(self.pid_file(name)) as stream:
                pid, start = (int(word) for word in stream.read().split())
        except (OSError, ValueError):
            return 0
        return pid if start and start_time(pid) == start else 0

    def start(
        self, name: str, command: list[str],
        env: dict[str, str] | None = None,
    ) -> None:
        """Start a daemon, whose output goes to ``<name>.out``."""
        search = [str(_ROOT), *filter(None, [os.environ.get('PYTHONPATH')])]
        with open(f'{self.directory}/{name}.out', 'a') as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True, cwd='/',
                env=os.environ | {
                    'PATH': search_path(), 'PYTHONPATH': ':'.join(search),
                } | (env or {}),
            )
        with open(self.pid_file(name), 'w') as stream:
            stream.write(f'{process.pid} {start_time(process.pid)}\n')

    def wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait until a daemon that was started is ready.

        :raises HostError: it has ended, or takes too long.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if not self.pid(name):
                raise HostError(
                    f'{name} ended: {_tail(f"{self.directory}/{name}.out")}'
                    f' (logs: {self.directory}/{name}.out and beside it)'
                )
            if ready():
                return
            time.sleep(0.1)
        raise HostError(
            f'{name} is not ready after {START_TIMEOUT:.0f} s; see'
            f' {self.directory}/{name}.out and the logs beside it'
        )

    def pid_file(self, name: str) -> str:
        return f'{self.directory}/{name}.pid'


def search_path() -> str:
    """PATH with the directories of daemons."""
    have = os.environ.get('PATH', '/usr/bin:/bin')
    return f'{have}:/usr/sbin:/sbin'


def start_time(pid: int) -> int:
    """Return the start time of a process in clock ticks; 0 if it has ended."""
    sample = resctrl.ProcThreads().sample(pid) if pid else None
    return sample.start if sample else 0


def processes(inside: str) -> list[int]:
    """Return processes in a mount namespace that have not ended."""
    pids = (int(name) for name in os.listdir('/proc') if name.isdigit())
    return [
        pid for pid in pids
        if resctrl.namespace_of(pid) == inside and start_time(pid)
    ]


def end(pids: Collection[int], hard: bool = False) -> None:
    """End processes: asked first, then killed."""
    waiting = {pid: start_time(pid) for pid in pids if start_time(pid)}
    for number in (signal.SIGKILL,) if hard else (
        signal.SIGTERM, signal.SIGKILL
    ):
        for pid in waiting:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + STOP_TIMEOUT
        while waiting and time.monotonic() < deadline:
            time.sleep(0.05)
            waiting = {
                pid: start for pid, start in waiting.items()
                if start_time(pid) == start
            }


def _tail(path: str) -> str:
    try:
        with open(path, errors='replace') as stream:
            lines = stream.read().strip().splitlines()
    except OSError:
        return ''
    return lines[-1] if lines else 'it said nothing'


def remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
