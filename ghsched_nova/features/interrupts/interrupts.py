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


"""Steers the interrupts of guests' passthrough devices on this host."""

from collections.abc import Iterable
from collections.abc import Sequence
import functools
import logging
from pathlib import Path
from typing import Any

from ghsched_nova.features.interrupts import engine
from ghsched_nova.features.interrupts import model
from ghsched_nova.features.real_time import irq_bypass
from ghsched_nova.features.real_time import scheduling
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_nova.resctrl import sysfs
from ghsched_placement.base import cpulist

LOG = logging.getLogger(__name__)


class InterruptMover(compute_hooks.ComputeHooks):
    """Mover of passthrough devices' interrupts to housekeeping CPUs.

    :param section: the ``[ghsched]`` section of the configuration.
    :param dedicated: CPUs of ``[compute]cpu_dedicated_set``.
    :param proc: mount point of procfs.
    :param set_cpus: function that sets the CPUs of an interrupt, see
        :func:`engine.reconcile_interrupts`.
    """

    def __init__(self, section: Any, dedicated: Iterable[int] = (),
                 proc: Path = Path('/proc'),
                 set_cpus: engine.Steer | None = None) -> None:
        self._section = section
        self._dedicated = frozenset(dedicated)
        self._proc = proc
        self._set_cpus = set_cpus
        self._logged: frozenset[str] = frozenset()

    def report_misplaced(self,
                         running: Iterable[desired.Running]) -> engine.Report:
        """Report device interrupts that are not on housekeeping CPUs.

        Housekeeping CPUs are CPUs that are not dedicated to guests. No
        interrupt is moved.
        """
        guests = list_housekeeping_irq_guests(running)
        if not guests:
            return engine.Report()
        return engine.plan_interrupt_changes(guests, self._read_host,
                                             self._proc)

    def move_interrupts(self,
                        running: Iterable[desired.Running]) -> engine.Report:
        """Move device interrupts of running guests to housekeeping CPUs.

        Housekeeping CPUs are CPUs that are not dedicated to guests. Only
        guests whose policy requests this are considered.

        :returns: report of the moved interrupts.
        """
        guests = list_housekeeping_irq_guests(running)
        return (
            engine.reconcile_interrupts(
                guests, self._read_host, self._proc, self._set_cpus
            )
            if guests
            else engine.Report()
        )

    def reconcile_guests(self, running: Sequence[desired.Running]
                         ) -> tuple[str, ...]:
        """Move device interrupts to housekeeping CPUs.

        Housekeeping CPUs are CPUs that are not dedicated to guests. Each move
        is logged. An interrupt that cannot be moved is logged once.

        :returns: no corrections: interrupts of new devices are always moved.
        """
        report = self.move_interrupts(running)
        for action in report.actions:
            LOG.info('ghsched: guest %(uuid)s: moved a passthrough device '
                     'interrupt to housekeeping CPUs (%(what)s) because '
                     '%(reason)s',
                     {'uuid': action.uuid, 'what': action.details,
                      'reason': action.reason})
        problems = frozenset(map(str, report.problems))
        for problem in sorted(problems - self._logged):
            LOG.warning('ghsched: cannot move a passthrough device interrupt '
                        'to housekeeping CPUs; retrying in the next periodic '
                        'task: %s', problem)
        self._logged = problems
        return ()

    @property
    def _read_host(self) -> model.HostCpus:
        root = Path(self._section.sysfs_path)
        return model.HostCpus(
            {
                node: sysfs.read_node_cpus(path)
                for node, path in sysfs.iterate_numa_nodes(root)
            },
            self._dedicated | _read_isolated_cpus(root),
            self._has_interrupt_bypass,
        )

    @functools.cached_property
    def _has_interrupt_bypass(self) -> bool:
        """Whether device interrupts reach guests without the hypervisor.

        The result is cached.
        """
        return irq_bypass.ANY in irq_bypass.read_interrupt_bypass(
            self._section.irq_bypass, Path(self._section.sysfs_path),
            self._proc)


def make_compute_hooks(services: compute_hooks.ComputeServices
                       ) -> InterruptMover:
    """Return nova-compute's mover of device interrupts."""
    return InterruptMover(services.section, services.dedicated_cpus)


def list_housekeeping_irq_guests(
    running: Iterable[desired.Running],
) -> list[model.InterruptGuest]:
    """Return the guests whose device interrupts must be moved.

    The policy of these guests requests that their interrupts are handled by
    housekeeping CPUs, which are not dedicated to guests.

    :returns: these guests, with their passthrough devices.
    """
    # Few guests have such a policy; parsing the XML of all is slow.
    return [model.InterruptGuest(one.domain.uuid, one.domain.name,
                                 frozenset(one.list_passthrough_addresses()))
            for one in running if scheduling.IRQ_NAMESPACE in one.xml
            and one.is_readable and scheduling.has_housekeeping_irqs(one.root)]


def _read_isolated_cpus(root: Path) -> frozenset[int]:
    """Return the CPUs that the kernel isolates (boot parameter isolcpus)."""
    return cpulist.read_cpu_list(
        root / 'devices' / 'system' / 'cpu' / 'isolated') or frozenset()
