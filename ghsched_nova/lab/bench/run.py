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

"""Run a scenario: needs, set-up, samples, check, tear-down."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
import tempfile
import time

from ghsched_nova.lab.bench import environment
from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.machine import Machine
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Result
from ghsched_nova.lab.bench.record import Value
from ghsched_nova.lab.bench.scenario import Bench
from ghsched_nova.lab.bench.scenario import Scenario
from ghsched_nova.lab.bench.scenario import Values


def run(scenario: Scenario, given: Mapping[str, Value], machine: Machine,
        say: Callable[[str], None]) -> Result:
    """Run a scenario on this machine.

    A need that is missing makes it skipped. A tool that fails, or samples
    that a second source does not confirm, make it failed; samples are kept
    then, with what is wrong with them.

    :raises BenchError: for a parameter that the scenario does not have.
    """
    values = scenario.values(given)
    described = environment.read(machine, scenario.tools(values))
    begin = time.monotonic()
    reasons = scenario.missing(machine, values)
    status, measured = 'skipped', Measured(())
    if not reasons:
        try:
            measured = _measure(scenario, values, machine, say)
            reasons = scenario.verify(values, measured)
            status = 'failed' if reasons else 'done'
        except errors.BenchError as error:
            status, reasons = 'failed', (str(error),)
    hidden = _hidden(scenario, values)
    return Result(
        scenario=scenario.name, status=status,
        reasons=tuple(_without(hidden, reason) for reason in reasons),
        parameters=_shown(scenario, values, hidden), environment=described,
        measured=replace(measured, skipped=tuple(
            (part, _without(hidden, reason))
            for part, reason in measured.skipped)),
        seconds=round(time.monotonic() - begin, 1))


def _measure(scenario: Scenario, values: Values, machine: Machine,
             say: Callable[[str], None]) -> Measured:
    # Not in /tmp, which may be memory: files are measured there as well.
    with tempfile.TemporaryDirectory(prefix='ghsched-bench-',
                                     dir='/var/tmp') as work:  # noqa: S108
        bench = Bench(machine, values, Path(work), say)
        try:
            scenario.set_up(bench)
            return scenario.run(bench)
        finally:
            scenario.tear_down(bench)


# -- a report is made to be shown ---------------------------------------------

_HIDDEN = '(not shown)'


def _hidden(scenario: Scenario, values: Values) -> list[str]:
    """Return texts that name hosts or files, the longest first."""
    found = set()
    for parameter in scenario.parameters:
        if parameter.private:
            for part in values.text(parameter.name).split(','):
                target = part.removeprefix('ssh:')
                found |= {target, target.rpartition('@')[2]}
    return sorted(found - {'', 'local', '127.0.0.1'}, key=len, reverse=True)


def _without(hidden: Sequence[str], text: str) -> str:
    for part in hidden:
        text = text.replace(part, _HIDDEN)
    return text


def _shown(scenario: Scenario, values: Values, hidden: Sequence[str]
           ) -> tuple[tuple[str, Value], ...]:
    """Return parameters as a report has them."""
    private = {p.name for p in scenario.parameters if p.private}
    return tuple(
        (name, _without(hidden, value)
         if name in private and isinstance(value, str) else value)
        for name, value in values.all.items())
