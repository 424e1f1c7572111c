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

"""Host NUMA nodes without CPUs and their nearest nodes with CPUs (pure).

Memory expanders and accelerators can be NUMA nodes of their own, and devices
can belong to them. No guest node with vCPUs can be there.
"""

from collections.abc import Collection
from collections.abc import Mapping

from ghsched_placement.flavor import keys


def get_device_node(node: int | None, nearest: Mapping[int, int],
                    device_numa: str, is_shown: bool = False) -> int | None:
    """Return the host NUMA node that a device belongs to, for a flavor.

    This is usually the device's own node. A device of a node without CPUs
    belongs to the nearest node with CPUs if the flavor has
    ``ghsched:device_numa=preferred``, and also if it has ``required`` and the
    guest sees a node of its own for such devices.

    :param node: host NUMA node of the device; None if unknown.
    :param nearest: nearest node with CPUs, by node without CPUs.
    :param device_numa: value of ``ghsched:device_numa``.
    :param is_shown: whether guests on the host see such nodes.
    :returns: None if the node of the device is unknown.
    """
    if node is None or device_numa == keys.NONE or (
            device_numa != keys.PREFERRED and not is_shown):
        return node
    return nearest.get(node, node)


def find_nearest_nodes(distances: Mapping[int, Mapping[int, int]],
                       with_cpus: Collection[int]) -> dict[int, int]:
    """Return the nearest NUMA node with CPUs for each node without CPUs.

    If several nodes are equally near, the one with the lowest number is taken.

    :param distances: distance between each two host NUMA nodes (ACPI SLIT).
    :param with_cpus: host NUMA nodes that have CPUs.
    """
    found = {}
    for node, row in distances.items():
        others = [(row[other], other) for other in with_cpus if other in row]
        if node not in with_cpus and others:
            found[node] = min(others)[1]
    return found
