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

"""Providers of PCI devices, below the NUMA node that the devices are on.

With ``[pci]report_in_placement`` Nova makes a provider for each PF (its VFs
are inventory of it) and for each device of its own. It makes a provider only
if there is none of that name yet, as a child of the compute node, and never
moves one. So the provider is made here first, below its NUMA node, and Nova
fills it. One that an earlier Nova made is moved (Placement 1.37), which is
possible while guests hold devices of it.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging
from oslo_utils import uuidutils

from ghsched_placement import names
from ghsched_placement.placement_client import PlacementClient
from ghsched_placement.placement_client import PlacementError

LOG = logging.getLogger(__name__)

#: Devices whose provider is that of their parent: nova.compute.
#: pci_placement_translator.CHILD_TYPES.
_CHILD_TYPES = ('type-VF', 'vdpa')

#: Tags of a device in [pci]device_spec; None when it is not in there.
TagsOf = Callable[[Mapping[str, Any]], Mapping[str, str] | None]


def wanted_nodes(devices: Iterable[Mapping[str, Any]], tags_of: TagsOf,
                 nodename: str) -> dict[str, int]:
    """Host NUMA node by name of the provider that Nova will fill (pure).

    Devices of a physical network are left out, as Nova leaves them out of
    Placement, and so are devices whose NUMA node the host does not tell.

    :param devices: as the libvirt driver reports them.
    """
    nodes: dict[str, int] = {}
    for device in devices:
        tags = tags_of(device)
        if tags is None or tags.get('physical_network'):
            continue
        node = device.get('numa_node')
        if node is None or node < 0:
            continue
        address = (device.get('parent_addr')
                   if device['dev_type'] in _CHILD_TYPES
                   else device['address'])
        if address:
            nodes.setdefault(f'{nodename}_{address.upper()}', node)
    return nodes


class Placer:
    """Puts providers below their NUMA nodes, once each."""

    def __init__(self, client: Callable[[], PlacementClient]) -> None:
        self._client = client
        # Nova's copy of the tree shows the old parent for some minutes.
        self._moved: dict[str, str] = {}

    def update(self, provider_tree: Any, nodename: str,
               nodes: Mapping[str, int]) -> None:
        """Make or move the providers of a compute node.

        :param provider_tree: with the NUMA providers in it; changed in
            place.
        :param nodes: from :func:`wanted_nodes`.
        """
        root = provider_tree.data(nodename).uuid
        for name, node in sorted(nodes.items()):
            parent = names.numa_provider_uuid(root, node)
            if not provider_tree.exists(parent):
                continue
            if not provider_tree.exists(name):
                provider_tree.new_child(
                    name, parent, uuid=uuidutils.generate_uuid())
            else:
                self._put_below(provider_tree.data(name), parent)

    def _put_below(self, provider: Any, parent: str) -> None:
        if parent in (provider.parent_uuid, self._moved.get(provider.uuid)):
            return
        try:
            self._client().move_provider(provider.uuid, provider.name, parent)
        except PlacementError as error:
            LOG.warning('ghsched: the provider %(name)s is not moved: '
                        '%(error)s', {'name': provider.name, 'error': error})
            return
        self._moved[provider.uuid] = parent
        LOG.info('ghsched: moved the provider %(name)s below its NUMA node '
                 '%(parent)s', {'name': provider.name, 'parent': parent})
