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


"""Control groups that nova-compute makes itself, where libvirt can not.

libvirt up to 12.8 reads every line of the root group whose name begins with
``MB`` as the ``MB`` line (``virResctrlAllocParseMemoryBandwidthLine``), and
takes ``L3PRI`` for a cache (``virResctrlAllocParseCacheLine``). On a kernel
with such lines (:func:`schemata.libvirt_reads`) it refuses to start a guest
that has a ``<node>`` in its ``<memorytune>``. openEuler's libvirt knows them;
with any other the group is made here, and the vCPU threads are put into it
while the guest is paused.
"""

from collections.abc import Collection
import contextlib
import errno
from pathlib import Path

from ghsched_nova.resctrl import apply
from ghsched_nova.resctrl import groups
from ghsched_nova.resctrl import plan

#: Begins the name of every group that is ours; the guest's UUID follows.
PREFIX = 'ghsched-'

_PROC = Path('/proc')


def group_name(uuid: str) -> str:
    """The group of one guest."""
    return PREFIX + uuid


def guest_of(name: str) -> str | None:
    """UUID of the guest whose group this is; None for a group of others."""
    return name[len(PREFIX):] if name.startswith(PREFIX) else None


def enforce(root: Path, uuid: str, pid_file: Path, vcpus: Collection[int],
            desired: plan.Desired, others: plan.Others, *,
            proc: Path = _PROC, files: apply.Files | None = None,
            lock_timeout: float = apply.LOCK_TIMEOUT) -> apply.Applied:
    """Make sure of a running guest's own group: values, then threads.

    A group that is right already is not written to. One that was made here
    and could not be completed is removed again.

    :param root: where resctrl is mounted.
    :param uuid: the guest's UUID.
    :param pid_file: where libvirt has put the number of the QEMU process
        (``/run/libvirt/qemu/<domain name>.pid``).
    :param vcpus: all vCPUs of the guest.
    :param desired: values by line and domain, see plan.desired_lines.
    :param others: value of all other domains, by line.
    :raises EnforcementError: as :func:`apply.enforce`; also when the host has
        no control group left (ENOSPC).
    """
    files = files or apply.Files()
    name = group_name(uuid)
    with apply.locked(files, root, lock_timeout):
        made = _make(files, root, root / name)
        try:
            applied = apply.hold(files, root, name, desired, others)
            moved = _move(files, root, root / name / 'tasks', pid_file,
                          vcpus, proc)
        except apply.EnforcementError:
            if made:
                # It may have gone with the whole file system.
                with contextlib.suppress(OSError):
                    files.remove_directory(root / name)
            raise
    return apply.Applied(name, applied.writes, applied.schemata, moved)


def remove(root: Path, uuid: str, *, files: apply.Files | None = None,
           proc: Path = _PROC,
           lock_timeout: float = apply.LOCK_TIMEOUT) -> bool:
    """Remove a guest's own group, unless a guest still runs in it.

    :returns: whether there was one to remove.
    :raises EnforcementError: when the kernel refused.
    """
    files = files or apply.Files()
    path = root / group_name(uuid)
    with apply.locked(files, root, lock_timeout):
        try:
            tasks = files.read(path / 'tasks')
            if groups.vcpu_threads(tasks, proc):
                return False
            files.remove_directory(path)
        except FileNotFoundError:
            return False
        except groups.GroupError:
            return False      # threads of a guest, whosever it is
        except OSError as exc:
            raise apply.os_error('can not be removed', path, exc) from exc
    return True


def _make(files: apply.Files, root: Path, path: Path) -> bool:
    try:
        files.make_directory(path)
    except FileExistsError:
        return False
    except OSError as exc:
        reason = ('there is no control group left' if exc.errno ==
                  errno.ENOSPC else 'can not be made')
        raise apply.EnforcementError(
            reason, str(path), errno=exc.errno or 0,
            status=apply.last_status(files, root)) from exc
    return True


def _move(files: apply.Files, root: Path, tasks: Path, pid_file: Path,
          vcpus: Collection[int], proc: Path) -> tuple[int, ...]:
    """Put the vCPU threads that are not in the group into it."""
    threads = _threads(files, pid_file, vcpus, proc)
    inside = set(apply.read(files, tasks).split())
    moved = tuple(tid for _vcpu, tid in sorted(threads.items())
                  if str(tid) not in inside)
    for tid in moved:
        apply.write(files, root, tasks, f'{tid}\n')
    if moved:
        try:
            groups.verify_threads(apply.read(files, tasks), vcpus, proc)
        except groups.GroupError as exc:
            raise apply.EnforcementError(str(exc), str(tasks)) from exc
    return moved


def _threads(files: apply.Files, pid_file: Path, vcpus: Collection[int],
             proc: Path) -> dict[int, int]:
    text = apply.read(files, pid_file).strip()
    if not text.isdecimal():
        raise apply.EnforcementError('there is no process number in it',
                                     str(pid_file))
    try:
        return groups.verify_threads(
            ' '.join(groups.threads_of(proc, int(text))), vcpus, proc)
    except groups.GroupError as exc:
        raise apply.EnforcementError(
            f'QEMU, process {text}: {exc}', str(pid_file)) from exc
