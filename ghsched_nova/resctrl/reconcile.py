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


"""Bring all control groups of guests to what they should be, in one go.

Under the lock of libvirt: look, plan, carry out, and look again. What a plan
leaves undone is told, never passed over: each guest whose policy does not hold
afterwards has a :class:`model.Problem`.
"""

from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path

from ghsched_nova.resctrl import apply
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import plan as planning
from ghsched_nova.resctrl import survey

#: How often a state is put right before it is reported as one that cannot be.
#: The second time is for threads that a thread has made just before it was
#: moved, and for a new group that does not hold the defaults.
_ROUNDS = 2

_PROC = Path('/proc')


@dataclass(frozen=True)
class Report:
    """Changes that were made, or would be, and the problems that remain.

    :param actions: in order.
    :param problems: problems of guests whose policy is not enforced.
    :param foreign: control groups that are nobody's here.
    :param unmeasured: guests that asked to be measured, and why they are not;
        they run all the same.
    :param overlaps: guests whose own ways of the L3 a control group of other
        software has, too; they run all the same.
    """

    actions: tuple[model.Action, ...] = ()
    problems: tuple[model.Problem, ...] = ()
    foreign: tuple[str, ...] = ()
    unmeasured: tuple[model.Problem, ...] = ()
    overlaps: tuple[model.Problem, ...] = ()


@dataclass(frozen=True)
class Place:
    """Paths of resctrl, of libvirt's run directory and of procfs.

    :param root: where resctrl is mounted.
    :param run_path: where libvirt keeps the numbers of QEMU's processes.
    :param proc: where procfs is mounted.
    :param lock_timeout: seconds to wait for libvirt or somebody like us.
    """

    root: Path
    run_path: Path
    proc: Path = _PROC
    lock_timeout: float = fs.LOCK_TIMEOUT


def preview_reconciliation(place: Place, wanted: model.Wanted,
                           files: fs.Files | None = None) -> Report:
    """Return what a reconciliation of resctrl would change; change nothing.

    :param place: paths of resctrl, of libvirt's run directory and of procfs.
    :param wanted: desired state of the host's resctrl groups.
    :param files: access to the files; replaced in tests.
    :raises GroupError: if resctrl is not mounted, or its lock is not free.
    """
    files = files or fs.Files()
    with fs.resctrl_lock(files, place.root, place.lock_timeout):
        actual = survey.read_actual_state(
            files, place.root, wanted, place.run_path, place.proc)
    plan = planning.make_plan(actual, wanted)
    return Report(plan.actions, plan.problems, plan.foreign, plan.unmeasured,
                  plan.overlaps)


def reconcile(place: Place, wanted: model.Wanted,
              files: fs.Files | None = None) -> Report:
    """Bring the guests' resctrl groups to the desired state.

    Groups, schemata values and the threads in groups are corrected. An error
    for one guest does not stop the work on other guests.

    :raises GroupError: if resctrl is not mounted, or its lock is not free.
    """
    files = files or fs.Files()
    work = apply.Executor(files, place.root)
    rounds = _ROUNDS
    with fs.resctrl_lock(files, place.root, place.lock_timeout):
        while True:
            actual = survey.read_actual_state(
                files, place.root, wanted, place.run_path, place.proc)
            plan = planning.make_plan(actual, wanted)
            if work.lacking and work.prepare_group_retry(plan):
                rounds = _ROUNDS
            left = [action for action in plan.actions
                    if not work.has_failed_dependency(action)]
            if not (rounds and left):
                break
            rounds -= 1
            work.apply_actions(left)
            wanted = replace(wanted, scarce=bool(work.lacking))
    return Report(tuple(work.done), tuple(model.expand_shared_problems(
        wanted.guests, (
            *work.problems,
            *(problem for problem in plan.problems
              if not work.has_failed_dependency(problem)),
            *plan.intruded,
            *(_make_repeated_problem(action) for action in left
              if not action.is_for_monitoring)))),
        plan.foreign, plan.unmeasured, plan.overlaps)


def _make_repeated_problem(action: model.Action) -> model.Problem:
    return model.Problem(
        action.guest, action.group,
        f'{action.kind} was done, and is still needed: {action.reason}')
