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

"""Common options, exit statuses and error output of the commands."""

import argparse
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import errno
from importlib import metadata
import os
from pathlib import Path
import sys
from typing import Any
from typing import cast
from typing import NoReturn
from typing import TextIO

from ghsched_nova.base import wrappers
from ghsched_placement.base import exits

#: Last paragraph of a command's help.
EXIT_STATUS = ('Exit status: 0 all is well or done, 1 something was found or '
               'refused, 2 wrong usage, or something could not be done or '
               'asked.')

#: Libvirt of the host that ``ghsched-host`` looks at by default.
LIBVIRT_URI = 'qemu:///system'


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before a long run.

    :param path: a file that is there, or a new one.
    :raises OSError: with the path.
    """
    given = path if path.exists() else path.parent
    if path.is_dir() or not (path.exists() or given.is_dir()):
        number = errno.EISDIR if path.is_dir() else errno.ENOENT
        raise OSError(number, os.strerror(number), str(path))
    if not os.access(given, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES),
                              str(path))


class _OutputError(Exception):
    """Raised if standard output cannot be written.

    It is not a subclass of OSError, because commands catch the OSErrors of
    other files.
    """

    def __init__(self, cause: OSError) -> None:
        super().__init__(_get_error_message(cause))
        self.broken_pipe = isinstance(cause, BrokenPipeError)


class _Output(wrappers.ObjectWrapper):
    """Standard output that raises _OutputError in place of OSError."""

    def write(self, text: str) -> int:
        with _convert_output_errors():
            return int(self._wrapped.write(text))

    def flush(self) -> None:
        with _convert_output_errors():
            self._wrapped.flush()


@contextlib.contextmanager
def _convert_output_errors() -> Iterator[None]:
    """Within this context, convert OSErrors to _OutputError.

    The context is for writes to standard output. It makes their errors
    distinguishable from a command's other errors.
    """
    try:
        yield
    except OSError as error:
        raise _OutputError(error) from error


def _wrap_stdout() -> TextIO | None:
    """Return a wrapper of standard output that raises _OutputError on errors.

    :returns: None if standard output is closed.
    """
    stream: TextIO | None = sys.stdout
    return cast(TextIO, _Output(stream)) if stream else None


def _get_error_message(error: OSError) -> str:
    """Return the message of an OSError, or its repr() if it has none."""
    return error.strerror or str(error) or repr(error)


def run_command(name: str, function: Callable[[], int]) -> int:
    """Run a command's function, print its errors, and return the exit status.

    All output is written before the status is returned. If the reader of the
    output closes it early, the status is 0.

    :param name: name of the command, printed before an error.
    :param function: function that returns the exit status.
    """
    try:
        with contextlib.redirect_stdout(_wrap_stdout()):
            status = function()
            print(end='', flush=True)
        return status
    except _OutputError as error:
        discard_output()
        if error.broken_pipe:
            return 0
        message = f'output: {error}'
    except OSError as error:
        where = f'{error.filename}: ' if error.filename else ''
        message = where + _get_error_message(error)
    except KeyboardInterrupt:
        message = 'interrupted'
    print(f'{name}: {message}', file=sys.stderr)
    return exits.COULD_NOT


def get_version() -> str:
    """Return the installed release of ghsched, such as ``1.2.0``."""
    return metadata.version('ghsched')


def add_version_option(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--version`` to a command-line parser."""
    parser.add_argument('--version', action='version',
                        version=f'%(prog)s {get_version()}')


def add_host_command(
    subparsers: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    help_text: str,
    formats: Sequence[str] = ('table', 'json'),
) -> argparse.ArgumentParser:
    """Add a sub-command to ``ghsched-host``; return the command's parser.

    :param run: function that runs the command and returns the exit status.
    """
    command: argparse.ArgumentParser = subparsers.add_parser(
        name, help=help_text, description=help_text)
    if len(formats) > 1:
        command.add_argument('--format', choices=formats,
                             default=formats[0])
    command.add_argument(
        '--config-file', action='append', metavar='FILE',
        help='configuration file of nova-compute (repeat for several; '
             'default: the files that nova-compute reads)')
    command.add_argument('--connect', default=LIBVIRT_URI, metavar='URI',
                         help=f'URI of libvirt (default: {LIBVIRT_URI})')
    command.set_defaults(run=run)
    return command


def discard_output() -> None:
    """Discard the unwritten part of standard output after a write error.

    Otherwise Python would try to write the output again at exit, and fail.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def raise_keyboard_interrupt(_number: int, _frame: Any) -> NoReturn:
    """Raise KeyboardInterrupt; this is the handler of the signal SIGTERM."""
    raise KeyboardInterrupt
