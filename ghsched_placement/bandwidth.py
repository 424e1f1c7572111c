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

"""The four values of memory bandwidth, in one record and one serialization.

They are the same for what a flavor asks for, what crosses to a host, what the
metadata of a domain keeps and what a control group holds. ``min``, ``max``,
``hardlimit`` and ``priority`` are what the extra specs have after ``mem_bw_``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Literal
from typing import Self

#: What Placement counts: the guarantee, or the cap (hard partitioning).
Accounting = Literal['min', 'max']


@dataclass(frozen=True)
class Bandwidth:
    """On one NUMA node; None for what is not known or cannot be held.

    :param minimum: guarantee, percent.
    :param maximum: cap, percent; 100 is no cap.
    :param hardlimit: whether the cap holds while bandwidth is idle.
    :param priority: the higher wins.
    """

    minimum: int | None = None
    maximum: float | None = None
    hardlimit: bool | None = None
    priority: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """As it is written, in this order."""
        return {'min': self.minimum, 'max': self.maximum,
                'hardlimit': self.hardlimit, 'priority': self.priority}


@dataclass(frozen=True)
class NodePolicy(Bandwidth):
    """Memory bandwidth and L3 of one guest NUMA node, as it is asked for.

    Shares are percent of the theoretical bandwidth of the one host NUMA node
    that backs the guest node.

    :param minimum: guaranteed share, 0..100.
    :param maximum: cap, 1..100; 100 is no cap.
    :param hardlimit: whether the cap holds while bandwidth is idle.
    :param priority: 0..7, the higher wins; None leaves the host's default.
    :param l3_ways: ways that it has to itself in each L3 of the host node; 0
        shares those that are left to all.
    :param burst: share beyond the guaranteed one that it gets most of the
        time, 0..100.
    """

    minimum: int = 0
    maximum: int = 100
    hardlimit: bool = True
    priority: int | None = None
    l3_ways: int = 0
    burst: int = 0

    @property
    def capped(self) -> bool:
        return self.maximum < 100

    def counted_burst(self, accounting: Accounting) -> int:
        """Percent that Placement counts as burst.

        Where the cap is counted, all that the guest can use is, in full.
        """
        return self.burst if accounting == 'min' else 0

    def __str__(self) -> str:
        # Without ways and bursts as releases that knew none had it: names
        # of groups and traits are made of it.
        return (f'{self.minimum},{self.maximum},{self.hardlimit},'
                f'{self.priority}'
                + (f',{self.l3_ways}' if self.l3_ways else '')
                + (f',burst={self.burst}' if self.burst else ''))

    def packed(self) -> dict[str, Any]:
        """The values, and ``l3_ways`` and ``burst`` where it has some."""
        more = {'l3_ways': self.l3_ways, 'burst': self.burst}
        return {**self.as_dict(), **{name: value for name, value
                                     in more.items() if value}}

    @classmethod
    def unpacked(cls, packed: Mapping[str, Any]) -> Self:
        """The reverse of :meth:`packed`; what is more is passed over.

        :raises KeyError: when a value is missing.
        :raises TypeError: when one is of another type.
        :raises ValueError: when no flavor can have it.
        """
        hardlimit, priority = packed['hardlimit'], packed['priority']
        if not isinstance(hardlimit, bool):
            raise TypeError(f'hardlimit is {hardlimit!r}')
        return cls(
            minimum=number(packed['min'], 100),
            maximum=number(packed['max'], 100, least=1), hardlimit=hardlimit,
            priority=None if priority is None else number(priority, 7),
            l3_ways=number(packed.get('l3_ways', 0), 64),
            burst=number(packed.get('burst', 0), 100))


def number(value: object, most: int = 2 ** 16, least: int = 0) -> int:
    """A whole number that came from elsewhere.

    :raises TypeError: when it is none.
    :raises ValueError: when it is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f'{value!r} is no number')
    if not least <= value <= most:
        raise ValueError(f'{value} is not in {least}..{most}')
    return value
