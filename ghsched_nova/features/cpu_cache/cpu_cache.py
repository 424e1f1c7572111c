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

"""L3 caches of a host, as a part of nova-compute."""

import dataclasses
from pathlib import Path

from ghsched_nova.host import compute_hooks
from ghsched_nova.resctrl import sysfs
from ghsched_placement.features.cpu_cache import cache_part
from ghsched_placement.providers.host_description import HostDescription


class CpuCaches(compute_hooks.ComputePart):
    """Reporter of the L3 caches of the host's CPUs.

    :param root: mount point of sysfs.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def describe_host(self, found: HostDescription) -> HostDescription:
        """Return the description of the host with the capability of caches.

        It has none if the kernel does not say which CPUs share an L3.
        """
        caches = [cpus for _node, path in sysfs.iterate_numa_nodes(self._root)
                  for _number, cpus in sysfs.iterate_l3_caches(
                      self._root, sysfs.read_node_cpus(path))]
        if not caches or not all(caches):
            return found
        return dataclasses.replace(found, capabilities=found.capabilities
                                   | {cache_part.CAPABILITY})


def make_compute_part(services: compute_hooks.ComputeServices) -> CpuCaches:
    """Return the part of L3 caches in nova-compute."""
    return CpuCaches(Path(services.section.sysfs_path))
