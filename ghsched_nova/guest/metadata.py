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

"""Bandwidth policy of a guest in the metadata of its libvirt domain (pure).

libvirt preserves the children of ``<metadata>`` as long as each has a
namespace of its own (libvirt, "Domain XML format", general metadata), over
restarts of libvirtd and over migration. With the policy in the domain, the
host engine knows from the running domains alone what resctrl should hold,
without Nova's database.
"""

from dataclasses import dataclass
from dataclasses import replace
from typing import Self

from lxml import etree

from ghsched_nova.guest import document
from ghsched_placement.base import cpulist
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import NodePolicy
from ghsched_placement.flavor.vcpu_classes import VcpuClass

NAMESPACE = 'https://opendev.org/x/ghsched/domain/1.0'
PREFIX = 'ghsched'
_POLICY = f'{{{NAMESPACE}}}policy'
_NODE = f'{{{NAMESPACE}}}node'
_REALTIME = f'{{{NAMESPACE}}}realtime'
_CLASS = f'{{{NAMESPACE}}}class'
_BOOLEAN = {'true': True, 'false': False}
#: Attributes of a node element that belong to its policy.
_VALUES = frozenset(NodePolicy(l3_ways=1, burst=1).to_mapping())
#: Value of the group attribute if a domain shares its control group.
SHARED = 'shared'


class MetadataError(ValueError):
    """Reason why the policy in a domain's metadata cannot be read."""


@dataclass(frozen=True)
class DomainPolicy:
    """Policy of a running domain, and the host NUMA nodes it applies to.

    :param policy: policy that the flavor requests.
    :param host_nodes: host NUMA node of each guest NUMA node for which the
        policy limits bandwidth or reserves L3 ways (``policy.nodes``).
    :param shared: whether the guest shares its control group with guests of
        the same policy on the same host nodes.
    :param realtime_nodes: host NUMA node of each guest NUMA node for which the
        policy allocates real-time CPU time (``policy.rt_permille``).
    :raises ValueError: if the numbers of host and guest nodes differ.
    """

    policy: GuestPolicy
    host_nodes: tuple[int, ...]
    shared: bool = False
    realtime_nodes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for what, requested, nodes in (
                ('bandwidth', self.policy.nodes, self.host_nodes),
                ('real time', self.policy.rt_permille, self.realtime_nodes)):
            if len(requested) != len(nodes):
                raise ValueError(
                    f'the policy has {what} on {len(requested)} guest NUMA '
                    f'nodes, host NUMA nodes are given for {len(nodes)}')
        for one in self.policy.classes:
            if one.nodes and len(one.nodes) != len(self.host_nodes):
                raise ValueError(
                    f'the vCPU class {one.name} has bandwidth on '
                    f'{len(one.nodes)} guest NUMA nodes, the guest has '
                    f'{len(self.host_nodes)}')
        if self.host_nodes and self.realtime_nodes and (
                self.host_nodes != self.realtime_nodes):
            raise ValueError(
                f'the guest is on the host NUMA nodes {self.host_nodes}, and '
                f'its real-time CPU time is on {self.realtime_nodes}')

    @property
    def allocated_nodes(self) -> tuple[int, ...]:
        """Host NUMA nodes on which Placement allocates the guest's bandwidth.
        """
        return self.host_nodes or self.realtime_nodes

    def replace_host_nodes(self, host_nodes: tuple[int, ...]) -> Self:
        """Return a copy of this bandwidth policy with other host NUMA nodes.

        :raises ValueError: if the number of nodes differs from the policy's.
        """
        return replace(
            self, host_nodes=host_nodes if self.host_nodes else (),
            realtime_nodes=host_nodes if self.realtime_nodes else ())


def write_policy(xml: str, domain: DomainPolicy) -> str:
    """Write a bandwidth policy into the metadata of a domain XML.

    A policy that is already there is replaced.

    :returns: the new domain XML.
    """
    root = document.parse_element(xml)
    metadata = root.find('metadata')
    if metadata is None:
        metadata = etree.Element('metadata')
        root.insert(0, metadata)
    for old in metadata.findall(_POLICY):
        metadata.remove(old)
    _fill_element(
        etree.SubElement(metadata, _POLICY, nsmap={PREFIX: NAMESPACE}),
        domain, f'{{{NAMESPACE}}}')
    return etree.tostring(root, encoding='unicode')


def render_policy(domain: DomainPolicy) -> str:
    """Render a bandwidth policy as an XML element of a domain's metadata.

    The element is for virDomainSetMetadata. libvirt adds :data:`NAMESPACE` and
    :data:`PREFIX`, and refuses an element that already has the prefix
    (``virXMLInjectNamespace`` of src/util/virxml.c).
    """
    element = etree.Element('policy')
    _fill_element(element, domain, '')
    return etree.tostring(element, encoding='unicode')


def _fill_element(policy: etree._Element, domain: DomainPolicy,
                  namespace: str) -> None:
    policy.set('monitor', _format_value(domain.policy.monitor))
    policy.set('device_numa', domain.policy.device_numa)
    if domain.shared:
        policy.set('group', SHARED)
    for node, host_node in zip(domain.policy.nodes, domain.host_nodes,
                               strict=True):
        _add_node_policy(policy, namespace, node, host=str(host_node))
    # Real time has elements of its own, because earlier releases read each
    # node element as one of bandwidth.
    for permille, host_node in zip(domain.policy.rt_permille,
                                   domain.realtime_nodes, strict=True):
        etree.SubElement(policy, f'{namespace}realtime', host=str(host_node),
                         permille=str(permille))
    for one in domain.policy.classes:
        element = etree.SubElement(
            policy, f'{namespace}class', name=one.name,
            vcpus=cpulist.render_cpu_list(one.vcpus or ()))
        if one.moved is not None:
            element.set('moved', cpulist.render_cpu_list(one.moved))
        for node in one.nodes:
            _add_node_policy(element, namespace, node)


def _add_node_policy(parent: etree._Element, namespace: str,
                     node: NodePolicy, **attributes: str) -> None:
    element = etree.SubElement(parent, f'{namespace}node', attributes)
    for name, value in node.to_mapping().items():
        if value is not None:
            element.set(name, _format_value(value))


def read_policy(xml: str) -> DomainPolicy | None:
    """Return the bandwidth policy in a domain XML's metadata.

    :returns: None if the domain has no policy.
    :raises MetadataError: if the policy is malformed.
    """
    return parse_policy(document.parse_element(xml, MetadataError))


def parse_policy(domain: etree._Element) -> DomainPolicy | None:
    """Return the bandwidth policy in a parsed domain's metadata.

    :param domain: root element of the domain XML.
    :returns: None if the domain has no policy.
    :raises MetadataError: if the policy is malformed.
    """
    element = domain.find(f'metadata/{_POLICY}')
    if element is None:
        return None
    try:
        nodes = [(int(node.attrib['host']), _parse_node_policy(node))
                 for node in element.findall(_NODE)]
        realtime = [(int(node.attrib['host']), int(node.attrib['permille']))
                    for node in element.findall(_REALTIME)]
        monitor = _BOOLEAN[element.get('monitor', 'false')]
        return DomainPolicy(
            policy=GuestPolicy(
                nodes=tuple(policy for _host, policy in nodes),
                monitor=monitor,
                device_numa=element.get('device_numa', 'none'),
                rt_permille=tuple(permille for _host, permille in realtime),
                classes=tuple(map(_parse_class, element.findall(_CLASS)))),
            host_nodes=tuple(host for host, _policy in nodes),
            shared=element.get('group') == SHARED,
            realtime_nodes=tuple(host for host, _permille in realtime))
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataError(
            'the ghsched policy in the metadata of the domain cannot be '
            f'read: {error!r}') from error


def _parse_class(element: etree._Element) -> VcpuClass:
    return VcpuClass(
        str(element.attrib['name']),
        cpulist.parse_cpu_list(str(element.attrib['vcpus'])),
        tuple(map(_parse_node_policy, element.findall(_NODE))),
        cpulist.parse_cpu_list(str(element.attrib['moved']))
        if 'moved' in element.attrib else None)


def _parse_node_policy(element: etree._Element) -> NodePolicy:
    values = {str(name): _BOOLEAN[str(text)] if text in _BOOLEAN else int(text)
              for name, text in element.attrib.items()
              if name in _VALUES}
    return NodePolicy.from_mapping({'priority': None, **values})


def _format_value(value: bool | int) -> str:
    return str(value).lower()
