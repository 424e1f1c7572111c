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

"""Load generators on this machine, or on other machines over ssh."""

from collections.abc import Sequence
from dataclasses import dataclass
import shlex

from ghsched_nova.lab.bench import errors


@dataclass(frozen=True)
class Client:
    """A machine that makes load.

    :param target: what ssh takes, e.g. "root@192.0.2.7"; nothing for this
        machine.
    :param options: of ssh.
    """

    target: str = ''
    options: tuple[str, ...] = ()

    def argv(self, command: Sequence[str], seconds: float | None
             ) -> list[str]:
        """Return the command line here that runs a command there.

        :param seconds: after which the other side ends it, too; None for
            one that goes on until it is ended from here.
        """
        if not self.target:
            return list(command)
        ssh = ['ssh', '-o', 'BatchMode=yes', *self.options]
        if seconds is not None:
            return [*ssh, self.target, shlex.join(
                ['timeout', f'{seconds:.0f}', *command])]
        # The terminal is what tells the other side that ssh is gone. A shell
        # passes it on, because redis-benchmark ignores SIGHUP.
        script = (f'{shlex.join(command)} & load=$!; '
                  'trap "kill $load" HUP TERM; wait $load')
        return [*ssh, '-tt', self.target, shlex.join(['sh', '-c', script])]


def parse(text: str, options: str = '') -> tuple[Client, ...]:
    """Return clients from a list like ``local,ssh:one,ssh:root@two``.

    :param options: of ssh, as in a shell.
    :raises BenchError: when it is no such list.
    """
    try:
        words = tuple(shlex.split(options))
    except ValueError as error:
        raise errors.BenchError(f'ssh-options: {error}') from None
    return tuple(_client(part, words) for part in text.split(','))


def _client(text: str, options: tuple[str, ...]) -> Client:
    if text == 'local':
        return Client()
    kind, _colon, target = text.partition(':')
    # A target with a dash would be taken for an option by ssh.
    if kind != 'ssh' or not target or target.startswith('-') or (
            set(target) & set(' \t\n')):
        raise errors.BenchError(f'{text!r} is neither "local" nor of the '
                                'form ssh:HOST')
    return Client(target, options)
