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

"""Scenarios as records, and what they work with."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.machine import Machine
from ghsched_nova.lab.bench.machine import Process
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Value

_T = TypeVar('_T')


@dataclass(frozen=True)
class Parameter:
    """Something that the user of a scenario may set.

    :param default: its type is the type of all its values.
    :param choices: all there are, where there are few.
    :param minimum: of a number.
    :param private: names a host or a file; a report does not repeat it.
    """

    name: str
    default: Value
    help: str
    choices: tuple[str, ...] = ()
    minimum: float = 0
    private: bool = False

    def parse(self, text: str) -> Value:
        """Return a value from a command line.

        :raises BenchError: when it is none.
        """
        if isinstance(self.default, bool):
            if text not in ('yes', 'no'):
                raise errors.BenchError(
                    f'{self.name}: {text!r} is neither yes nor no')
            return text == 'yes'
        if isinstance(self.default, str):
            if self.choices and text not in self.choices:
                raise errors.BenchError(f'{self.name}: {text!r} is not one of '
                                        + ', '.join(self.choices))
            return text
        return self._number(text, type(self.default))

    def _number(self, text: str, kind: type[int] | type[float]) -> Value:
        try:
            value = kind(text)
        except ValueError:
            raise errors.BenchError(
                f'{self.name}: {text!r} is no '
                f'{"whole " if kind is int else ""}number') from None
        if not self.minimum <= value < 1e15:
            raise errors.BenchError(f'{self.name}: {text} is not from '
                                    f'{self.minimum:g} on')
        return value


def common(runs: int, warm_up: int) -> tuple[Parameter, ...]:
    """Return the parameters of every scenario."""
    return (
        Parameter('runs', runs, 'of each measurement that are kept',
                  minimum=1),
        Parameter('warm-up', warm_up, 'runs before them that are discarded'))


class Values:
    """The parameters of one run, by name and type."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.all = dict(values)

    def integer(self, name: str) -> int:
        return int(self.all[name])

    def number(self, name: str) -> float:
        return float(self.all[name])

    def text(self, name: str) -> str:
        return str(self.all[name])

    def flag(self, name: str) -> bool:
        return bool(self.all[name])


@dataclass(frozen=True)
class Need:
    """Something without which a scenario cannot run.

    :param what: it is, in a few words.
    :param missing: says why it is missing on a machine and what helps;
        nothing when it is there.
    """

    what: str
    missing: Callable[[Machine], str]


class Bench:
    """Machine, parameters and directory of a running scenario.

    :param work: an empty directory of its own.
    :param say: tells the user how far it has come.
    """

    def __init__(self, machine: Machine, values: Values, work: Path,
                 say: Callable[[str], None]) -> None:
        self.machine = machine
        self.values = values
        self.work = work
        self.say = say
        #: What undoes the set-up, in reverse order.
        self.undo = contextlib.ExitStack()
        self._started = 0

    def start(self, argv: Sequence[str]) -> tuple[Process, Path]:
        """Start a program that is stopped with the scenario at the latest.

        :returns: it, and the file that gets its output.
        """
        self._started += 1
        log = self.work / f'{self._started}-{Path(argv[0]).name}.log'
        process = self.machine.start(argv, log)
        self.undo.callback(process.stop)
        return process, log

    def repeat(self, what: str, take: Callable[[], _T]) -> list[_T]:
        """Take a sample as often as the parameters say.

        :returns: those after the warm-up.
        """
        warm_up = self.values.integer('warm-up')
        runs = self.values.integer('runs')
        kept = []
        for run in range(-warm_up, runs):
            self.say(f'{what}: warm-up' if run < 0
                     else f'{what}: {run + 1} of {runs}')
            sample = take()
            if run >= 0:
                kept.append(sample)
        return kept

    def close(self) -> None:
        """Stop all started programs and undo all changes."""
        self.undo.close()


@dataclass(frozen=True)
class Scenario:
    """A benchmark.

    :param title: what it measures, in one line.
    :param parameters: in the order of the help text.
    :param tools: programs whose versions belong to a result.
    :param needs: for certain parameters.
    :param set_up: what must be there before a sample is taken; it leaves
        with ``Bench.undo`` what takes that away again.
    :param run: takes the samples.
    :param verify: what is wrong with them, from a second source where there
        is one; nothing when all is well.
    :param tear_down: is called in any case.
    :param checks: metrics that tell whether a run is right, and nothing of
        the machine. They are not compared.
    """

    name: str
    title: str
    parameters: tuple[Parameter, ...]
    tools: Callable[[Values], tuple[str, ...]]
    needs: Callable[[Values], tuple[Need, ...]]
    run: Callable[[Bench], Measured]
    verify: Callable[[Values, Measured], tuple[str, ...]]
    set_up: Callable[[Bench], None] = lambda _bench: None
    tear_down: Callable[[Bench], None] = Bench.close
    checks: tuple[str, ...] = ()

    def values(self, given: Mapping[str, Value]) -> Values:
        """Return the given values over the defaults."""
        known = {p.name: p.default for p in self.parameters}
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise errors.BenchError(f'{self.name} has no parameter '
                                    f'{unknown[0]!r}')
        return Values({**known, **given})

    def missing(self, machine: Machine, values: Values) -> tuple[str, ...]:
        """Return the reasons why the scenario cannot run on a machine; empty
        if it can.
        """
        reasons = (need.missing(machine) for need in self.needs(values))
        return tuple(filter(None, reasons))
