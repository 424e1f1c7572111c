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


"""Reconciliation of a host's resctrl groups with the guests' policies.

While it holds the lock that libvirt takes, too, a reconciliation reads the
actual state, plans the changes, applies them, and checks the state again. This
second survey reads only the groups that the changes concern. Each guest whose
policy is not enforced afterwards has a :class:`model.PolicyProblem`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path

from ghsched_nova.resctrl import apply
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import plan as planning
from ghsched_nova.resctrl import survey
from ghsched_nova.resctrl import unchanged

#: Attempts to correct the state before the differences are reported as
#: problems. The second attempt is for threads that were created just before
#: their creator was moved, and for new groups without the default values.
_ROUNDS = 2

_PROC = Path('/proc')
#: Kind of the action that removes a group that no guest needs.
_REMOVE = 'remove group'


@dataclass(frozen=True)
class ReconcileReport:
    """Result of a reconciliation of resctrl, or of its preview.

    :param actions: changes that were made, or would be made, in order.
    :param problems: reasons why guests' policies are not enforced.
    :param foreign: names of the control groups of other software.
    :param unmeasured: reasons why guests are not measured, although their
        policies request it.
    :param overlaps: guests whose reserved L3 ways are also used by a control
        group of other software.
    """

    actions: tuple[model.Action, ...] = ()
    problems: tuple[model.PolicyProblem, ...] = ()
    foreign: tuple[str, ...] = ()
    unmeasured: tuple[model.PolicyProblem, ...] = ()
    overlaps: tuple[model.PolicyProblem, ...] = ()


@dataclass(frozen=True)
class HostPaths:
    """Paths of resctrl, of libvirt's run directory and of procfs.

    :param root: mount point of resctrl.
    :param run_path: directory with libvirt's ``<domain name>.pid`` files.
    :param proc: mount point of procfs.
    :param lock_timeout: maximum time to wait for the lock of resctrl, in
        seconds.
    """

    root: Path
    run_path: Path
    proc: Path = _PROC
    lock_timeout: float = fs.LOCK_TIMEOUT


def preview_reconciliation(paths: HostPaths, wanted: model.Wanted,
                           files: fs.Files | None = None) -> ReconcileReport:
    """Return what a reconciliation of resctrl would change; change nothing.

    :param paths: paths of resctrl, of libvirt's run directory and of procfs.
    :param wanted: desired state of the host's resctrl groups.
    :param files: access to the files; replaced in tests.
    :raises GroupError: if resctrl is not mounted, or its lock is not free.
    """
    files = files or fs.Files()
    with fs.resctrl_lock(files, paths.root, paths.lock_timeout):
        actual = survey.read_actual_state(
            files, paths.root, wanted, paths.run_path, paths.proc)
        plan = planning.make_plan(actual, wanted)
        actions = _keep_kernel_groups(files, paths.root, plan.actions)
    return ReconcileReport(tuple(actions), plan.problems, plan.foreign,
                           plan.unmeasured,
                           plan.overlaps)


def reconcile_groups(paths: HostPaths, wanted: model.Wanted,
                     files: fs.Files | None = None) -> ReconcileReport:
    """Bring the guests' resctrl groups to the desired state.

    Groups, schemata values and the threads in groups are corrected. An error
    for one guest does not stop the work on other guests.

    :raises GroupError: if resctrl is not mounted, or its lock is not free.
    """
    files = files or fs.Files()
    work = apply.Executor(files, paths.root)
    rounds, known = _ROUNDS, model.Actual({})
    with fs.resctrl_lock(files, paths.root, paths.lock_timeout):
        while True:
            actual = replace(survey.read_actual_state(
                files, paths.root, wanted, paths.run_path, paths.proc, known),
                scarce=bool(work.unavailable))
            plan = planning.make_plan(actual, wanted)
            if work.unavailable and work.prepare_group_retry(plan):
                rounds = _ROUNDS
            planned = _keep_kernel_groups(files, paths.root, plan.actions)
            left = [action for action in planned
                    if not work.has_failed_dependency(action)]
            if not (rounds and left):
                break
            rounds -= 1
            work.apply_actions(left, actual.members)
            known = unchanged.select_unchanged_state(actual, left)
    return ReconcileReport(tuple(work.done), (
        *work.problems,
        *(problem for problem in plan.problems
          if not work.has_failed_dependency(problem)),
        *plan.internal_overlaps,
        *(problem for action in left for problem in model.make_problems(
            action, actual.members,
            f'{action.kind} was done, and is still needed: {action.reason}'))),
        plan.foreign, plan.unmeasured, plan.overlaps)


def _keep_kernel_groups(files: fs.Files, root: Path,
                        actions: Iterable[model.Action]
                        ) -> list[model.Action]:
    """Return planned changes without the removal of the kernel's groups.

    The kernel's own work may be bound to a group that no guest needs.
    """
    planned = list(actions)
    if not any(action.kind == _REMOVE for action in planned):
        return planned
    bound = fs.read_kernel_binding(files, root)
    return [action for action in planned if bound is None
            or action.kind != _REMOVE or action.group != bound.group.top]
