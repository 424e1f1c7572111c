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


"""Reading and writing of control groups, and the errors of the kernel.

The lock, the files and the order of events are those of libvirt: flock on
the resctrl root directory, one write per line, the kernel's own words on a
refusal in info/last_cmd_status.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import errno
import fcntl
import os
from pathlib import Path
import stat
import time

from ghsched_nova.resctrl import kernel_mode
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import tasks
from ghsched_placement.base import retries

#: Maximum time in seconds to wait for the lock of resctrl. libvirt holds it
#: while it creates a group.
LOCK_TIMEOUT = 10.0

#: Maximum time in seconds that a reader waits for a writing process.
READER_PATIENCE = 0.5

_PROC = Path('/proc')


class GroupError(Exception):
    """Error of a change of resctrl, such as a refusal of the kernel.

    All arguments are numbers or texts, because oslo.privsep sends them from
    the privileged helper to nova-compute, which creates the error again.

    :param reason: description of the error.
    :param path: file or directory of the error.
    :param line: schemata line that was being written; empty for none.
    :param errno: error number of the operating system; 0 for none.
    :param status: content of info/last_cmd_status.
    """

    def __init__(self, reason: str, path: str = '', line: str = '',
                 errno: int = 0, status: str = '') -> None:
        super().__init__(reason, path, line, errno, status)
        self.reason = reason
        self.path = path
        self.line = line
        self.errno = errno
        self.status = status

    def __str__(self) -> str:
        text = f'{self.path}: {self.reason}' if self.path else self.reason
        if self.line:
            text += f' (line {self.line})'
        if self.errno:
            text += (f': {os.strerror(self.errno)} '
                     f'({errno.errorcode.get(self.errno, self.errno)})')
        if self.status:
            text += f'; the kernel says: {self.status}'
        return text


class Files:
    """File operations on resctrl, which tests can replace."""

    def read(self, path: Path) -> str:
        return path.read_text(encoding='utf-8', errors='replace')

    def write(self, path: Path, text: str) -> None:
        """Write text to an existing file in one system call.

        resctrl requires a single system call. The file is never created.

        :raises OSError: if the file is missing or the kernel refuses the text.
        """
        data = text.encode()
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.EIO, 'short write', str(path))
        finally:
            os.close(descriptor)

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def wait(self, seconds: float) -> None:
        """Sleep for the given number of seconds."""
        time.sleep(seconds)

    def directories(self, path: Path) -> list[str]:
        """Return the sorted names of the subdirectories of a directory."""
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    @contextlib.contextmanager
    def directory_lock(self, path: Path, timeout: float) -> Iterator[None]:
        """Within this context, hold the exclusive lock of a directory.

        libvirt takes the same lock before it creates a control group.

        :param timeout: maximum time to wait for the lock, in seconds.
        :raises TimeoutError: if the lock is not free within the timeout.
        """
        descriptor = os.open(
            path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            | os.O_NOFOLLOW)
        try:
            retries.acquire_file_lock(descriptor, timeout)
            yield
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def resctrl_lock(files: Files, root: Path, timeout: float) -> Iterator[None]:
    """Within this context, hold the exclusive lock of the mounted resctrl.

    :raises GroupError: if resctrl is not mounted, or another process holds the
        lock for longer than the timeout.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(files.directory_lock(root, timeout))
        except TimeoutError:
            raise GroupError(
                f'another process has held the lock for {timeout:g} seconds; '
                'see /proc/locks for its process id',
                str(root),
            ) from None
        except OSError as exc:
            raise make_group_error(
                'resctrl cannot be locked', root, exc
            ) from exc
        if not os.path.isdir(root / 'info'):
            raise GroupError(
                'there is no directory info; is resctrl still mounted?',
                str(root))
        yield


def wait_for_writer(root: Path, patience: float = READER_PATIENCE) -> None:
    """Wait until no process holds the resctrl lock, before reading files.

    Since Linux 7.3 each read of a file of a group empties info/last_cmd_status
    (rdtgroup_kn_lock_live() in fs/resctrl/rdtgroup.c), which a writing process
    may be about to read. The lock is not held while reading: a stopped reader
    would prevent libvirt from starting guests.

    :param patience: maximum time to wait in seconds.
    """
    try:
        descriptor = os.open(
            root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            | os.O_NOFOLLOW)
    except OSError:     # it is for others than nova-compute and root alone
        return
    try:
        retries.acquire_file_lock(descriptor, patience, fcntl.LOCK_SH)
    except (OSError, TimeoutError):
        return
    finally:
        os.close(descriptor)


def can_any_user_lock(root: Path) -> bool:
    """Whether unprivileged users can lock the resctrl directory.

    A process that holds a lock (flock(2)) there prevents libvirt from starting
    guests.
    """
    try:
        return bool(root.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def write_line(files: Files, root: Path, path: Path, line: str) -> None:
    """Write one line to a file of resctrl, e.g. schemata or tasks.

    :raises GroupError: with the line and the kernel's message, if the kernel
        refuses it.
    """
    try:
        files.write(path, line)
    except OSError as exc:
        raise GroupError(
            'the write was refused', str(path), line.rstrip('\n'),
            exc.errno or 0, read_last_status(files, root)) from exc


def move_devices(
    files: Files, root: Path, group: Path, devices: Iterable[int]
) -> None:
    """Move the IOMMU groups of devices to a resctrl control group.

    IOMMU groups that no longer exist are skipped.

    :param devices: numbers of IOMMU groups.
    :raises GroupError: if the kernel refuses a move.
    """
    for number in devices:
        try:
            write_line(files, root, group / 'tasks', f'iommu_group:{number}\n')
        except GroupError as error:
            if error.errno != errno.ESRCH:
                raise


def read_last_status(files: Files, root: Path) -> str:
    """Return the kernel's error message for the last resctrl command.

    It is the text of info/last_cmd_status, empty after a success.
    """
    try:
        status = files.read(root / 'info' / 'last_cmd_status').strip()
    except OSError:
        return ''
    return '' if status == 'ok' else status


def read_kernel_binding(files: Files, root: Path
                        ) -> kernel_mode.KernelBinding | None:
    """Return the group to which the kernel's own work is bound, if any."""
    texts = []
    for name in ('kernel_mode', 'kernel_mode_assignment'):
        try:
            texts.append(files.read(root / 'info' / name))
        except OSError:
            texts.append('')
    return kernel_mode.parse_kernel_mode(*texts)


def make_group_error(reason: str, path: Path, exc: OSError) -> GroupError:
    """Convert an OSError to a GroupError with a reason, path and errno."""
    return GroupError(reason, str(path), errno=exc.errno or 0)


def remove_group(root: Path, uuid: str, *, files: Files | None = None,
                 proc: Path = _PROC,
                 lock_timeout: float = LOCK_TIMEOUT) -> bool:
    """Remove a guest's control groups unless vCPU threads are still in them.

    A guest with vCPU classes has one for each class. A group to which the
    kernel's own work is bound is in use, too.

    :returns: False if a group is in use, or if there is none.
    :raises GroupError: if the kernel refuses the removal.
    """
    files = files or Files()
    with resctrl_lock(files, root, lock_timeout):
        bound = read_kernel_binding(files, root)
        kept = bound.group.top if bound is not None else ''
        try:
            found = [name for name in files.directories(root)
                     if naming.parse_group_name(name).uuid == uuid]
        except OSError as exc:
            raise make_group_error('cannot be listed', root, exc) from exc
        removed = [name != kept and _remove_unused_group(
            files, root, root / name, proc) for name in found]
    return bool(removed) and all(removed)


def _remove_unused_group(files: Files, root: Path, path: Path,
                         proc: Path) -> bool:
    try:
        listed = files.read(path / 'tasks')
        if tasks.select_vcpu_threads(tasks.parse_thread_ids(listed), proc):
            return False
        move_devices(
            files, root, root, sorted(tasks.parse_iommu_groups(listed))
        )
        files.remove_directory(path)
    except FileNotFoundError:
        return False
    except OSError as exc:
        raise make_group_error('cannot be removed', path, exc) from exc
    return True
