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

"""A guest's policy inside its libvirt domain (pure).

libvirt keeps the children of ``<metadata>`` untouched as long as each has a
namespace of its own (libvirt, "Domain XML format", general metadata), over
restarts of libvirtd and over migration. With the policy there, the host
engine can tell from the running domains alone what resctrl should hold,
without Nova's database.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import Self

from lxml import etree

from ghsched_nova.guest import document
from ghsched_placement.policy import GuestPolicy
from ghsched_placement.policy import NodePolicy

NAMESPACE = 'https://opendev.org/x/ghsched/domain/1.0'
PREFIX = 'ghsched'
_POLICY = f'{{{NAMESPACE}}}policy'
_NODE = f'{{{NAMESPACE}}}node'
_REALTIME = f'{{{NAMESPACE}}}realtime'
_BOOLEAN = {'true': True, 'false': False}
#: Owner in the metadata that Nova writes (nova/virt/libvirt/config.py,
#: LibvirtConfigGuestMetaNovaOwner): the project of the instance.
_PROJECT = ('metadata/{http://openstack.org/xmlns/libvirt/nova/1.1}instance/'
            '{*}owner/{*}project')
#: Attributes of a node that are its policy.
_VALUES = frozenset(NodePolicy(l3_ways=1, burst=1).packed())
#: Says that a domain shares its control group.
SHARED = 'shared'


class MetadataError(ValueError):
    """The policy in a domain's metadata cannot be read."""


@dataclass(frozen=True)
class DomainPolicy:
    """What a domain was started with.

    :param policy: as the flavor asked for it.
    :param host_nodes: host NUMA node of each guest NUMA node that has
        bandwidth or ways of the L3; empty for a policy without ``nodes``.
    :param shared: whether it has its control group together with the guests
        of the same policy on the same host nodes.
    :param realtime_nodes: host NUMA node of each guest NUMA node; empty for a
        policy without ``rt_permille``.
    :raises ValueError: for other numbers of nodes than the policy has.
    """

    policy: GuestPolicy
    host_nodes: tuple[int, ...]
    shared: bool = False
    realtime_nodes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for what, asked, given in (
                ('bandwidth', self.policy.nodes, self.host_nodes),
                ('real time', self.policy.rt_permille, self.realtime_nodes)):
            if len(asked) != len(given):
                raise ValueError(
                    f'the policy has {what} on {len(asked)} guest NUMA nodes, '
                    f'host NUMA nodes are given for {len(given)}')
        if self.host_nodes and self.realtime_nodes and (
                self.host_nodes != self.realtime_nodes):
            raise ValueError(
                f'the guest is on the host NUMA nodes {self.host_nodes}, and '
                f'its real time is counted on {self.realtime_nodes}')

    @property
    def counted_nodes(self) -> tuple[int, ...]:
        """Host NUMA node of each guest node that anything is counted of."""
        return self.host_nodes or self.realtime_nodes

    def on(self, host_nodes: tuple[int, ...]) -> Self:
        """Return the same policy on other host NUMA nodes.

        :raises ValueError: for another number of nodes than it has.
        """
        return replace(
            self, host_nodes=host_nodes if self.host_nodes else (),
            realtime_nodes=host_nodes if self.realtime_nodes else ())


def write(xml: str, domain: DomainPolicy) -> str:
    """The domain XML with the policy in its metadata, replacing any."""
    root = document.parse_element(xml)
    metadata = root.find('metadata')
    if metadata is None:
        metadata = etree.Element('metadata')
        root.insert(0, metadata)
    for old in metadata.findall(_POLICY):
        metadata.remove(old)
    _fill(etree.SubElement(metadata, _POLICY, nsmap={PREFIX: NAMESPACE}),
          domain, _NODE, _REALTIME)
    return etree.tostring(root, encoding='unicode')


def fragment(domain: DomainPolicy) -> str:
    """The policy alone, as virDomainSetMetadata wants it.

    libvirt puts :data:`NAMESPACE` and :data:`PREFIX` in, and refuses an
    element that has the prefix already (``virXMLInjectNamespace`` of
    src/util/virxml.c).
    """
    element = etree.Element('policy')
    _fill(element, domain, 'node', 'realtime')
    return etree.tostring(element, encoding='unicode')


def _fill(policy: etree._Element, domain: DomainPolicy, tag: str,
          realtime_tag: str) -> None:
    policy.set('monitor', _text(domain.policy.monitor))
    policy.set('device_numa', domain.policy.device_numa)
    if domain.shared:
        policy.set('group', SHARED)
    for node, host_node in zip(domain.policy.nodes, domain.host_nodes,
                               strict=True):
        element = etree.SubElement(policy, tag)
        element.set('host', str(host_node))
        for name, value in node.packed().items():
            if value is not None:
                element.set(name, _text(value))
    # Of elements of its own: earlier releases read a node of bandwidth in
    # each of the others.
    for permille, host_node in zip(domain.policy.rt_permille,
                                   domain.realtime_nodes, strict=True):
        etree.SubElement(policy, realtime_tag, host=str(host_node),
                         permille=str(permille))


def read(xml: str) -> DomainPolicy | None:
    """The policy in a domain's metadata; None for a guest without one.

    :raises MetadataError: when it is there but makes no sense.
    """
    return of(document.parse_element(xml))


def of(domain: etree._Element) -> DomainPolicy | None:
    """As :func:`read`, of the root element of the XML."""
    element = domain.find(f'metadata/{_POLICY}')
    if element is None:
        return None
    try:
        nodes = [(int(node.attrib['host']), _node_policy(node))
                 for node in element.findall(_NODE)]
        realtime = [(int(node.attrib['host']), int(node.attrib['permille']))
                    for node in element.findall(_REALTIME)]
        monitor = _BOOLEAN[element.get('monitor', 'false')]
        return DomainPolicy(
            policy=GuestPolicy(
                nodes=tuple(policy for _host, policy in nodes),
                monitor=monitor,
                device_numa=element.get('device_numa', 'none'),
                rt_permille=tuple(permille for _host, permille in realtime)),
            host_nodes=tuple(host for host, _policy in nodes),
            shared=element.get('group') == SHARED,
            realtime_nodes=tuple(host for host, _permille in realtime))
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataError(
            'the ghsched policy in the metadata of the domain cannot be '
            f'read: {error!r}') from error


def project(domain: etree._Element) -> str:
    """Return the UUID of the project that has a server in Nova.

    Empty where the domain is not of Nova.

    :param domain: root element of the XML.
    """
    element = domain.find(_PROJECT)
    return '' if element is None else str(element.get('uuid', ''))


def move(xml: str, new_node: Mapping[int, int]) -> str:
    """The domain XML for a host where other NUMA nodes back the guest.

    :param new_node: host NUMA node there by host NUMA node here.
    """
    domain = read(xml)
    if domain is None:
        return xml
    return write(xml, domain.on(tuple(
        new_node.get(node, node) for node in domain.counted_nodes)))


def _node_policy(element: etree._Element) -> NodePolicy:
    values = {str(name): _BOOLEAN[str(text)] if text in _BOOLEAN else int(text)
              for name, text in element.attrib.items()
              if name in _VALUES}
    return NodePolicy.unpacked({'priority': None, **values})


def _text(value: bool | int) -> str:
    return str(value).lower()
