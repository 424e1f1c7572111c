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

"""Number of guests of a flavor that fit into a cloud, and what binds (pure).

Each distinct state of a host is counted once: most hosts of a cloud are empty
or have the same guests.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from dataclasses import dataclass
from dataclasses import field
from typing import TypeAlias

from ghsched_placement.fit import capacity
from ghsched_placement.fit import fitting

#: Hosts on which equally many guests of any flavor fit.
EqualHosts: TypeAlias = Sequence[capacity.HostInventory]


@dataclass(frozen=True)
class FlavorCapacity:
    """Number of further guests of a flavor that fit into a cloud.

    :param flavor: name of the flavor.
    :param least: number of further guests for which there should be room.
    :param guests: number of further guests that fit now, over all hosts.
    :param hosts: number of hosts on which at least one guest fits.
    :param lacking: number of hosts on which no guest fits, by missing
        resource; a host that lacks several resources is counted for each of
        them.
    :param binding: number of hosts by the resource that one guest more lacks,
        after those that fit.
    """

    flavor: str
    least: int = 1
    guests: int = 0
    hosts: int = 0
    lacking: Mapping[str, int] = field(default_factory=dict)
    binding: Mapping[str, int] = field(default_factory=dict)


def group_equal_hosts(hosts: Iterable[capacity.HostInventory]
                      ) -> list[EqualHosts]:
    """Group the hosts on which equally many guests of any flavor fit."""
    groups: dict[object, list[capacity.HostInventory]] = {}
    for host in hosts:
        groups.setdefault((host.amounts, host.table, host.root.traits),
                          []).append(host)
    return list(groups.values())


def add_up_verdicts(flavor: str, verdicts: Iterable[tuple[fitting.Verdict,
                                                          int]],
                    least: int = 1) -> FlavorCapacity:
    """Return how many further guests of a flavor fit into a cloud.

    :param flavor: name of the flavor.
    :param verdicts: how many guests fit on a host, or why none does, and the
        number of hosts of which this is true.
    :param least: number of guests for which there should be room.
    """
    guests, hosts = 0, 0
    lacking, binding = Counter[str](), Counter[str]()
    for verdict, number in verdicts:
        guests += verdict.guests * number
        hosts += number * (verdict.guests > 0)
        for resource in verdict.missing:
            binding[resource] += number
            lacking[resource] += number * (not verdict.guests)
    return FlavorCapacity(flavor, least, guests, hosts, dict(+lacking),
                          dict(binding))
