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

"""The machine that benchmarks run on: its files and its programs.

Programs are run in the C locale and with ISO times, so that they print what
the parsers know. Each is given a time after which it is ended: redis-benchmark
without a server, for one, tries for ever.
"""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
import os
from pathlib import Path
import shutil
import signal
import subprocess  # noqa: S404
import time
from typing import IO

from ghsched_nova.lab.bench import errors

#: How long a process may take to end when it is asked to.
_GRACE = 5.0


@dataclass(frozen=True)
class Output:
    """Output of a program, and its exit status."""

    status: int
    stdout: str
    stderr: str


class Machine:
    """Files, programs and processes of this machine.

    :param root: where its files are; another than / in tests.
    """

    def __init__(self, root: Path = Path('/')) -> None:
        self.root = root

    def text(self, path: str) -> str:
        """Content of a file below the root without blanks around it.

        :returns: nothing when it cannot be read.
        """
        try:
            return (self.root / path).read_text(
                encoding='utf-8', errors='replace').strip()
        except OSError:
            return ''

    def names(self, path: str) -> list[str]:
        """Return the names in a directory below the root, sorted."""
        try:
            return sorted(os.listdir(self.root / path))
        except OSError:
            return []

    def which(self, program: str) -> str:
        """Return the path of a program; nothing when there is none."""
        return shutil.which(program) or ''

    def is_root(self) -> bool:
        return os.geteuid() == 0

    def run(self, argv: Sequence[str], seconds: float = 60.0,
            directory: Path | None = None) -> Output:
        """Run a program to its end.

        :param seconds: that it may take.
        :raises BenchError: when it cannot be started or takes too long.
        """
        process = Process(argv, subprocess.PIPE, directory)
        try:
            return process.output(seconds)
        finally:
            process.stop()

    def check(self, argv: Sequence[str], seconds: float = 60.0,
              directory: Path | None = None) -> str:
        """Return the standard output of a program that must exit with 0.

        :raises BenchError: as :meth:`run`, and for another exit status.
        """
        output = self.run(argv, seconds, directory)
        if output.status:
            said = ' '.join((output.stderr or output.stdout).split())[-300:]
            raise errors.BenchError(
                f'{" ".join(argv)} ended with {output.status}: '
                f'{said or "it said nothing"}')
        return output.stdout

    def start(self, argv: Sequence[str], log: Path) -> 'Process':
        """Start a program in the background, with its output in a file."""
        with log.open('wb') as stream:
            return Process(argv, stream)

    def children(self, pid: int) -> tuple[int, ...]:
        """Return all descendants of a process, see proc(5)."""
        found: list[int] = []
        waiting = [pid]
        while waiting:
            parent = waiting.pop()
            for thread in self.names(f'proc/{parent}/task'):
                listed = self.text(f'proc/{parent}/task/{thread}/children')
                waiting += map(int, listed.split())
                found += map(int, listed.split())
        return tuple(sorted(found))


class Process:
    """A program that runs, in a process group of its own.

    It stays in our session: where the kernel groups tasks by session
    (sched_autogroup), nice values count within one only.

    :raises BenchError: when it cannot be started.
    """

    def __init__(self, argv: Sequence[str], out: int | IO[bytes],
                 directory: Path | None = None) -> None:
        self.name = argv[0]
        self._argv = ' '.join(argv)
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.PIPE if out == subprocess.PIPE
                else subprocess.STDOUT,
                cwd=directory, process_group=0, env={
                    **os.environ, 'LC_ALL': 'C', 'S_TIME_FORMAT': 'ISO'})
        except OSError as error:
            raise errors.BenchError(
                f'{argv[0]} cannot be started: {error.strerror}') from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def output(self, seconds: float) -> Output:
        """Wait until the program ends; return its output if that is piped.

        :raises BenchError: when it takes longer than these seconds.
        """
        try:
            out, err = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.stop()
            raise errors.BenchError(
                f'{self._argv} did not end within {seconds:.0f} s') from None
        return Output(self._process.returncode,
                      (out or b'').decode(errors='replace'),
                      (err or b'').decode(errors='replace'))

    def stop(self) -> None:
        """Stop the program and all its children."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                break
            try:
                self._process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                continue
        for stream in (self._process.stdout, self._process.stderr):
            if stream:
                stream.close()
        self._process.wait()


def wait_until(condition: Callable[[], bool], seconds: float,
               what: str, pause: float = 0.05) -> None:
    """Wait until a condition holds.

    :param what: for the message, e.g. "redis-server does not answer".
    :param pause: seconds between two looks.
    :raises BenchError: when it has not happened after these seconds.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise errors.BenchError(f'{what} (waited {seconds:.0f} s)')
        time.sleep(pause)
