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

"""Differences between present and wanted schemata, and the lines to write
(pure).
"""

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ghsched_nova.resctrl import errors
from ghsched_nova.resctrl import schemata
from ghsched_placement.base import decimals

#: Wanted values by name of the schemata line and resctrl domain.
Desired = Mapping[schemata.LineName,
                  Mapping[schemata.Number, schemata.Value]]

#: Wanted value of all domains that Desired leaves out, by name of the line.
Others = Mapping[schemata.LineName, schemata.Value]

#: Value to write, by name of the line and value that the line then shows. All
#: other values are written unchanged.
Writes = Mapping[schemata.LineName,
                 Mapping[schemata.Number, schemata.Value]]

_NONE: Others = MappingProxyType({})
_AS_SHOWN: Writes = MappingProxyType({})
#: Accepted difference between shown and wanted value, by name of the line.
Tolerance = Mapping[schemata.LineName, schemata.Value]

_EXACT: Tolerance = MappingProxyType({})


@dataclass(frozen=True)
class Difference:
    """Schemata value of a control group that differs from the wanted one.

    :param line: name of the schemata line.
    :param domain: id of the resctrl domain.
    :param wanted: value that the group should have.
    :param found: text of the present value; None if the group does not have
        the line or the domain.
    """

    line: str
    domain: int
    wanted: int
    found: str | None

    def __str__(self) -> str:
        found = 'is missing' if self.found is None else f'is {self.found}'
        return (f'{self.line} of domain {self.domain} {found}, wanted is '
                f'{self.wanted}')


def find_schemata_differences(current: schemata.Schemata, desired: Desired,
                              others: Others = _NONE,
                              tolerance: Tolerance = _EXACT
                              ) -> tuple[Difference, ...]:
    """Return where a control group's schemata differ from the wanted values.

    :param current: schemata of the group.
    :param desired: wanted values in the resctrl domains that the guest uses.
    :param others: wanted value, by line, in all other domains. Other lines are
        ignored there.
    :param tolerance: accepted difference by line.
    """
    found = []
    present = {line.name: dict(line.values) for line in current.lines}
    for name in (*desired, *(name for name in others if name not in desired)):
        values = present.get(name, {})
        wanted = (dict.fromkeys(values, others[name])
                  if name in others else {})
        wanted.update(desired.get(name, {}))
        found += [Difference(name, domain, value, values.get(domain))
                  for domain, value in sorted(wanted.items())
                  if not _is_same_value(values.get(domain), value,
                                        tolerance.get(name, 0))]
    return tuple(found)


def plan_schemata_writes(current: schemata.Schemata, desired: Desired,
                         others: Others = _NONE, tolerance: Tolerance = _EXACT,
                         writes: Writes = _AS_SHOWN) -> tuple[str, ...]:
    """Return the schemata lines to write to a control group.

    Each line contains only the domains whose value differs, and ends with a
    newline. The result is empty if no value differs.

    :param current: schemata of the group.
    :param desired: wanted values in the domains that the guest uses.
    :param others: wanted value, by line, in domains that the guest does not
        use.
    :param tolerance: accepted difference by line.
    :param writes: value to write, by line and value that the kernel then
        shows, for values that the kernel rounds.
    :raises PolicyRefused: if the group does not have a line or domain, or if
        its value is not a number.
    """
    by_line: dict[str, list[tuple[int, str]]] = {}
    for difference in find_schemata_differences(
            current, desired, others, tolerance):
        if difference.found is None:
            raise errors.PolicyRefused(
                f'the group has no {difference.line} of domain '
                f'{difference.domain}, which should be {difference.wanted}')
        if decimals.parse_decimal(difference.found) is None:
            raise errors.PolicyRefused(
                f'the group shows {difference.found!r} as {difference.line} '
                f'of domain {difference.domain}, which is not a number')
        by_line.setdefault(difference.line, []).append(
            (difference.domain, str(get_value_to_write(
                writes, difference.line, difference.wanted))))
    return tuple(f'{name}:{schemata.render_values(tuple(values))}\n'
                 for name, values in by_line.items())


def render_new_group_lines(desired: Desired, others: Others,
                           writes: Writes) -> Iterator[str]:
    """Yield the schemata lines to write to a new control group.

    Values that the kernel gives to every new group are left out.

    :param desired: wanted values in the domains that the guest uses.
    :param others: value of a new group by line.
    :param writes: value to write, by line and value that the kernel shows.
    """
    for line, values in desired.items():
        text = schemata.render_values(tuple(
            (domain, str(get_value_to_write(writes, line, value)))
            for domain, value in sorted(values.items())
            if value != others.get(line)))
        if text:
            yield f'{line}:{text}\n'


def get_value_to_write(writes: Writes, line: str, value: int) -> int:
    """Return the value to write so that a schemata line gets a wanted value.

    The kernel rounds written values, so the two may differ.

    :param writes: value to write, by line and wanted value; equal ones are
        left out.
    :param line: name of the schemata line.
    :param value: wanted value, which the line must show after the write.
    """
    return writes.get(line, {}).get(value, value)


def _is_same_value(text: str | None, value: int, tolerance: int) -> bool:
    # The kernel pads with zeros; text that is not a number equals nothing.
    found = None if text is None else decimals.parse_decimal(text)
    return found == value or (
        found is not None and abs(found - value) <= tolerance
        and bool(found) == bool(value))
