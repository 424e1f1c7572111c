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

"""Features that choose the dedicated CPUs of a guest on a host NUMA node."""

from collections.abc import Callable
from collections.abc import Mapping

from ghsched_placement.features.cpu_cache import cache_choice
from ghsched_placement.fit.cells import CpuChoice

#: Functions that return the choice of CPUs for a flavor's extra specs; None if
#: they request no choice.
CPU_CHOICES: tuple[Callable[[Mapping[str, str]], CpuChoice | None], ...] = (
    cache_choice.make_cpu_choice,
)


def find_cpu_choice(extra_specs: Mapping[str, str]) -> CpuChoice | None:
    """Return the choice of CPUs that a flavor requests; None without one."""
    found = (make_choice(extra_specs) for make_choice in CPU_CHOICES)
    return next(filter(None, found), None)
