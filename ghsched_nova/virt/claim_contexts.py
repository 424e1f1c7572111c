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

"""Contexts of the claims of nova-compute.

A claim gets the devices that Placement gave, and for ghsched:numa=auto the
guest NUMA topologies that it may take.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
from typing import Any

from ghsched_nova.nova_seams import numa
from ghsched_nova import pci_requests
from ghsched_placement.flavor import auto_nodes


@contextlib.contextmanager
def claiming_instance(instance: Any) -> Iterator[None]:
    """Within this context, nova-compute's claim of a new instance is steered.

    It claims the host NUMA nodes and the passthrough devices that
    nova-scheduler has allocated for the instance.
    """
    with (pci_requests.claiming_allocated_pfs(instance),
          numa.claiming_best_topology(_list_possible_topologies(
              instance.flavor, instance.image_meta, instance, False))):
        yield


@contextlib.contextmanager
def claiming_move(instance: Any, flavor: Any, image: Any,
                  is_live: bool) -> Iterator[None]:
    """Within this context, nova-compute's claim of a move is steered.

    It claims the passthrough devices that nova-scheduler has allocated for
    the instance, with the guest NUMA topology that nova-scheduler has chosen.

    :param flavor: new flavor of the instance.
    :param image: ImageMeta; None for a server without an image.
    :param is_live: whether the guest keeps running.
    """
    with pci_requests.claiming_move(instance), numa.claiming_best_topology(
            _list_possible_topologies(flavor, image, instance, is_live)):
        yield


def _list_possible_topologies(flavor: Any, image: Any, instance: Any,
                              is_live: bool) -> Sequence[Any] | None:
    """Return the guest NUMA topologies that a flavor allows, the best first.

    Returns None if the flavor allows only one.

    :param is_live: whether the guest keeps running.
    """
    specs = flavor.extra_specs if 'extra_specs' in flavor else {}
    if not auto_nodes.is_node_count_undecided(specs):
        return None
    # nova-api gives a new server with CPUs of its own a topology of one node.
    had = (len(numa.list_host_nodes(instance.numa_topology))
           if instance.launched_at else 0)
    return [
        numa.make_guest_topology(
            numa.copy_flavor_with_numa_count(flavor, count), image)
        for count in auto_nodes.list_server_node_counts(
            specs, flavor.vcpus, flavor.memory_mb, had, is_live)
    ]
