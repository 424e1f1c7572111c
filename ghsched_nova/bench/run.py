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
from pathlib import Path
import tempfile
import time

from ghsched_nova.bench import environment
from ghsched_nova.bench import errors
from ghsched_nova.bench.machine import Machine
from ghsched_nova.bench.record import Measured
from ghsched_nova.bench.record import Result
from ghsched_nova.bench.record import Value
from ghsched_nova.bench.scenario import Bench
from ghsched_nova.bench.scenario import Scenario
from ghsched_nova.bench.scenario import Values


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
    return Result(
        scenario=scenario.name, status=status, reasons=reasons,
        parameters=tuple(_shown(values)), environment=described,
        measured=measured, seconds=round(time.monotonic() - begin, 1))


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


def _shown(values: Values) -> list[tuple[str, Value]]:
    """Parameters as a report has them: without the names of hosts."""
    return [(name, _without_hosts(value)) for name, value
            in values.all.items()]


def _without_hosts(value: Value) -> Value:
    if not isinstance(value, str):
        return value
    return ','.join('ssh' if part.startswith('ssh:') else part
                    for part in value.split(','))
