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

"""The scenarios of ghsched-bench, in the order of its help."""

from ghsched_nova.lab.bench import errors
from ghsched_nova.lab.bench.scenario import Scenario
from ghsched_nova.lab.bench.scenarios import bandwidth_keys
from ghsched_nova.lab.bench.scenarios import cloud
from ghsched_nova.lab.bench.scenarios import gh_density
from ghsched_nova.lab.bench.scenarios import loaded_latency
from ghsched_nova.lab.bench.scenarios import mixed_load
from ghsched_nova.lab.bench.scenarios import numa_icon
from ghsched_nova.lab.bench.scenarios import numa_locality
from ghsched_nova.lab.bench.scenarios import redis_density
from ghsched_nova.lab.bench.scenarios import rt_latency
from ghsched_nova.lab.bench.scenarios import virt_overhead

#: Scenarios of one machine.
MACHINE = (redis_density.SCENARIO, mixed_load.SCENARIO, rt_latency.SCENARIO,
           virt_overhead.SCENARIO, numa_locality.SCENARIO,
           loaded_latency.SCENARIO, bandwidth_keys.SCENARIO,
           numa_icon.SCENARIO)
ALL = (*MACHINE, cloud.SCENARIO, gh_density.SCENARIO)


def named(name: str) -> Scenario:
    """Return a scenario by its name.

    :raises BenchError: if there is no such scenario.
    """
    for scenario in ALL:
        if scenario.name == name:
            return scenario
    raise errors.BenchError(f'there is no scenario {name!r}; there are '
                            + ', '.join(s.name for s in ALL))
