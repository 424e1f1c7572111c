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

"""The report of UnixBench (byte-unixbench), versions 5 and 6.

Its script ``Run`` prints a score as ``"%-40s %12.1f %-5s (%.1f s, %d
samples)"``.
"""

from dataclasses import dataclass
import re

from ghsched_nova.lab.bench import errors

_CPUS = re.compile(r'([0-9]{1,18}) CPUs? in system; running '
                   r'([0-9]{1,18}) parallel cop(?:y|ies) of tests')
_SCORE = re.compile(r'(\S.*?) +([0-9]+\.[0-9]) (\S+) +'
                    r'\(([0-9]+\.[0-9]) s, ([0-9]{1,18}) samples?\)')


@dataclass(frozen=True)
class Score:
    """Score of one test of UnixBench.

    :param value: in the unit, e.g. "lps" (loops per second); more is better.
    :param seconds: of one sample.
    :param samples: that the value was made of.
    """

    test: str
    value: float
    unit: str
    seconds: float
    samples: int


@dataclass(frozen=True)
class Run:
    """The scores of one number of copies.

    :param cpus: of the machine.
    :param copies: of the test that ran side by side.
    """

    cpus: int
    copies: int
    scores: tuple[Score, ...]

    def score(self, test: str) -> Score:
        """Return the score of a test.

        :raises ParseError: when it was not run.
        """
        for score in self.scores:
            if score.test == test:
                return score
        raise errors.ParseError('UnixBench', f'there is no test {test!r}')


def parse(text: str) -> tuple[Run, ...]:
    """Return the runs of a report.

    :raises ParseError: when there is none, or one without scores.
    """
    runs: list[Run] = []
    for line in map(str.strip, text.splitlines()):
        head, score = _CPUS.fullmatch(line), _SCORE.fullmatch(line)
        if head:
            runs.append(Run(int(head[1]), int(head[2]), ()))
        elif score and runs:
            found = Score(score[1], float(score[2]), score[3],
                          float(score[4]), int(score[5]))
            last = runs.pop()
            runs.append(Run(last.cpus, last.copies, (*last.scores, found)))
    if not runs or not all(run.scores for run in runs):
        raise errors.ParseError('UnixBench', 'there are no scores', text)
    return tuple(runs)
