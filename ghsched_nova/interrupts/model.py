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

VFIO names them by the PCI address of the device, as in
``vfio-msix[0](0000:18:00.2)`` (drivers/vfio/pci/vfio_pci_intrs.c). One that
reaches the guest without the hypervisor is not counted, and the kernel
sends it to the vCPU whatever its affinity is (its_set_affinity of
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

from ghsched_placement import cpulist
from ghsched_placement import decimals

#: Pattern of the name that VFIO gives an interrupt.
NAME_PATTERN = (r'vfio-(msix|msi|intx)(?:\[[0-9]{1,5}\])?\('
                r'([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\)')
_NAME = re.compile(NAME_PATTERN)


@dataclass(frozen=True)
class Interrupt:
    """One of a passthrough device.

    :param number: of the kernel.
    :param name: of VFIO, which says which vector it is.
    :param device: PCI address.
    :param count: how often the host has handled it, on all CPUs.
    :param alone: whether no other device has the same.
    """

    number: int
    name: str
    device: str
    count: int
    alone: bool

    @property
    def can_bypass(self) -> bool:
        """KVM gives no interrupt of a wire to a guest without the host."""
        return not self.name.startswith('vfio-intx')


@dataclass(frozen=True)
class Route:
    """Where an interrupt goes, as ``/proc/irq`` has it.

    :param cpus: those that it may go to.
    :param effective: those that it goes to; empty where the kernel does not
        say.
    :param node: NUMA node of its device; None when that has none.
    """

    cpus: frozenset[int]
    effective: frozenset[int] = frozenset()
    node: int | None = None


@dataclass(frozen=True)
class Guest:
    """A running guest whose interrupts are steered.

    :param devices: PCI addresses of those that it has.
    """

    uuid: str
    name: str
    devices: frozenset[str]


@dataclass(frozen=True)
class Host:
    """The CPUs of a host.

    :param nodes: CPUs that are online, by NUMA node.
    :param kept: those that guests have for themselves, or that are isolated.
    :param bypass: whether interrupts of messages bypass the hypervisor.
    """

    nodes: Mapping[int, frozenset[int]] = field(default_factory=dict)
    kept: frozenset[int] = frozenset()
    bypass: bool = False

    @property
    def online(self) -> frozenset[int]:
        return frozenset().union(*self.nodes.values())

    def housekeeping(self, node: int | None) -> frozenset[int]:
        """CPUs for interrupts of a node, of all where that is unknown."""
        near = self.online if node is None else self.nodes.get(
            node, frozenset())
        return near - self.kept


@dataclass(frozen=True)
class Action:
    """One interrupt that is to go elsewhere."""

    uuid: str
    interrupt: Interrupt
    cpus: frozenset[int]
    reason: str

    kind = 'steer interrupt'
    #: None of QEMU is concerned.
    threads: tuple[int, ...] = ()

    @property
    def line(self) -> str:
        """What is set."""
        return cpulist.render(self.cpus)

    @property
    def subject(self) -> str:
        return f'interrupt {self.interrupt.number} of {self.interrupt.device}'

    @property
    def what(self) -> str:
        return f'{self.subject}: CPUs {self.line}'


@dataclass(frozen=True)
class Problem:
    """An interrupt that stays where it is."""

    uuid: str
    reason: str

    def __str__(self) -> str:
        return f'guest {self.uuid}: {self.reason}'


def parse(text: str) -> list[Interrupt]:
    """The interrupts of passthrough devices, in the order of the kernel.

    :param text: of ``/proc/interrupts``, proc(5).
    """
    return [one for line in text.splitlines() for one in _line(line)]


def _line(line: str) -> Iterator[Interrupt]:
    begin, _colon, rest = line.partition(':')
    number = decimals.decimal(begin)
    if number is None or 'vfio-' not in rest:
        return
    counts = itertools.takewhile(lambda count: count is not None,
                                 map(decimals.decimal, rest.split()))
    # The chip and its names for the interrupt stand before the first.
    users = [part.split()[-1] for part in rest.split(', ') if part.split()]
    found = [match for user in users if (match := _NAME.fullmatch(user))]
    total = sum(filter(None, counts))
    for match in found:
        yield Interrupt(number, match[0], match[2], total,
                        len(users) == len(found) == 1)


def is_name(text: str) -> bool:
    """Whether it is a name that VFIO gives."""
    return _NAME.fullmatch(text) is not None


def counts(text: str) -> Mapping[str, int]:
    """Interrupts on all CPUs, by the address of the device.

    :param text: as for :func:`parse`.
    """
    found = collections.Counter[str]()
    for one in parse(text):
        found[one.device] += one.count
    return found


def steerable(guests: Iterable[Guest], interrupts: Iterable[Interrupt],
              bypass: bool) -> list[tuple[Guest, Interrupt]]:
    """What is to be looked after.

    :param bypass: see :class:`Host`.
    """
    owners = {device: guest for guest in guests for device in guest.devices}
    return [(owners[one.device], one) for one in interrupts
            if one.device in owners and one.alone
            and not (bypass and one.can_bypass)]


def plan(found: Iterable[tuple[Guest, Interrupt]],
         routes: Mapping[int, Route],
         host: Host) -> tuple[tuple[Action, ...], tuple[Problem, ...]]:
    """What is to be set so that interrupts go to housekeeping CPUs.

    One that goes to some of them is left there: somebody who spreads
    interrupts (irqbalance) may choose among them.

    :param found: see :func:`steerable`.
    :param routes: by number of the interrupt; one that is not there has gone.
    """
    actions, problems = [], dict[Problem, None]()
    for guest, interrupt in found:
        route = routes.get(interrupt.number)
        if route is None:
            continue
        cpus = host.housekeeping(route.node)
        if not cpus:
            problems[_nowhere(guest, interrupt, route)] = None
        elif not (route.cpus & host.online) <= cpus:
            actions.append(Action(guest.uuid, interrupt, cpus, _now(route)))
    return tuple(actions), tuple(problems)


def _nowhere(guest: Guest, interrupt: Interrupt, route: Route) -> Problem:
    where = 'the host' if route.node is None else f'NUMA node {route.node}'
    return Problem(
        guest.uuid, f'interrupts of {interrupt.device} stay where they are: '
                    f'{where} has no CPU that no guest has for itself')


def _now(route: Route) -> str:
    goes = (f', and goes to {cpulist.render(route.effective)}'
            if route.effective else '')
    return f'it may go to CPUs {cpulist.render(route.cpus)}{goes}'
