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


"""The resctrl emulator for tests: mounted while a test runs, then gone."""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import json
import multiprocessing
import os
import subprocess  # noqa: S404
import tempfile
import time
from typing import Any
import unittest

import fixtures

from ghsched_nova.lab.emulator import contention
from ghsched_nova.lab.emulator import faults as faultlib
from ghsched_nova.lab.emulator import machines

_TIMEOUT = 30.0


def missing() -> str:
    """Why resctrl cannot be mounted here; empty if it can."""
    if os.geteuid() != 0:
        return 'root is needed to mount the resctrl emulator'
    if not os.path.exists('/dev/fuse'):
        return 'there is no /dev/fuse'
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError, AttributeError) as exc:
        return f'mfusepy or libfuse is missing: {exc}'
    return ''


def _serve(*args: Any) -> None:
    # Only the child needs libfuse: the skip must work without it.
    from ghsched_nova.lab.emulator import resctrl
    resctrl.serve(*args)


class ResctrlFixture(fixtures.Fixture):
    """An emulated resctrl of a machine, mounted on ``path``.

    It runs in a process of its own and sees the real threads of this
    machine. The test is skipped, with the reason, where root or FUSE is
    missing.

    :param machine: see :func:`ghsched_nova.lab.emulator.machines.build`.
    """

    def __init__(self, machine: machines.Machine):
        super().__init__()
        self.machine = machine
        #: Where it is mounted.
        self.path = ''
        #: Its log, one JSON object per operation and line.
        self.log = ''
        self._faults = ''
        self._load = ''

    def _setUp(self) -> None:
        reason = missing()
        if reason:
            raise unittest.SkipTest(reason)
        base = tempfile.mkdtemp(prefix='resctrl-')
        self.addCleanup(self._remove, base)
        self.path = os.path.join(base, 'mount')
        self.log = os.path.join(base, 'log')
        self._faults = os.path.join(base, 'faults.json')
        self._load = os.path.join(base, 'load.json')
        os.mkdir(self.path)
        # Not forked: a test process has threads and locks.
        self._process = multiprocessing.get_context('spawn').Process(
            target=_serve, daemon=True,
            args=(self.machine, self.path, self.log, self._faults,
                  self._load),
        )
        self._process.start()
        self.addCleanup(self._unmount)
        self._await_mount()

    def _await_mount(self) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while not os.path.ismount(self.path):
            if not self._process.is_alive() or time.monotonic() > deadline:
                raise RuntimeError(f'{self.path}: resctrl did not mount')
            time.sleep(0.02)

    def _unmount(self) -> None:
        if self._process.is_alive():
            self._process.terminate()  # libfuse unmounts
        self._process.join(_TIMEOUT)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        if self._mounted():
            subprocess.run(['umount', '--lazy', self.path], check=True)

    def _mounted(self) -> bool:
        # Not ismount(): stat() fails on a mount whose server is dead.
        with open('/proc/self/mountinfo') as stream:
            return f' {self.path} ' in stream.read()

    def _remove(self, base: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(os.path.join(base, 'mount'))
        for name in ('log', 'faults.json', 'load.json'):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(base, name))
        os.rmdir(base)

    @contextlib.contextmanager
    def faults(
        self, spec: Mapping[str, Any] | None = None, **more: Any
    ) -> Iterator[None]:
        """Inject faults while the context lasts; then as it was before.

        :param spec: as in a fault file, see
            :mod:`ghsched_nova.lab.emulator.faults`; keyword arguments are
            added.
        :raises BadFault: the description cannot be understood.
        """
        wanted = {**(spec or {}), **more}
        faultlib.parse(wanted)
        with _says(self._faults, json.dumps(wanted)):
            yield

    @contextlib.contextmanager
    def load(self, spec: Mapping[str, Any]) -> Iterator[None]:
        """Let groups contend while the context lasts; then as it was before.

        :param spec: as in a load file, see
            :mod:`ghsched_nova.lab.emulator.contention`.
        :raises BadLoad: the description cannot be understood.
        """
        contention.parse(spec, self.machine)
        with _says(self._load, json.dumps(spec)):
            yield

    def operations(self) -> list[dict[str, Any]]:
        """What was done on the mount so far, oldest first."""
        with open(self.log) as stream:
            return [json.loads(line) for line in stream]


@contextlib.contextmanager
def _says(path: str, text: str) -> Iterator[None]:
    """A file has that text while the context lasts."""
    try:
        with open(path) as stream:
            before = stream.read()
    except FileNotFoundError:
        before = ''
    _write(path, text)
    try:
        yield
    finally:
        _write(path, before)


def _write(path: str, text: str) -> None:
    # Renamed into place: the emulator reads at any moment.
    with open(f'{path}.new', 'w') as stream:
        stream.write(text)
    os.replace(f'{path}.new', path)
