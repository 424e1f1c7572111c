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

"""Which ways of the L3 each control group is to hold (pure).

The guests that have ways to themselves get theirs first, see
:mod:`ghsched_nova.resctrl.cache`; the kernel's default group and the groups
of all other guests are kept out of them. Groups of somebody else are left as
they are.

A group that shares what is left holds all of it, unless somebody has given it
less and none of that is a guest's.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import replace

from ghsched_nova.resctrl import cache as caches
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import schemata

#: The kernel's default group, below the root.
ROOT = ''


def completed(plan: model.Plan, actual: model.Actual,
              wanted: model.Wanted) -> model.Plan:
    """A plan with what is to be done for the L3.

    The others leave the ways of a guest before it gets them.
    """
    cache = wanted.cache
    if cache is None or actual.root is None:
        return plan
    members = model.members(wanted.guests, actual.groups)
    made = {action.group for action in plan.actions
            if action.kind == 'make group'}
    there = {name: actual.groups[name].schemata for name in members
             if name in actual.groups}
    groups = {name: guests[0] for name, guests in members.items()
              if (name in made or there.get(name) is not None)
              and not guests[0].only_measured}
    held = {name: (schemata.Schemata() if name in made
                   else there.get(name) or schemata.Schemata())
            for name in groups}
    masks, problems = _assigned(cache, groups, held)
    shared = [name for name in groups if not groups[name].ways]
    actions = [
        *_shared(cache, ROOT, '', actual.root, masks),
        *(action for name in shared for action in _shared(
            cache, name, _uuid(groups[name]), held[name], masks)),
        *(action for name, guest in groups.items() if guest.ways
          for action in _own(cache, name, guest, held[name], masks))]
    return replace(plan, actions=(*plan.actions, *actions),
                   problems=(*plan.problems, *problems))


def _uuid(guest: model.Guest) -> str:
    return '' if guest.shared else guest.domain.uuid


_Masks = dict[int, dict[str, int]]


def _assigned(cache: caches.Cache, groups: Mapping[str, model.Guest],
              held: Mapping[str, schemata.Schemata]
              ) -> tuple[_Masks, list[model.Problem]]:
    """Masks by domain and group, and the guests that there is no room for."""
    masks: _Masks = {}
    lacking: dict[str, int] = {}
    for domain in sorted(cache.domains):
        ways = {name: guest.ways[domain] for name, guest in groups.items()
                if domain in guest.ways}
        masks[domain] = caches.assign(cache, ways, {
            name: _mask(held[name], cache.lines[0], domain) for name in ways})
        lacking |= dict.fromkeys(ways.keys() - masks[domain].keys(), domain)
    return masks, [model.Problem(
        groups[name].domain.uuid, name,
        f'there are no {groups[name].ways[domain]} ways left in L3 '
        f'{domain}') for name, domain in sorted(lacking.items())]


def _own(cache: caches.Cache, name: str, guest: model.Guest,
         held: schemata.Schemata, masks: _Masks) -> Iterator[model.Action]:
    """The ways of a guest, and the rest of the caches it asks nothing of."""
    wanted = {domain: mine.get(name, caches.rest(cache, mine))
              for domain, mine in masks.items()}
    yield from _writes(cache, name, guest.domain.uuid, held, wanted)


def _shared(cache: caches.Cache, name: str, uuid: str,
            held: schemata.Schemata,
            masks: _Masks) -> Iterator[model.Action]:
    wanted = {}
    for domain, mine in masks.items():
        left = caches.rest(cache, mine)
        now = _mask(held, cache.lines[0], domain)
        # What looks like a rest of ours grows and shrinks with it.
        ours = now == 0 or now & ~cache.region == cache.mask & ~cache.region
        wanted[domain] = left if ours or now & ~left else now
    yield from _writes(cache, name, uuid, held, wanted)


def _writes(cache: caches.Cache, name: str, uuid: str,
            held: schemata.Schemata,
            wanted: Mapping[int, int]) -> Iterator[model.Action]:
    for line in cache.lines:
        wrong = {domain: mask for domain, mask in wanted.items()
                 if _mask(held, line, domain) != mask}
        if wrong:
            reason = '; '.join(
                f'{line} of domain {domain} is '
                f'{_mask(held, line, domain):x}, wanted is {mask:x}'
                for domain, mask in wrong.items())
            text = schemata.render_values(tuple(
                (domain, f'{mask:x}') for domain, mask in wrong.items()))
            yield model.Action('write line', name, reason, uuid,
                               line=f'{line}:{text}\n')


def _mask(held: schemata.Schemata, line: str, domain: int) -> int:
    """What a group holds; 0 when that is not known."""
    try:
        return (held.values(line, 16) or {}).get(domain, 0)
    except schemata.SchemataError:
        return 0
