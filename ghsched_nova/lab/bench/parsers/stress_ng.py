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

"""``stress-ng --metrics-brief``."""

from dataclasses import dataclass
import re

from ghsched_nova.lab.bench import errors

_LINE = re.compile(
    r'stress-ng: (?:metrc|info): +\[[0-9]+\] (\S+) +([0-9]{1,18}) '
    r'+([0-9.]+) '
    r'+([0-9.]+) +([0-9.]+) +([0-9.]+) +([0-9.]+)')


@dataclass(frozen=True)
class Stressor:
    """Operations of one kind of stressor, and the time they took.

    :param operations: bogus operations of all its instances.
    :param real: seconds, as those of user and system time.
    :param rate: operations per second of real time.
    """

    name: str
    operations: int
    real: float
    user: float
    system: float
    rate: float


def parse(text: str) -> tuple[Stressor, ...]:
    """Return the stressors of a run.

    :raises ParseError: when none is there.
    """
    found = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match:
            try:
                found.append(Stressor(
                    match[1], int(match[2]), *map(float, match.groups()[2:6])))
            except ValueError:
                raise errors.ParseError('stress-ng', 'a figure is none',
                                        line) from None
    if not found:
        raise errors.ParseError('stress-ng', 'there are no metrics', text)
    return tuple(found)
