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

"""Measured bursts of a host's NUMA nodes, as a record in a file (pure).

The record is stored in a small JSON file, so that it survives restarts of
nova-compute. Otherwise bursts could not be overcommitted until a whole window
has been measured again.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from dataclasses import dataclass
import functools
from pathlib import Path
from typing import Any

from ghsched_placement.base import wire
from ghsched_placement.features.bursts import burst
from ghsched_placement.features.bursts import burst_projects

VERSION = 1


@dataclass(frozen=True)
class Record:
    """Promised bursts of a host NUMA node, and how much of them is used.

    A burst is bandwidth above a guest's guarantee. All percentages are of the
    node's bandwidth.

    :param hours: hourly records of the window, the oldest first.
    :param pool: percent that was available for bursts in the last period.
    :param promised: percent promised to all guests in the last period.
    :param offered: percent that Placement may promise to guests in total.
    :param chance: probability that the pool is too small in a period, if no
        more than ``promised`` is promised; None until a whole window is
        measured.
    :param lowest: pairs of the number of an hour and the lowest percent that
        was allowed in it. The lowest of the window is offered, because guests
        that were placed in a quiet hour stay when it is over.
    :param uses: use of bursts by project.
    """

    hours: tuple[burst.BurstHour, ...] = ()
    pool: float = 0.0
    promised: int = 0
    offered: int = 0
    chance: float | None = None
    lowest: tuple[tuple[int, int], ...] = ()
    uses: burst_projects.BurstUseByProject = burst_projects.BurstUseByProject()

    @property
    def total(self) -> burst.BurstHour:
        """Sum of the records of all hours that are kept of a host NUMA node.

        They are of its bursts. A burst is bandwidth above a guest's guarantee.
        """
        return functools.reduce(burst.BurstHour.add_record, self.hours,
                                burst.BurstHour(0))


@dataclass(frozen=True)
class BurstPeriod:
    """Use of bursts on a host NUMA node since the previous measurement.

    :param shares: burst use of each guest with a burst; None if the use of any
        of them is unknown.
    :param pool: percent of the node's bandwidth that was available for bursts.
    :param full: whether the node could deliver no more bandwidth.
    """

    shares: Sequence[burst.GuestBurst] | None
    pool: float
    full: bool = False


def add_period_to_record(before: Record, hour: int, period: BurstPeriod,
                         limits: burst.BurstLimits) -> Record:
    """Add one measured period to the burst record of a host NUMA node.

    The record says how much of their bursts (bandwidth above a guarantee) the
    guests have used. A period is the time between two measurements of
    nova-compute. A period in which some guest's use is unknown is not counted.

    :param before: burst record until now.
    :param hour: number of the hour of the period, in hours since 1970.
    :param period: measured use of bursts in the period.
    :param limits: limits on overcommitting bursts, with the window.
    :returns: the record with the new period.
    """
    shares = period.shares or ()
    promised = (before.promised if period.shares is None
                else sum(share.promised for share in shares))
    hours = burst.add_period_to_burst_hours(
        before.hours, burst.make_hour_from_period(
            hour, shares, period.pool, period.full), limits.window)
    found = burst.summarize_burst_hours(hours, limits)
    uses = before.uses
    if period.shares is not None:
        uses = burst_projects.add_period_by_project(
            uses, hour, shares, limits.window)
    limit = min(burst.compute_burst_limit(hours, period.pool, limits),
                burst_projects.compute_limit_by_project_use(
                    uses, period.pool, limits))
    lowest = burst.add_limit_to_hourly_minima(before.lowest, hour, limit,
                                              limits.window)
    return Record(
        hours, period.pool, promised,
        burst.smooth_burst_offer(before.offered,
                                 min(least for _, least in lowest)),
        None if found is None
        else burst.estimate_shortage_probability(found, promised, period.pool,
                                                 limits), lowest,
        uses)


def _make_fields(records: Mapping[int, Record]) -> dict[str, Any]:
    """Return the fields of the burst records of a host's NUMA nodes.

    A burst record says how much of their bursts guests have used. The use by
    project is in a JSON object of its own, because older releases refuse
    unknown fields in the record of a node.

    :param records: burst record by host NUMA node.
    """
    nodes = {str(node): dataclasses.asdict(record)
             for node, record in sorted(records.items())}
    return {'nodes': nodes, 'projects': {
        node: record.pop('uses') for node, record in nodes.items()}}


def _parse_records(found: Mapping[str, Any]) -> dict[int, Record]:
    uses = _parse_uses(found)
    return {wire.check_node_key(node): dataclasses.replace(
        _parse_node_record(one),
        uses=uses.get(node, burst_projects.BurstUseByProject()))
        for node, one in wire.check_object(found['nodes']).items()}


def read_shortage_probabilities(path: Path | None) -> dict[int, float]:
    """Read the probability that the pool is too small, by host NUMA node.

    :param path: file of :data:`FORMAT`; None if there is none.
    :returns: probabilities from 0 to 1; nodes without a known one are omitted.
    """
    return {node: record.chance for node, record in FORMAT.read(path).items()
            if record.chance is not None and record.promised}


def _parse_uses(found: Mapping[str, Any]
                ) -> dict[str, burst_projects.BurstUseByProject]:
    try:
        return {node: burst_projects.parse_project_uses(one)
                for node, one in found['projects'].items()}
    except wire.MALFORMED:
        return {}


def _parse_node_record(mapping: Mapping[str, Any]) -> Record:
    """Parse the burst record of one host NUMA node from a mapping.

    The record says how much of their bursts (bandwidth above a guarantee) the
    guests have used. Unknown keys are ignored.
    """
    hours = tuple(burst.BurstHour(**wire.check_fields(burst.BurstHour, hour))
                  for hour in wire.check_list(mapping['hours']))
    lowest = tuple((wire.check_integer(hour), wire.check_integer(least))
                   for hour, least
                   in wire.check_list(mapping.get('lowest', ())))
    return Record(hours=hours, lowest=lowest,
                  **wire.check_fields(Record, mapping))


#: Burst records of a host's NUMA nodes. If only the use by project is
#: malformed, the records are read without it.
FORMAT: wire.FileFormat[Mapping[int, Record]] = wire.FileFormat(
    'ghsched-bursts.json', VERSION, _parse_records, _make_fields, dict)
