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

"""Limit of the bursts that a host NUMA node promises, by project (pure).

Guests of one project are often replicas of one service, which are busy at the
same time. A node with guests of few projects has few independent loads: a day
of measurements has few samples of them, and one service that becomes busier
fills the node for days. Therefore the promised bursts are limited so that they
fit while all guests of one project are busy, the one that adds most, and the
other projects use as much as usual::

    worst = promised to the project that adds most
          + sum of the others' mean use * safety
          + standard deviation of that sum

Of three equal projects, two are assumed to be busy at once. Between two and
three projects, the second one counts in part. With more projects it counts
less again: a day then has more samples of projects that are busy together,
which :func:`ghsched_placement.features.bursts.burst.compute_burst_limit` takes
into account.

If the node has at most two equal projects, new guests are likely to belong to
one of them, and count in full::

    promised <= pool + promised now - worst

If the node has three or more projects, new guests count like existing ones::

    promised <= pool * promised now / worst
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections import Counter
from collections import defaultdict
from dataclasses import dataclass
import heapq
import itertools
import math
from typing import Any

from ghsched_placement.base import wire
from ghsched_placement.features.bursts import burst

#: Projects of a node that are remembered. A node has 1,000 percent of bursts
#: at most (the burst ratio of the host), and each guest has 1 at least.
MAX_PROJECTS = 1000

#: A UUID has 32 or 36 characters.
_MAX_NAME = 64

#: A project without guests is forgotten when less than this is left of its
#: promised_sum.
_FORGOTTEN = 0.01


@dataclass(frozen=True)
class ProjectBurstUse:
    """Use of bursts by the guests of one project on a host NUMA node.

    A burst is bandwidth above a guest's guarantee. The sums are over all
    measured periods; older periods have a lower weight.

    :param project: UUID of the project; empty for guests whose project is
        unknown.
    :param promised: percent of the node's bandwidth promised in the last
        period.
    :param promised_sum: sum of the promised percentages.
    :param used_sum: sum of the used percentages.
    :param square_sum: sum of promised percentage times the square of the used
        fraction; the fraction is used divided by promised bandwidth.
    """

    project: str
    promised: int = 0
    promised_sum: float = 0.0
    used_sum: float = 0.0
    square_sum: float = 0.0

    def add_period(self, weight: float, promised: int,
                   used: float) -> 'ProjectBurstUse':
        """Return the project's use of bursts with a measured period added.

        A burst is bandwidth above a guest's guarantee. A period is the time
        between two measurements of nova-compute; older periods count less.

        :param weight: factor by which all earlier periods count less.
        :param promised: percent of the host NUMA node that was promised to the
            project's guests as bursts in the period.
        :param used: percent of the node that their bursts used.
        """
        return ProjectBurstUse(self.project, promised,
                               self.promised_sum * weight + promised,
                               self.used_sum * weight + used,
                               self.square_sum * weight
                               + (used ** 2 / promised if promised else 0.0))

    def compute_mean_and_deviation(self, periods: float) -> tuple[float,
                                                                  float]:
        """Return mean and deviation of the used part of a project's bursts.

        A burst is bandwidth above a guest's guarantee. The part is 0 if the
        guests use none of the bursts that they are promised, and 1 if they use
        all.

        :param periods: number of measured periods, older ones weighted less.
            Periods before the project's first guest count as fully used.
        """
        full = max(self.promised_sum, self.promised * periods)
        if not full:
            return 1.0, 0.0
        unseen = full - self.promised_sum
        mean = min(1.0, (self.used_sum + unseen) / full)
        square = (self.square_sum + unseen) / full
        return mean, math.sqrt(max(0.0, square - mean ** 2))


@dataclass(frozen=True)
class BurstUseByProject:
    """Use of bursts on a host NUMA node by project.

    :param since: number of the hour of the first period, see
        :class:`burst.BurstHour`.
    :param hour: number of the hour of the last period.
    :param periods: number of periods, of which older ones count less.
    :param projects: use by project, in the order of their UUIDs.
    """

    since: int = 0
    hour: int = 0
    periods: float = 0.0
    projects: tuple[ProjectBurstUse, ...] = ()

    @property
    def total_promised(self) -> int:
        """Percent of a host NUMA node's bandwidth promised as bursts.

        A burst is bandwidth above a guest's guarantee.
        """
        return sum(use.promised for use in self.projects)

    @property
    def largest_promised(self) -> int:
        """Largest percent of a host node's bandwidth promised to one project.

        Only promised bursts count. A burst is bandwidth above a guest's
        guarantee.
        """
        return max((use.promised for use in self.projects), default=0)

    @property
    def effective_project_count(self) -> float:
        """Effective number of projects with bursts on a host NUMA node.

        It is the number of projects if all are promised equal bursts, and less
        otherwise: the square of the sum divided by the sum of the squares.
        """
        squares = sum(use.promised ** 2 for use in self.projects)
        return self.total_promised ** 2 / squares if squares else 0.0


def add_period_by_project(before: BurstUseByProject, hour: int,
                          shares: Iterable[burst.GuestBurst],
                          window: int) -> BurstUseByProject:
    """Add a measured period to the burst use by project of a host NUMA node.

    A burst is bandwidth above a guest's guarantee. A period is the time
    between two measurements of nova-compute.

    :param before: use of bursts by project until now.
    :param hour: number of the hour of the period.
    :param shares: use of each guest's burst in the period.
    :param window: hours after which a period counts for 37 percent (1/e).
    :returns: the use with the new period.
    """
    weight = math.exp(-max(0, hour - before.hour) / window)
    promised: Counter[str] = Counter()
    used: dict[str, float] = defaultdict(float)
    for share in shares:
        project = share.project[:_MAX_NAME]
        promised[project] += share.promised
        used[project] += min(share.used, share.promised)
    known = {use.project: use for use in before.projects}
    found = [known.get(project, ProjectBurstUse(project)).add_period(
        weight, promised[project], used[project])
        for project in known.keys() | promised.keys()]
    kept = heapq.nlargest(
        MAX_PROJECTS, [use for use in found if use.promised
                       or use.promised_sum >= _FORGOTTEN],
        key=lambda use: (use.promised, use.promised_sum, use.project))
    return BurstUseByProject(
        before.since if before.periods else hour, hour,
        before.periods * weight + 1,
        tuple(sorted(kept, key=lambda use: use.project)))


def compute_limit_by_project_use(uses: BurstUseByProject, pool: float,
                                 limits: burst.BurstLimits) -> int:
    """Return the percent of a host NUMA node that may be promised as bursts.

    A burst is bandwidth above a guest's guarantee. More may be promised than
    is reserved if the measured use shows that projects do not all use their
    bursts at the same time. Exactly the reserved percent is returned if one
    project has all guests, or until a whole window was measured. If guests
    count as independent (``limits.correlation`` is 0), only the overcommitment
    ratio limits the result.

    :param uses: measured use of bursts by project.
    :param pool: percent of the node that is reserved for bursts.
    :param limits: limits on overcommitting bursts.
    """
    base = max(0, math.floor(pool))
    most = max(base, math.floor(pool * limits.ratio))
    if not limits.correlation:
        return most
    if uses.hour - uses.since < limits.window - 2 or not uses.total_promised:
        return base
    worst = _compute_worst_burst_use(uses, limits.safety)
    in_full = pool + uses.total_promised - worst
    alike = pool * uses.total_promised / worst
    part = min(1.0, max(0.0, uses.effective_project_count - 2))
    found = in_full + part * max(0.0, alike - in_full)
    # Rounded first: 60 % of a sum of parts may be 59.999999999999.
    return max(base, math.floor(min(most, round(found, 6))))


def _compute_worst_burst_use(uses: BurstUseByProject, safety: float) -> float:
    """Return the percent of bandwidth that bursts may use in the worst case.

    It is a percentage of the bandwidth of one host NUMA node. A burst is
    bandwidth above a guest's guarantee. In the worst case, the projects that
    have the most unused bursts use them fully at the same time, and the other
    projects use as much as usual.

    :param uses: measured use of bursts by project.
    :param safety: factor on the measured mean use of the other projects.
    """
    rest = []
    for use in uses.projects:
        mean, deviation = use.compute_mean_and_deviation(uses.periods)
        usual = use.promised * min(1.0, mean * safety)
        rest.append((use.promised - usual, usual, use.promised * deviation))
    rest.sort(reverse=True)
    equal = uses.effective_project_count
    second = max(0.0, min(equal - 2, 1.0, 3 / equal))
    busy = itertools.chain((1.0, second), itertools.repeat(0.0))
    total = variance = 0.0
    for part, (added, usual, deviation) in zip(busy, rest, strict=False):
        total += usual + part * added
        variance += (1 - part) * deviation ** 2
    return min(uses.total_promised, total + math.sqrt(variance))


def parse_project_uses(mapping: Mapping[str, Any]) -> BurstUseByProject:
    """Parse the use of bursts by project from a mapping; ignore unknown keys.

    A burst is bandwidth above a guest's guarantee.

    :raises KeyError, TypeError, ValueError: if the mapping is malformed.
    """
    values = wire.check_fields(BurstUseByProject, mapping)
    return BurstUseByProject(
        values['since'], values['hour'], values['periods'],
        tuple(ProjectBurstUse(**wire.check_fields(ProjectBurstUse, use))
              for use in mapping['projects'][:MAX_PROJECTS]))
