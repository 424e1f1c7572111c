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

"""Assignment of L3 cache ways to control groups (pure).

Guests that reserve ways get their ways first, see

:mod:`ghsched_nova.features.l3_ways.reserved_ways`. The kernel's default group
    and the groups of all other guests get none of these ways. Groups of other
    software are not changed.

A group without reserved ways gets all unreserved ways, unless somebody has
given it fewer and none of those is reserved.

Masks are written before threads are moved, so that no thread runs with the
mask of a new group, which may be all ways. Each cache is written separately,
so that a refusal on one cache does not affect the others.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace

from ghsched_nova.features.l3_ways import reserved_ways
from ghsched_nova.resctrl.cache_facts import CacheWays
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import schemata

#: Path of the kernel's default group below the mount point.
ROOT = ''
_ROOT_TEXT = "the kernel's default group"


def add_mask_writes(plan: model.Plan, actual: model.Actual,
                    wanted: model.Wanted) -> model.Plan:
    """Add writes of the guests' L3 cache ways to a plan for resctrl.

    Ways that a guest reserves are first taken from all other control groups.

    :param plan: planned changes of resctrl.
    :returns: the extended plan.
    """
    cache = wanted.cache
    if cache is None or actual.root is None:
        return plan
    made = {action.group for action in plan.actions
            if action.kind == 'make group'}
    there = {name: group.schemata for name, group in actual.groups.items()}
    groups = {name: guests[0] for name, guests in actual.members.items()
              if (name in made or there.get(name) is not None)
              and not guests[0].is_only_measured}
    current = {name: (schemata.Schemata() if name in made
                      else there.get(name) or schemata.Schemata())
               for name in groups}
    masks, problems = _assign_masks(cache, groups, current)
    owners = {name: guest for name, guest in groups.items() if guest.ways}
    actions = [
        *_plan_shared_mask_write(cache, ROOT, '', actual.root, masks),
        *_plan_shared_mask_writes(cache, groups, current, masks),
        *_plan_reserved_mask_writes(cache, owners, current, masks)]
    first = cache.lines[0]
    settled = {name: guest for name, guest in owners.items() if all(
        reserved_ways.get_group_mask(current[name], first, domain)
        == masks[domain].get(name) for domain in guest.ways)}
    return replace(
        plan, actions=tuple(_insert_mask_writes(plan.actions, actions)),
        problems=(*plan.problems, *problems),
        internal_overlaps=tuple(_find_mask_overlaps(
            cache, settled, current, {**current, ROOT: actual.root})),
        overlaps=tuple(_find_mask_overlaps(
            cache, settled, current,
            _drop_removed_groups(actual.others, plan.actions))))


def _insert_mask_writes(actions: Sequence[model.Action],
                        masks: Sequence[model.Action]
                        ) -> Iterator[model.Action]:
    """Insert writes of L3 bit masks into planned changes of resctrl.

    They are inserted in front of the moves of threads.

    :param actions: the planned changes.
    :param masks: the writes.
    """
    yield from (one for one in actions if one.kind != 'move threads')
    yield from masks
    yield from (one for one in actions if one.kind == 'move threads')


def _drop_removed_groups(groups: Mapping[str, schemata.Schemata],
                         actions: Iterable[model.Action]
                         ) -> dict[str, schemata.Schemata]:
    """Return the schemata of control groups that the plan does not remove.

    :param groups: schemata by name of the group.
    :param actions: the planned changes of resctrl.
    """
    removed = {action.group for action in actions
               if action.kind == 'remove group'}
    return {name: rows for name, rows in groups.items()
            if name not in removed}


def _find_mask_overlaps(cache: CacheWays,
                        owners: Mapping[str, model.ResctrlGuest],
                        current: Mapping[str, schemata.Schemata],
                        others: Mapping[str, schemata.Schemata]
                        ) -> Iterator[model.PolicyProblem]:
    """Yield a problem for each guest whose L3 cache ways another group uses.

    The guest has reserved the ways, so no other group should use them.

    :param owners: guests that have reserved ways and have the right ways now,
        by control group.
    :param current: present schemata of the control groups of these guests.
    :param others: present schemata of all control groups that are searched
        for the reserved ways, by name.
    """
    for name, guest in owners.items():
        for other, rows in sorted(others.items()):
            if other == name:
                continue
            text = reserved_ways.describe_shared_ways(
                cache, guest.ways, current[name], rows
            )
            if text:
                yield model.PolicyProblem(
                    guest.domain.uuid, name,
                    f'{f"control group {other}" if other else _ROOT_TEXT} has '
                    f'{text} that the guest has to itself')


def _get_unshared_uuid(guest: model.ResctrlGuest) -> str:
    return '' if guest.shared else guest.domain.uuid


_Masks = dict[int, dict[str, int]]


def _assign_masks(cache: CacheWays, groups: Mapping[str, model.ResctrlGuest],
                  current: Mapping[str, schemata.Schemata]
                  ) -> tuple[_Masks, list[model.PolicyProblem]]:
    """Assign L3 cache ways, as bit masks, to control groups.

    :param groups: a guest of each control group, by name of the group.
    :param current: present schemata of each group.
    :returns: bit masks, and a problem for each group without enough ways.
    """
    masks: _Masks = {}
    lacking: dict[str, int] = {}
    for domain in sorted(cache.domains):
        ways = {name: guest.ways[domain] for name, guest in groups.items()
                if domain in guest.ways}
        masks[domain] = reserved_ways.assign_reserved_masks(cache, ways, {
            name: reserved_ways.get_group_mask(current[name], cache.lines[0],
                                               domain)
            for name in ways})
        lacking |= dict.fromkeys(ways.keys() - masks[domain].keys(), domain)
    return masks, [model.PolicyProblem(
        groups[name].domain.uuid, name,
        f'there are no {groups[name].ways[domain]} ways left in L3 '
        f'{domain}') for name, domain in sorted(lacking.items())]


def _plan_reserved_mask_writes(
    cache: CacheWays, groups: Mapping[str, model.ResctrlGuest],
    current: Mapping[str, schemata.Schemata], masks: _Masks
) -> Iterator[model.Action]:
    """Yield writes of the L3 cache ways of the guests' control groups.

    The ways are bit masks. Groups without reserved ways get all ways that are
    not reserved, and are written first. The outermost reserved masks follow,
    so that no guest gets ways that another group still has.

    :param masks: the bit masks of reserved ways.
    """
    for domain, mine in masks.items():
        rest = reserved_ways.compute_unreserved_ways(cache, mine, domain)
        for name in sorted(
            groups,
            key=lambda name: (
                name in mine,
                reserved_ways.make_mask_order_key(cache, mine.get(name, 0))),
        ):
            yield from _plan_differing_mask_writes(
                cache, name, groups[name].domain.uuid, current[name],
                {domain: mine.get(name, rest)})


def _plan_shared_mask_writes(cache: CacheWays,
                             groups: Mapping[str, model.ResctrlGuest],
                             current: Mapping[str, schemata.Schemata],
                             masks: _Masks) -> Iterator[model.Action]:
    """Yield writes of the L3 ways of control groups that reserve none.

    :param masks: the bit masks of reserved ways.
    """
    for name, guest in groups.items():
        if not guest.ways:
            yield from _plan_shared_mask_write(
                cache, name, _get_unshared_uuid(guest), current[name], masks)


def _plan_shared_mask_write(cache: CacheWays, name: str, uuid: str,
                            current: schemata.Schemata,
                            masks: _Masks) -> Iterator[model.Action]:
    wanted = {}
    for domain, mine in masks.items():
        left = reserved_ways.compute_unreserved_ways(cache, mine, domain)
        now = reserved_ways.get_group_mask(current, cache.lines[0], domain)
        # A mask that ghsched has written is changed to the unreserved ways.
        ours = now == 0 or now & ~cache.region == (
            cache.mask & ~cache.exclusive.get(domain, 0) & ~cache.region)
        wanted[domain] = left if ours or now & ~left else now
    yield from _plan_differing_mask_writes(cache, name, uuid, current, wanted)


def _plan_differing_mask_writes(cache: CacheWays, name: str, uuid: str,
                                current: schemata.Schemata,
                                wanted: Mapping[int, int]) -> Iterator[
                                    model.Action]:
    for line in cache.lines:
        for domain, mask in wanted.items():
            now = reserved_ways.get_group_mask(current, line, domain)
            if now != mask:
                yield model.Action(
                    'write line', name, f'{line} of domain {domain} is '
                    f'{now:x}, wanted is {mask:x}', uuid,
                    line=f'{line}:{domain}={mask:x}\n',
                    part=f'{line}:{domain}')
