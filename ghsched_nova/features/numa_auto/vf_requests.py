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

"""PCI requests for VFs of a flavor with ghsched:numa=auto, joined by node.

A server has several PCI requests for VFs of the same alias, because the number
of guest NUMA nodes is not known when nova-api makes them. nova-scheduler works
on copies in which the requests of each node are one.
"""

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from ghsched_nova import pci_requests
from ghsched_placement.providers import names


def join_vf_requests(requests: Sequence[Any], node_count: int) -> list[Any]:
    """Return a server's PCI requests with joined requests for VFs.

    The requests for VFs of the same guest NUMA node and alias become one, with
    the ID of the first of them.
    :func:`map_original_suffixes` returns the original request groups.

    :param requests: PCI requests; they are not changed.
    :param node_count: number of guest NUMA nodes.
    """
    joined = [request for request in requests
              if pci_requests.get_guest_node(request) is None]
    position = next((number for number, request in enumerate(requests)
                     if pci_requests.get_guest_node(request) is not None), 0)
    joined[position:position] = [
        _join_parts(parts, node) for (node, _alias), parts
        in _group_vf_requests(requests, node_count).items()]
    return joined


def _join_parts(parts: Sequence[Any], guest_node: int) -> Any:
    joined = parts[0].obj_clone()
    joined.count = sum(part.count for part in parts)
    joined.requester_id = f'ghsched-vfs-node{guest_node}'
    return joined


def _group_vf_requests(requests: Iterable[Any], node_count: int
                       ) -> dict[tuple[int, str], list[Any]]:
    """Return a server's PCI requests for VFs by guest NUMA node and alias.

    The nodes are in ascending order, the aliases in that of the flavor. Other
    PCI requests are left out.

    :param requests: PCI requests of the server.
    :param node_count: number of guest NUMA nodes.
    """
    found: dict[tuple[int, str], list[Any]] = {}
    for request in requests:
        node = pci_requests.get_guest_node(request, node_count)
        if node is not None:
            found.setdefault((node, request.alias_name), []).append(request)
    return dict(sorted(found.items(), key=lambda item: item[0][0]))


def map_original_suffixes(requests: Iterable[Any],
                          node_count: int) -> dict[str, str]:
    """Return the original suffix of the request group of each joined VF.

    Each VF has a request group in Placement's query, and its suffix holds the
    ID of the PCI request. :func:`join_vf_requests` changes the suffixes, but
    nova-conductor expects the original ones in the answer.

    :param requests: PCI requests before they were joined.
    :param node_count: number of guest NUMA nodes that the scheduler chose.
    :returns: original suffixes by the suffixes after joining.
    """
    return {
        names.make_vf_suffix(parts[0].request_id, number): suffix
        for parts in _group_vf_requests(requests, node_count).values()
        for number, suffix in enumerate(
            names.make_vf_suffix(part.request_id, index)
            for part in parts for index in range(part.count))}
