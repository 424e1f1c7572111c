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


"""Long-running processes, kept by pid files."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field
import hashlib
import json
import os
from pathlib import Path
import signal
import subprocess
import time

from aio.settings import CloudError

_LOG_LIMIT = 20 << 20


@dataclass(frozen=True)
class Process:
    """Process of one service.

    :param grace: seconds between SIGTERM and SIGKILL. A Nova service that
        drains may take one more request that then gets lost, so it gets
        little.
    :param revision: anything else that a running process depends on; when it
        changes, the process is started again.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    pidfile: Path
    env: Mapping[str, str] = field(default_factory=dict)
    grace: float = 10
    revision: str = ''

    @property
    def fingerprint(self) -> str:
        parts = (self.argv, sorted(self.env.items()), self.revision)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def _record(self) -> dict[str, object]:
        try:
            record = json.loads(self.pidfile.read_text())
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    @property
    def pid(self) -> int | None:
        """The pid while it runs; a recycled pid is not taken for ours."""
        record = self._record()
        pid = record.get('pid')
        if isinstance(pid, int) and _started(pid) == record.get('started'):
            return pid
        return None

    @property
    def is_current(self) -> bool:
        """Whether it runs as it would be started now."""
        return (self.pid is not None
                and self._record().get('fingerprint') == self.fingerprint)

    def start(self) -> None:
        """Start it, detached; its output goes to the log."""
        self.pidfile.parent.mkdir(parents=True, exist_ok=True)
        _keep_small(self.log)
        with self.log.open('ab') as log:
            child = subprocess.Popen(
                self.argv, env={**_clean_environment(), **self.env},
                stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True)
        self.pidfile.write_text(json.dumps({
            'pid': child.pid, 'started': _started(child.pid),
            'fingerprint': self.fingerprint}))

    def signal(self, number: int) -> None:
        """Send a signal to the whole session's process group."""
        pid = self.pid
        if pid is not None:
            try:
                os.killpg(pid, number)
            except ProcessLookupError:
                pass

    def log_end(self, lines: int = 15) -> str:
        try:
            text = self.log.read_text(errors='replace')
        except OSError:
            return ''
        return '\n'.join('    ' + line for line in text.splitlines()[-lines:])


def stop(processes: Iterable[Process]) -> None:
    """Stop them all, together."""
    waiting = [one for one in processes if one.pid is not None]
    begin = time.monotonic()
    for one in waiting:
        one.signal(signal.SIGTERM)
    while waiting:
        for one in waiting:
            if time.monotonic() - begin > one.grace:
                one.signal(signal.SIGKILL)
        waiting = [one for one in waiting if one.pid is not None]
        time.sleep(0.1 if waiting else 0)


def kill(process: Process) -> None:
    """End it at once, without a chance to tidy up."""
    process.signal(signal.SIGKILL)
    wait_until(lambda: process.pid is None, 10,
               f'{process.name} survived SIGKILL')


def wait_until(condition: Callable[[], object], seconds: float,
               failure: str, process: Process | None = None) -> None:
    """Poll until the condition holds.

    :param process: give up early when it is no longer there.
    :raises CloudError: with the failure's text and the end of the log.
    """
    end = time.monotonic() + seconds
    while not condition():
        gone = process is not None and process.pid is None
        if gone or time.monotonic() > end:
            why = 'it has ended' if gone else f'{seconds:.0f} s passed'
            tail = f'\n{process.log}:\n{process.log_end()}' if process else ''
            raise CloudError(f'{failure} ({why}){tail}')
        time.sleep(0.2)


def _started(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot (proc(5))."""
    try:
        stat = Path(f'/proc/{pid}/stat').read_text()
    except OSError:
        return None
    fields = stat.rpartition(')')[2].split()
    return None if fields[0] in 'ZX' else int(fields[19])


def _clean_environment() -> dict[str, str]:
    """The environment without what would change a service's behaviour."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith(('OS_', 'PYTHON'))}


def _keep_small(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.rename(log.with_name(log.name + '.1'))
