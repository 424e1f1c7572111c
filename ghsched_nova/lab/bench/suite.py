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

"""``ghsched-bench machine``: all that one machine can show of bandwidth keys.
"""

from collections.abc import Callable
from collections.abc import Mapping
import time

from ghsched_nova.lab.bench import environment
from ghsched_nova.lab.bench.machine import Machine
from ghsched_nova.lab.bench.record import Measured
from ghsched_nova.lab.bench.record import Report
from ghsched_nova.lab.bench.record import Result
from ghsched_nova.lab.bench.record import Value
from ghsched_nova.lab.bench import run
from ghsched_nova.lab.bench.scenario import Scenario
from ghsched_nova.lab.bench.scenarios import bandwidth_keys
from ghsched_nova.lab.bench.scenarios import loaded_latency

#: Scenarios in order, with their parameters.
PARTS: tuple[tuple[Scenario, Mapping[str, Value]], ...] = (
    (loaded_latency.SCENARIO, {}),
    (bandwidth_keys.SCENARIO, {}),
    (bandwidth_keys.SCENARIO, {'in-guest': True}))


def run_suite(given: Mapping[str, Value], minutes: float, machine: Machine,
              say: Callable[[str], None],
              now: Callable[[], float] = time.monotonic) -> Report:
    """Run every scenario of the suite that can run here.

    :param given: parameters, each for the scenarios that have it.
    :param minutes: after which no further scenario begins.
    :param say: shows the user the progress.
    """
    end = now() + 60 * minutes
    results = []
    for scenario, own in PARTS:
        names = {parameter.name for parameter in scenario.parameters}
        values = {**{name: value for name, value in given.items()
                     if name in names}, **own}
        say(f'{scenario.name}: ' + (scenario.title if not own else
                                    'the same in guests'))
        results.append(
            run.run(scenario, values, machine, say) if now() < end
            else _skip(scenario, values, machine, minutes))
    return Report(tuple(results))


def _skip(scenario: Scenario, values: Mapping[str, Value], machine: Machine,
          minutes: float) -> Result:
    """Return the result of a scenario for which there is no time."""
    return Result(
        scenario=scenario.name, status='skipped',
        reasons=(f'the {minutes:g} minutes were over',), parameters=(),
        environment=environment.read(machine, ()), measured=Measured(()),
        seconds=0.0)
