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


"""Parser and writer of libvirt's lists of CPUs, e.g. ``0-3,8``."""

from collections.abc import Iterable
from pathlib import Path
import re

#: libvirt takes no CPU number beyond it (VIR_DOMAIN_CPUMASK_LEN).
MAX_CPUS = 16384

_RULE = re.compile(r'(?P<no>\^?)(?P<first>[0-9]{1,5})'
                   r'(?:-(?P<last>[0-9]{1,5}))?')


class CpuListError(ValueError):
    """Raised for a malformed list of CPUs."""


def parse_cpu_list(text: str) -> frozenset[int]:
    """Parse a CPU list such as ``0-3,^2,8`` into a set of CPU numbers.

    ``^N`` or ``^N-M`` excludes CPUs. As in Nova and libvirt, excluded CPUs may
    stand anywhere in the list, and blanks are allowed. An empty text gives an
    empty set.

    :raises CpuListError: for any other text, and for a CPU number of
        :data:`MAX_CPUS` or more.
    """
    taken: dict[str, set[int]] = {'': set(), '^': set()}
    for rule in filter(None, map(str.strip, text.split(','))):
        match = _RULE.fullmatch(rule)
        if match is None:
            raise CpuListError(f'{rule!r} in the CPU list {text!r} is neither '
                               'a CPU number nor a range like 0-3')
        first = int(match['first'])
        last = int(match['last'] or first)
        if first > last:
            raise CpuListError(f'{rule!r} in the CPU list {text!r} runs '
                               'backwards')
        if last >= MAX_CPUS:
            raise CpuListError(f'{rule!r} in the CPU list {text!r} is beyond '
                               f'CPU {MAX_CPUS - 1}')
        taken[match['no']].update(range(first, last + 1))
    return frozenset(taken[''] - taken['^'])


def read_cpu_list(path: Path) -> frozenset[int] | None:
    """Return the CPUs in a file of the kernel.

    :returns: None if the file cannot be read or is malformed.
    """
    try:
        return parse_cpu_list(path.read_text(errors='replace').strip())
    except (OSError, CpuListError):
        return None


def render_cpu_list(cpus: Iterable[int]) -> str:
    """Render CPU numbers as a list in libvirt's form, such as ``0-3,8``.

    Two consecutive numbers are written as a range (``0-1``).
    """
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ','.join(f'{first}' if first == last else f'{first}-{last}'
                    for first, last in ranges)
