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

"""Renumbers a guest's XML at the source of a live migration.

The source writes the XML that the destination starts (``nova.virt.libvirt.
migration.get_updated_guest_xml``). Nova updates pinning and memory from
``migrate_data.dst_numa_info``, but not memorytune. So Nova reads the XML from
a guest that shows the destination's nodes in memorytune and metadata.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from ghsched_nova.guest import document
from ghsched_nova.guest import memorytune
from ghsched_nova.guest import metadata
from ghsched_nova.resctrl import host as resctrl_host
from ghsched_nova.resctrl import resolve


def check_domain_numbering(host: resctrl_host.ResctrlHost) -> None:
    """Refuse a host whose resctrl domains are not numbered as its NUMA nodes.

    In a live migration, the source host writes numbers of NUMA nodes into
    ``<memorytune>``, because it does not know the resctrl domains of the
    destination.

    :raises PolicyRefused: with the NUMA node and its resctrl domains.
    """
    for node, domains in host.domains_by_node.items():
        if tuple(domains) != (node,):
            raise resolve.PolicyRefused(
                'guests with memory bandwidth limits cannot be live '
                f'migrated from or to this host: the resctrl domains of '
                f'NUMA node {node} are numbered {list(domains)}')


def map_host_nodes(xml: str, migrate_data: Any) -> dict[int, int]:
    """Map each host NUMA node of a guest's source to one of the destination.

    This is needed in a live migration. The result is empty for a guest without
    a policy, or without NUMA nodes.

    :param xml: the domain XML of the running guest.
    :param migrate_data: Nova's LibvirtLiveMigrateData. Its ``dst_numa_info``
        has the destination's nodes by guest NUMA node, in ``cell_pins``.
    """
    if ('dst_numa_info' not in migrate_data
            or metadata.read_policy(xml) is None):
        return {}
    info = migrate_data.dst_numa_info
    if 'cell_pins' not in info:
        return {}
    here = {memnode.attrib['cellid']: int(memnode.attrib['nodeset'])
            for memnode in document.parse_element(xml).findall(
                'numatune/memnode')}
    return {here[cell]: int(next(iter(pins)))
            for cell, pins in info.cell_pins.items() if cell in here}


def list_destination_nodes(migrate_data: Any) -> list[int]:
    """Return the destination's host NUMA node of each guest NUMA node.

    :param migrate_data: Nova's LibvirtLiveMigrateData.
    """
    if ('dst_numa_info' not in migrate_data
            or 'cell_pins' not in migrate_data.dst_numa_info):
        return []
    pins_of = migrate_data.dst_numa_info.cell_pins
    return [int(next(iter(pins_of[cell])))
            for cell in sorted(pins_of, key=int)]


class MigratingGuest:
    """Wrapper of Nova's guest whose XML has the destination's NUMA nodes.

    It is used in a live migration, on the source.

    :param guest: Guest of nova.virt.libvirt.guest.
    :param moves: the destination's host NUMA node by that of the source.
    :param update_limits: function that updates ``<memorytune>`` in a domain
        XML to the policy in its metadata.
    """

    def __init__(self, guest: Any, moves: Mapping[int, int],
                 update_limits: Callable[[str], str]) -> None:
        self._guest = guest
        self._moves = moves
        self._update_limits = update_limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guest, name)

    def get_xml_desc(self, *args: Any, **kwargs: Any) -> str:
        xml = self._update_limits(self._guest.get_xml_desc(*args, **kwargs))
        return memorytune.renumber_nodes(
            metadata.remap_host_nodes(xml, self._moves), self._moves)
