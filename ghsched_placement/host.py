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

"""What Placement needs to know of a host, wherever that was learnt."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HostDescription:
    """One compute host, as far as ghsched's providers depend on it.

    :param nodes: the host NUMA nodes whose memory bandwidth can be
        controlled, ascending.
    :param numa_nodes: all host NUMA nodes that guests can be placed on,
        ascending; devices belong to a node whether its bandwidth can be
        controlled or not.
    :param control_groups: how many resctrl control groups guests may have,
        the kernel's default group not counted.
    :param sharing_guests: how many guests with a unit of control group share
        groups, or will when they are started.
    :param shared_groups: how many groups they have, or will have.
    :param capabilities: keys of :data:`names.CAPABILITY_TRAITS`.
    """

    nodes: tuple[int, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    control_groups: int = 0
    capabilities: frozenset[str] = frozenset()
    sharing_guests: int = 0
    shared_groups: int = 0
