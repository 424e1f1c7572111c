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

"""Reason why a rebalance plan moves no server, as a sentence (pure)."""

from collections.abc import Iterable
from collections import Counter

from ghsched_placement.features.rebalance.move_plan import Cloud
from ghsched_placement.features.rebalance.move_plan import CloudState
from ghsched_placement.features.rebalance.move_plan import Guest
from ghsched_placement.features.rebalance.move_plan import Moved
from ghsched_placement.features.rebalance.move_plan import Settings
from ghsched_placement.features.rebalance.move_plan import Spot

#: Reasons for which a server on a bottleneck stays there.
RESTING = 'it was moved within the cool-down'
FIXED = 'it may not be moved'
NO_ROOM = 'no other NUMA node has room for it'
TOO_LITTLE = 'a move would gain too little'
LIMITED = 'its host has had its moves of the period'


def explain_no_moves(cloud: Cloud, settings: Settings,
                     history: Iterable[Moved] = (), now: float = 0.0) -> str:
    """Return a sentence that says why no server of a cloud is to be moved.

    :param history: recent moves, which rule out further moves for a while.
    :param now: current time in seconds, by the clock of the history.
    """
    moved = list(history)
    recent = [one for one in moved if now - one.time < settings.period]
    if len(recent) >= settings.moves:
        return (f'Nothing to move, because there were {len(recent)} moves '
                f'within {settings.period:g} s, and no more than '
                f'{settings.moves} are allowed.')
    if not cloud.guests:
        return ('Nothing to move, because no server with NUMA nodes runs '
                'whose load is known.')
    state = CloudState(cloud, settings)
    spots = sorted(spot for spot in state.nodes if state.is_overloaded(spot))
    if not spots:
        return ('Nothing to move, because no NUMA node whose load is known '
                'is a bottleneck, and no server would gain by being nearer to '
                'those that it talks to.')
    resting = {one.guest for one in moved
               if now - one.time < settings.cool_down}
    fixed = {one.uuid: one for one in cloud.fixed}
    there = {uuid for spot in spots for uuid in state.at[spot]} | {
        one.uuid for one in cloud.fixed
        if set(spots) & {Spot(one.host, node) for node in one.nodes}}
    found = Counter(
        fixed[uuid].reason if uuid in fixed else RESTING if uuid in resting
        else explain_unmoved_server(state, state.guests[uuid])
        for uuid in sorted(there))
    return (f'Nothing to move, because {_format_bottlenecks(spots)}, and '
            + (_format_reasons(found) if found
               else 'no server there can be moved') + '.')


def explain_unmoved_server(state: CloudState, guest: Guest) -> str:
    """Return why a server has to stay on an overloaded NUMA node.

    :param state: load and free resources of the cloud.
    :param guest: the server.
    """
    if not (guest.inside or guest.between):
        return FIXED
    # A node that nobody is on may become as full as is better than here.
    worse = state.hysteresis_load * state.get_relative_load(guest.spot)
    rooms = [
        spot for spot in state.nodes
        if state.can_take_guest(guest, spot, state.hysteresis_load)
        or not state.at[spot] and state.can_take_guest(guest, spot, worse)]
    if not rooms:
        return NO_ROOM
    pays = any(state.make_profitable_move(guest, spot, '') for spot in rooms)
    return LIMITED if pays else TOO_LITTLE


def _format_bottlenecks(spots: list[Spot]) -> str:
    shown = ', '.join(map(str, spots[:5]))
    more = f' and {len(spots) - 5} more' if len(spots) > 5 else ''
    return (f'{shown}{more} are bottlenecks' if len(spots) > 1
            else f'{shown} is a bottleneck')


def _format_reasons(reasons: Counter[str]) -> str:
    """Return a text with the reasons why servers stay on overloaded nodes.

    :param reasons: number of servers to which each reason applies.
    """
    total = sum(reasons.values())
    parts = '; '.join(f'{count}: {text}'
                      for text, count in reasons.most_common())
    return ('the server there stays: ' + next(iter(reasons)) if total == 1
            else f'the {total} servers there stay ({parts})')
