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

"""Output of mbw, a benchmark of memory copies."""

from collections.abc import Mapping
import re

from ghsched_nova.lab.bench import errors

_LINE = re.compile(
    r'([0-9]{1,18}|AVG)\s+Method: (\S+)\s+Elapsed: ([0-9]+\.[0-9]+)\s+'
    r'MiB: ([0-9]+\.[0-9]+)\s+Copy: ([0-9]+\.[0-9]+) MiB/s')


def parse(text: str) -> Mapping[str, tuple[float, ...]]:
    """MiB/s of each run by method (MEMCPY, DUMB, MCBLOCK).

    mbw's own average is left out: it is all the bytes over all the time, the
    harmonic mean of the runs, and counts the first run, which is slower
    because its pages are new.

    :raises ParseError: without any run, or when one is missing.
    """
    runs: dict[str, list[float]] = {}
    for line in map(str.strip, text.splitlines()):
        match = _LINE.fullmatch(line)
        if not match or match[1] == 'AVG':
            continue
        known = runs.setdefault(match[2], [])
        if int(match[1]) != len(known):
            raise errors.ParseError('mbw', f'run {len(known)} of {match[2]} '
                                    'is missing', text)
        known.append(float(match[5]))
    if not runs:
        raise errors.ParseError('mbw', 'there are no runs', text)
    return {method: tuple(values) for method, values in runs.items()}
