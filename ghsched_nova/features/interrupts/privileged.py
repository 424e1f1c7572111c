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

"""Privileged function that sets the CPUs of interrupts in ``/proc/irq``."""

import errno
import os
from pathlib import Path
from typing import Annotated

from ghsched_nova.base.bounds import Range
from ghsched_nova.base.bounds import Text
from ghsched_nova.base import kernel_files
from ghsched_nova.base import privsep
from ghsched_nova.features.interrupts import model
from ghsched_placement.base import cpulist

#: ``write_irq_affinity`` of kernel/irq/proc.c: older kernels return EIO, newer
#: ones EPERM.
_FIXED = ('the kernel keeps it where it is (it manages the interrupt itself, '
          'or the chip cannot move it)')
_WHY = {
    errno.EIO: _FIXED, errno.EPERM: _FIXED,
    errno.ENOSPC: 'these CPUs have no interrupt vector left',
    errno.EINVAL: 'none of these CPUs is online, or the interrupt goes to a '
                  'vCPU without the host',
}


def set_interrupt_cpus(action: model.InterruptChange) -> str:
    """Set the CPUs that handle an interrupt, by the privileged helper.

    :returns: error message; empty on success.
    """
    try:
        return _steer(action.interrupt.number, action.interrupt.name,
                      sorted(action.cpus))
    except privsep.HelperTimeout as error:
        return str(error)


def set_interrupt_cpus_as_root(action: model.InterruptChange) -> str:
    """Set the CPUs that handle an interrupt; the caller must be root.

    :returns: error message; empty on success.
    """
    return write_interrupt_affinity(
        action.interrupt.number, action.interrupt.name, sorted(action.cpus))


@privsep.entrypoint(privsep.context, timeout=30.0)
def _steer(number: Annotated[int, Range(0, 2 ** 24)],
           name: Annotated[str, Text(model.NAME_PATTERN)],
           cpus: list[Annotated[int, Range(0, cpulist.MAX_CPUS - 1)]]) -> str:
    return write_interrupt_affinity(number, name, cpus)


def write_interrupt_affinity(
    irq_number: int, name: str, cpus: list[int], proc: Path = Path('/proc')
) -> str:
    """Write the CPUs of an interrupt into its ``smp_affinity_list``.

    Nothing is written if the interrupt number now belongs to another
    interrupt. While the interrupt is in use, the kernel has a directory with
    its VFIO name (``register_handler_proc``).

    :param name: VFIO name of the interrupt.
    :param proc: mount point of procfs.
    :returns: error message; empty on success.
    """
    names = ['irq', str(irq_number)]
    if (
            not model.is_vfio_interrupt_name(name)
            or not Path(proc, *names, name).is_dir()):
        return 'it is not in use any more'
    try:
        kernel_files.write_kernel_file(proc, [*names, 'smp_affinity_list'],
                                       cpulist.render_cpu_list(cpus),
                                       kernel_files.PROC)
    except OSError as error:
        why = _WHY.get(error.errno or 0)
        return os.strerror(error.errno or 0) + (f' ({why})' if why else '')
    return ''
