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


"""Interrupts of passthrough devices that the host handles (pure).

VFIO names an interrupt by the PCI address of its device, as in
``vfio-msix[0](0000:18:00.2)`` (drivers/vfio/pci/vfio_pci_intrs.c). Interrupts
that reach the guest without the hypervisor are not counted, and the kernel
delivers them to the vCPU whatever their affinity is (its_set_affinity of
drivers/irqchip/irq-gic-v3-its.c refuses it, intel_ir_set_affinity of
drivers/iommu/intel/irq_remapping.c keeps it for later).
"""

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
import itertools
import re

from ghsched_nova.base.guest_changes import Problem
from ghsched_placement.base import cpulist
from ghsched_placement.base import decimals

#: Pattern of the names of VFIO interrupts.
NAME_PATTERN = (r'vfio-(msix|msi|intx)(?:\[[0-9]{1,5}\])?\('
                r'([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\)')
_NAME = re.compile(NAME_PATTERN)


@dataclass(frozen=True)
class Interrupt:
    """Interrupt of a passthrough device.

    :param number: interrupt number of the kernel.
    :param name: name that VFIO gives to the interrupt vector of the device.
    :param device: PCI address of the device.
    :param count: number of times the host has handled the interrupt, on all
        CPUs.
    :param is_exclusive: whether no other device uses the interrupt.
    """

    number: int
    name: str
    device: str
    count: int
    is_exclusive: bool

    @property
    def can_bypass_host(self) -> bool:
        """Whether the guest can get this interrupt without the host.

        The value is False for wired (INTx) interrupts.
        """
        return not self.name.startswith('vfio-intx')


@dataclass(frozen=True)
class IrqAffinity:
    """CPUs that handle an interrupt, from ``/proc/irq``.

    :param cpus: CPUs that may handle the interrupt.
    :param effective: CPUs that the kernel has selected of these; empty if it
        does not report them.
    :param node: NUMA node of the device; None if the device has none.
    """

    cpus: frozenset[int]
    effective: frozenset[int] = frozenset()
    node: int | None = None


@dataclass(frozen=True)
class InterruptGuest:
    """Running guest whose interrupts housekeeping CPUs must handle.

    :param devices: host PCI addresses of the guest's passthrough devices.
    """

    uuid: str
    name: str
    devices: frozenset[str]


@dataclass(frozen=True)
class HostCpus:
    """CPUs of a host, and those of them that must not handle interrupts.

    :param nodes: online CPUs by NUMA node.
    :param reserved: CPUs that are dedicated to guests or isolated. They must
        not handle interrupts.
    :param bypass: whether message signalled interrupts bypass the hypervisor.
    """

    nodes: Mapping[int, frozenset[int]] = field(default_factory=dict)
    reserved: frozenset[int] = frozenset()
    bypass: bool = False

    @property
    def online(self) -> frozenset[int]:
        return frozenset().union(*self.nodes.values())

    def get_housekeeping_cpus(self, node: int | None) -> frozenset[int]:
        """Return a NUMA node's CPUs that are neither dedicated nor isolated.

        Dedicated CPUs are those that guests have for themselves. Isolated CPUs
        are those that the kernel does not use for other threads.

        :param node: NUMA node; None for all CPUs of the host.
        """
        cpus = self.online if node is None else self.nodes.get(
            node, frozenset())
        return cpus - self.reserved


@dataclass(frozen=True)
class InterruptChange:
    """Change of the CPUs that handle one interrupt.

    :param uuid: UUID of the guest whose device sends the interrupt.
    :param cpus: CPUs that shall handle the interrupt.
    :param reason: present affinity, as text.
    """

    uuid: str
    interrupt: Interrupt
    cpus: frozenset[int]
    reason: str

    kind = 'steer interrupt'
    #: No thread of QEMU is changed.
    threads: tuple[int, ...] = ()

    @property
    def line(self) -> str:
        """CPUs that the interrupt moves to, as a list such as ``0-3,8``."""
        return cpulist.render_cpu_list(self.cpus)

    @property
    def subject(self) -> str:
        return f'interrupt {self.interrupt.number} of {self.interrupt.device}'

    @property
    def details(self) -> str:
        return f'{self.subject}: CPUs {self.line}'


def parse_interrupts(text: str) -> list[Interrupt]:
    """Return the interrupts of passthrough (VFIO) devices of this host.

    They are returned in the order of the kernel.

    :param text: content of ``/proc/interrupts``, proc(5).
    """
    return [one for line in text.splitlines() for one in _parse_line(line)]


def _parse_line(line: str) -> Iterator[Interrupt]:
    begin, _colon, rest = line.partition(':')
    number = decimals.parse_decimal(begin)
    if number is None or 'vfio-' not in rest:
        return
    counts = itertools.takewhile(lambda count: count is not None,
                                 map(decimals.parse_decimal, rest.split()))
    # The first part begins with the chip and its name of the interrupt.
    users = [part.split()[-1] for part in rest.split(', ') if part.split()]
    found = [match for user in users if (match := _NAME.fullmatch(user))]
    total = sum(filter(None, counts))
    for match in found:
        yield Interrupt(number, match[0], match[2], total,
                        len(users) == len(found) == 1)


def is_vfio_interrupt_name(name: str) -> bool:
    """Whether an interrupt with this name belongs to a VFIO device.

    VFIO is the kernel's driver of passthrough devices.
    """
    return _NAME.fullmatch(name) is not None


def count_interrupts_by_device(text: str) -> Mapping[str, int]:
    """Return interrupt counts of passthrough devices, by PCI address.

    :param text: content of ``/proc/interrupts``.
    """
    found = collections.Counter[str]()
    for one in parse_interrupts(text):
        found[one.device] += one.count
    return found


def select_steerable_interrupts(
    guests: Iterable[InterruptGuest], interrupts: Iterable[Interrupt],
    bypass: bool
) -> list[tuple[InterruptGuest, Interrupt]]:
    """Return the device interrupts that ghsched may move to other CPUs.

    Shared interrupts are left out. Interrupts that reach the guest without the
    host are left out, too.

    :param bypass: whether message signalled interrupts bypass the hypervisor.
    :returns: each interrupt with its guest.
    """
    owners = {device: guest for guest in guests for device in guest.devices}
    return [(owners[one.device], one) for one in interrupts
            if one.device in owners and one.is_exclusive
            and not (bypass and one.can_bypass_host)]


def plan_interrupt_actions(
        interrupts: Iterable[tuple[InterruptGuest, Interrupt]],
        routes: Mapping[int, IrqAffinity],
        host: HostCpus) -> tuple[tuple[InterruptChange, ...],
                                 tuple[Problem, ...]]:
    """Plan moves of device interrupts to housekeeping CPUs.

    Housekeeping CPUs are neither dedicated to guests nor isolated. An
    interrupt that already goes to some of them is not moved, because
    irqbalance may have chosen them.

    :param interrupts: interrupts, each with its guest.
    :param routes: affinity by interrupt number; released interrupts are
        missing.
    :returns: the moves, and a problem for each interrupt that cannot move.
    """
    actions, problems = [], dict[Problem, None]()
    for guest, interrupt in interrupts:
        route = routes.get(interrupt.number)
        if route is None:
            continue
        cpus = host.get_housekeeping_cpus(route.node)
        if not cpus:
            problems[_make_no_cpu_problem(guest, interrupt, route)] = None
        elif not (route.cpus & host.online) <= cpus:
            actions.append(
                InterruptChange(guest.uuid, interrupt, cpus,
                                _describe_route(route))
            )
    return tuple(actions), tuple(problems)


def _make_no_cpu_problem(
        guest: InterruptGuest, interrupt: Interrupt,
        route: IrqAffinity) -> Problem:
    """Return the problem that there is no CPU to move an interrupt to.

    All CPUs of the interrupt's NUMA node are dedicated to guests or isolated.
    """
    where = 'the host' if route.node is None else f'NUMA node {route.node}'
    return Problem(
        guest.uuid, f'interrupts of {interrupt.device} stay where they are: '
                    f'{where} has no CPU that no guest has for itself')


def _describe_route(route: IrqAffinity) -> str:
    goes = (f', and goes to {cpulist.render_cpu_list(route.effective)}'
            if route.effective else '')
    return f'it may go to CPUs {cpulist.render_cpu_list(route.cpus)}{goes}'
