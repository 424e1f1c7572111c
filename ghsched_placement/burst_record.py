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

"""What a host remembers of the bursts of its NUMA nodes (pure).

It outlives nova-compute as a small file of JSON: hours of measuring would be
lost otherwise, and all that is promised more than once with them.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from dataclasses import dataclass
import functools
import json
from pathlib import Path
from typing import Any

from ghsched_placement import burst
from ghsched_placement import burst_projects

VERSION = 1

_UNREADABLE = (AttributeError, KeyError, OverflowError, RecursionError,
               TypeError, ValueError)


@dataclass(frozen=True)
class Record:
    """One host NUMA node.

    :param hours: those of the window, the oldest first.
    :param pool: percent that was there for bursts in the last period.
    :param promised: percent, in all, in the last period.
    :param offered: percent that may be promised.
    :param chance: of the pool being too small in a period, as long as no
        more than this is promised; None while too little is known.
    :param lowest: the least that was allowed in each hour of the window.
        What is offered is no more than the least of these: a few quiet
        hours are no reason, as guests stay when they are over.
    :param uses: use of bursts by project.
    """

    hours: tuple[burst.Hour, ...] = ()
    pool: float = 0.0
    promised: int = 0
    offered: int = 0
    chance: float | None = None
    lowest: tuple[tuple[int, int], ...] = ()
    uses: burst_projects.Uses = burst_projects.Uses()

    @property
    def total(self) -> burst.Hour:
        """All hours of the window together."""
        return functools.reduce(burst.Hour.plus, self.hours, burst.Hour(0))


@dataclass(frozen=True)
class Period:
    """What was measured on a node since the time before.

    :param shares: of the guests with a burst; None where that is not known
        of all of them.
    :param pool: percent that is really there for bursts.
    :param full: whether the node can deliver no more.
    """

    shares: Sequence[burst.Share] | None
    pool: float
    full: bool = False


def advance(before: Record, hour: int, now: Period,
            limits: burst.Limits) -> Record:
    """The record with one more period.

    A period of which not all is known adds nothing, and a window of too few
    periods promises nothing twice.

    :param hour: its number, see :func:`ghsched_placement.burst.hour_of`.
    """
    shares = now.shares or ()
    promised = (before.promised if now.shares is None
                else sum(share.promised for share in shares))
    hours = burst.added(before.hours, burst.period(
        hour, shares, now.pool, now.full), limits.window)
    found = burst.measured(hours, limits)
    uses = before.uses if now.shares is None else burst_projects.advance(
        before.uses, hour, shares, limits.window)
    lowest = burst.lowest(before.lowest, hour, min(
        burst.allowed(hours, now.pool, limits),
        burst_projects.allowed(uses, now.pool, limits)), limits.window)
    return Record(
        hours, now.pool, promised,
        burst.settled(before.offered, min(least for _, least in lowest)),
        None if found is None
        else burst.short_chance(found, promised, now.pool, limits), lowest,
        uses)


def write(records: Mapping[int, Record]) -> str:
    """Return the JSON of the records of a host, by NUMA node.

    What is known by project stands beside the nodes: releases that know
    nothing of projects refuse a node with a name that is new to them.
    """
    nodes = {str(node): dataclasses.asdict(record)
             for node, record in sorted(records.items())}
    return json.dumps({'version': VERSION, 'nodes': nodes, 'projects': {
        node: record.pop('uses') for node, record in nodes.items()}})


def read(text: str) -> dict[int, Record]:
    """Return the records of :func:`write`, of any release.

    Empty where the text is not readable; without uses by project where those
    are not.
    """
    try:
        found = json.loads(text)
        if found['version'] != VERSION:
            return {}
        uses = _uses(found)
        return {int(node): dataclasses.replace(
            _record(one), uses=uses.get(node, burst_projects.Uses()))
            for node, one in found['nodes'].items()}
    except _UNREADABLE:
        return {}


def of_file(path: Path | None) -> dict[int, Record]:
    """What a file has; empty without one, and where it cannot be read."""
    try:
        return read(path.read_text()) if path else {}
    except (OSError, UnicodeDecodeError):
        return {}


def _uses(found: Mapping[str, Any]) -> dict[str, burst_projects.Uses]:
    try:
        return {node: burst_projects.from_mapping(one)
                for node, one in found['projects'].items()}
    except _UNREADABLE:
        return {}


def _record(found: Mapping[str, Any]) -> Record:
    """Return a record without what this release does not know."""
    hours = tuple(burst.Hour(**_known(burst.Hour, hour))
                  for hour in found['hours'])
    lowest = tuple((int(hour), int(least))
                   for hour, least in found.get('lowest', ()))
    return Record(**{**_known(Record, found), 'hours': hours,
                     'lowest': lowest})


def _known(kind: type, found: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)} - {'uses'}
    return {name: value for name, value in found.items() if name in names}
