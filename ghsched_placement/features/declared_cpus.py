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
from collections.abc import Sequence
from typing import NamedTuple

from ghsched_placement.features.cpu_cache import cache_choice
from ghsched_placement.fit.cells import CpuChoice
from ghsched_placement.fit.cells import HostCell
from ghsched_placement.fit.cells import ThreadPolicy
from ghsched_placement.fit.lack import Lack


class CpuFeature(NamedTuple):
    """Feature that chooses the dedicated CPUs of a guest on a host NUMA node.

    :param make_choice: function that returns the choice of CPUs for a
        flavor's extra specs; None if they request no choice.
    :param find_shortage: function that returns the reason why no chosen CPUs
        are free for a guest NUMA node, given the extra specs, the host NUMA
        nodes, the number of CPUs and the thread policy; None if CPUs are free.
    """

    make_choice: Callable[[Mapping[str, str]], CpuChoice | None]
    find_shortage: Callable[[Mapping[str, str], Sequence[HostCell], int,
                             ThreadPolicy], Lack | None]


CPU_FEATURES = (
    CpuFeature(cache_choice.make_cpu_choice, cache_choice.find_shortage),
)


def find_cpu_shortage(extra_specs: Mapping[str, str],
                      host_nodes: Sequence[HostCell], needed: int,
                      threads: ThreadPolicy) -> Lack | None:
    """Return why a host has no free CPUs that a flavor's CPU feature accepts.

    :param needed: number of dedicated CPUs of the guest NUMA node.
    :returns: None if CPUs are free, or if the flavor has no such feature.
    """
    found = (feature.find_shortage(extra_specs, host_nodes, needed, threads)
             for feature in CPU_FEATURES)
    return next(filter(None, found), None)


def find_cpu_choice(extra_specs: Mapping[str, str]) -> CpuChoice | None:
    """Return the choice of CPUs that a flavor requests; None without one."""
    found = (feature.make_choice(extra_specs) for feature in CPU_FEATURES)
    return next(filter(None, found), None)
