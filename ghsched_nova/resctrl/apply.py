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

"""Execution of planned changes of resctrl, one after the other.

A change that depends on a failed one is skipped. A new group whose settings
cannot all be written is removed. If the process is killed, the next
reconciliation completes the changes.
"""

from collections.abc import Iterable
import contextlib
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
import errno
from pathlib import Path

from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming

#: Further attempts to correct the state after the removal of groups, which
#: lets groups be created that the host had no room for.
_RETRIES = 2

#: Maximum time in one reconciliation, and polling interval, of waiting for
#: monitoring ids of which caches still have data, in seconds. The kernel
#: checks them every second (CQM_LIMBOCHECK_INTERVAL in
#: include/linux/resctrl.h).
_BUSY_TIMEOUT = 4.0
_BUSY_POLL = 0.25

_RELEASE: model.Kind = 'release devices'
#: Changes of a group that depend on the release of its devices. The CLOSID of
#: a removed group is reused, so the devices would then be in another group.
_EMPTYING: tuple[model.Kind, ...] = (_RELEASE, 'remove group')


def _strip_group_name(group: Path, error: fs.GroupError) -> str:
    """Return an error's text with paths relative to the control group.

    This keeps the text short: Nova shows at most 255 characters of a fault.
    """
    path = Path(error.path)
    if error.path and path.is_relative_to(group):
        inside = path.relative_to(group).as_posix()
        error = fs.GroupError(
            error.reason, '' if inside == '.' else inside, error.line,
            error.errno, error.status)
    return str(error)


@dataclass
class Executor:
    """Executor of planned changes of resctrl, with the results so far.

    :ivar done: changes that were made.
    :ivar problems: reasons why guests' policies are not enforced.
    :ivar failed: failed changes, so that changes which depend on them are
        skipped. Each is a group, and the guest, kind or part of the change; an
        empty text stands for all changes of the group.
    :ivar created: groups that were created.
    :ivar populated: groups into which threads were moved.
    :ivar unavailable: problems by group that could not be created because the
        host has no free control group.
    :ivar wait_budget: seconds that may still be spent waiting.
    :ivar retries: number of retries that are left for unavailable groups.
    """

    files: fs.Files
    root: Path
    done: list[model.Action] = field(default_factory=list)
    problems: list[model.PolicyProblem] = field(default_factory=list)
    failed: set[tuple[str, str]] = field(default_factory=set)
    created: set[str] = field(default_factory=set)
    populated: set[str] = field(default_factory=set)
    unavailable: dict[str,
                      list[model.PolicyProblem]] = field(default_factory=dict)
    wait_budget: float = _BUSY_TIMEOUT
    retries: int = _RETRIES

    def apply_actions(self, actions: Iterable[model.Action],
                      members: model.Members) -> None:
        for action in actions:
            if self.has_failed_dependency(action):
                continue
            try:
                self._apply_action(action)
            except fs.GroupError as error:
                self._record_failure(action, error, members)
        for group in sorted(self.created - self.populated):
            self._remove_incomplete_group(group)

    def has_failed_dependency(self, entry: model.Action | model.PolicyProblem
                              ) -> bool:
        """Whether a planned action depends on an action that has failed.

        Such an action is skipped. A reported problem depends on a failed
        action if it concerns the same group and guest; it is not reported
        again.

        :param entry: planned action, or problem.
        """
        if not self.failed:
            return False
        needed = {'', entry.guest}
        if isinstance(entry, model.Action) and entry.part:
            needed.add(entry.part)
        if isinstance(entry, model.Action) and entry.kind in _EMPTYING:
            needed.add(_RELEASE)
        if isinstance(entry, model.Action) and entry.kind in model.COUNTING:
            needed.add(entry.kind)
        top = naming.parse_group_name(entry.group).top
        return (top, '') in self.failed or any(
            (entry.group, one) in self.failed for one in needed)

    def prepare_group_retry(self, plan: model.Plan) -> bool:
        """Prepare a retry for control groups that could not be created.

        A retry can succeed if other groups have been or will be removed. Then
        the problems of the missing groups are removed from the results. The
        number of retries is limited.

        :param plan: the latest plan, which may remove groups.
        :returns: whether to retry.
        """
        freed = (any(action.kind == 'remove group' for action in plan.actions)
                 or any(action.kind == 'remove group'
                        for action in self.done))
        if not freed or not self.retries:
            return False
        self.retries -= 1
        for group, problems in self.unavailable.items():
            self.failed.discard((group, ''))
            for problem in problems:
                self.problems.remove(problem)
        self.unavailable.clear()
        return True

    def _apply_action(self, action: model.Action) -> None:
        path = self.root / action.group
        if action.kind == 'make group':
            self._make_group(path)
            self.created.add(action.group)
        elif action.kind == 'remove group':
            self._remove_group(path)
        elif action.line:
            fs.write_line(
                self.files, self.root, path / action.file, action.line
            )
        elif action.devices:
            # Those that are released go to the default group.
            target = path if action.kind == 'move devices' else self.root
            fs.move_devices(self.files, self.root, target, action.devices)
        else:
            action = replace(action, threads=self._move_threads(path, action))
            if not action.threads:
                return
            self.populated.add(action.group)
        self.done.append(action)

    def _make_group(self, path: Path) -> None:
        while True:
            try:
                self.files.make_directory(path)
            except FileExistsError:
                pass
            except OSError as exc:
                # First of all: later reads may empty it.
                status = fs.read_last_status(self.files, self.root)
                if self._is_rmid_busy(path, exc) and self.wait_budget > 0:
                    self.wait_budget -= _BUSY_POLL
                    self.files.wait(_BUSY_POLL)
                    continue
                raise self._make_creation_error(path, exc, status) from exc
            return

    def _is_rmid_busy(self, path: Path, error: OSError) -> bool:
        """Whether a group was refused only because free ids are still busy.

        A monitoring id (RMID) is busy while caches hold data of its old group.
        If each control group has its own monitoring ids (MPAM), the kernel
        returns ENOSPC in this case, too.
        """
        if error.errno == errno.EBUSY:
            return True
        if error.errno != errno.ENOSPC or path.parent != self.root:
            return False
        try:
            limit = min(
                int(self.files.read(self.root / 'info' / name / 'num_closids'))
                for name in self.files.directories(self.root / 'info')
                if not name.endswith('_MON'))
            there = [name for name in self.files.directories(self.root)
                     if name not in naming.NOT_GROUPS]
        except (OSError, ValueError):
            return False
        return len(there) + 1 < limit

    def _make_creation_error(self, path: Path, error: OSError,
                             status: str) -> fs.GroupError:
        kind = 'monitoring' if path.parent != self.root else 'control'
        reason = (f'there is no {kind} group left'
                  if error.errno == errno.ENOSPC else 'cannot be made')
        if self._is_rmid_busy(path, error):
            reason += (': caches still hold lines of the monitoring ids that '
                       'are free')
        return fs.GroupError(
            reason, str(path), errno=error.errno or 0, status=status)

    def _remove_group(self, path: Path) -> None:
        try:
            self.files.remove_directory(path)
        except FileNotFoundError:
            pass
        except OSError as exc:
            raise fs.make_group_error('cannot be removed', path, exc) from exc

    def _move_threads(
        self, path: Path, action: model.Action
    ) -> tuple[int, ...]:
        """Move threads to a resctrl group; skip threads that have ended.

        :returns: ids of the moved threads.
        """
        moved = []
        for tid in action.threads:
            try:
                for group in self._list_groups_to_join(path):
                    fs.write_line(self.files, self.root, group / 'tasks',
                                  f'{tid}\n')
            except fs.GroupError as error:
                if error.errno != errno.ESRCH:
                    raise
                continue
            moved.append(tid)
        if not moved and action.group in self.created - self.populated:
            raise fs.GroupError(
                'the threads of the guest have ended meanwhile', str(path),
                errno=errno.ESRCH)
        return tuple(moved)

    def _list_groups_to_join(self, path: Path) -> tuple[Path, ...]:
        """Return the groups that a thread must join, one after the other.

        A thread must be in the parent control group before it can join a
        monitoring group (``__rdtgroup_move_task()`` in fs/resctrl/rdtgroup.c).
        """
        in_default = path.parent == self.root / naming.MONITORS
        return (self.root, path) if in_default else (path,)

    def _record_failure(self, action: model.Action,
                        error: fs.GroupError,
                        members: model.Members) -> None:
        if action.kind in model.COUNTING:
            self.failed.add((action.group, action.kind))
            return
        moving = action.kind in ('move threads', 'move devices')
        self.failed.add((action.group, (
            _RELEASE if action.kind == _RELEASE
            else action.guest if moving
            else '' if action.group in self.created else action.part)))
        problems = model.make_problems(
            action, members,
            _strip_group_name(self.root / action.group, error))
        self.problems += problems
        if action.kind == 'make group' and error.errno == errno.ENOSPC:
            self.unavailable.setdefault(action.group, []).extend(problems)
        if action.group in self.created and not moving:
            self._remove_incomplete_group(action.group)

    def _remove_incomplete_group(self, group: str) -> None:
        """Remove a new resctrl group whose settings could not all be written.
        """
        self.created.discard(group)
        # It may have gone with the whole file system.
        with contextlib.suppress(fs.GroupError):
            self._remove_group(self.root / group)
            self.done.append(model.Action(
                'remove group', group, 'it could not be completed'))
