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


"""Which control group is a guest's, and which threads are in it.

libvirt makes the group when it starts a guest and names it
``qemu-<domain id>-<name>-vcpus_<list>``: the guest's name without anything
but ``[A-Za-z0-9.-]`` and cut off at about 64 characters, the list as its
bitmaps are written. The domain id and the list identify the group; the name
does not, because it may be cut.
"""

from collections.abc import Collection
from collections.abc import Iterable
from pathlib import Path
import re

_THREAD = re.compile(r'CPU ([0-9]{1,6})/(?:KVM|TCG)')
_TID = re.compile(r'[0-9]{1,10}')


class GroupError(LookupError):
    """The group is not there, or not as it should be; says why."""


def canonical_list(numbers: Collection[int]) -> str:
    """Numbers as libvirt writes a bitmap, e.g. ``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ','.join(str(first) if first == last else f'{first}-{last}'
                    for first, last in runs)


def find_groups(names: Iterable[str], domain_id: int,
                vcpus: Collection[int]) -> list[str]:
    """Groups that can be the one libvirt made for a running guest.

    There is more than one where libvirt has forgotten a group (its QEMU died
    while libvirtd was down) and has given the domain id again.

    :param names: the directories below the resctrl root.
    :param domain_id: libvirt's id of the running domain.
    :param vcpus: the vCPUs in the group's <memorytune>.
    :raises GroupError: when there is none.
    """
    cpus = canonical_list(vcpus)
    pattern = re.compile(f'qemu-{domain_id}-[A-Za-z0-9.-]*-vcpus_'
                         + re.escape(cpus))
    found = sorted(name for name in names if pattern.fullmatch(name))
    if not found:
        raise GroupError(
            f'there is no control group of domain {domain_id} for vCPUs '
            f'{cpus}; libvirt makes it when it starts a guest with '
            '<memorytune>')
    return found


def vcpu_threads(tasks: str, proc: Path = Path('/proc')) -> dict[int, int]:
    """Thread ids of the vCPU threads in a group, by vCPU.

    Other threads in the group are passed over, and so are those that end
    while this looks at them.

    :param tasks: content of the group's ``tasks`` file.
    :param proc: where procfs is.
    :raises GroupError: when a vCPU is there twice or the vCPUs are of more
        than one process, as in a group that two guests share.
    """
    threads: dict[int, int] = {}
    processes: set[str] = set()
    for tid in (word for word in tasks.split() if _TID.fullmatch(word)):
        match = _THREAD.fullmatch(thread_name(proc, int(tid)))
        if not match:
            continue
        vcpu = int(match[1])
        if vcpu in threads:
            raise GroupError(f'vCPU {vcpu} is there twice, as threads '
                             f'{threads[vcpu]} and {tid}')
        threads[vcpu] = int(tid)
        processes |= process_of(proc, int(tid))
    if len(processes) > 1:
        raise GroupError('the vCPU threads are of more than one process: '
                         + ', '.join(sorted(processes)))
    return threads


def verify_threads(tasks: str, vcpus: Collection[int],
                   proc: Path = Path('/proc')) -> dict[int, int]:
    """Check that a group holds all the vCPU threads of one guest.

    :returns: thread ids by vCPU.
    :raises GroupError: when a vCPU is missing, or one too many is there.
    """
    threads = vcpu_threads(tasks, proc)
    missing = set(vcpus) - set(threads)
    if missing:
        raise GroupError('the threads of vCPUs '
                         f'{canonical_list(missing)} are not in it')
    extra = set(threads) - set(vcpus)
    if extra:
        raise GroupError(f'threads of vCPUs {canonical_list(extra)}, which '
                         'do not belong there, are in it')
    return threads


def vcpu_of(name: str) -> int | None:
    """The vCPU that a thread of this name is; None for other threads."""
    match = _THREAD.fullmatch(name)
    return int(match[1]) if match else None


def threads_of(proc: Path, process: int) -> list[str]:
    """Ids of all threads of a process; empty when it has ended."""
    try:
        return sorted(entry.name
                      for entry in (proc / str(process) / 'task').iterdir())
    except OSError:
        return []


def thread_name(proc: Path, tid: int) -> str:
    """Name of a thread, empty when there is no such thread (any more).

    QEMU names its vCPU threads ``CPU <n>/KVM``, or ``/TCG``, because libvirt
    starts it with ``debug-threads=on``.
    """
    try:
        name = (proc / str(tid) / 'comm').read_text(errors='replace')
    except OSError:
        return ''
    return name.rstrip('\n')


def process_of(proc: Path, tid: int) -> set[str]:
    """The process that a thread is of; empty when the thread has ended."""
    try:
        status = (proc / str(tid) / 'status').read_text(errors='replace')
    except OSError:
        return set()
    return {line.partition(':')[2].strip() for line in status.splitlines()
            if line.startswith('Tgid:')}
