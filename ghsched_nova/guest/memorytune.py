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


"""``<memorytune>`` in a libvirt domain: text in, text out.

Upstream libvirt knows ``<node id= bandwidth=/>`` and ``<monitor/>``
(docs/formatdomain, "CPU Tuning"). openEuler's libvirt knows three more
attributes of a node: ``hardlimit``, ``priority`` and ``min_bandwidth``; the
XML that has them is called *extended* here. Upstream libvirt drops attributes
it does not know without a word when it defines a domain, which is why
:func:`probe_xml` and :func:`keeps_extended` exist.

Nothing but the element in question changes: all other elements, comments and
blanks of a document stay as they were.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
import re
from typing import Any

from lxml import etree

from ghsched_nova.guest import document
from ghsched_placement import cpulist

_TAG = 'memorytune'
_COUNT = re.compile(r'[0-9]{1,9}')

#: cputune stands after all of these in the XML that libvirt itself writes.
_BEFORE_CPUTUNE = frozenset((
    'name', 'uuid', 'genid', 'title', 'description', 'metadata', 'maxMemory',
    'memory', 'currentMemory', 'blkiotune', 'memtune', 'memoryBacking',
    'vcpu', 'vcpus', 'iothreads', 'iothreadids', 'defaultiothread'))

#: Differs from every default, so that a libvirt that made values up would
#: not pass for one that kept ours.
_PROBE_NODE = {'id': '0', 'bandwidth': '90', 'hardlimit': '0',
               'priority': '5', 'min_bandwidth': '10'}

PROBE_NAME = 'ghsched-probe'
PROBE_UUID = '3d0f3c52-6d0e-5d55-8a3c-3f6f0b8f6c11'


class MemoryTuneError(ValueError):
    """A domain XML or a tune that cannot be worked with; says why."""


@dataclass(frozen=True)
class NodeTune:
    """Memory bandwidth on one resctrl domain of the host.

    :param id: number of the resctrl domain, as in the ``MB:`` line.
    :param bandwidth: cap in percent. libvirt has no node without it.
    :param hardlimit: whether the cap holds while bandwidth is idle. Hosts
        differ in their default, so it is given wherever the host can choose.
    :param priority: 0..7.
    :param min_bandwidth: guarantee in percent.

    None stands for a knob that the host has not: openEuler's libvirt does not
    start a guest that names one.
    """

    id: int
    bandwidth: int
    hardlimit: bool | None = None
    priority: int | None = None
    min_bandwidth: int | None = None


@dataclass(frozen=True)
class MemoryTune:
    """One ``<memorytune>``: some vCPUs, and what holds for them.

    :param vcpus: guest CPUs of the control group; must not be empty. None is
        the whole process of the guest, which libvirt knows from 12.8 on
        (docs/formatdomain, "CPU Tuning").
    :param nodes: one entry per resctrl domain; empty makes no control group.
    :param monitor: whether a monitor for the same vCPUs is wanted.
    """

    vcpus: frozenset[int] | None
    nodes: tuple[NodeTune, ...] = ()
    monitor: bool = False


def tunes(settings: Iterable[Mapping[str, Any]]) -> tuple[NodeTune, ...]:
    """What resctrl domains are to hold, in the words of libvirt."""
    return tuple(NodeTune(**setting) for setting in settings)


# -- writing ------------------------------------------------------------------


def render(xml: str, tune: MemoryTune, extended: bool) -> str:
    """Put a ``<memorytune>`` into a domain, in place of any that is there.

    :param xml: a ``<domain>`` document.
    :param extended: whether this libvirt keeps hardlimit, priority and
        min_bandwidth; without, only the bandwidth is written.
    :raises MemoryTuneError: when the document is no domain, or when the tune
        is one that libvirt would drop or refuse.
    """
    element = _element(tune, extended)
    root = _parse(xml)
    _remove_all(root)
    cputune = root.find('cputune')
    if cputune is None:
        cputune = etree.Element('cputune')
        document.insert(root, [cputune], _cputune_position(root))
    document.insert(cputune, [element], len(cputune))
    return document.text(root)


def fragment(tune: MemoryTune, extended: bool) -> str:
    """The ``<memorytune>`` alone, indented, without a newline at its end.

    :raises MemoryTuneError: as for :func:`render`.
    """
    element = _element(tune, extended)
    etree.indent(element)
    return etree.tostring(element, encoding='unicode')


def remap(xml: str, nodes: Mapping[int, int]) -> str:
    """Renumber the resctrl domains, as a live migration needs.

    :param nodes: new number by old number; must name every node of the XML.
    :raises MemoryTuneError: when a node has no new number, or when two would
        get the same one: libvirt refuses that.
    """
    root = _parse(xml)
    for element in root.findall(f'cputune/{_TAG}'):
        seen: set[int] = set()
        for node in element.findall('node'):
            old = _count(node, 'id')
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
    return document.text(root)


def retune(xml: str, nodes: Iterable[NodeTune], extended: bool) -> str:
    """Other values for the nodes that a domain has in its ``<memorytune>``.

    :param nodes: their new values; of one that the domain has not nothing is
        written.
    :returns: the same text when nothing changes.
    :raises MemoryTuneError: when the document is no domain.
    """
    root = _parse(xml)
    values = {str(node.id): _attributes(node, extended) for node in nodes}
    changed = False
    for element in root.findall(f'cputune/{_TAG}/node'):
        wanted = values.get(element.get('id', ''), {})
        # libvirt may show more attributes than it was given.
        if any(element.get(name) != text for name, text in wanted.items()):
            for name, text in wanted.items():
                element.set(name, text)
            changed = True
    return document.text(root) if changed else xml


def _element(tune: MemoryTune, extended: bool) -> etree._Element:
    _check(tune)
    whose = ({} if tune.vcpus is None
             else {'vcpus': cpulist.render(tune.vcpus)})
    element = etree.Element(_TAG, whose)
    for node in tune.nodes:
        etree.SubElement(element, 'node', _attributes(node, extended))
    if tune.monitor:
        etree.SubElement(element, 'monitor', whose)
    return element


def _check(tune: MemoryTune) -> None:
    if tune.vcpus is not None and not tune.vcpus:
        raise MemoryTuneError('a memorytune needs at least one vCPU')
    if not tune.nodes and not tune.monitor:
        raise MemoryTuneError('a memorytune needs a node or a monitor; '
                              'libvirt drops one without')
    ids = [node.id for node in tune.nodes]
    if len(set(ids)) < len(ids):
        raise MemoryTuneError('a memorytune names a node twice: '
                              + ', '.join(map(str, ids)))


def _attributes(node: NodeTune, extended: bool) -> dict[str, str]:
    values: dict[str, int | None] = {
        'id': node.id, 'bandwidth': node.bandwidth}
    if extended:
        values['hardlimit'] = node.hardlimit
        values['priority'] = node.priority
        values['min_bandwidth'] = node.min_bandwidth
    return {name: str(int(value)) for name, value in values.items()
            if value is not None}


# -- reading ------------------------------------------------------------------


def read(xml: str) -> MemoryTune | None:
    """The tune in a domain; None when it has none.

    :raises MemoryTuneError: when the document is no domain, has a second
        ``<memorytune>`` (we never write one) or a value that is not a number.
    """
    elements = _parse(xml).findall(f'cputune/{_TAG}')
    if not elements:
        return None
    if len(elements) > 1:
        raise MemoryTuneError('the domain has more than one memorytune')
    element = elements[0]
    text = element.get('vcpus')
    try:
        vcpus = None if text is None else cpulist.parse(text)
    except cpulist.CpuListError as error:
        raise MemoryTuneError(f'memorytune: {error}') from None
    return MemoryTune(
        vcpus=vcpus,
        nodes=tuple(map(_node, element.findall('node'))),
        monitor=element.find('monitor') is not None)


def _node(element: etree._Element) -> NodeTune:
    hardlimit = _optional_count(element, 'hardlimit')
    return NodeTune(
        id=_count(element, 'id'), bandwidth=_count(element, 'bandwidth'),
        hardlimit=None if hardlimit is None else bool(hardlimit),
        priority=_optional_count(element, 'priority'),
        min_bandwidth=_optional_count(element, 'min_bandwidth'))


def _count(element: etree._Element, name: str) -> int:
    text = element.get(name, '').strip()
    if not _COUNT.fullmatch(text):
        raise MemoryTuneError(
            f'memorytune node: {name}={text!r} is not a number')
    return int(text)


def _optional_count(element: etree._Element, name: str) -> int | None:
    return None if element.get(name) is None else _count(element, name)


# -- what this libvirt keeps --------------------------------------------------


def probe_xml(name: str = PROBE_NAME, uuid: str = PROBE_UUID) -> str:
    """A throw-away domain with every extended attribute.

    Define it, read it back, undefine it, and give what came back to
    :func:`keeps_extended`. It is never started. It must be of type kvm,
    because libvirt refuses a memorytune for any other. Name and UUID are
    fixed, so that one left behind by a crash is defined again and not in the
    way.
    """
    return _probe(name, uuid, {'vcpus': '0'}, _PROBE_NODE)


def process_probe_xml(name: str = PROBE_NAME, uuid: str = PROBE_UUID) -> str:
    """As :func:`probe_xml`, with a group for the whole process.

    libvirt up to 12.7 does not take it: it wants ``vcpus``.
    """
    return _probe(name, uuid, {}, {'id': '0', 'bandwidth': '90'})


def keeps_process(returned_xml: str) -> bool:
    """Whether the libvirt that returned it knows groups of processes.

    :raises MemoryTuneError: when it returned no domain.
    """
    tune = _parse(returned_xml).find(f'cputune/{_TAG}')
    return tune is not None and tune.get('vcpus') is None


def _probe(name: str, uuid: str, whose: dict[str, str],
           node: dict[str, str]) -> str:
    root = etree.Element('domain', {'type': 'kvm'})
    etree.SubElement(root, 'name').text = name
    etree.SubElement(root, 'uuid').text = uuid
    etree.SubElement(root, 'memory', {'unit': 'MiB'}).text = '1'
    etree.SubElement(root, 'vcpu').text = '1'
    cputune = etree.SubElement(root, 'cputune')
    tune = etree.SubElement(cputune, _TAG, whose)
    etree.SubElement(tune, 'node', node)
    etree.SubElement(etree.SubElement(root, 'os'), 'type').text = 'hvm'
    return document.text(root)


def keeps_extended(returned_xml: str) -> bool:
    """Whether the libvirt that returned the probe kept all attributes.

    :raises MemoryTuneError: when it returned no domain.
    """
    node = _parse(returned_xml).find(f'cputune/{_TAG}/node')
    return node is not None and all(
        node.get(name) == value for name, value in _PROBE_NODE.items())


# -- the document -------------------------------------------------------------


def _parse(xml: str) -> etree._Element:
    try:
        return document.parse(xml)
    except document.NotThisDocument as error:
        raise MemoryTuneError(str(error)) from None


def _cputune_position(root: etree._Element) -> int:
    """Where libvirt itself has it; libvirt reads any order."""
    return max((place for place, child in enumerate(root, start=1)
                if child.tag in _BEFORE_CPUTUNE), default=0)


def _remove_all(root: etree._Element) -> None:
    for element in root.findall(f'cputune/{_TAG}'):
        document.remove(element)
