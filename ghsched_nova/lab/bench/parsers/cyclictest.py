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

"""Output of cyclictest (rt-tests): a line for each of its threads."""

from dataclasses import dataclass
import re

from ghsched_nova.lab.bench import errors

#: A run number before it is what people put there who list several runs.
_COUNT = '([0-9]{1,18})'
_LINE = re.compile(
    rf'(?:[0-9]+:)?T: *{_COUNT} \( *{_COUNT}\) P: *{_COUNT} I: *{_COUNT} '
    rf'C: *{_COUNT} Min: *{_COUNT} Act: *(-?[0-9]{{1,18}}) Avg: *{_COUNT} '
    rf'Max: *{_COUNT}')


@dataclass(frozen=True)
class Thread:
    """Final figures of a measuring thread; latencies in us.

    :param interval: between two wake-ups, in us.
    :param cycles: wake-ups that were measured.
    :param last: latency of the last one.
    """

    number: int
    pid: int
    priority: int
    interval: int
    cycles: int
    minimum: int
    last: int
    average: int
    maximum: int


def parse(text: str) -> tuple[Thread, ...]:
    """Return all lines of threads, in their order.

    The lines of a terminal that are written over one another are not taken
    apart: run cyclictest with ``-q``.

    :raises ParseError: without any, or for one that has measured nothing.
    """
    threads = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match:
            threads.append(Thread(*map(int, match.groups())))
        elif re.match(r'\s*(?:[0-9]+:)?T:', line):
            raise errors.ParseError('cyclictest', 'a line of a thread is not '
                                    'whole', line)
    if not threads:
        raise errors.ParseError('cyclictest', 'no thread was measured', text)
    for thread in threads:
        if not thread.minimum <= thread.average <= thread.maximum:
            raise errors.ParseError(
                'cyclictest', f'thread {thread.number} has measured nothing',
                text)
    return tuple(threads)
