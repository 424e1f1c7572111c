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


"""``<memorytune>`` element of a libvirt domain (pure; XML text in, text out).

Upstream libvirt knows ``<node id= bandwidth=/>`` and ``<monitor/>``
(docs/formatdomain, "CPU Tuning"). openEuler's libvirt has three more
attributes of a node: ``hardlimit``, ``priority`` and ``min_bandwidth``; XML
with them is called *extended* here, see
:mod:`ghsched_nova.guest.libvirt_probes`.

Functions that change a document leave all other elements, comments and
whitespace as they are.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import re
from typing import Any

from lxml import etree

from ghsched_nova.guest import document
from ghsched_placement.base import cpulist

_TAG = 'memorytune'
_COUNT = re.compile(r'[0-9]{1,9}')

#: Elements that precede cputune in the XML that libvirt writes.
_BEFORE_CPUTUNE = frozenset((
    'name', 'uuid', 'genid', 'title', 'description', 'metadata', 'maxMemory',
    'memory', 'currentMemory', 'blkiotune', 'memtune', 'memoryBacking',
    'vcpu', 'vcpus', 'iothreads', 'iothreadids', 'defaultiothread'))


class MemoryTuneError(ValueError):
    """Reason why a domain XML or a MemoryTune is invalid."""


@dataclass(frozen=True)
class NodeTune:
    """Memory bandwidth limits on one resctrl domain (``<node>``).

    A limit is None if the host does not have the control, because openEuler's
    libvirt does not start a guest whose XML sets a missing control.

    :param id: id of the resctrl domain in the ``MB:`` line.
    :param bandwidth: cap in percent; libvirt requires it.
    :param hardlimit: whether the cap also applies while bandwidth is idle. It
        is always set if the host has the control, because hosts differ in
        their default.
    :param priority: priority from 0 to 7.
    :param min_bandwidth: guarantee in percent.
    """

    id: int
    bandwidth: int
    hardlimit: bool | None = None
    priority: int | None = None
    min_bandwidth: int | None = None


@dataclass(frozen=True)
class MemoryTune:
    """A ``<memorytune>`` element: vCPUs of a guest and their bandwidth limits.

    :param vcpus: guest CPUs of the control group; must not be empty. None
        means the whole process of the guest, which libvirt supports since 12.8
        (docs/formatdomain, "CPU Tuning").
    :param nodes: one entry per resctrl domain; without any, no control group.
    :param monitor: whether a monitor for the same vCPUs is requested.
    """

    vcpus: frozenset[int] | None
    nodes: tuple[NodeTune, ...] = ()
    monitor: bool = False


def make_node_tunes(settings: Iterable[Mapping[str, Any]]
                    ) -> tuple[NodeTune, ...]:
    """Convert a guest's bandwidth settings to limits of ``<memorytune>``.

    libvirt enforces the limits in this element of a domain XML.

    :param settings: bandwidth setting of each resctrl domain.
    """
    return tuple(NodeTune(**setting) for setting in settings)


# -- writing ------------------------------------------------------------------


def replace_memorytunes(xml: str, tunes: Iterable[MemoryTune],
                        extended: bool) -> str:
    """Replace the bandwidth limits (``<memorytune>``) in a domain XML.

    :param xml: a ``<domain>`` document.
    :param tunes: limits of each control group of the domain.
    :param extended: whether libvirt supports hardlimit, priority and
        min_bandwidth. If not, only the bandwidth is written.
    :raises MemoryTuneError: if the document is not a domain, or if libvirt
        would drop or refuse the element.
    """
    elements = [make_element(tune, extended) for tune in tunes]
    root = _parse_domain(xml)
    _remove_memorytunes(root)
    cputune = document.find_or_insert_child(root, 'cputune', _BEFORE_CPUTUNE)
    document.insert_children(cputune, elements, len(cputune))
    return document.render_document(root)


def renumber_nodes(xml: str, nodes: Mapping[int, int]) -> str:
    """Return a domain XML with the resctrl domain ids of another host.

    This is needed for a live migration, because the destination may number its
    resctrl domains differently.

    :param nodes: new number by old number; must contain every node of
        ``<memorytune>``.
    :raises MemoryTuneError: if a node has no new number, or if two would get
        the same one, which libvirt refuses.
    """
    root = _parse_domain(xml)
    for element in root.findall(f'cputune/{_TAG}'):
        seen: set[int] = set()
        for node in element.findall('node'):
            old = _parse_count(node, 'id')
            if old not in nodes:
                raise MemoryTuneError(
                    f'memorytune node {old} has no counterpart on the '
                    'destination')
            new = nodes[old]
            if new in seen:
                raise MemoryTuneError(
                    f'two memorytune nodes would become node {new}')
            seen.add(new)
            node.set('id', str(new))
    return document.render_document(root)


def update_memorytune_nodes(
        xml: str,
        nodes_by_vcpus: Mapping[frozenset[int] | None, Sequence[NodeTune]],
        extended: bool) -> str:
    """Replace numbers and limits of the nodes of ``<memorytune>``.

    The elements keep their vCPUs and their monitors. A ``<memorytune>``
    without nodes, which is only a monitor, stays as it is.

    :param nodes_by_vcpus: limits of all resctrl domains, by the vCPUs of the
        control group; None in place of the vCPUs is for any ``<memorytune>``.
        An element without limits is removed.
    :returns: the unchanged text if no number and no limit differs.
    :raises MemoryTuneError: if the document is not a domain, or if two nodes
        have the same number, which libvirt refuses.
    """
    root = _parse_domain(xml)
    for nodes in nodes_by_vcpus.values():
        _check_node_ids(nodes)
    changed = False
    for tune in root.findall(f'cputune/{_TAG}'):
        elements = tune.findall('node')
        nodes = nodes_by_vcpus.get(
            None if None in nodes_by_vcpus else _parse_vcpus(tune), ())
        wanted = {str(node.id): _make_attributes(node, extended)
                  for node in nodes}
        if elements and not _has_nodes(elements, wanted):
            if wanted:
                _replace_nodes(tune, elements, wanted.values())
            else:
                document.remove_element(tune)
            changed = True
    return document.render_document(root) if changed else xml


def _has_nodes(elements: Sequence[etree._Element],
               wanted: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether node elements have exactly the wanted numbers, and the limits.

    :param wanted: attributes of a node element by number. libvirt may return
        more attributes than were defined.
    """
    return (sorted(element.get('id', '') for element in elements)
            == sorted(wanted)
            and all(element.get(name) == text for element in elements
                    for name, text in wanted[element.get('id', '')].items()))


def _replace_nodes(tune: etree._Element, elements: Sequence[etree._Element],
                   wanted: Iterable[dict[str, str]]) -> None:
    place = tune.index(elements[0])
    for element in elements:
        document.remove_element(element)
    document.insert_children(
        tune, [etree.Element('node', values) for values in wanted], place)


def make_element(tune: MemoryTune, extended: bool) -> etree._Element:
    _check_tune(tune)
    whose = ({} if tune.vcpus is None
             else {'vcpus': cpulist.render_cpu_list(tune.vcpus)})
    element = etree.Element(_TAG, whose)
    for node in tune.nodes:
        etree.SubElement(element, 'node', _make_attributes(node, extended))
    if tune.monitor:
        etree.SubElement(element, 'monitor', whose)
    return element


def _check_tune(tune: MemoryTune) -> None:
    if tune.vcpus is not None and not tune.vcpus:
        raise MemoryTuneError('a memorytune needs at least one vCPU')
    if not tune.nodes and not tune.monitor:
        raise MemoryTuneError('a memorytune needs a node or a monitor; '
                              'libvirt drops one without')
    _check_node_ids(tune.nodes)


def _check_node_ids(nodes: Iterable[NodeTune]) -> None:
    ids = [node.id for node in nodes]
    if len(set(ids)) < len(ids):
        raise MemoryTuneError('a memorytune names a node twice: '
                              + ', '.join(map(str, ids)))


def _make_attributes(node: NodeTune, extended: bool) -> dict[str, str]:
    values: dict[str, int | None] = {
        'id': node.id, 'bandwidth': node.bandwidth}
    if extended:
        values['hardlimit'] = node.hardlimit
        values['priority'] = node.priority
        values['min_bandwidth'] = node.min_bandwidth
    return {name: str(int(value)) for name, value in values.items()
            if value is not None}


def _parse_vcpus(tune: etree._Element) -> frozenset[int]:
    try:
        return cpulist.parse_cpu_list(tune.get('vcpus', ''))
    except cpulist.CpuListError as error:
        raise MemoryTuneError(f'memorytune: {error}') from None


def _parse_count(element: etree._Element, name: str) -> int:
    text = element.get(name, '').strip()
    if not _COUNT.fullmatch(text):
        raise MemoryTuneError(
            f'memorytune node: {name}={text!r} is not a number')
    return int(text)


# -- the document -------------------------------------------------------------


def _parse_domain(xml: str) -> etree._Element:
    return document.parse_document(xml, error=MemoryTuneError)


def _remove_memorytunes(root: etree._Element) -> None:
    for element in root.findall(f'cputune/{_TAG}'):
        document.remove_element(element)
