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


"""Base of all demonstrations.

Everything that one says is checked: it ends with status 1 at the first claim
that does not hold.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
import sys
import textwrap
import time
from typing import Any

from aio.lab import Lab
from aio.settings import CloudError

#: How the admin would have asked for what is shown.
_PROMPT = '$ '


def heading(text: str) -> None:
    print(f'\n== {text} ==', flush=True)


def say(text: str) -> None:
    print(textwrap.fill(text, 78), flush=True)


def command(text: str) -> None:
    print(f'{_PROMPT}{text}', flush=True)


def show(*lines: str) -> None:
    for line in lines:
        print(f'    {line}', flush=True)


def claim(text: str, holds: object, seen: object = '') -> None:
    """Print that a claim holds, or stop because it does not."""
    if not holds:
        raise CloudError(f'this was to hold, but does not: {text}'
                         + (f' (seen: {seen})' if seen != '' else ''))
    print(f'  ok: {text}', flush=True)


class Demonstration(abc.ABC):
    """The steps are a subclass's; these are their common parts."""

    #: Options of every flavor, unless it says otherwise.
    flavor_options: Mapping[str, int] = {}

    def __init__(self, lab: Any) -> None:
        self.lab = lab

    def run(self) -> None:
        """All of it; no server stays."""
        self.lab.clean()
        try:
            self.steps()
        finally:
            heading('Clean up')
            command('openstack server delete '
                    + ' '.join(one.name for one in self.lab.servers()))
            self.lab.clean()
        self.nothing_left()

    @abc.abstractmethod
    def steps(self) -> None:
        """Show the steps of the demonstration, in order."""

    @abc.abstractmethod
    def nothing_left(self) -> None:
        """Check what the servers leave behind."""

    def flavor(self, name: str, **more: Any) -> None:
        """Make a flavor; extra specs are named as in Lab.flavor."""
        options = {**self.flavor_options, **more}
        made = self.lab.flavor(name, **options)
        command(f'openstack flavor create {name} --vcpus {made.vcpus} '
                f'--ram {made.ram} --disk 0 \\')
        print('      ' + ' \\\n      '.join(
            f'--property {key.replace("__", ":")}={value}'
            for key, value in options.items() if '__' in key))

    def create(self, name: str, flavor: str) -> Any:
        """Ask for a server."""
        command(f'openstack server create {self.lab.prefix}-{name} '
                f'--flavor {flavor} --image {self.lab.image_name} '
                '--no-network')
        return self.lab.create(name, flavor)

    def active(self, server: Any) -> Any:
        """The server, once it is ACTIVE."""
        now = self.lab.wait(server)
        claim(f'{server.name} is ACTIVE', now.status == 'ACTIVE',
              f'{now.status}: {self.lab.fault(server)}')
        return now


def main(demonstration: type[Demonstration], lab: Callable[[], Lab],
         logs: str, left: Sequence[str]) -> int:
    """Run one, and say what is left to look at.

    :param logs: where an error may be explained.
    :param left: commands that show what is still up.
    """
    begin = time.monotonic()
    try:
        demonstration(lab()).run()
    except CloudError as error:
        print(f'\ntools/demo.sh: {error}\nlogs: {logs}', file=sys.stderr)
        return 1
    heading('Done')
    say(f'Everything shown held, in {time.monotonic() - begin:.0f} s. What '
        'was started is still up:')
    show(*left)
    return 0
