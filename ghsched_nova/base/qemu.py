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

"""Process and threads of a running QEMU, from libvirt's files.

Used by packages of :mod:`ghsched_nova` that import neither Nova nor each
other.
"""

import os
from pathlib import Path
import re
from typing import Annotated

from ghsched_nova.base import bounds

#: Name of a libvirt domain; part of a file name.
DomainName = Annotated[str, bounds.Text(r'[^/\x00]+', 251)]

#: Names of QEMU's threads with ``debug-threads=on``, which libvirt sets
#: (``qemu_thread_create`` in accel/*).
_VCPU = re.compile(r'CPU ([0-9]{1,6})/(?:KVM|TCG)')
_PID = re.compile(r'[0-9]{1,10}')
#: ``<vcpu>`` element of libvirt's status file, written by
#: qemuDomainObjPrivateXMLFormatVcpus() of libvirt's src/qemu/qemu_domain.c.
_VCPU_PID = re.compile(r"<vcpu id='([0-9]{1,6})' pid='([0-9]{1,10})'/>")
#: Maximum number of bytes that are read of a PID file.
_MOST = 4096
#: Maximum number of characters that are read of libvirt's status file of a
#: domain.
_STATUS_SIZE = 4 << 20


def find_qemu_process(run_path: Path, domain: str) -> int | None:
    """Return the process ID of a running domain's QEMU.

    Returns None if the process ID is unknown.

    :param run_path: directory with libvirt's ``<domain name>.pid`` files.
    """
    try:
        with open(run_path / f'{domain}.pid', errors='replace') as stream:
            text = stream.read(_MOST).strip()
    except (OSError, ValueError):
        return None
    return int(text) if _PID.fullmatch(text) else None


def read_vcpu_threads(run_path: Path, domain: str) -> dict[int, int] | None:
    """Return the thread IDs of a domain's vCPUs from libvirt's status file.

    Only root can read the file.

    :param run_path: directory with libvirt's ``<domain name>.xml`` files.
    :returns: the thread IDs; empty if QEMU has no thread per vCPU, None if the
        file does not exist or cannot be read.
    """
    try:
        with open(run_path / f'{domain}.xml', errors='replace') as stream:
            text = stream.read(_STATUS_SIZE)
    except (OSError, ValueError):
        return None
    # Text of users is only inside the element <domain>, the last one.
    return {int(number): int(tid) for number, tid
            in _VCPU_PID.findall(text.partition('<domain ')[0])}


def parse_vcpu_number(thread_name: str) -> int | None:
    """Parse the vCPU number in the name of a QEMU thread.

    Returns None if the name has no vCPU number.
    """
    match = _VCPU.fullmatch(thread_name)
    return int(match[1]) if match else None


def read_thread_names(proc: Path, process: int) -> dict[int, str]:
    """Return the thread names of a process, by thread id.

    The result is empty if the process has ended.
    """
    found = {}
    top = f'{proc}/{process}/task'
    try:
        names = os.listdir(top)
    except OSError:
        return {}
    for tid in names:
        try:
            # Beside the process, not below it: /proc/<tid> is there as well.
            found[int(tid)] = read_proc_file(f'{proc}/{tid}/comm').rstrip('\n')
        except (OSError, ValueError):
            continue
    return found


def read_proc_file(path: str, max_bytes: int = 4096) -> str:
    """Return the beginning of a file of procfs as text.

    :raises OSError: if it cannot be read, for example of an ended process.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, max_bytes).decode(errors='replace')
    finally:
        os.close(descriptor)
