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

All numbers are taken by guest NUMA node. Host NUMA nodes of the source tell
nothing about the guest: after a move inside the source the policy has the new
ones, while memnode and memorytune of the running domain keep the old ones,
which libvirt cannot change.

Caps are rounded as the source's kernel rounds them: migrate_data has no field
for what the destination's kernel can set. nova-compute of the destination
writes its own values as soon as the guest has arrived.
"""

from collections.abc import Sequence
import logging
from typing import Any

from ghsched_nova.base import wrappers
from ghsched_nova.guest import document
from ghsched_nova.guest import memorytune
from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.host import domain_xml
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import resolve
from ghsched_placement.base import decimals

LOG = logging.getLogger(__name__)


class NotRenumbered(ValueError):  # noqa: N818
    """Reason why the XML of a guest cannot have the destination's NUMA nodes.
    """


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


def list_destination_nodes(migrate_data: Any) -> list[int]:
    """Return the destination's host NUMA node of each guest NUMA node.

    :param migrate_data: Nova's LibvirtLiveMigrateData.
    :returns: empty if the guest has no NUMA nodes.
    :raises NotRenumbered: if a guest NUMA node is missing, or is not on one
        host NUMA node.
    """
    if ('dst_numa_info' not in migrate_data
            or 'cell_pins' not in migrate_data.dst_numa_info):
        return []
    pins = {int(cell): sorted(nodes) for cell, nodes
            in migrate_data.dst_numa_info.cell_pins.items()}
    if sorted(pins) != [*range(len(pins))] or any(
            len(nodes) != 1 for nodes in pins.values()):
        raise NotRenumbered(
            'the destination host names these host NUMA nodes by guest NUMA '
            f'node: {pins}; exactly one for each is needed')
    return [int(pins[cell][0]) for cell in range(len(pins))]


def render_for_destination(renderer: domain_xml.DomainXml, xml: str,
                           nodes: Sequence[int]) -> str:
    """Return a domain XML with the NUMA nodes of a live migration's target.

    The policy in the metadata and ``<memorytune>`` are changed. If this host
    can no longer enforce the policy, ``<memorytune>`` keeps its old limits.

    :param xml: live XML of the domain on this host, the source.
    :param nodes: host NUMA node at the destination of each guest NUMA node.
    :raises NotRenumbered: if the destination names too few NUMA nodes.
    :raises MetadataError: if the policy cannot be read.
    :raises MemoryTuneError: if the old limits cannot be renumbered.
    """
    domain = metadata.read_policy(xml)
    if domain is None:
        return xml
    count = len(domain.allocated_nodes)
    if count > len(nodes):
        raise NotRenumbered(
            f'the policy of the guest is for {count} guest NUMA nodes, and '
            f'the destination host names host NUMA nodes for {len(nodes)}')
    try:
        tuned = renderer.update_memorytune(xml, nodes)
    except desired.POLICY_ERRORS as error:
        LOG.warning('ghsched: cannot update the bandwidth caps in the XML '
                    'of a live-migrated guest; keeping the old caps: %s',
                    error)
        tuned = _renumber_old_limits(xml, nodes)
    return metadata.write_policy(
        tuned, domain.replace_host_nodes(tuple(nodes[:count])))


def _renumber_old_limits(xml: str, nodes: Sequence[int]) -> str:
    """Renumber ``<memorytune>`` of a running domain, with its old limits.

    Its nodes are those on which the domain was started, like the nodes of
    ``<memnode>``; libvirt changes neither while the domain runs.
    """
    started = {
        node: int(memnode.attrib['cellid'])
        for memnode in document.parse_element(xml).findall('numatune/memnode')
        if (node := decimals.parse_decimal(
            memnode.get('nodeset', ''))) is not None}
    return memorytune.renumber_nodes(xml, {
        node: nodes[cell] for node, cell in started.items()
        if cell < len(nodes)})


class MigratingGuest(wrappers.ObjectWrapper):
    """Wrapper of Nova's guest whose XML has the destination's NUMA nodes.

    It is used in a live migration, on the source.

    :param guest: Guest of nova.virt.libvirt.guest.
    :param renderer: renderer of the source.
    :param nodes: host NUMA node at the destination of each guest NUMA node.
    """

    def __init__(self, guest: Any, renderer: domain_xml.DomainXml,
                 nodes: Sequence[int]) -> None:
        super().__init__(guest)
        self._renderer = renderer
        self._nodes = nodes

    def get_xml_desc(self, *args: Any, **kwargs: Any) -> str:
        return self.render(self._wrapped.get_xml_desc(*args, **kwargs))

    def render(self, xml: str) -> str:
        """Return the XML for the destination, given that of this host.

        :raises ValueError: see :func:`render_for_destination`.
        """
        return render_for_destination(self._renderer, xml, self._nodes)
