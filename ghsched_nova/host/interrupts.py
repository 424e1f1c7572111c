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


"""Interrupts of guests' devices on this host, for the driver."""

from collections.abc import Iterable
import functools
import logging
from pathlib import Path
from typing import Any

from ghsched_nova.guest import scheduling
from ghsched_nova.host import desired
from ghsched_nova.host import irq_bypass
from ghsched_nova.interrupts import engine
from ghsched_nova.interrupts import model
from ghsched_nova.resctrl import sysfs
from ghsched_placement import cpulist

LOG = logging.getLogger(__name__)


class InterruptKeeper:
    """Keeps interrupts of passthrough devices on housekeeping CPUs.

    :param section: ``conf.ghsched``.
    :param dedicated: CPUs that guests may have for themselves.
    :param proc: where procfs is mounted.
    :param steer: as for :func:`engine.reconcile`.
    """

    def __init__(self, section: Any, dedicated: Iterable[int] = (),
                 proc: Path = Path('/proc'),
                 steer: engine.Steer | None = None) -> None:
        self._section = section
        self._dedicated = frozenset(dedicated)
        self._proc = proc
        self._steer = steer
        self._told: frozenset[str] = frozenset()

    def look(self, running: Iterable[desired.Running]) -> engine.Report:
        """What is not as it should be; changes nothing."""
        guests = wanted(running)
        return (engine.look(guests, self._host, self._proc) if guests
                else engine.Report())

    def set(self, running: Iterable[desired.Running]) -> engine.Report:
        """Set what is not as it should be."""
        guests = wanted(running)
        return (engine.reconcile(guests, self._host, self._proc, self._steer)
                if guests else engine.Report())

    def reconcile(self, running: Iterable[desired.Running]) -> None:
        """As :meth:`set`, for the log; never raises.

        What cannot be set is logged once for as long as it lasts.
        """
        try:
            report = self.set(running)
        except Exception:
            LOG.exception('ghsched: interrupts of guests cannot be checked')
            return
        for action in report.actions:
            LOG.info('ghsched: guest %(uuid)s: %(what)s: %(reason)s',
                     {'uuid': action.uuid, 'what': action.what,
                      'reason': action.reason})
        problems = frozenset(map(str, report.problems))
        for problem in sorted(problems - self._told):
            LOG.warning('ghsched: %s', problem)
        self._told = problems

    @property
    def _host(self) -> model.Host:
        root = Path(self._section.sysfs_path)
        return model.Host(
            {node: sysfs.cpus_of(path) for node, path in sysfs.nodes(root)},
            self._dedicated | _isolated(root), self._bypass)

    @functools.cached_property
    def _bypass(self) -> bool:
        """Whether this host bypasses the hypervisor; asked once."""
        return irq_bypass.ANY in irq_bypass.here(
            self._section.irq_bypass, Path(self._section.sysfs_path),
            self._proc)


def wanted(running: Iterable[desired.Running]) -> list[model.Guest]:
    """The guests whose interrupts are steered."""
    # Few guests are, and to parse the XML of all costs.
    return [model.Guest(one.domain.uuid, one.domain.name,
                        frozenset(one.passthrough()))
            for one in running if scheduling.IRQ_NAMESPACE in one.xml
            and scheduling.has_housekeeping_irqs(one.root)]


def _isolated(root: Path) -> frozenset[int]:
    """CPUs that the command line keeps from the scheduler (isolcpus)."""
    try:
        return cpulist.parse(sysfs.text(
            root / 'devices' / 'system' / 'cpu' / 'isolated') or '')
    except cpulist.CpuListError:
        return frozenset()
