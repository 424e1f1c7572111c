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


"""Writes to ``schemata`` as fs/resctrl parses them: all lines or none.

Follows ``rdtgroup_schemata_write()``, ``parse_line()``, ``parse_bw()`` and
``parse_cbm()`` of fs/resctrl/ctrlmondata.c, texts of ``last_cmd_status``
included.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
import errno
import re

from ghsched_nova.lab.emulator import conversions
from ghsched_nova.lab.emulator import machines

#: Line name -> domain id -> value: what a control group holds.
Values = dict[str, dict[int, int]]


class ResctrlError(Exception):
    """A file operation that the kernel refuses.

    :param number: the errno.
    :param status: what ``info/last_cmd_status`` says afterwards; None where
        the kernel returns before it clears the former text.
    """

    def __init__(self, number: int, status: str | None = ''):
        super().__init__(f'{errno.errorcode[number]}: {status or ""}'.strip())
        self.number = number
        self.status = status


@dataclass(frozen=True)
class Neighbour:
    """Another control group, for the rules on exclusive cache portions."""

    exclusive: bool
    values: Values = field(default_factory=dict)


def defaults(machine: machines.Machine) -> Values:
    """Return the schemata values of a new group."""
    return {
        line.name: dict.fromkeys(machine.domains(line.scope), line.default)
        for line in machine.lines
    }


def show(machine: machines.Machine, values: Values) -> str:
    """Return ``schemata`` as the kernel prints it."""
    return ''.join(
        f'{line.label}:' + ';'.join(
            f'{domain}={line.show(value)}'
            for domain, value in sorted(values[line.name].items())
        ) + '\n'
        for line in machine.lines
    )


def sizes(machine: machines.Machine, values: Values) -> str:
    """``size``: bytes of cache portions, other values as they are."""
    return ''.join(
        f'{line.label}:' + ';'.join(
            f'{domain}={_size(line, value)}'
            for domain, value in sorted(values[line.name].items())
        ) + '\n'
        for line in machine.lines
    )


def _size(line: machines.Line, value: int) -> int:
    return value.bit_count() * line.unit_bytes if line.base == 16 else value


def terminated(text: str) -> str:
    """Return a written text without the line feed that must end it.

    :raises ResctrlError: EINVAL.
    """
    if not text.endswith('\n'):
        raise ResctrlError(errno.EINVAL, None)
    return text[:-1]


def line_names(text: str) -> list[str]:
    """Return names of the lines that a write carries, whether valid or not."""
    return [row.partition(':')[0].strip() for row in text.splitlines()]


def stage(
    machine: machines.Machine,
    text: str,
    exclusive: bool = False,
    neighbours: Sequence[Neighbour] = (),
    at_once: Values | None = None,
) -> Values:
    """Return the values that a write asks for, rounded, by line and domain.

    :param text: the bytes of one write().
    :param exclusive: whether the written group's mode is ``exclusive``.
    :param neighbours: the other control groups.
    :param at_once: values of the group, into which those of ``mba_MBps`` go
        one after the other, whatever comes behind them (parse_bw()).
    :raises ResctrlError: EINVAL; nothing else may be applied then.
    """
    staged: Values = {}
    for line, domain, value in parsed(machine, text):
        direct = line.rounding == 'raw' and at_once is not None
        target = (at_once[line.name] if direct and at_once
                  else staged.setdefault(line.name, {}))
        if domain in target and not direct:
            raise ResctrlError(errno.EINVAL, f'Duplicate domain {domain}\n')
        target[domain] = parse_value(line, value, domain, exclusive,
                                     neighbours)
    return staged


def parsed(machine: machines.Machine, text: str
           ) -> Iterator[tuple[machines.Line, int, str]]:
    """Yield lines, domains and values of a write, up to the first wrong one.

    :raises ResctrlError: EINVAL.
    """
    for row in terminated(text).split('\n'):
        line, rest = _line(machine, row)
        for domain, value in _row(machine, line, rest):
            yield line, domain, value


class Staged:
    """Values that OLK-5.10 keeps of the last writes to schemata.

    There is one set for each domain of a resource, and not one for each
    group: a line that is written to a group also gives it the other lines of
    the resource, in the written domains, as they were written last to
    whichever group (parse_bw() and resctrl_group_update_domain_ctrls() of
    arch/arm64/kernel/mpam). Nothing is there before the first group is made.
    """

    def __init__(self, machine: machines.Machine) -> None:
        self._machine = machine
        self._values: dict[tuple[str, int], dict[str, int]] = {}
        for line in machine.lines:
            for domain in machine.domains(line.scope):
                self._domain_values(line, domain)[line.name] = 0

    def _domain_values(self, line: machines.Line,
                       domain: int) -> dict[str, int]:
        return self._values.setdefault((resource(line.name), domain), {})

    def reset(self) -> None:
        """Set the defaults of a new group (resctrl_group_init_alloc())."""
        for line in self._machine.lines:
            for domain in self._machine.domains(line.scope):
                self._domain_values(line, domain)[line.name] = line.default

    def write(self, text: str) -> Values:
        """Return what a group holds afterwards, in the written domains.

        :raises ResctrlError: EINVAL; values before the wrong one are kept.
        """
        written: Values = {}
        seen = set()
        for line, domain, value in parsed(self._machine, text):
            if (resource(line.name), domain) in seen:
                raise ResctrlError(errno.EINVAL, 'duplicate domain\n')
            kept = self._domain_values(line, domain)
            kept[line.name] = parse_value(line, value, domain)
            seen.add((resource(line.name), domain))
        for name, domain in seen:
            for line_name, kept_value in self._values[name, domain].items():
                written.setdefault(line_name, {})[domain] = kept_value
        return written


def resource(line: str) -> str:
    """Return the resource of a line, its name without the suffix."""
    match = re.match('L[0-9]+(CODE|DATA)?|MB', line)
    return match[0] if match else line


def _line(machine: machines.Machine, row: str
          ) -> tuple[machines.Line, str]:
    """Return the line that a row of a write names, and the values for it."""
    name, colon, rest = row.partition(':')
    name = name.strip()
    if not colon:
        raise ResctrlError(errno.EINVAL, "Missing ':'\n")
    if not rest:
        raise ResctrlError(errno.EINVAL, f"Missing '{name}' value\n")
    line = machine.line(name)
    if line is None:
        raise ResctrlError(
            errno.EINVAL, f"unknown/unsupported resource name '{name}'\n"
            if machine.old_layout
            else f"Unknown or unsupported resource name '{name}'\n")
    return line, rest


def read_integer(text: str) -> int | None:
    """Parse an integer as ``kstrtoull(text, 0)`` of the kernel does; None if
    it is no number.

    A sign is the caller's. One line feed may follow.
    """
    number = re.fullmatch(
        '0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*)',
        text.removesuffix('\n'))
    if number is None:
        return None
    hexadecimal, octal, decimal = number.groups()
    if decimal:
        return int(decimal)
    return int(octal, 8) if octal else int(hexadecimal, 16)


def read_bool(text: str) -> bool:
    """Parse a boolean as ``kstrtobool()`` does, by the beginning of the text
    alone.

    :raises ResctrlError: EINVAL; the status stays.
    """
    match = re.match('(?i)([ty1]|on)|([fn0]|of)', text)
    if match is None:
        raise ResctrlError(errno.EINVAL, None)
    return match[1] is not None


def _row(machine: machines.Machine, line: machines.Line,
         rest: str) -> Iterator[tuple[int, str]]:
    """Yield domains and values of one row, up to the first that is wrong."""
    while rest:
        item, _, rest = rest.partition(';')
        number, equals, value = item.partition('=')
        if not equals or not re.fullmatch(r'\+?[0-9]+', number):
            raise ResctrlError(
                errno.EINVAL, "Missing '=' or non-numeric domain\n"
            )
        if int(number) not in machine.domains(line.scope):
            raise ResctrlError(errno.EINVAL)  # the kernel gives no reason
        yield int(number), value.strip()


def parse_value(
    line: machines.Line, text: str, domain: int, exclusive: bool = False,
    neighbours: Sequence[Neighbour] = (),
) -> int:
    """Return the value that is written for one domain, rounded.

    :raises ResctrlError: EINVAL.
    """
    value = (_mask if line.base == 16 else _number)(line, text)
    _check_overlaps(line, {domain: value}, exclusive, neighbours)
    return value


def _number(line: machines.Line, text: str) -> int:
    if line.rounding == 'silent':
        return _number_510(line, text)
    # The kernel's texts say MB whatever the line is.
    if not re.fullmatch(r'\+?[0-9]+', text) or int(text) >= 1 << 32:
        raise ResctrlError(errno.EINVAL, f'Invalid MB value {text}\n')
    value = int(text)
    if not line.minimum <= value <= line.maximum:
        raise ResctrlError(
            errno.EINVAL, f'MB value {value} out of range '
            f'[{line.minimum},{line.maximum}]\n')
    return value if line.rounding == 'raw' else _rounded(line, value)


def _rounded(line: machines.Line, value: int) -> int:
    if line.rounding == 'nearest':
        near = (value + line.granularity // 2) // line.granularity
        return max(line.minimum, min(line.maximum, near * line.granularity))
    if line.conversion:
        return conversions.table(line.conversion, line.bits).shown[value]
    return min(-(-value // line.granularity) * line.granularity, line.maximum)


def _number_510(line: machines.Line, text: str) -> int:
    """parse_bw() of OLK-5.10, which gives no reasons."""
    if not re.fullmatch(r'\+?[0-9]+', text) or int(text) > line.maximum:
        raise ResctrlError(errno.EINVAL)
    return _rounded(line, int(text))


def _mask(line: machines.Line, text: str) -> int:
    if not re.fullmatch(r'\+?(0[xX])?[0-9a-fA-F]+', text):
        raise ResctrlError(
            errno.EINVAL, f'Non-hex character in the mask {text}\n'
        )
    mask = int(text, 16)
    if not min(line.minimum, 1) <= mask <= line.maximum:
        raise ResctrlError(errno.EINVAL, 'Mask out of range\n')
    if not line.sparse_masks and '0' in f'{mask:b}'.rstrip('0'):
        raise ResctrlError(
            errno.EINVAL, f'The mask {mask:x} has non-consecutive 1-bits\n'
        )
    if lowest_run(mask).bit_count() < line.minimum:
        raise ResctrlError(
            errno.EINVAL,
            f'Need at least {line.minimum} bits in the mask\n')
    return mask


def lowest_run(mask: int) -> int:
    """Return the lowest run of consecutive 1-bits of a mask."""
    return mask & ~(mask + (mask & -mask))


def _check_overlaps(
    line: machines.Line,
    masks: Mapping[int, int],
    exclusive: bool,
    neighbours: Sequence[Neighbour],
) -> None:
    """Refuse masks that overlap exclusive groups, as parse_cbm() does."""
    if line.base != 16:
        return
    shared = [one for one in neighbours if overlap(line, masks, one.values)]
    if any(one.exclusive for one in shared):
        raise ResctrlError(errno.EINVAL, 'Overlaps with exclusive group\n')
    if exclusive and (shared or line.shareable):
        raise ResctrlError(errno.EINVAL, 'Overlaps with other group\n')


def overlap(line: machines.Line, masks: Mapping[int, int],
            other: Values) -> bool:
    """Whether another group has a cache portion of some domain, too.

    With CDP the portions of code and of data are the same.
    """
    return any(mask & used(line, other, domain)
               for domain, mask in masks.items())


def used(line: machines.Line, values: Values, domain: int) -> int:
    """Return the cache portions of a domain that a group uses."""
    return (values.get(line.name, {}).get(domain, 0)
            | values.get(line.peer, {}).get(domain, 0))
