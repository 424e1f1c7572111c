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

"""Output of redis-benchmark and of redis' INFO command.

redis-benchmark has printed this form, with its latency in milliseconds and
three decimals, since Redis 6.2.
"""

from dataclasses import dataclass
import re

from ghsched_nova.lab.bench import errors

_TOOL = 'redis-benchmark'
_NUMBER = r'([0-9]+(?:\.[0-9]+)?)'
_TITLE = re.compile(r'====== (.+) ======')
_COMPLETED = re.compile(
    rf'([0-9]{{1,18}}) requests completed in {_NUMBER} seconds')
_CLIENTS = re.compile(r'([0-9]{1,18}) parallel clients')
_PERCENTILE = re.compile(rf'{_NUMBER}% <= {_NUMBER} milliseconds '
                         r'\(cumulative count ([0-9]{1,18})\)')
_THROUGHPUT = re.compile(
    rf'throughput summary: {_NUMBER} requests per second')
_HEADER = ['avg', 'min', 'p50', 'p95', 'p99', 'max']
_CALLS = re.compile(r'cmdstat_([^:]+):calls=([0-9]{1,18}),')


@dataclass(frozen=True)
class Benchmark:
    """Figures of one test of redis-benchmark.

    :param name: the command, e.g. "GET".
    :param seconds: that all requests took.
    :param throughput: requests per second.
    :param average: latency in ms, as those that follow.
    :param distribution: (percent, ms, requests up to it) of all requests.
    """

    name: str
    requests: int
    seconds: float
    clients: int
    throughput: float
    average: float
    minimum: float
    p50: float
    p95: float
    p99: float
    maximum: float
    distribution: tuple[tuple[float, float, int], ...]


def parse(text: str) -> tuple[Benchmark, ...]:
    """Return the tests of a run, in their order.

    :raises ParseError: when a test is not there in full.
    """
    lines = [line.strip() for line in re.split('[\r\n]+', text)]
    starts = [place for place, line in enumerate(lines)
              if _TITLE.fullmatch(line)]
    if not starts:
        raise errors.ParseError(_TOOL, 'no test came to its end', text)
    return tuple(_test(lines[start:end]) for start, end
                 in zip(starts, [*starts[1:], len(lines)], strict=True))


def _test(lines: list[str]) -> Benchmark:
    summary = _summary(lines)
    completed = _one(_COMPLETED, lines)
    title = _one(_TITLE, lines)
    return Benchmark(
        name=title[1], requests=int(completed[1]),
        seconds=float(completed[2]), clients=int(_one(_CLIENTS, lines)[1]),
        throughput=float(_one(_THROUGHPUT, lines)[1]),
        average=summary[0], minimum=summary[1], p50=summary[2],
        p95=summary[3], p99=summary[4], maximum=summary[5],
        distribution=_distribution(lines))


def _one(pattern: re.Pattern[str], lines: list[str]) -> re.Match[str]:
    for line in lines:
        match = pattern.fullmatch(line)
        if match:
            return match
    raise errors.ParseError(_TOOL, f'there is no line like '
                            f'{pattern.pattern!r}', '\n'.join(lines))


def _summary(lines: list[str]) -> list[float]:
    for header, values in zip(lines, lines[1:], strict=False):
        if header.split() == _HEADER:
            found = values.split()
            if len(found) == len(_HEADER) and all(
                    re.fullmatch(_NUMBER, value) for value in found):
                return [float(value) for value in found]
    raise errors.ParseError(_TOOL, 'there is no latency summary',
                            '\n'.join(lines))


def _distribution(lines: list[str]) -> tuple[tuple[float, float, int], ...]:
    """The first of its two lists: by percentile, not by step of time."""
    try:
        begin = lines.index('Latency by percentile distribution:')
    except ValueError:
        return ()
    found = []
    for line in lines[begin + 1:]:
        match = _PERCENTILE.fullmatch(line)
        if not match:
            break
        found.append((float(match[1]), float(match[2]), int(match[3])))
    return tuple(found)


def calls(info: str) -> dict[str, int]:
    """Parse ``INFO commandstats``; return the number of calls of each command.
    """
    return {match[1]: int(match[2]) for match in _CALLS.finditer(info)}
