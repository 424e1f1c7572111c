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


"""Keeps interrupts of passthrough devices on housekeeping CPUs.

``/proc/irq/N`` is described in Documentation/core-api/irq/irq-affinity.rst.
"""

from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ghsched_nova.interrupts import model
from ghsched_placement import cpulist
from ghsched_placement import decimals

#: Sends one interrupt elsewhere; returns why it could not.
Steer = Callable[[model.Action], str]


@dataclass(frozen=True)
class Report:
    """What was or is to be set, and what cannot be."""

    actions: tuple[model.Action, ...] = ()
    problems: tuple[model.Problem, ...] = ()


def look(guests: Iterable[model.Guest], host: model.Host,
         proc: Path = Path('/proc')) -> Report:
    """What is not as it should be; changes nothing.

    :param proc: where procfs is mounted.
    """
    guests = list(guests)
    text = _text(proc / 'interrupts') if guests else ''
    found = model.steerable(guests, model.parse(text), host.bypass)
    routes = {interrupt.number: route for _guest, interrupt in found
              if (route := read(proc / 'irq' / str(interrupt.number)))}
    return Report(*model.plan(found, routes, host))


def reconcile(guests: Iterable[model.Guest], host: model.Host,
              proc: Path = Path('/proc'),
              steer: Steer | None = None) -> Report:
    """Set what is not as it should be; see :func:`look`.

    :param steer: where this process may do so itself.
    :returns: what was set, without what the kernel has refused.
    """
    if steer is None:
        # Only what changes something needs oslo.privsep, slow to import.
        from ghsched_nova.interrupts import privileged

        steer = privileged.steer
    found = look(guests, host, proc)
    failed = {action: why for action in found.actions
              if (why := steer(action))}
    return Report(
        tuple(one for one in found.actions if one not in failed),
        (*found.problems, *(
            model.Problem(action.uuid, f'{action.what}: {why}')
            for action, why in failed.items())))


def read(path: Path) -> model.Route | None:
    """Where an interrupt goes; None for one that is not there any more.

    :param path: its directory.
    """
    try:
        cpus = cpulist.parse((path / 'smp_affinity_list').read_text().strip())
    except (OSError, ValueError):
        return None
    try:
        effective = cpulist.parse(
            _text(path / 'effective_affinity_list').strip())
    except ValueError:
        effective = frozenset()
    # The kernel has -1 for a device without a node.
    return model.Route(cpus, effective,
                       decimals.decimal(_text(path / 'node')))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors='replace')
    except OSError:
        return ''
