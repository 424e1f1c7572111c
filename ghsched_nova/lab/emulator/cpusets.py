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


"""CPU lists and masks, read and written as the kernel does.

Formats: Documentation/admin-guide/cputopology.rst and lib/bitmap-str.c.
"""

from collections.abc import Iterable
import re

#: More CPUs than any machine that is emulated here.
MAX_CPUS = 8192

#: What bitmap_parselist() takes between commas and blanks: a number, or a
#: range of which so many of each group may be meant.
_REGION = re.compile(
    r'(?P<one>\d+|N)|(?:(?i:all)|(?P<low>\d+|N)-(?P<high>\d+|N))'
    r'(?::(?P<used>\d+|N)/(?P<group>\d+|N))?', re.ASCII)


def parse_list(text: str) -> frozenset[int]:
    """``0-3,8`` -> {0, 1, 2, 3, 8}; an empty text is no CPU.

    :raises ValueError: not a CPU list.
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(',')):
        first, dash, last = part.partition('-')
        low, high = _number(first), _number(last if dash else first)
        if high < low or high >= MAX_CPUS:
            raise ValueError(f"'{part}' is not a range of CPUs")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def parse_written(text: str, last: int) -> frozenset[int]:
    """A list as the kernel takes it: ``all``, ``N``, ``0-7:1/4`` as well.

    :param last: the highest CPU, which ``N`` stands for.
    :raises ValueError: not a CPU list.
    """
    cpus: set[int] = set()
    for part in text.partition('\n')[0].replace(',', ' ').split():
        match = _REGION.fullmatch(part)
        if match is None:
            raise ValueError(f"'{part}' is not a range of CPUs")
        number = {name: last if text == 'N' else int(text)
                  for name, text in match.groupdict().items() if text}
        low = number.get('one', number.get('low', 0))
        high = number.get('one', number.get('high', last))
        group = number.get('group', high + 1)
        used = number.get('used', high + 1)
        if low > high or high >= MAX_CPUS or not group or used > group:
            raise ValueError(f"'{part}' is not a range of CPUs")
        cpus.update(cpu for cpu in range(low, high + 1)
                    if (cpu - low) % group < used)
    return frozenset(cpus)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"'{text}' is not a CPU number")
    return int(text)


def format_list(cpus: Iterable[int]) -> str:
    """{0, 1, 2, 3, 8} -> ``0-3,8``."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ','.join(
        str(low) if low == high else f'{low}-{high}' for low, high in ranges
    )


def parse_mask(text: str) -> frozenset[int]:
    """``f,00000000`` -> {32, 33, 34, 35}: hex words of 32 bits.

    As bitmap_parse(), which ends at a line feed and takes any number of
    commas and blanks between two words and around them.

    :raises ValueError: not a CPU mask.
    """
    value = 0
    for word in text.partition('\n')[0].replace(',', ' ').split():
        if len(word) > 8:
            raise ValueError(f"'{word}' is not a word of a CPU mask")
        value = value << 32 | _hex(word)
    return frozenset(
        bit for bit in range(value.bit_length()) if value >> bit & 1
    )


def _hex(word: str) -> int:
    if not set(word) <= set('0123456789abcdefABCDEF'):
        raise ValueError(f"'{word}' is not hexadecimal")
    return int(word, 16)


def format_mask(cpus: Iterable[int], width: int) -> str:
    """The mask of a machine with ``width`` CPUs, in words of 32 bits."""
    value = sum(1 << cpu for cpu in set(cpus))
    words = max(1, -(-width // 32))
    first = (width - 1) % 32 // 4 + 1 if width > 0 else 1
    text = [f'{value >> 32 * (words - 1):0{first}x}']
    for word in range(words - 2, -1, -1):
        text.append(f'{value >> 32 * word & 0xFFFFFFFF:08x}')
    return ','.join(text)
