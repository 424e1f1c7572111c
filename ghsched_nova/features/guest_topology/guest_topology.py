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


"""Host topology shown to guests with ``ghsched:guest_topology=host``."""

from collections.abc import Iterator
from pathlib import Path
import re
from typing import Any

from ghsched_nova import conf
from ghsched_nova.features.guest_topology import host_topology
from ghsched_nova.host import compute_hooks
from ghsched_nova.resctrl import sysfs as files
from ghsched_placement.features.guest_topology import topology_part

_NUMBER = re.compile(r'[0-9]{1,18}')
_CPU = re.compile(r'cpu([0-9]{1,5})')


class GuestTopology(compute_hooks.ComputeHooks):
    """Renderer of the host's NUMA properties for guests.

    :param section: the ``[ghsched]`` section of the configuration.
    """

    def __init__(self, section: Any) -> None:
        self._section = section

    def render(self, xml: str, guest: compute_hooks.StartingGuest) -> str:
        """Return a domain XML that shows the guest the host's NUMA properties.

        These are, for example, the distances between the nodes. The XML is
        returned unchanged if the policy does not request them.
        """
        if not guest.policy.get_part(topology_part.TopologyPart).is_shown:
            return xml
        host = read_host_topology(
            Path(self._section.sysfs_path),
            conf.parse_node_values(self._section, 'node_bandwidth'),
            guest.libvirt_version >= host_topology.KEEPS_CLUSTERS)
        return host_topology.render_topology(xml, guest.policy,
                                             guest.host_nodes, host)


def make_compute_hooks(services: compute_hooks.ComputeServices
                       ) -> GuestTopology:
    """Return nova-compute's renderer of the host topology for guests."""
    return GuestTopology(services.section)


def read_host_topology(sysfs: Path, configured: dict[int, int],
                       clusters: bool) -> host_topology.HostTopology:
    """Read the NUMA distances, latency, bandwidth and CPUs of the host.

    :param configured: bandwidth of a NUMA node in MB/s
        (``[ghsched]node_bandwidth``); overrides the firmware's value.
    :param clusters: whether libvirt supports clusters of cores.
    """
    nodes = dict(files.iterate_numa_nodes(sysfs))
    return host_topology.HostTopology(
        distances=files.read_distances(sysfs),
        latency={node: files.read_rated_latency(path)
                 for node, path in nodes.items()},
        bandwidth={node: configured.get(node, 0) * 10 ** 6
                   or files.read_rated_bandwidth(path)
                   for node, path in nodes.items()},
        cpus={cpu: host_topology.CpuIds(*place)
              for cpu, place in list_cpu_topology(sysfs)},
        clusters=clusters)


def list_cpu_topology(sysfs: Path) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the socket, die, cluster and core ids of each CPU.

    Unknown die and cluster ids are 0. CPUs without a socket or core id, e.g.
    offline ones, are left out.
    """
    for path in files.list_directory(sysfs / 'devices' / 'system' / 'cpu'):
        match = _CPU.fullmatch(path.name)
        if not match:
            continue
        socket, die, cluster, core = (
            (files.read_text(path / 'topology' / name) or '').strip()
            for name in ('physical_package_id', 'die_id', 'cluster_id',
                         'core_id'))
        if _NUMBER.fullmatch(socket) and _NUMBER.fullmatch(core):
            yield int(match[1]), (
                int(socket), *(int(word) if _NUMBER.fullmatch(word) else 0
                               for word in (die, cluster)), int(core))
