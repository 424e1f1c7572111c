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

"""Part of a guest's policy that shows the guest the host's topology (pure)."""

from dataclasses import dataclass

from ghsched_placement.base.errors import PolicyError
from ghsched_placement.flavor.key_values import NEEDS_TOPOLOGY
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.parts import Feature
from ghsched_placement.flavor.parts import FlavorValues
from ghsched_placement.flavor.parts import PolicyPart

GUEST_TOPOLOGY = keys.Key(
    name='guest_topology', title='Guest topology',
    kind='enum', per_node=False,
    default_text='what Nova gives it', choices=('host',),
    summary='Whether the guest sees the part of the host that backs it.',
    details='With host the guest sees the distances of its NUMA nodes, '
            'latency and bandwidth of their memory where the firmware of the '
            'host tells (bandwidth is what the guest is guaranteed, or else '
            'its cap; a latency that the firmware does not tell is that of '
            'the slowest known node, or else 100 ns), sockets, dies, '
            'clusters, cores and threads as its vCPUs are pinned, on x86 a '
            'CPU cache, and its own policy as an OEM string of SMBIOS. vCPUs '
            'that are not pinned to one CPU each are cores of one die for '
            'each guest NUMA node. Needs a guest NUMA topology, and cannot be '
            'combined with hw:cpu_sockets, hw:cpu_cores or hw:cpu_threads. '
            'A guest keeps what it saw at its start until it is started '
            'again, on whichever host it is.')


@dataclass(frozen=True)
class TopologyPart(PolicyPart):
    """Whether the guest sees the host's topology.

    :param is_shown: whether the guest sees the sockets and caches of the host
        CPUs on which it runs.
    """

    is_shown: bool = False

    def get_needed_capabilities(self) -> frozenset[str]:
        return frozenset({'GUEST_TOPOLOGY'} if self.is_shown else ())


def parse_topology_part(flavor: FlavorValues) -> TopologyPart:
    """Parse from a flavor whether the guest sees the host's topology.

    :raises PolicyError: for a guest without NUMA nodes, or with a CPU topology
        that Nova's extra specs set.
    """
    is_shown = bool(flavor.values.get(GUEST_TOPOLOGY.name, False))
    key = GUEST_TOPOLOGY.extra_spec
    if is_shown and not flavor.guest_nodes:
        raise PolicyError(key, NEEDS_TOPOLOGY)
    for other in ('hw:cpu_sockets', 'hw:cpu_cores', 'hw:cpu_threads'):
        if is_shown and other in flavor.extra_specs:
            raise PolicyError(
                key, f'host cannot be combined with {other}: the guest has '
                     'the CPU topology that its vCPUs have on the host')
    return TopologyPart(is_shown)


#: Declaration of the feature.
FEATURE = Feature('guest_topology', (GUEST_TOPOLOGY,), TopologyPart,
                  parse_topology_part,
                  capabilities={'GUEST_TOPOLOGY': GUEST_TOPOLOGY},
                  are_on_any_host=True)
