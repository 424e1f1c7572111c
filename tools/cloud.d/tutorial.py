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

"""Type the commands of pages into a terminal; called by tools/tutorial.sh.

usage: tutorial.py [--all] PAGE...

Each command has to end as its page says, and each guest has to be ready: its
console says so. The commands that bring the cloud up and down are left out
without --all.
"""

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import pty
import re
import secrets
import select
import signal
import subprocess
import sys
import termios
import time

from aio.lab import Lab
from aio.settings import CloudError
from aio.settings import read
import console_blocks

#: Commands that other stages of .ci/run type.
CLOUD = ('tools/demo.sh', 'tools/cloud down')
#: Flavor and servers of the tutorial.
_FLAVOR = 'bw30'
_SERVER = 'web'

#: Rows and columns of the terminal.
_SIZE = (40, 100)
#: Prompt of a shell that a command has started.
_PROMPT = re.compile('^(> )?(# )+', re.MULTILINE)
_TIMEOUT_S = 900
_BOOTS = 'openstack server create'


class Terminal:
    """Shell in a terminal, in which one command after the other is typed.

    The end of a command is found by what is typed behind it, which a shell
    that the command starts reads as well.
    """

    def __init__(self, directory: Path) -> None:
        self._mark = secrets.token_hex(8)
        environment = {
            **{name: value for name, value in os.environ.items()
               if not name.startswith('OS_')},
            'PS1': '', 'PS2': '', 'TERM': 'dumb', 'HISTFILE': ''}
        own, other = pty.openpty()
        termios.tcsetwinsize(other, _SIZE)
        settings = termios.tcgetattr(other)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(other, termios.TCSANOW, settings)
        self._terminal = own
        self._shell = subprocess.Popen(
            ['bash', '--norc', '--noprofile', '--noediting', '-i'],
            cwd=directory, env=environment, stdin=other, stdout=other,
            stderr=other, start_new_session=True)
        os.close(other)

    def type(self, command: str) -> tuple[int, str]:
        """Type a command and return its exit status and its output.

        :raises CloudError: if it does not end in time.
        """
        os.write(self._terminal,
                 f'{command}\necho {self._mark} $? {self._mark}\n'.encode())
        seen = ''
        end = time.monotonic() + _TIMEOUT_S
        while not (ended := re.search(f'{self._mark} ([0-9]+) {self._mark}',
                                      seen)):
            ready, _, _ = select.select([self._terminal], [], [],
                                        max(0.0, end - time.monotonic()))
            if not ready:
                raise CloudError(f'not done after {_TIMEOUT_S} s: {seen}')
            with contextlib.suppress(OSError):
                seen += os.read(self._terminal, 65536).decode(
                    errors='replace').replace('\r', '')
            if self._shell.poll() is not None:
                raise CloudError(f'the shell has ended: {seen}')
        return int(ended[1]), _PROMPT.sub('', seen[:ended.start()])

    def close(self) -> None:
        """End the shell and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        os.close(self._terminal)


class Tutorial:
    """The pages, typed in one terminal."""

    def __init__(self, lab: Lab, terminal: Terminal) -> None:
        self.lab = lab
        self.terminal = terminal
        self.failed = 0
        self.passed = 0
        self._ready: set[str] = set()

    def type_page(self, path: Path, *, everything: bool) -> None:
        """Type a page's commands; print and count each."""
        for step in console_blocks.read_steps(path.read_text()):
            name = step.command.partition('    #')[0].rstrip()
            if name in CLOUD and not everything:
                continue
            print(f'# {step.command}', flush=True)
            status, output = self.terminal.type(step.command)
            print(output, end='', flush=True)
            failure = step.find_difference(status, output)
            self._count(f'{path.name}:{step.line}', failure)
            if _BOOTS in step.command:
                self._wait_for_guests(path, step)

    def _wait_for_guests(self, path: Path, step: console_blocks.Step) -> None:
        """Wait until the console of each guest says that it is ready."""
        failure = ''
        before = len(self._ready)
        try:
            for server in self._unready():
                self.lab.console(server)
                self._ready.add(server.id)
                print(f'  {server.name} prints GUEST-READY', flush=True)
        except CloudError as error:
            failure = str(error)
        if not failure and len(self._ready) == before:
            failure = 'no guest has started'
        self._count(f'{path.name}:{step.line}: consoles', failure)

    def _unready(self) -> Iterator[object]:
        for server in self.lab.servers():
            settled = self.lab.wait(server)
            if settled.status == 'ACTIVE' and server.id not in self._ready:
                yield settled

    def _count(self, text: str, failure: str) -> None:
        if failure:
            self.failed += 1
            print(f'FAIL  {text}: {failure}', flush=True)
        else:
            self.passed += 1


class TutorialLab(Lab):
    """The cloud with the servers of the tutorial."""

    def servers(self) -> list[object]:
        return [one for one in self.cloud.compute.servers()
                if one.name.startswith(_SERVER)]


def main(arguments: list[str]) -> int:
    settings = read()
    terminal = Terminal(settings.top)
    tutorial = Tutorial(TutorialLab(settings, _SERVER), terminal)
    everything = arguments[:1] == ['--all']
    if not everything:
        # What the command that was left out has printed the name of.
        terminal.type(f'. {settings.home}/openrc')
    try:
        for page in arguments[everything:]:
            tutorial.type_page(Path(page), everything=everything)
    except CloudError as error:
        print(f'FAIL  {error}')
        tutorial.failed += 1
    finally:
        terminal.close()
        if not everything:
            _clean(tutorial.lab)
    print(f'{tutorial.passed} passed, {tutorial.failed} failed')
    return 1 if tutorial.failed else 0


def _clean(lab: Lab) -> None:
    """Delete what a tutorial that failed has left."""
    lab.clean()
    flavor = lab.cloud.compute.find_flavor(_FLAVOR)
    if flavor is not None:
        lab.cloud.compute.delete_flavor(flavor)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
