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


"""Devices that Nova's claim chooses: SR-IOV ports and PCI aliases.

Placement's candidates do not contain the host NUMA node of these devices. To
get near devices, Nova's fit is called for nodes that have them, and the claim
is limited to these nodes: it takes devices of these nodes first, and others
only if too few are near.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from collections import Counter
from typing import Any

from nova.objects import fields

from ghsched_nova import pci_requests

_REQUIRED = fields.PCINUMAAffinityPolicy.REQUIRED

#: Function that returns the number of free devices for a PCI request, by host
#: NUMA node.
Free = Callable[[Any], Mapping[int | None, int]]


def list_requests_without_vf_policy(
        requests: Iterable[Any] | None) -> list[Any]:
    """Return a server's PCI requests that do not stem from ``ghsched:vfs``.

    This extra spec of a flavor asks for VFs for each guest NUMA node.
    """
    return [request for request in requests or ()
            if pci_requests.get_guest_node(request) is None]


def require_near_devices(requests: Sequence[Any]) -> Sequence[Any]:
    """Make PCI requests accept only devices on the guest's NUMA nodes.

    The requests are changed in place. Requests made from ``ghsched:vfs`` are
    skipped.
    """
    for request in list_requests_without_vf_policy(requests):
        request.numa_policy = _REQUIRED
    return requests


def describe_device_shortage(requests: Sequence[Any],
                             count_free_devices: Free) -> str:
    """Describe the devices that a guest needs, and where some are free.

    The text explains why a host has not enough devices on the guest's NUMA
    nodes.

    :param requests: PCI requests of the guest.
    :param count_free_devices: function that counts the free devices for a
        request by host NUMA node.
    """
    needed: Counter[str] = Counter()
    where = {}
    for request in list_requests_without_vf_policy(requests):
        name = _describe_request(request)
        needed[name] += request.count
        where[name] = count_free_devices(request)
    return '; '.join(
        f'{count} of {name} needed, {_format_free_devices(where[name])}'
        for name, count in needed.items())


def _describe_request(request: Any) -> str:
    if request.alias_name:
        return f'alias {request.alias_name}'
    network = next((spec['physical_network'] for spec in request.spec
                    if spec.get('physical_network')), None)
    name = (f'physical network {network}' if network
            else 'ports without a physical network')
    interface = next((spec['parent_ifname'] for spec in request.spec
                      if spec.get('parent_ifname')), None)
    return f'{name} ({interface})' if interface else name


def _format_free_devices(free_by_node: Mapping[int | None, int]) -> str:
    known = sorted((node, count) for node, count in free_by_node.items()
                   if node is not None)
    parts = [f'{count} on host NUMA node {node}' for node, count in known]
    if free_by_node.get(None):
        parts.append(
            f'{free_by_node[None]} on a node that the host does not tell')
    return 'available: ' + ', '.join(parts) if parts else 'none is free'
