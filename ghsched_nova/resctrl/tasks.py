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


"""Threads and devices of control groups.

What its ``tasks`` file lists, and what procfs says of these threads.
"""

from collections.abc import Iterable
from pathlib import Path
import re

from ghsched_nova.base import qemu

_IOMMU_GROUP = re.compile(r'iommu_group:([0-9]{1,9})')
_TID = re.compile(r'[0-9]{1,10}')


def parse_thread_ids(tasks: str) -> frozenset[int]:
    """Return the thread ids in the text of a resctrl ``tasks`` file.

    Entries that are not thread ids are skipped.
    """
    return frozenset(int(word) for word in tasks.split()
                     if _TID.fullmatch(word))


def parse_iommu_groups(tasks: str) -> frozenset[int]:
    """Return the IOMMU group numbers in a resctrl ``tasks`` file.

    openEuler lists devices there as ``iommu_group:17``.
    """
    return frozenset(int(match[1]) for match in
                     map(_IOMMU_GROUP.fullmatch, tasks.split()) if match)


def select_vcpu_threads(tids: Iterable[int],
                        proc: Path = Path('/proc')) -> frozenset[int]:
    """Return the threads that are vCPUs of any QEMU guest.

    :param tids: thread ids to choose from.
    :returns: ids of these threads.
    """
    return frozenset(tid for tid in tids
                     if qemu.parse_vcpu_number(read_thread_name(proc, tid))
                     is not None)


def read_thread_name(proc: Path, tid: int) -> str:
    """Return the name of a thread.

    The name is empty if the thread has ended.
    """
    try:
        name = (proc / str(tid) / 'comm').read_text(errors='replace')
    except OSError:
        return ''
    return name.rstrip('\n')


def read_process_ids(proc: Path, tid: int) -> set[str]:
    """Return a set with the process ID of a thread; empty if it has ended."""
    try:
        status = (proc / str(tid) / 'status').read_text(errors='replace')
    except OSError:
        return set()
    return {line.partition(':')[2].strip() for line in status.splitlines()
            if line.startswith('Tgid:')}
