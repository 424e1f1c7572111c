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

"""A running QEMU as libvirt and procfs show it: its process, its threads.

For the parts of :mod:`ghsched_nova` that know neither Nova nor each other.
"""

from pathlib import Path
import re

#: Names that QEMU gives its threads with ``debug-threads=on``, which libvirt
#: sets (``qemu_thread_create`` in accel/*, ``iothread.c``).
_VCPU = re.compile(r'CPU ([0-9]{1,6})/(?:KVM|TCG)')
_IOTHREAD = re.compile(r'IO iothread([0-9]{1,6})')
_PID = re.compile(r'[0-9]{1,10}')
#: qemuDomainObjPrivateXMLFormatVcpus() of libvirt's src/qemu/qemu_domain.c.
_VCPU_PID = re.compile(r"<vcpu id='([0-9]{1,6})' pid='([0-9]{1,10})'/>")
#: No pid file is longer.
_MOST = 4096
#: Characters of libvirt's status of a domain that are read.
_STATUS_SIZE = 4 << 20


def process_of(run_path: Path, name: str) -> int | None:
    """The process of a running domain; None when libvirt does not say.

    :param run_path: where libvirt has ``<domain name>.pid``.
    """
    try:
        with open(run_path / f'{name}.pid', errors='replace') as stream:
            text = stream.read(_MOST).strip()
    except (OSError, ValueError):
        return None
    return int(text) if _PID.fullmatch(text) else None


def vcpu_threads(run_path: Path, name: str) -> dict[int, int] | None:
    """Return the threads of a domain's vCPUs by number, as libvirt has them.

    Only root can read that file. QEMU without a thread for each vCPU gives
    an empty dictionary.

    :param run_path: where libvirt has ``<domain name>.xml``.
    :returns: None when there is no such file, or it cannot be read.
    """
    try:
        with open(run_path / f'{name}.xml', errors='replace') as stream:
            text = stream.read(_STATUS_SIZE)
    except (OSError, ValueError):
        return None
    # What users can write is in the element <domain>, which is the last one.
    return {int(number): int(tid) for number, tid
            in _VCPU_PID.findall(text.partition('<domain ')[0])}


def vcpu_of(name: str) -> int | None:
    """The vCPU that a thread of this name is; None for other threads."""
    return _number(_VCPU, name)


def iothread_of(name: str) -> int | None:
    """Likewise the I/O thread."""
    return _number(_IOTHREAD, name)


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return int(match[1]) if match else None
