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


"""What needs root: files of ``/proc/irq`` are writable for root alone."""

import errno
import os
from pathlib import Path

from ghsched_nova.interrupts import model
from ghsched_nova import privsep
from ghsched_placement import cpulist

#: ``write_irq_affinity`` of kernel/irq/proc.c; older kernels have EIO where
#: newer ones have EPERM.
_FIXED = ('the kernel keeps it where it is (it manages the interrupt itself, '
          'or the chip cannot move it)')
_WHY = {
    errno.EIO: _FIXED, errno.EPERM: _FIXED,
    errno.ENOSPC: 'these CPUs have no interrupt vector left',
    errno.EINVAL: 'none of these CPUs is online, or the interrupt goes to a '
                  'vCPU without the host',
}


def steer(action: model.Action) -> str:
    """Send an interrupt to CPUs, if it is still that interrupt.

    :returns: why it could not be done; empty when it was.
    """
    return _steer(action.interrupt.number, action.interrupt.name,
                  cpulist.render(action.cpus))


def perform(action: model.Action) -> str:
    """:func:`steer` in a process that may; see there."""
    return write(action.interrupt.number, action.interrupt.name,
                 cpulist.render(action.cpus))


@privsep.context.entrypoint
def _steer(number: int, name: str, cpus: str) -> str:
    return write(number, name, cpus)


def write(number: int, name: str, cpus: str,
          irq: Path = Path('/proc/irq')) -> str:
    """Send the interrupt of a number to CPUs, if it is VFIO's of that name.

    The kernel makes a directory of the name while the interrupt is in use
    (``register_handler_proc``).

    :param irq: ``/proc/irq``.
    """
    path = irq / str(number)
    if not model.is_name(name) or not (path / name).is_dir():
        return 'it is not in use any more'
    try:
        (path / 'smp_affinity_list').write_text(cpus)
    except OSError as error:
        why = _WHY.get(error.errno or 0)
        return os.strerror(error.errno or 0) + (f' ({why})' if why else '')
    return ''
