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

"""Files that a command writes: whole, or not at all."""

import os
from pathlib import Path
import stat


def check_writable(path: Path) -> None:
    """Fail before hours of work, not after; no file is made or changed.

    :raises OSError: with the path, when nothing can be written there.
    """
    target = path.resolve()
    if target.exists():
        with target.open('a', encoding='utf-8'):
            return
    beside = _beside(target)
    try:
        with beside.open('x', encoding='utf-8'):
            pass
        beside.unlink()
    except OSError as error:
        raise _of(path, error) from None


def save(path: Path, text: str) -> None:
    """Write a file; what was there stays until all is written.

    :raises OSError: with the path, when it can not be written.
    """
    target = path.resolve()
    try:
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            # A device or a pipe takes what comes, and is no name to move.
            target.write_text(text, encoding='utf-8')
            return
        beside = _beside(target)
        try:
            beside.write_text(text, encoding='utf-8')
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise _of(path, error) from None


def _beside(target: Path) -> Path:
    """A name that nobody else uses, in the same file system."""
    return target.with_name(f'.{target.name}.{os.getpid()}')


def _of(path: Path, error: OSError) -> OSError:
    """An error that names what the user named."""
    return OSError(error.errno, error.strerror, str(path))
