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

"""Parts of a host, beside control groups, that policies of guests determine.

``ghsched-host`` compares each part with the policies.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from ghsched_nova.base import guest_changes
from ghsched_nova.host import desired


class HostGuests(NamedTuple):
    """Running guests of a host, with the configuration of nova-compute.

    :param section: the ``[ghsched]`` section.
    :param dedicated_cpus: CPUs of ``[compute]cpu_dedicated_set``.
    """

    section: Any
    dedicated_cpus: frozenset[int]
    running: Sequence[desired.Running]


class HostPart(NamedTuple):
    """Part of a host that a feature keeps as the policies of guests say.

    :param plan: function that returns the needed changes and makes none.
    :param apply: function that makes the changes, as root.
    """

    plan: Callable[[HostGuests], guest_changes.Report[Any]]
    apply: Callable[[HostGuests], guest_changes.Report[Any]]


def collect_changes(
    calls: Sequence[Callable[[HostGuests], guest_changes.Report[Any]]],
    guests: HostGuests,
) -> guest_changes.Report[guest_changes.Change]:
    """Plan or apply the changes of several parts; return them in order.

    :param calls: functions of the parts, see :class:`HostPart`.
    """
    reports = [call(guests) for call in calls]
    return guest_changes.Report(
        tuple(action for report in reports for action in report.actions),
        tuple(problem for report in reports for problem in report.problems))
