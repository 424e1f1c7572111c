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

"""Memory bandwidth policy of a NUMA node, and its serialization.

The values are the same in a flavor, in messages to a host, in the metadata of
a domain and for a control group. ``min``, ``max``, ``hardlimit`` and
``priority`` are the names of the extra specs after ``mem_bw_``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Literal
from typing import Self

from ghsched_placement.base.wire import check_integer

#: What Placement counts: the guarantee, or the cap (hard partitioning).
Accounting = Literal['min', 'max']


@dataclass(frozen=True)
class Bandwidth:
    """Memory bandwidth policy of a guest on one NUMA node.

    A value is None if it is unknown or not set.

    :param minimum: guaranteed percent of the node's bandwidth.
    :param maximum: largest percent of the node's bandwidth that the guest may
        use; 100 is no cap.
    :param hardlimit: whether the cap holds even if bandwidth is idle.
    :param priority: priority for bandwidth above the guarantee; the highest
        number is served first.
    """

    minimum: int | None = None
    maximum: float | None = None
    hardlimit: bool | None = None
    priority: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return min, max, hardlimit and priority of the bandwidth as a dict.
        """
        return {'min': self.minimum, 'max': self.maximum,
                'hardlimit': self.hardlimit, 'priority': self.priority}


@dataclass(frozen=True)
class NodePolicy(Bandwidth):
    """Memory bandwidth and L3 cache that a flavor requests for a guest node.

    Percentages are of the theoretical bandwidth of the host NUMA node on which
    the guest NUMA node is placed.

    :param minimum: guaranteed percent, 0 to 100.
    :param maximum: cap in percent, 1 to 100; 100 is no cap.
    :param hardlimit: whether the cap holds even if bandwidth is idle.
    :param priority: 0 to 7; the highest number is served first. None is the
        host's default.
    :param l3_ways: number of exclusive ways in each L3 cache of the host node;
        0 if the guest uses the ways that are shared by all such guests.
    :param burst: percent, 0 to 100, that the guest can use most of the time in
        addition to its guarantee.
    """

    minimum: int = 0
    maximum: int = 100
    hardlimit: bool = True
    priority: int | None = None
    l3_ways: int = 0
    burst: int = 0

    @property
    def is_capped(self) -> bool:
        """Whether the guest NUMA node has a bandwidth cap below 100 percent.
        """
        return self.maximum < 100

    @property
    def requests_bandwidth(self) -> bool:
        """Whether the flavor requests anything of the node's bandwidth.

        A policy that only reserves L3 cache ways does not.
        """
        return bool(self.minimum or self.burst or self.is_capped
                    or self.priority is not None)

    def __str__(self) -> str:
        # Without ways and bursts as releases that knew none had it: names
        # of groups and traits are made of it.
        return (f'{self.minimum},{self.maximum},{self.hardlimit},'
                f'{self.priority}'
                + (f',{self.l3_ways}' if self.l3_ways else '')
                + (f',burst={self.burst}' if self.burst else ''))

    def to_mapping(self) -> dict[str, Any]:
        """Return the bandwidth policy as a dict.

        The keys ``l3_ways`` and ``burst`` are left out if their value is 0.
        """
        more = {'l3_ways': self.l3_ways, 'burst': self.burst}
        return {**self.as_dict(), **{name: value for name, value
                                     in more.items() if value}}

    @classmethod
    def from_mapping(cls, packed: Mapping[str, Any]) -> Self:
        """Parse a bandwidth policy from a mapping; ignore unknown keys.

        :raises KeyError: when a value is missing.
        :raises TypeError: when a value has the wrong type.
        :raises ValueError: when a value is out of range.
        """
        hardlimit, priority = packed['hardlimit'], packed['priority']
        if not isinstance(hardlimit, bool):
            raise TypeError(f'hardlimit is {hardlimit!r}')
        return cls(minimum=check_integer(packed['min'], 100),
                   maximum=check_integer(packed['max'], 100, minimum=1),
                   hardlimit=hardlimit, priority=None if priority is None
                   else check_integer(priority, 7),
                   l3_ways=check_integer(packed.get('l3_ways', 0), 64),
                   burst=check_integer(packed.get('burst', 0), 100))
