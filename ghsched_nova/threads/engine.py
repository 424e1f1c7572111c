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


"""Keeps the classes and CPUs of guests' threads as their XML says."""

from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ghsched_nova import qemu
from ghsched_nova.threads import model
from ghsched_nova.threads import survey

#: Sets the class or the CPUs of one thread; returns why it could not.
SetClass = Callable[[model.Action], str]


@dataclass(frozen=True)
class Report:
    """What was or is to be set, and what cannot be."""

    actions: tuple[model.Action, ...] = ()
    problems: tuple[model.Problem, ...] = ()


def look(guests: Iterable[model.Guest], run_path: Path) -> Report:
    """What is not as it should be; changes nothing.

    :param run_path: where libvirt has ``<domain name>.pid``.
    """
    actions: list[model.Action] = []
    problems: list[model.Problem] = []
    for guest in guests:
        process = qemu.process_of(run_path, guest.name)
        actual = {} if process is None else survey.threads(process)
        to_set, missing = model.plan(guest, actual)
        actions += to_set
        problems += missing
    return Report(tuple(actions), tuple(problems))


def reconcile(guests: Iterable[model.Guest], run_path: Path,
              set_class: SetClass | None = None) -> Report:
    """Set what is not as it should be; see :func:`look`.

    :param set_class: where this process may do so itself.
    """
    if set_class is None:
        # Only what changes something needs oslo.privsep, slow to import.
        from ghsched_nova.threads import privileged

        set_class = privileged.set_class
    found = look(guests, run_path)
    failed = [model.Problem(action.uuid, f'{action.what}: {why}')
              for action in found.actions if (why := set_class(action))]
    return Report(found.actions, (*found.problems, *failed))
