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


"""Reconciliation of the scheduling of guests' threads with their domain XML.
"""

from collections.abc import Callable
from collections.abc import Iterable
from pathlib import Path

from ghsched_nova.base import guest_changes
from ghsched_nova.base import qemu
from ghsched_nova.features.real_time import model
from ghsched_nova.features.real_time import survey

#: Function that sets the class or the CPUs of a thread; returns the error, or
#: an empty text.
SetClass = Callable[[model.ThreadChange], str]
Report = guest_changes.ChangeReport[model.ThreadChange]


def plan_thread_changes(
        guests: Iterable[model.GuestScheduling], run_path: Path) -> Report:
    """Return the thread changes that make guests comply with their policies.

    A change sets the scheduling class or the CPUs of one thread. Nothing is
    changed yet.

    :param run_path: directory with libvirt's ``<domain name>.pid`` files.
    """
    actions: list[model.ThreadChange] = []
    problems: list[guest_changes.Problem] = []
    for guest in guests:
        process = qemu.find_qemu_process(run_path, guest.name)
        actual = {} if process is None else survey.read_qemu_threads(process)
        to_set, missing = model.plan_guest_thread_changes(guest, actual)
        actions += to_set
        problems += missing
    return Report(tuple(actions), tuple(problems))


def reconcile_threads(guests: Iterable[model.GuestScheduling], run_path: Path,
                      apply_thread_change: SetClass | None = None) -> Report:
    """Correct the scheduling classes and CPUs of guests' threads.

    The policies of the guests determine them.

    :param run_path: directory with libvirt's ``<domain name>.pid`` files.
    :param apply_thread_change: function that makes a change; the privileged
        helper by default.
    """
    if apply_thread_change is None:
        # oslo.privsep is slow to import and needed only for changes.
        from ghsched_nova.features.real_time import privileged

        apply_thread_change = privileged.apply_thread_change
    found = plan_thread_changes(guests, run_path)
    failed = [guest_changes.Problem(action.uuid, f'{action.details}: {why}')
              for action in found.actions
              if (why := apply_thread_change(action))]
    return Report(found.actions, (*found.problems, *failed))
