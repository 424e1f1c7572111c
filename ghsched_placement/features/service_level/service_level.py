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

"""Service level of servers: used bandwidth, and causes of shortage (pure).

A server is short of bandwidth in a period if its vCPUs were busy and it moved
less than its guarantee, or as much as its cap allows. Each period of shortage
has one cause, the first one that applies in the order of
:class:`ShortageCause`.
"""

from collections.abc import Mapping
import dataclasses
from dataclasses import dataclass
from dataclasses import field
import enum
import time
from typing import Any
from typing import NamedTuple

from ghsched_placement.base import wire
from ghsched_placement.providers import tree

VERSION = 1

#: Busy fraction of vCPUs at which a server is assumed to need its bandwidth.
BUSY = 0.25
#: Fraction of a guarantee that counts as the full guarantee.
ENOUGH = 0.95
#: Fraction of a cap at which the cap counts as reached.
CAP_REACHED = 0.95
#: Percent by which a kernel may round a guarantee down.
ROUNDING = 2.0
#: Number of hours in the history of a server.
HOURS_KEPT = 48
#: Maximum number of servers on a node; the newest are kept.
LEVELS_KEPT = 2048
#: Seconds after its last period that a server is kept.
KEPT_S = 86400.0


class ShortageCause(enum.StrEnum):
    """Cause of a server getting less bandwidth than its guarantee.

    If several causes apply, the first one in this order is reported.
    """

    #: The control group does not enforce the server's policy.
    NOT_PROTECTED = 'not_protected'
    #: The server has reached the cap of its flavor.
    OWN_CAP = 'own_cap'
    #: The server has just come to a host NUMA node that is full or unknown.
    HOST_MOVED = 'host_moved'
    #: The host NUMA node delivers no more bandwidth.
    NODE_FULL = 'node_full'
    #: The used bandwidth of the host NUMA node is unknown.
    UNKNOWN = 'unknown'


class LevelKey(NamedTuple):
    """Key of a record about one server on one host NUMA node.

    :param server: UUID of the server.
    :param node: number of the host NUMA node.
    :param vcpu_class: vCPU class that the record is about; empty for a server
        without classes.
    """

    server: str
    node: int
    vcpu_class: str = ''


@dataclass(frozen=True)
class Owner:
    """Name, project and flavor of a server; empty if unknown."""

    name: str = ''
    project: str = ''
    flavor: str = ''


@dataclass(frozen=True)
class LevelPeriod:
    """Bandwidth of a server on a host NUMA node between two measurements.

    All bandwidths are in percent of the node's bandwidth. A value is None if
    it is unknown.

    :param asked: guarantee in the flavor.
    :param cap: cap in the flavor; 100 for none.
    :param allocated: percent allocated in Placement.
    :param held: guarantee of the control group; None also if the kernel cannot
        guarantee bandwidth.
    :param got: percent that the server used.
    :param node_used: percent that all control groups of the node used.
    :param busy: busy fraction of the server's vCPUs, 0 to 1.
    :param protected: whether the control group enforces the policy.
    """

    asked: float = 0.0
    cap: float = 100.0
    allocated: float | None = None
    held: float | None = None
    got: float | None = None
    node_used: float | None = None
    busy: float | None = None
    protected: bool = True


def find_shortage_cause(period: LevelPeriod, moved: bool
                        ) -> ShortageCause | None:
    """Return the cause of a server's bandwidth shortage in a measured period.

    :param period: bandwidth of the server between two measurements.
    :param moved: whether the server has just come to the host NUMA node.
    :returns: None if the server was not short: it got enough, was idle, could
        have used more, or was not measured.
    """
    got = period.got
    if got is None or (period.busy is not None and period.busy < BUSY):
        return None
    capped = period.cap < 100 and got >= CAP_REACHED * period.cap
    if got >= ENOUGH * period.asked:
        return ShortageCause.OWN_CAP if capped else None
    if not period.protected or (
            period.held is not None
            and period.held < period.asked - ROUNDING):
        return ShortageCause.NOT_PROTECTED
    if capped:
        return ShortageCause.OWN_CAP
    if period.node_used is not None and period.node_used < 100 * tree.FULL:
        return None     # nobody kept it from using more
    if moved:
        return ShortageCause.HOST_MOVED
    return (ShortageCause.UNKNOWN if period.node_used is None
            else ShortageCause.NODE_FULL)


@dataclass(frozen=True)
class LevelHour:
    """Bandwidth of a server on a host NUMA node in one hour.

    :param number: hours since 1970.
    :param seconds: measured seconds of the hour.
    :param got: mean percent of the node's bandwidth that the server used.
    :param short: seconds in which the server got less than its guarantee.
    """

    number: int
    seconds: float = 0.0
    got: float = 0.0
    short: float = 0.0


@dataclass(frozen=True)
class Level:
    """Bandwidth service level of a server on a host NUMA node in one month.

    The server is short while it gets less bandwidth than its guarantee.

    :param owner: name, project and flavor of the server.
    :param month: year times 12 plus month, in UTC.
    :param seen: end of the last period, in seconds since 1970.
    :param last: the last period.
    :param seconds: measured seconds of the month.
    :param unmeasured: seconds in which the used bandwidth was unknown.
    :param periods: number of periods measured in the month.
    :param short_periods: number of periods in which the server was short, by
        cause.
    :param short: seconds in which the server was short, by cause.
    :param hours: records of the last hours, the oldest first.
    """

    owner: Owner = Owner()
    month: int = 0
    seen: float = 0.0
    last: LevelPeriod = LevelPeriod()
    seconds: float = 0.0
    unmeasured: float = 0.0
    periods: int = 0
    short_periods: Mapping[str, int] = field(default_factory=dict)
    short: Mapping[str, float] = field(default_factory=dict)
    hours: tuple[LevelHour, ...] = ()


Levels = Mapping[LevelKey, Level]


class ShortTime(NamedTuple):
    """Time of a month in which a server got less than its guarantee.

    :param short: seconds in which it was short, except by its own cap.
    :param measured: seconds in which its bandwidth was measured.
    """

    short: float
    measured: float

    @property
    def short_percent(self) -> float | None:
        """Percent of the measured time in which the server was short.

        The server then got less bandwidth than its guarantee. The percent is
        None if nothing was measured.
        """
        return 100 * self.short / self.measured if self.measured else None


def map_shortage_times(levels: Levels) -> dict[LevelKey, ShortTime]:
    """Return how long each server of a host got less than its guarantee.

    The times are those of the month in which the server was last measured.
    Time in which only the cap of its flavor limited a server does not count.
    For a server with vCPU classes, the class with the longest time counts.

    :param levels: service levels of the host's servers.
    """
    found: dict[LevelKey, ShortTime] = {}
    for key, level in levels.items():
        times = ShortTime(
            sum(seconds for cause, seconds in level.short.items()
                if cause != ShortageCause.OWN_CAP), level.seconds)
        of_server = LevelKey(key.server, key.node)
        found[of_server] = max(times, found.get(of_server, times))
    return found


def add_period_to_levels(before: Levels,
                         periods: Mapping[LevelKey,
                                          tuple[Owner, LevelPeriod]],
                         seconds: float, now: float) -> dict[LevelKey, Level]:
    """Add a new measurement to the service levels of a host's servers.

    A service level says how much bandwidth a server got in a month, and how
    long it was short of its guarantee. A period is the time between two
    measurements of nova-compute.

    :param before: service levels until now.
    :param periods: bandwidth of each server in the new period.
    :param seconds: length of the period.
    :param now: end of the period, in seconds since 1970.
    :returns: the service levels with the new period.
    """
    found = {key: level for key, level in before.items()
             if now - level.seen <= KEPT_S}
    for key, (owner, period) in periods.items():
        old = found.get(key)
        found[key] = dataclasses.replace(
            _add_period_to_level(_reset_monthly_level(old or Level(), now),
                                 period, seconds, now, old is None),
            owner=owner)
    newest = sorted(found, key=lambda key: found[key].seen, reverse=True)
    return {key: found[key] for key in newest[:LEVELS_KEPT]}


def _reset_monthly_level(level: Level, now: float) -> Level:
    """Return a server's service level, reset if a new month has begun.

    A service level says how much bandwidth a server got in a month, and how
    long it was short of its guarantee.

    :param level: service level of the server.
    :param now: current time in seconds since 1970.
    """
    utc = time.gmtime(now)
    month = 12 * utc.tm_year + utc.tm_mon - 1
    if level.month == month:
        return level
    return Level(month=month, hours=level.hours)


def _add_period_to_level(level: Level, period: LevelPeriod, seconds: float,
                         now: float, moved: bool) -> Level:
    """Add a new measurement to the bandwidth service level of a server.

    A service level says how much bandwidth a server got in a month, and how
    long it was short of its guarantee. A period is the time between two
    measurements of nova-compute.

    :param level: service level of the server until now.
    :param period: bandwidth of the server in the new period.
    :param seconds: length of the period.
    :param now: end of the period, in seconds since 1970.
    :param moved: whether the server has just come to the host NUMA node.
    :returns: the service level with the period.
    """
    level = dataclasses.replace(level, seen=now, last=period)
    if period.got is None:
        return dataclasses.replace(level,
                                   unmeasured=level.unmeasured + seconds)
    cause = find_shortage_cause(period, moved)
    short = 0.0 if cause is None else seconds
    level = dataclasses.replace(
        level, seconds=level.seconds + seconds, periods=level.periods + 1,
        hours=_add_period_to_hours(level.hours, int(now // 3600), seconds,
                                   period.got, short))
    if cause is None:
        return level
    return dataclasses.replace(
        level,
        short={**level.short, cause: level.short.get(cause, 0.0) + seconds},
        short_periods={**level.short_periods,
                       cause: level.short_periods.get(cause, 0) + 1})


def _add_period_to_hours(hours: tuple[LevelHour, ...], number: int,
                         seconds: float,
                         got: float, short: float) -> tuple[LevelHour, ...]:
    """Add a new measurement to a server's hourly records of bandwidth.

    The oldest records are dropped.

    :param hours: hourly records until now.
    :param number: number of the current hour, in hours since 1970.
    :param seconds: time since the last measurement.
    :param got: percent of bandwidth that the server used in this time.
    :param short: seconds in which the server was short of its guarantee.
    """
    last = (hours[-1] if hours and hours[-1].number == number
            else LevelHour(number))
    total = last.seconds + seconds
    mean = (last.got * last.seconds + got * seconds) / total if total else 0.0
    kept = [hour for hour in hours if number - HOURS_KEPT < hour.number
            < number]
    return (*kept,
            LevelHour(number, total, round(mean, 3), last.short + short))


# -- JSON ---------------------------------------------------------------------


def _make_fields(levels: Levels) -> dict[str, Any]:
    # Not dataclasses.asdict(), whose deep copies take ten times as long.
    return {'levels': [
        # Releases without vCPU classes read three items.
        [key.server, key.node, {
            **vars(level), 'owner': vars(level.owner),
            'last': vars(level.last),
            'hours': [list(vars(hour).values()) for hour in level.hours],
            **({'vcpu_class': key.vcpu_class} if key.vcpu_class else {})}]
        for key, level in levels.items()]}


def _parse_levels(found: Mapping[str, Any]) -> dict[LevelKey, Level]:
    return {LevelKey(wire.check_text(server), wire.check_node(node),
                     wire.check_text(level.get('vcpu_class', ''))):
            _parse_level(level)
            for server, node, level in found['levels'][:LEVELS_KEPT]}


def _parse_level(mapping: Mapping[str, Any]) -> Level:
    """Parse a server's bandwidth service level from a mapping.

    Unknown keys are ignored.
    """
    causes = {str(cause) for cause in ShortageCause}
    return Level(
        owner=Owner(**wire.check_fields(Owner, mapping['owner'])),
        last=LevelPeriod(**wire.check_fields(LevelPeriod, mapping['last'])),
        short_periods={
            cause: wire.check_integer(count) for cause, count
            in mapping['short_periods'].items() if cause in causes},
        short={cause: wire.check_number(seconds) for cause, seconds
               in mapping['short'].items() if cause in causes},
        hours=tuple(LevelHour(wire.check_integer(number),
                              *map(wire.check_number, values))
                    for number, *values in mapping['hours'][-HOURS_KEPT:]),
        **wire.check_fields(Level, mapping))


#: Bandwidth service levels of a host's servers: how much bandwidth a server
#: got in a month, and how long it was short of its guarantee.
FORMAT: wire.FileFormat[Levels] = wire.FileFormat(
    'ghsched-service-levels.json', VERSION, _parse_levels, _make_fields, dict)
