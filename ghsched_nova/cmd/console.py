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

"""Orderly ends of commands whose output is closed or that are interrupted."""

import argparse
from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from importlib import metadata
import os
import sys
from typing import Any
from typing import cast
from typing import TextIO

from ghsched_placement import exits

#: What the help of a command says last.
EXIT_STATUS = ('Exit status: 0 all is well or done, 1 something was found or '
               'refused, 2 wrong usage, or something could not be done or '
               'asked.')


class _OutputError(Exception):
    """Standard output cannot be written; no OSError, as work may catch."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(_reason(cause))
        self.broken_pipe = isinstance(cause, BrokenPipeError)


class _Output:
    """Standard output whose errors are told from all others."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _told_apart():
            return self._stream.write(text)

    def flush(self) -> None:
        with _told_apart():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _told_apart() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _OutputError(error) from error


def _output() -> TextIO | None:
    """Return the standard output of a command; None if the caller closed it.
    """
    stream: TextIO | None = sys.stdout
    return cast(TextIO, _Output(stream)) if stream else None


def _reason(error: OSError) -> str:
    """Return the text of an error, its repr() if it has none, as some
    time-outs.
    """
    return error.strerror or str(error) or repr(error)


def carry_out(name: str, work: Callable[[], int]) -> int:
    """Do the work of a command, and end without a traceback.

    All of its output is written before its status is returned.

    :param name: of the command, before what goes wrong.
    :param work: gives the exit status, which is 0 where whoever reads the
        output has seen enough.
    """
    try:
        with contextlib.redirect_stdout(_output()):
            status = work()
            print(end='', flush=True)
        return status
    except _OutputError as error:
        drop_output()
        if error.broken_pipe:
            return 0
        told = f'output: {error}'
    except OSError as error:
        where = f'{error.filename}: ' if error.filename else ''
        told = where + _reason(error)
    except KeyboardInterrupt:
        told = 'interrupted'
    print(f'{name}: {told}', file=sys.stderr)
    return exits.COULD_NOT


def version() -> str:
    """Return the release of ghsched."""
    return metadata.version('ghsched')


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add the option --version to a command."""
    parser.add_argument('--version', action='version',
                        version=f'%(prog)s {version()}')


def drop_output() -> None:
    """Discard the output that is still to be written.

    Python would try once more at its end, and complain.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
