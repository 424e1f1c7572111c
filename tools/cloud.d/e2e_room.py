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


"""Base of all end-to-end checks.

A room is a class of tests that belong together. Each check prints what was
seen beside what was expected. A failed check does not end a test; an error
does, and counts as one failure.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures
import contextlib
import io
import time
import traceback
from typing import Any

from aio import cli
from aio import host
from aio.lab import Lab
from aio import services
from aio.services import Cloud
from aio.settings import CloudError
from aio.settings import Settings


class Checks:
    """Counts what holds and what does not."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def equal(self, text: str, seen: object, expected: object) -> bool:
        """Compare two values; both are printed."""
        return self.note(seen == expected,
                         f'{text}: {seen!r}, expected {expected!r}')

    def holds(self, text: str, seen: object, expected: str) -> bool:
        """A condition; ``seen`` is true when it holds."""
        return self.note(bool(seen),
                         f'{text}: {seen!r}, expected {expected}')

    def error(self, text: str) -> None:
        self.note(False, text)

    def note(self, good: bool, line: str) -> bool:
        self.passed += good
        self.failed += not good
        print(f'  {"pass" if good else "FAIL"}  {line}', flush=True)
        return good


class Room:
    """Tests; a method's name without ``test_`` is the test's name.

    :param lab: the cloud, shared by the rooms of one run.
    """

    def __init__(self, lab: Lab, checks: Checks) -> None:
        self.settings: Settings = lab.settings
        self.lab = lab
        self.checks = checks

    def prepare(self) -> None:
        """Make the flavors that the tests need."""

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """A cloud that is set up as all tests of the room need it."""
        yield

    def nothing_left(self) -> None:
        """Check that a test has left nothing; its servers are deleted."""

    def read_evidence(self) -> str:
        """Text to print of the host when a test has failed."""
        return ''

    @property
    def services(self) -> Cloud:
        return services.cloud(self.settings)

    def _active(self, server: Any) -> Any:
        """The server, which must be ACTIVE for the test to go on."""
        if server.status != 'ACTIVE':
            raise CloudError(f'{server.name} is {server.status}: '
                             + self.lab.fault(server))
        return server

    def _contains(self, text: str, seen: str, *words: str) -> bool:
        """Check that a text contains one of the words; show it in any case."""
        return self.checks.note(
            any(word in seen for word in words),
            f'{text}: {seen!r}, expected {" or ".join(words)}')

    def _boot_at_once(self, name: str, flavor: str, count: int) -> list[Any]:
        """Servers that were asked for at the same time, active or in error."""
        with futures.ThreadPoolExecutor(16) as pool:
            asked = list(pool.map(
                lambda number: self.lab.create(f'{name}-{number}', flavor),
                range(count)))
        return [self.lab.wait(one, seconds=900) for one in asked]

    def _no_host_for(self, servers: Sequence[Any]) -> None:
        """Servers that were refused, and hold nothing."""
        self.checks.equal(
            'what the refused ones hold',
            [held for one in servers if (held := self.lab.allocations(one))],
            [])
        self.checks.equal(
            'reasons', {self.lab.fault(one).partition(':')[0].partition(
                '. ')[0] for one in servers}, {'No valid host was found'})

    @contextlib.contextmanager
    def _faults(self, faults: Mapping[str, object], number: int = 1
                ) -> Iterator[None]:
        """A resctrl that does something wrong, for a while.

        :param number: on which of the hosts.
        """
        settings = self.settings.on(self.settings.hosts[number - 1])
        host.set_faults(settings, faults)
        try:
            yield
        finally:
            host.set_faults(settings, {})

    def _restart(self, *names: str) -> None:
        """Restart services; what that prints is shown if it fails."""
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                cli.restart(self.settings, list(names))
        except CloudError:
            print(said.getvalue())
            raise

    @contextlib.contextmanager
    def _with(self, services: Sequence[str], *options: tuple[str, str, str]
              ) -> Iterator[None]:
        """Services of Nova's with other options, for a while."""
        before = [(section, key, cli.set_option(
            self.settings, section, key, value))
            for section, key, value in options]
        try:
            self._restart(*services)
            yield
        finally:
            self.lab.clean()
            for section, key, value in before:
                cli.set_option(self.settings, section, key, value)
            self._restart(*services)


def names_of(room: type[Room]) -> list[str]:
    return [name[5:] for name in vars(room) if name.startswith('test_')]


def run_tests(rooms: Sequence[type[Room]], lab: Lab, names: Sequence[str]
              ) -> Checks:
    """Run the tests of some rooms, all of them or some by name.

    :param names: tools/e2e.sh knows that there are such tests.
    """
    checks = Checks()
    lab.clean()
    for kind in rooms:
        chosen = [name for name in names_of(kind)
                  if not names or name in names]
        if chosen:
            room = kind(lab, checks)
            room.prepare()
            with room.surroundings():
                for name in chosen:
                    _run(room, name)
    return checks


def main(rooms: Sequence[type[Room]], lab: Lab, names: Sequence[str]
         ) -> int:
    """Run tests and print how many checks passed; the exit status."""
    checks = run_tests(rooms, lab, names)
    print(f'\n{checks.passed} passed, {checks.failed} failed')
    return 1 if checks.failed else 0


def _run(room: Room, name: str) -> None:
    test = getattr(room, f'test_{name}')
    begin = time.monotonic()
    print(f'\n== {name}: {test.__doc__} ==', flush=True)
    try:
        test()
        room.lab.clean()
        room.nothing_left()
    except Exception as error:
        if not isinstance(error, CloudError):
            traceback.print_exc()
        room.checks.error(f'{name}: {error}')
        _tidy(room)
    print(f'     {time.monotonic() - begin:.1f} s', flush=True)


def _tidy(room: Room) -> None:
    """Show the end of the host's log, and give the next test a chance."""
    try:
        print(room.read_evidence())
        cli.up(room.settings)
        room.lab.clean()
    except Exception as error:
        print(f'        could not tidy up: {error}')
