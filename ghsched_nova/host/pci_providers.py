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

"""Puts Placement's providers of PCI devices below their NUMA nodes.

With ``[pci]report_in_placement`` Nova makes a provider for each PF (its VFs
are the PF's inventory) and for each other device, as a child of the compute
node. Nova does so only if no provider has that name, and never moves a
provider. So ghsched makes the provider first, below its NUMA node, and Nova
fills the inventory. A provider that Nova made earlier is moved (Placement
1.37), which is possible while guests hold its devices.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from oslo_log import log as logging
from oslo_utils import uuidutils

from ghsched_placement.providers import names
from ghsched_placement.providers.placement_client import PlacementClient
from ghsched_placement.providers.placement_client import PlacementError

LOG = logging.getLogger(__name__)

#: Devices whose provider is that of their parent: nova.compute.
#: pci_placement_translator.CHILD_TYPES.
_CHILD_TYPES = ('type-VF', 'vdpa')

#: Returns a device's tags in [pci]device_spec; None if no entry matches.
TagsOf = Callable[[Mapping[str, Any]], Mapping[str, str] | None]


def map_provider_nodes(devices: Iterable[Mapping[str, Any]], tags_of: TagsOf,
                       nodename: str) -> dict[str, int]:
    """Return the host NUMA node of each PCI resource provider, by name.

    Devices of a physical network are left out, because Nova does not report
    them to Placement. Devices whose NUMA node is unknown are left out, too.

    :param devices: PCI devices as the libvirt driver reports them.
    :param tags_of: function that returns a device's tags in
        ``[pci]device_spec``.
    :param nodename: name of the compute node's provider.
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


def assign_to_only_node(devices: Iterable[dict[str, Any]],
                        nodes: Sequence[int]) -> None:
    """Set the NUMA node of devices whose node the firmware does not name.

    On a host with one NUMA node all devices are on it. Nothing is done on
    other hosts.

    :param devices: PCI devices as the libvirt driver reports them; changed in
        place.
    :param nodes: NUMA nodes of the host.
    """
    for device in devices if len(nodes) == 1 else ():
        if device.get('numa_node') in (None, -1):
            device['numa_node'] = nodes[0]


class PciProviderMover:
    """Mover of PCI resource providers below the providers of their NUMA nodes.

    Each provider is moved only once.

    :param client: function that returns the client of Placement.
    """

    def __init__(self, client: Callable[[], PlacementClient]) -> None:
        self._client = client
        # Nova's copy of the tree shows the old parent for some minutes.
        self._moved: dict[str, str] = {}

    def move_pci_providers(self, provider_tree: Any, nodename: str,
                           nodes: Mapping[str, int]) -> None:
        """Move PCI resource providers below the providers of their NUMA nodes.

        :param provider_tree: Nova's provider tree with the NUMA providers;
            changed in place.
        :param nodename: name of the compute node's provider.
        :param nodes: host NUMA node of each PCI device's provider.
        """
        root = provider_tree.data(nodename).uuid
        for name, node in sorted(nodes.items()):
            parent = names.make_numa_provider_uuid(root, node)
            if not provider_tree.exists(parent):
                continue
            if not provider_tree.exists(name):
                provider_tree.new_child(
                    name, parent, uuid=uuidutils.generate_uuid())
            else:
                self.move_provider_below(provider_tree.data(name), parent)

    def move_provider_below(self, provider: Any, parent: str) -> None:
        """Make a resource provider the child of another one in Placement.

        Nothing is done if the provider is the child already. An error of
        Placement is logged, and the next report retries.

        :param parent: UUID of the other provider.
        """
        if parent in (provider.parent_uuid, self._moved.get(provider.uuid)):
            return
        try:
            self._client().move_provider(provider.uuid, provider.name, parent)
        except PlacementError as error:
            LOG.warning('ghsched: cannot move resource provider %(name)s '
                        'under parent provider %(parent)s in Placement; '
                        'retrying in the next periodic task: %(error)s',
                        {'name': provider.name, 'parent': parent,
                         'error': error})
            return
        self._moved[provider.uuid] = parent
        LOG.info('ghsched: moved resource provider %(name)s under parent '
                 'provider %(parent)s in Placement',
                 {'name': provider.name, 'parent': parent})
