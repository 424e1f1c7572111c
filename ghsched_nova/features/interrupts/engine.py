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


"""Steering of interrupts of passthrough devices to housekeeping CPUs.

``/proc/irq/N`` is described in Documentation/core-api/irq/irq-affinity.rst.
"""

from collections.abc import Callable
from collections.abc import Iterable
from pathlib import Path

from ghsched_nova.base import guest_changes
from ghsched_nova.features.interrupts import model
from ghsched_placement.base import cpulist
from ghsched_placement.base import decimals

#: Function that sets the CPUs of an interrupt; returns the error, or an empty
#: text.
Steer = Callable[[model.InterruptChange], str]
Report = guest_changes.ChangeReport[model.InterruptChange]


def plan_interrupt_changes(
    guests: Iterable[model.InterruptGuest], host: model.HostCpus,
    proc: Path = Path('/proc')
) -> Report:
    """Return the changes that move device interrupts to housekeeping CPUs.

    The devices are passthrough devices of guests. Nothing is changed.

    :param proc: mount point of procfs.
    """
    guests = list(guests)
    text = _read_text(proc / 'interrupts') if guests else ''
    found = model.select_steerable_interrupts(
        guests, model.parse_interrupts(text), host.bypass)
    routes = {
        interrupt.number: route for _guest, interrupt in found
        if (route := read_interrupt_affinity(
            proc / 'irq' / str(interrupt.number)))}
    return Report(*model.plan_interrupt_actions(found, routes, host))


def reconcile_interrupts(guests: Iterable[model.InterruptGuest],
                         host: model.HostCpus,
                         proc: Path = Path('/proc'),
                         set_cpus: Steer | None = None) -> Report:
    """Move interrupts of passthrough devices to housekeeping CPUs.

    Housekeeping CPUs are neither dedicated to guests nor isolated. Interrupts
    that already go there are not moved.

    :param set_cpus: function that moves an interrupt; the privileged helper by
        default.
    :returns: the moves that were made, and the reasons of those that failed.
    """
    if set_cpus is None:
        # oslo.privsep is slow to import and needed only for changes.
        from ghsched_nova.features.interrupts import privileged

        set_cpus = privileged.set_interrupt_cpus
    found = plan_interrupt_changes(guests, host, proc)
    failed = {action: why for action in found.actions
              if (why := set_cpus(action))}
    return Report(
        tuple(one for one in found.actions if one not in failed),
        (*found.problems, *(
            guest_changes.Problem(action.uuid, f'{action.details}: {why}')
            for action, why in failed.items())))


def read_interrupt_affinity(path: Path) -> model.IrqAffinity | None:
    """Read which CPUs may handle an interrupt.

    :param path: directory of the interrupt in ``/proc/irq``.
    :returns: None if the interrupt has been released.
    """
    cpus = cpulist.read_cpu_list(path / 'smp_affinity_list')
    if cpus is None:
        return None
    effective = (cpulist.read_cpu_list(path / 'effective_affinity_list')
                 or frozenset())
    # The kernel shows -1 for a device without a node.
    return model.IrqAffinity(cpus, effective,
                             decimals.parse_decimal(_read_text(path / 'node')))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors='replace')
    except OSError:
        return ''
