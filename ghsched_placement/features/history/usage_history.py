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

"""Bandwidth of servers in each minute of the last hours (pure).

nova-compute adds the time between its reports. A period that spans several
minutes adds to each of them the seconds that it has in common with it.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
import itertools
import math
from pathlib import Path
from typing import Any
from typing import NamedTuple

from ghsched_placement.base import wire

VERSION = 1
#: Key of a server's history in Nova's server diagnostics.
KEY = 'ghsched_history'

MINUTE_S = 60
#: Maximum number of minutes that are kept, including the current one.
MINUTES_KEPT = 360
#: Maximum number of pairs of a server and a host NUMA node; the newest are
#: kept.
SERVERS_KEPT = 2048
#: Maximum number of minutes of all servers together.
ENTRIES_KEPT = 65536
#: Maximum length of a server's name.
NAME_LENGTH = 64
#: Maximum numbers of minutes and of host NUMA nodes in a server's diagnostics.
MINUTES_REPORTED = 180
NODES_REPORTED = 16
#: Maximum length of a record in bytes; a longer file is not read.
LONGEST = 4 * 2 ** 20


class UsageKey(NamedTuple):
    """Key of the bandwidth of one server on one host NUMA node.

    :param server: UUID of the server; empty for the whole node.
    :param node: number of the host NUMA node.
    """

    server: str
    node: int


class Minute(NamedTuple):
    """Bandwidth of a server in one minute.

    :param number: minutes since 1970.
    :param seconds: time of the minute that was measured.
    :param rate: mean over this time in bytes per second.
    """

    number: int
    seconds: float
    rate: float


@dataclass(frozen=True)
class History:
    """Bandwidth of a host's servers in each of the last minutes.

    :param minutes: measured minutes by server and host NUMA node, the oldest
        first.
    :param names: name of each server by its UUID.
    :param capacity: bytes per second that the memory can deliver, by host NUMA
        node.
    """

    minutes: Mapping[UsageKey,
                     tuple[Minute, ...]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class UsagePeriod:
    """Bandwidth of a host's servers between two measurements.

    :param start: start of the period in seconds since 1970.
    :param end: end of the period in seconds since 1970.
    :param rates: mean bytes per second by server and host NUMA node.
    :param names: name of each server by its UUID.
    :param capacity: bytes per second that the memory can deliver, by host NUMA
        node.
    """

    start: float
    end: float
    rates: Mapping[UsageKey, float] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[int, float] = field(default_factory=dict)


def to_minute_number(time: float) -> int:
    """Convert seconds since 1970 to whole minutes since 1970, rounded down."""
    return int(time // MINUTE_S)


def add_period_to_history(before: History, period: UsagePeriod) -> History:
    """Add a new measurement to a host's history of bandwidth by server.

    The history has the bandwidth of each server in each of the last minutes.
    Minutes later than the measurement are dropped, because the clock must have
    been set back.

    :param before: history until now.
    :param period: bandwidth of each server since the last measurement.
    :returns: the history with the measurement.
    """
    now = to_minute_number(period.end)
    parts = tuple(_split_into_minutes(period.start, period.end))
    minutes = {}
    for key in {**before.minutes, **period.rates}:
        rate = period.rates.get(key)
        found = _add_to_minutes(before.minutes.get(key, ()),
                                () if rate is None else parts, rate or 0.0,
                                now)
        if found:
            minutes[key] = found
    minutes = _limit_history_size(minutes)
    servers = {key.server for key in minutes}
    return History(
        minutes,
        {server: name[:NAME_LENGTH] for server, name
         in {**before.names, **period.names}.items() if server in servers},
        dict(itertools.islice(period.capacity.items(), SERVERS_KEPT)))


def _split_into_minutes(start: float, end: float
                        ) -> Iterator[tuple[int, float]]:
    """Yield each minute of a time span, with the seconds of the span in it.

    :param start: start of the time span, in seconds since 1970.
    :param end: end of the time span, in seconds since 1970.
    """
    first = max(to_minute_number(start),
                to_minute_number(end) - MINUTES_KEPT + 1)
    for number in range(first, to_minute_number(end) + 1):
        seconds = (min(end, (number + 1) * MINUTE_S)
                   - max(start, number * MINUTE_S))
        if seconds > 0:
            yield number, seconds


def _add_to_minutes(before: Sequence[Minute],
                    parts: Sequence[tuple[int, float]], rate: float,
                    now: int) -> tuple[Minute, ...]:
    """Add a measurement to the bandwidth record of a server by minute.

    :param before: minutes until now; those that are too old are dropped.
    :param parts: minutes that the measurement covers: the number of each
        minute, and the seconds of the measurement in it.
    :param rate: measured bandwidth in bytes per second.
    :param now: number of the current minute.
    :returns: the minutes with the measurement.
    """
    oldest = now - MINUTES_KEPT + 1
    kept = [one for one in before if oldest <= one.number <= now]
    if not parts:
        return tuple(kept)
    first = parts[0][0]
    # Nearly all minutes end before the period begins.
    untouched = [one for one in kept if one.number < first]
    changed = {one.number: one for one in kept[len(untouched):]}
    for number, seconds in parts:
        old = changed.get(number, Minute(number, 0.0, 0.0))
        # A clock that was set back measures a minute twice.
        total = old.seconds + seconds
        changed[number] = Minute(
            number, total, (old.seconds * old.rate + seconds * rate) / total)
    return (*untouched, *(changed[number] for number in sorted(changed)))


def _limit_history_size(minutes: Mapping[UsageKey, tuple[Minute, ...]]
                        ) -> dict[UsageKey, tuple[Minute, ...]]:
    """Drop the oldest servers and minutes of a history that is too long.

    :param minutes: measured minutes of each server.
    """
    newest = sorted(minutes, key=lambda key: minutes[key][-1].number,
                    reverse=True)[:SERVERS_KEPT]
    each = ENTRIES_KEPT // max(1, len(newest))
    return {key: minutes[key][-each:] for key in newest}


# -- who used most ------------------------------------------------------------


@dataclass(frozen=True)
class BandwidthUse:
    """Bandwidth that a server has used on a host NUMA node in several minutes.

    :param key: server and host NUMA node.
    :param name: name of the server.
    :param seconds: measured seconds.
    :param moved: bytes read from and written to memory.
    :param peak: highest mean of one minute in bytes per second.
    """

    key: UsageKey
    name: str
    seconds: float
    moved: float
    peak: float

    @property
    def rate(self) -> float:
        """Mean bandwidth over the measured time, in bytes per second."""
        return self.moved / self.seconds if self.seconds else 0.0


def list_bandwidth_uses(history: History, first: int) -> list[BandwidthUse]:
    """Return the bandwidth that each server of a host has used since a minute.

    The server that moved most bytes comes first.

    :param history: bandwidth of each server in each of the last minutes.
    :param first: number of the minute, in minutes since 1970.
    """
    found = []
    for key, minutes in history.minutes.items():
        chosen = [one for one in minutes if one.number >= first]
        if chosen:
            found.append(BandwidthUse(
                key, history.names.get(key.server, ''),
                math.fsum(one.seconds for one in chosen),
                math.fsum(one.seconds * one.rate for one in chosen),
                max(one.rate for one in chosen)))
    return sorted(found, key=lambda use: (-use.moved, use.name, use.key))


# -- JSON ---------------------------------------------------------------------


def _make_fields(history: History) -> dict[str, Any]:
    return {
        'names': dict(history.names),
        'capacity': [[node, round(rate)]
                     for node, rate in history.capacity.items()],
        'minutes': [[*key, _pack_minutes(minutes)]
                    for key, minutes in history.minutes.items()]}


def _pack_minutes(minutes: Iterable[Minute]) -> list[float]:
    """Encode the bandwidth of a server in each minute as a list of numbers.

    There are three numbers for each minute: minutes since the previous entry,
    measured seconds, and bytes per second.
    """
    packed: list[float] = []
    last = 0
    for number, seconds, rate in minutes:
        packed += (number - last, round(seconds, 2), round(rate))
        last = number
    return packed


def _parse_history(found: Mapping[str, Any]) -> History:
    minutes = {}
    for server, node, packed in found['minutes'][:SERVERS_KEPT]:
        one = _parse_minutes(wire.check_list(packed, 3 * MINUTES_KEPT))
        if one:
            minutes[UsageKey(wire.check_text(server, NAME_LENGTH),
                             wire.check_node(node))] = one
    return History(
        _limit_history_size(minutes),
        {wire.check_text(server, NAME_LENGTH):
         wire.check_text(name, NAME_LENGTH) for server, name
         in itertools.islice(found['names'].items(), SERVERS_KEPT)},
        {wire.check_node(node): float(wire.check_number(rate))
         for node, rate in found['capacity'][:SERVERS_KEPT]})


#: A host's history of bandwidth by server.
FILE_FORMAT = wire.FileFormat(
    'ghsched-history.json', VERSION, _parse_history, _make_fields, History,
    LONGEST)


def read_history(path: Path) -> History:
    """Read a host's history of bandwidth by server from a JSON file.

    The result is empty if the content is malformed.

    :raises OSError: see :func:`wire.read_record_file`.
    """
    return FILE_FORMAT.parse(wire.read_record_file(path, LONGEST))


def _parse_minutes(packed: Sequence[Any]) -> tuple[Minute, ...]:
    """Parse the bandwidth of a server in each minute from a list of numbers.

    :param packed: numbers as :func:`_pack_minutes` returns them.
    :raises TypeError, ValueError: if a number is out of range, or the minutes
        are not in ascending order.
    """
    found: list[Minute] = []
    last = 0
    for gap, seconds, rate in zip(packed[::3], packed[1::3], packed[2::3],
                                  strict=True):
        last = wire.check_integer(
            last + wire.check_integer(gap, minimum=1),
            wire.MAX_TIME // MINUTE_S)
        found.append(Minute(last, float(wire.check_number(seconds)),
                            float(wire.check_number(rate))))
    return tuple(found)


# -- diagnostics of a server --------------------------------------------------


def make_history_diagnostics(history: History, server: str) -> dict[str, str]:
    """Return a server's bandwidth in the last hours for its Nova diagnostics.

    The result is empty if nothing was measured.

    :param history: bandwidth of each server in each of the last minutes.
    :param server: UUID of the server.
    """
    keys = sorted(key for key in history.minutes
                  if key.server == server)[:NODES_REPORTED]
    if not keys:
        return {}
    return FORMAT.make_field(History(
        {key: history.minutes[key][-MINUTES_REPORTED:] for key in keys},
        capacity={key.node: history.capacity[key.node] for key in keys
                  if key.node in history.capacity}))


def parse_history_diagnostics(
        diagnostics: Mapping[str, Any]) -> History | None:
    """Parse a server's bandwidth in the last hours from its Nova diagnostics.

    :returns: None if the host does not report it.
    """
    return FORMAT.parse(diagnostics)


FORMAT = wire.Format(KEY, VERSION, _parse_history, _make_fields)
