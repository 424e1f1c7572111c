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


"""Controls of bandwidth as the engine works with them (pure).

A :class:`Knob` comes from a table (:mod:`ghsched_nova.resctrl.dialects`) or
from the kernel's own description (:mod:`ghsched_nova.resctrl.described`).
"""

from dataclasses import dataclass
from fractions import Fraction
import math
from typing import Literal

#: Part of a policy. ``kept`` is a control that no policy sets: all groups of
#: guests have the value of a new group.
Role = Literal['maximum', 'minimum', 'hardlimit', 'priority', 'kept']

#: Meaning of the domain ids of the MB line: NUMA nodes or L3 caches. Kernels
#: of the kind ``either`` differ; the files of the machine show which it is.
DomainKind = Literal['numa', 'l3', 'either']

#: Value that stands for the whole bandwidth if values are percentages.
PERCENT_WHOLE = Fraction(100)


@dataclass(frozen=True)
class Unit:
    """Unit of a bandwidth cap.

    :param name: display name.
    :param size: bytes per second; None if caps are percentages of the
        bandwidth of a resctrl domain.
    """

    name: str
    size: int | Fraction | None = None


PERCENT = Unit('percent')
#: resctrl.rst, "Reading/writing the schemata file (on AMD systems)".
EIGHTH_GB = Unit('1/8 GB/s', 10 ** 9 // 8)
#: resctrl.rst, "Memory bandwidth Allocation specified in MiBps".
MIB = Unit('MiB/s', 2 ** 20)


@dataclass(frozen=True)
class Knob:
    """Bandwidth control: a schemata line for one part of a guest's policy.

    :param role: part of the policy, e.g. ``maximum`` for a cap.
    :param line: name of the schemata line.
    :param minimum: lowest value that ghsched writes.
    :param maximum: highest value that the kernel accepts.
    :param default: value of a new control group; None if it is undocumented.
    :param stepped: whether values are multiples of info/MB/bandwidth_gran.
    :param fraction: whether the hardware stores the value as a binary
        fraction, whose number of bits can be derived from files of info/, see
        :mod:`ghsched_nova.resctrl.rounding`.
    :param lowest: lowest value that the kernel may show; None if it is
        ``minimum``.
    :param measured: whether the kernel's rounding of written values is
        unknown and must be measured, see
        :mod:`ghsched_nova.resctrl.measure`.
    :param power: whether the default is the highest value, a power of two
        that is higher on some machines.
    :param feature: word in info/MB/features that the highest value follows,
        such as ``mbPrio`` in ``mbPrio@7``.
    :param whole: value, not necessarily an integer, that stands for the whole
        bandwidth of a resctrl domain; only for relative values.
    :param tolerance: maximum difference between a written value and the one
        that the kernel then shows.
    """

    role: Role
    line: str
    minimum: int
    maximum: int
    default: int | None
    stepped: bool = False
    fraction: bool = False
    lowest: int | None = None
    measured: bool = False
    power: bool = False
    feature: str = ''
    whole: Fraction = PERCENT_WHOLE
    tolerance: int = 0

    def can_show(self, value: int) -> bool:
        """Whether the kernel can show a given value in this schemata line.

        The kernel rounds a written value to one that it can show.
        """
        lowest = self.minimum if self.lowest is None else self.lowest
        return lowest <= value <= self.maximum

    @property
    def is_percent(self) -> bool:
        """Whether the values of a schemata line are percentages."""
        return self.whole == PERCENT_WHOLE

    @property
    def is_coarse(self) -> bool:
        """Whether this schemata line can only be set to some percentages."""
        return self.role in ('maximum', 'minimum') and (
            not self.is_percent or self.tolerance > 0
            or self.role == 'minimum' and self.maximum < 100)

    def percent_to_value(self, percent: int) -> int:
        """Convert a percentage of the bandwidth to a value of this line.

        Caps are rounded up. Guarantees are rounded down, so that guarantees of
        100 percent together do not exceed the bandwidth.
        """
        free = {'maximum': 100, 'minimum': 0}.get(self.role)
        if percent == free and self.default is not None and not (
                self.is_percent and self.role == 'maximum'):
            return self.default
        if self.is_percent:
            return percent
        exact = percent * self.whole / 100
        value = (math.ceil(exact) if self.role == 'maximum'
                 else math.floor(exact))
        return max(self.minimum, min(self.maximum, value))

    def value_to_percent(self, value: int | Fraction) -> Fraction:
        """Convert a value of this schemata line to percent of the bandwidth.
        """
        return 100 * value / self.whole

    def list_percentages(self) -> tuple[int, ...]:
        """Return the percentages that can be set in this line, ascending."""
        lowest = max(1, self.minimum, self.tolerance + 1)
        if self.role == 'minimum':
            highest = min(self.maximum, math.floor(self.whole))
            if self.whole < 100:
                return tuple(sorted({
                    math.ceil(self.value_to_percent(value))
                    for value in range(lowest, highest + 1)}))
            return tuple(
                percent for percent in range(1, 101)
                if lowest <= math.floor(percent * self.whole / 100) <= highest)
        return (*(percent for percent in range(1, 100)
                  if lowest <= math.ceil(percent * self.whole / 100)), 100)
