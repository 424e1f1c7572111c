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


"""Plan of groups, bandwidth values and threads, for all guests (pure)."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
from itertools import chain

from ghsched_nova.resctrl import differences
from ghsched_nova.resctrl import errors
from ghsched_nova.resctrl import leaked_groups
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl.model import Action
from ghsched_nova.resctrl.model import Group
from ghsched_nova.resctrl.model import PolicyProblem
from ghsched_nova.resctrl.model import ResctrlGuest
from ghsched_nova.resctrl import naming
from ghsched_placement.base import cpulist

#: Reason of a guest without threads, such as one that is being stopped.
NO_VCPU_THREADS = 'no thread of a vCPU of the guest can be found'


def plan_groups(actual: model.Actual, wanted: model.Wanted,
                leaked: Mapping[str, str]) -> model.Plan:
    """Plan changes of groups, of their bandwidth values and their threads.

    :param leaked: groups to remove, each with the reason.
    """
    members = actual.members
    guest_tids = frozenset(chain.from_iterable(actual.threads.values()))
    actions = [Action('remove group', name, reason)
               for name, reason in sorted(leaked.items())]
    taken = members.keys() | {action.group for action in actions}
    problems: list[PolicyProblem] = []
    # Those that were promised something first: there may not be a group for
    # each.
    for name, guests in sorted(members.items(), key=_rank_group):
        for step in _plan_group(name, guests, actual, wanted):
            if isinstance(step, Action):
                actions.append(step)
            else:
                problems.append(step)
        problems += _find_foreign_vcpus(guests, name, actual, guest_tids)
    actions += _release_vcpus_without_group(actual, wanted)
    running = leaked_groups.index_domains_by_id(wanted.domains)
    return model.Plan(tuple(actions), tuple(problems), tuple(sorted(
        name for name in actual.groups if name not in taken
        and leaked_groups.is_foreign(name, running))))


def _rank_group(item: tuple[str, Sequence[ResctrlGuest]]) -> int:
    name, guests = item
    return 2 if name == naming.DEFAULT else int(guests[0].is_only_measured)


# -- one group ----------------------------------------------------------------


def _plan_group(name: str, guests: Sequence[ResctrlGuest],
                actual: model.Actual,
                wanted: model.Wanted) -> Iterator[Action | PolicyProblem]:
    """Yield the changes that create or correct a guest's resctrl group.

    A problem is yielded for each guest whose policy cannot be enforced.

    :param name: name of the group.
    :param guests: guests of the group; several if they share it.
    """
    uuids = [guest.domain.uuid for guest in guests]
    missing = [_describe_missing_vcpus(guest, actual) for guest in guests]
    group = actual.groups.get(name)
    if group is None and all(missing):
        yield from (PolicyProblem(uuid, name, 'the control group is not '
                                  'there, and ' + text)
                    for uuid, text in zip(uuids, missing, strict=True))
        return
    try:
        yield from _plan_values(guests[0], name, group, wanted)
    except errors.PolicyRefused as error:
        yield from (PolicyProblem(uuid, name, error.reason) for uuid in uuids)
        return
    for guest, text in zip(guests, missing, strict=True):
        yield from plan_thread_moves(guest, name, (group or Group()).tasks,
                                     actual, wanted.all_threads)
        if text:
            yield PolicyProblem(guest.domain.uuid, name, text)


def find_vcpu_threads(guest: ResctrlGuest, actual: model.Actual
                      ) -> dict[int, int]:
    """Return the thread ids of the vCPUs that a guest's policy limits.

    :returns: thread id by vCPU number.
    """
    return {vcpu: tid for tid, vcpu
            in actual.threads.get(guest.domain.uuid, {}).items()
            if vcpu is not None and vcpu in guest.vcpus}


def _describe_missing_vcpus(guest: ResctrlGuest, actual: model.Actual) -> str:
    """Describe the vCPUs of a guest that have no thread.

    The text is empty if all vCPUs have a thread.
    """
    vcpus = find_vcpu_threads(guest, actual)
    if len(vcpus) >= guest.online:
        return ''
    if not vcpus:
        return NO_VCPU_THREADS
    return (f'the guest has threads of {len(vcpus)} vCPUs, '
            f'{guest.online} are expected')


def _plan_values(guest: ResctrlGuest, name: str, group: Group | None,
                 wanted: model.Wanted) -> Iterator[Action]:
    """Yield the changes that create a resctrl group or correct its values.

    Values that the kernel gives to every new group are not written.

    :param guest: guest of the group; any of them if several share it.
    :param group: the existing group; None if it must be created.
    :raises PolicyRefused: if the values of the group cannot be corrected.
    """
    uuid = '' if guest.shared else guest.domain.uuid
    if group is None:
        yield Action('make group', name,
                     'guests are to share it' if guest.shared
                     else 'the guest is to be measured'
                     if guest.is_only_measured
                     else 'the guest has no control group', uuid)
        for line in differences.render_new_group_lines(
                guest.desired, wanted.others, wanted.writes):
            yield Action('write line', name, 'the group is new', uuid,
                         line=line)
        return
    if group.error:
        raise errors.PolicyRefused(group.error)
    if guest.is_only_measured:
        return
    if group.schemata is None:
        raise errors.PolicyRefused('its schemata were not read')
    wrong = differences.find_schemata_differences(
        group.schemata, guest.desired, wanted.others, wanted.tolerance)
    if not wrong:
        return
    for line in differences.plan_schemata_writes(
            group.schemata, guest.desired, wanted.others, wanted.tolerance,
            wanted.writes):
        reason = '; '.join(str(difference) for difference in wrong
                           if difference.line == line.partition(':')[0])
        yield Action('write line', name, reason, uuid, line=line)


def _select_threads(guest: ResctrlGuest, actual: model.Actual,
                    all_threads: bool) -> dict[int, str]:
    """Return the threads of a guest that belong in its resctrl group.

    These are the vCPU threads, and all other threads if requested.

    :param all_threads: whether threads other than vCPUs belong in the group.
    :returns: vCPU number as text, by thread id. The text is empty for threads
        other than vCPUs.
    """
    found = {
        tid: f'{vcpu}'
        for vcpu, tid in find_vcpu_threads(guest, actual).items()
    }
    takes_all = all_threads or guest.maker == 'libvirt-process'
    if takes_all and guest.has_other_threads:
        others = [tid for tid, vcpu
                  in actual.threads.get(guest.domain.uuid, {}).items()
                  if vcpu is None or not guest.vcpu_class]
        found = {**dict.fromkeys(others, ''), **found}
    return found


def plan_thread_moves(guest: ResctrlGuest, name: str, inside: Set[int],
                      actual: model.Actual,
                      all_threads: bool) -> Iterator[Action]:
    """Yield the move of a guest's threads that are not in a group yet.

    :param name: path of a control or monitoring group.
    :param inside: ids of the threads that are in the group.
    :param all_threads: whether the group takes all threads of the guest, not
        only those of vCPUs.
    """
    belong = _select_threads(guest, actual, all_threads)
    moved = sorted(belong.keys() - inside)
    if not moved:
        return
    vcpus = [int(belong[tid]) for tid in moved if belong[tid]]
    reasons = []
    if vcpus:
        reasons.append(f'vCPUs {cpulist.render_cpu_list(vcpus)}')
    if len(moved) > len(vcpus):
        reasons.append(f'{len(moved) - len(vcpus)} other threads')
    yield Action('move threads', name,
                 ' and '.join(reasons) + ' of the guest are not in it',
                 guest.domain.uuid, threads=tuple(moved))


def _release_vcpus_without_group(actual: model.Actual, wanted: model.Wanted
                                 ) -> Iterator[Action]:
    """Yield moves of vCPUs without limits out of the groups of their guest.

    Such vCPUs belong to a class for which the flavor requests no bandwidth.
    """
    limited: dict[str, frozenset[int]] = {}
    for one in wanted.guests:
        limited[one.domain.uuid] = limited.get(
            one.domain.uuid, frozenset()) | one.vcpus
    for name, (guest, *_others) in actual.members.items():
        if not guest.vcpu_class or name not in actual.groups:
            continue
        free = {tid: vcpu for tid, vcpu
                in actual.threads.get(guest.domain.uuid, {}).items()
                if vcpu is not None
                and vcpu not in limited.get(guest.domain.uuid, ())
                and tid in actual.groups[name].tasks}
        if free:
            yield Action(
                'move threads', '',
                f'vCPUs {cpulist.render_cpu_list(free.values())} of guest '
                f'{guest.domain.uuid} are in {name}, and their class has no '
                'limits', guest.domain.uuid, threads=tuple(sorted(free)))


def _find_foreign_vcpus(guests: Sequence[ResctrlGuest], name: str,
                        actual: model.Actual,
                        guest_tids: Set[int]) -> Iterator[PolicyProblem]:
    """Yield problems if a guest's control group has vCPUs of other guests.

    One problem is yielded for each guest of the group.

    :param guests: guests that share the group, or the only guest.
    :param name: name of the group.
    :param guest_tids: ids of threads that the plan moves to the groups of
        their own guests. These threads are no problem.
    """
    group = actual.groups.get(name)
    strange = group.vcpu_threads - guest_tids if group else None
    if strange:
        for guest in guests:
            yield PolicyProblem(guest.domain.uuid, name,
                                'threads of vCPUs of another guest are in it: '
                                + ', '.join(map(str, sorted(strange))))
