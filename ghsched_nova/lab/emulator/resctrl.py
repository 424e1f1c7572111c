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


"""A resctrl file system in user space, for hosts without RDT or MPAM.

:class:`ghsched_nova.lab.emulator.kernel.ResctrlModel` behind FUSE, with the
real threads of the machine. Run as root; it stays in the foreground and
unmounts when it gets SIGTERM or SIGINT::

    ghsched-resctrl-emulator --dialect openeuler66 \\
        --nodes '0=0;1=1' /sys/fs/resctrl

Unmodified libvirt works on it (it checks paths, not the file system type).
All traffic and occupancy figures are *simulated*, see
:mod:`ghsched_nova.lab.emulator.kernel`.

What FUSE needs for that: ``direct_io``, because every file has size 0;
``truncate`` that does nothing, because libvirt opens with O_TRUNC; no caching
of attributes and names; no ``flock`` operation, so that the kernel itself
keeps the locks that libvirt takes on the root directory.
"""

import argparse
from collections.abc import Callable
import errno
import functools
import itertools
import json
import os
import stat
import sys
import threading
import time
from typing import Any
from typing import Generic
from typing import TypeVar

import mfusepy

from ghsched_nova.lab.emulator import contention
from ghsched_nova.lab.emulator import cpusets
from ghsched_nova.lab.emulator import described
from ghsched_nova.lab.emulator import faults as faultlib
from ghsched_nova.lab.emulator import kernel
from ghsched_nova.lab.emulator import machines

_T = TypeVar('_T')
_TICKS = os.sysconf('SC_CLK_TCK')
#: Longest write that kernfs takes at once (a page).
_LONGEST_WRITE = 4096
#: How much of a file's text goes into the log.
_LOGGED = 1000


class ProcThreads:
    """The threads of this machine, from /proc.

    :param namespace: a mount namespace as ``/proc/PID/ns/mnt`` names it; only
        threads in it count. Empty for all of the machine.
    """

    def __init__(self, namespace: str = ''):
        self._namespace = namespace

    def sample(self, tid: int) -> kernel.Sample | None:
        """Return the start, CPU time and last CPU of a thread, see
        proc_pid_stat(5): fields 14, 15, 22 and 39.
        """
        try:
            with open(f'/proc/{tid}/task/{tid}/stat') as stream:
                fields = stream.read().rpartition(')')[2].split()
        except OSError:
            return None
        if len(fields) < 37 or fields[0] in 'ZX':
            return None
        used = int(fields[11]) + int(fields[12])
        return kernel.Sample(int(fields[19]), used / _TICKS, int(fields[36]))

    def thread_ids(self) -> set[int]:
        found: set[int] = set()
        for pid in filter(str.isdigit, os.listdir('/proc')):
            if not self._namespace or self._namespace == namespace_of(pid):
                found |= _tids(int(pid))
        return found

    def offspring(self, tid: int) -> set[int]:
        try:
            with open(f'/proc/{tid}/status') as stream:
                leader = f'\nTgid:\t{tid}\n' in stream.read()
        except OSError:
            return set()
        if not leader:
            return set()
        threads = _tids(tid)
        children: set[int] = set()
        for one in threads:
            for child in _children(tid, one):
                children |= _tids(child)
        return (threads | children) - {tid}

    def now(self) -> int:
        return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def namespace_of(pid: int | str) -> str:
    """Return the mount namespace of a process; empty when it has ended."""
    try:
        return os.readlink(f'/proc/{pid}/ns/mnt')
    except OSError:
        return ''


def _tids(pid: int) -> set[int]:
    try:
        return {int(tid) for tid in os.listdir(f'/proc/{pid}/task')}
    except OSError:
        return set()


def _children(pid: int, tid: int) -> list[int]:
    try:
        with open(f'/proc/{pid}/task/{tid}/children') as stream:
            return [int(word) for word in stream.read().split()]
    except OSError:
        return []


class Watched(Generic[_T]):
    """Parsed content of a file that may change at any time.

    It is looked at before each operation, and understood again when its text
    changes; counts of ``times`` in a fault file begin again then. A file that
    is missing says nothing; one that cannot be understood is reported once
    on stderr and says nothing.
    """

    def __init__(self, path: str | None, parse: Callable[[str], _T]):
        self._path = path
        self._parse = parse
        self._text = ''
        self._said = parse('')

    def __call__(self) -> _T:
        text = self._read()
        if text != self._text:
            self._text = text
            try:
                self._said = self._parse(text)
            except ValueError as exc:
                print(f'{self._path}: {exc}', file=sys.stderr, flush=True)
                self._said = self._parse('')
        return self._said

    def _read(self) -> str:
        if self._path is None:
            return ''
        try:
            with open(self._path) as stream:
                return stream.read()
        except OSError:
            return ''


class Log:
    """Log of file operations, a JSON object per line; without a path, none is
    written.
    """

    def __init__(self, path: str | None):
        self._stream = open(path, 'a', buffering=1) if path else None
        self._start = time.monotonic()

    def __call__(self, operation: str, path: str, **more: Any) -> None:
        if self._stream is None:
            return
        caller = mfusepy.fuse_get_context()[2]
        entry = {
            't': round(time.monotonic() - self._start, 3),
            'pid': caller,
            'comm': _comm(caller),
            'op': operation,
            'path': path,
        }
        self._stream.write(json.dumps(entry | more) + '\n')


def _comm(tid: int) -> str:
    try:
        with open(f'/proc/{tid}/comm') as stream:
            return stream.read().strip()
    except OSError:
        return '?'


def _operation(method: Callable[..., Any]) -> Callable[..., Any]:
    """Serialise, log, and turn a ResctrlError into an errno."""
    name = method.__name__

    @functools.wraps(method)
    def wrapped(self: 'ResctrlFS', path: str, *args: Any) -> Any:
        with self._mutex:
            more: dict[str, Any] = {}
            try:
                return method(self, path, *args, more=more)
            except kernel.ResctrlError as exc:
                more['err'] = errno.errorcode[exc.number]
                raise mfusepy.FuseOSError(exc.number) from None
            finally:
                self._log(name, path, **more)

    return wrapped


class ResctrlFS(mfusepy.Operations):
    """FUSE operations over a model."""

    use_ns = True

    def __init__(self, model: kernel.ResctrlModel, log: Log):
        self.model = model
        self._log = log
        self._mutex = threading.RLock()
        self._handles = itertools.count(1)
        self._texts: dict[int, bytes] = {}
        self._mounted = time.time()
        self._root_mode: int | None = None
        self._root_owner = (0, 0)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        with self._mutex:
            try:
                entry = self.model.lookup(path)
            except kernel.ResctrlError as exc:
                raise mfusepy.FuseOSError(exc.number) from None
        made = entry.group.created if entry.group else self._mounted
        when = int(made * 1e9)
        kind = stat.S_IFREG if entry.children is None else stat.S_IFDIR
        mode, (uid, gid) = entry.mode, (0, 0)
        if path == '/':
            uid, gid = self._root_owner
            if self._root_mode is not None:
                mode = self._root_mode
        return {
            'st_mode': kind | mode, 'st_uid': uid, 'st_gid': gid,
            'st_nlink': 1 if entry.children is None else 2, 'st_size': 0,
            'st_atime': when, 'st_mtime': when, 'st_ctime': when,
        }

    @_operation
    def readdir(
        self, path: str, fh: int, *, more: dict[str, Any]
    ) -> list[str]:
        return ['.', '..', *self.model.listdir(path)]

    @_operation
    def open(self, path: str, flags: int, *, more: dict[str, Any]) -> int:
        more['flags'] = oct(flags)
        entry = self.model.lookup(path)
        if flags & (os.O_WRONLY | os.O_RDWR) and entry.write is None:
            raise kernel.ResctrlError(errno.EACCES, None)
        return next(self._handles)

    @_operation
    def read(
        self, path: str, size: int, offset: int, fh: int, *,
        more: dict[str, Any],
    ) -> bytes:
        if offset == 0 or fh not in self._texts:
            text = self.model.read(path)
            more['data'] = text[:_LOGGED]
            self._texts[fh] = text.encode()
        return self._texts[fh][offset:offset + size]

    def release(self, path: str, fh: int) -> int:
        with self._mutex:
            self._texts.pop(fh, None)
        return 0

    @_operation
    def write(
        self, path: str, data: bytes, offset: int, fh: int, *,
        more: dict[str, Any],
    ) -> int:
        text = bytes(data).decode(errors='surrogateescape')
        more['data'] = text[:_LOGGED]
        if len(data) > _LONGEST_WRITE:
            raise kernel.ResctrlError(errno.E2BIG, None)
        self.model.write(path, text, mfusepy.fuse_get_context()[2])
        return len(data)

    @_operation
    def truncate(
        self, path: str, length: int, fh: int | None = None, *,
        more: dict[str, Any],
    ) -> int:
        return 0

    @_operation
    def mkdir(self, path: str, mode: int, *, more: dict[str, Any]) -> int:
        self.model.mkdir(path)
        return 0

    @_operation
    def rmdir(self, path: str, *, more: dict[str, Any]) -> int:
        self.model.rmdir(path)
        return 0

    # kernfs has no inode operations for these.

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        raise mfusepy.FuseOSError(errno.EACCES)

    def unlink(self, path: str) -> int:
        raise mfusepy.FuseOSError(errno.EPERM)

    def rename(self, old: str, new: str) -> int:
        raise mfusepy.FuseOSError(errno.EPERM)

    def symlink(self, target: str, source: str) -> int:
        raise mfusepy.FuseOSError(errno.EPERM)

    def link(self, target: str, source: str) -> int:
        raise mfusepy.FuseOSError(errno.EPERM)

    def mknod(self, path: str, mode: int, dev: int) -> int:
        raise mfusepy.FuseOSError(errno.EPERM)

    def chmod(self, path: str, mode: int) -> int:
        """Change the mode of the root, and ignore that of other entries."""
        if path == '/':
            self._root_mode = stat.S_IMODE(mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        """Change the owner and group of the root, and ignore that of others.

        :param uid: owner; -1 leaves it as it is, as in ``gid``.
        """
        if path == '/':
            owner, group = self._root_owner
            self._root_owner = (owner if uid == -1 else uid,
                                group if gid == -1 else gid)
        return 0

    def utimens(self, path: str, times: Any = None) -> int:
        return 0


def serve(
    machine: machines.Machine,
    mountpoint: str,
    log: str | None = None,
    faults: str | None = None,
    load: str | None = None,
    own_namespace: bool = False,
) -> None:
    """Mount and serve until the file system is unmounted.

    :param log: file to which every operation is appended.
    :param faults: fault file, see :mod:`ghsched_nova.lab.emulator.faults`.
    :param load: load file, see :mod:`ghsched_nova.lab.emulator.contention`.
    :param own_namespace: whether the threads in the mount namespace of this
        process are all that there are.
    :raises RuntimeError: libfuse could not mount; it says why on stderr.
    """
    model = kernel.ResctrlModel(
        machine, ProcThreads(namespace_of('self') if own_namespace else ''),
        faults=Watched(faults, faultlib.parse_text),
        load=Watched(load, lambda text: contention.parse_text(text, machine)),
    )
    mfusepy.FUSE(
        ResctrlFS(model, Log(log)), mountpoint, foreground=True,
        nothreads=True, allow_other=True, default_permissions=True,
        direct_io=True, attr_timeout=0, entry_timeout=0, negative_timeout=0,
        # FUSE has no place for options of others: /proc/mounts has them here.
        fsname='resctrl', subtype='.'.join(('ghsched',
                                            *machine.mount_options)),
    )


def _all_cpus() -> str:
    return '0=' + cpusets.format_list(range(os.cpu_count() or 1))


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """The options that say what machine is emulated."""
    parser.add_argument(
        '--dialect', choices=sorted({*machines.DIALECTS, *described.MACHINES}),
        default='openeuler66',
        help='whose resctrl (default: %(default)s)',
    )
    parser.add_argument(
        '--closids', type=int, metavar='N',
        help='control groups, the default group included',
    )
    parser.add_argument(
        '--rmids', type=int, metavar='N', help='monitoring ids in all',
    )
    parser.add_argument(
        '--without', action='append', default=[], metavar='LINE',
        help='a schemata line that this machine does not have',
    )
    parser.add_argument(
        '--faults', metavar='FILE',
        help='JSON file of faults, read again at each operation',
    )
    parser.add_argument(
        '--load', metavar='FILE',
        help='JSON file of what groups and tasks would like to move, read '
             'again at each operation',
    )


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog='ghsched-resctrl-emulator',
        description='Mount an emulated resctrl file system.',
    )
    add_machine_options(parser)
    parser.add_argument(
        '--nodes', default=_all_cpus(), metavar='N=CPUS;...',
        help='NUMA nodes and their CPUs (default: one node, all CPUs)',
    )
    parser.add_argument(
        '--log', metavar='FILE', help='append one JSON line per operation',
    )
    parser.add_argument(
        '--own-namespace', action='store_true',
        help='only threads in this mount namespace are of the machine',
    )
    parser.add_argument('mountpoint')
    args = parser.parse_args(argv)
    try:
        machine = described.build(
            args.dialect, args.nodes, args.closids, args.rmids,
            without=args.without,
        )
    except machines.BadMachine as exc:
        parser.error(str(exc))
    try:
        serve(machine, args.mountpoint, args.log, args.faults, args.load,
              args.own_namespace)
    except (OSError, RuntimeError) as exc:
        print(f'{args.mountpoint}: cannot serve: {exc}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
