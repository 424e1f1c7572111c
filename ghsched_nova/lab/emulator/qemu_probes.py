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

"""QEMU processes that libvirtd starts to learn what an emulator can do.

QEMU 7.2 may accept libvirtd's connection in one thread while another thread
has just been woken for it; the other one waits in accept(2) for a second
client, reads nothing from the first, and libvirtd waits for ever.
"""

import contextlib
from pathlib import Path
import platform
import socket

#: Number of accept4(2).
_ACCEPT4 = {'x86_64': '288', 'aarch64': '242'}.get(platform.machine(), '')

_TIMEOUT_S = 5.0


def unblock_probes(directory: Path) -> int:
    """Connect to the monitor of each QEMU process that waits in accept(2).

    :param directory: libvirt's ``qemu`` directory, in which each of these
        processes has a directory of its own.
    :returns: number of processes that were connected to.
    """
    unblocked = 0
    for monitor in directory.glob('qmp-*/qmp.monitor'):
        with contextlib.suppress(OSError):
            if _is_in_accept(monitor.with_name('qmp.pid').read_text().strip()):
                with socket.socket(socket.AF_UNIX) as client:
                    client.settimeout(_TIMEOUT_S)
                    client.connect(str(monitor))
                unblocked += 1
    return unblocked


def _is_in_accept(pid: str) -> bool:
    """Whether a thread of a process waits in accept4(2)."""
    for path in Path('/proc', pid, 'task').glob('*/syscall'):
        with contextlib.suppress(OSError):
            if path.read_text().split()[0] == _ACCEPT4:
                return True
    return False
