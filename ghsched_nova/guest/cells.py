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


"""The NUMA nodes of a guest, from the XML of its domain (pure).

libvirt, "Domain XML format": ``<cpu><numa><cell>`` has the vCPUs and the
memory of a node, ``<numatune>`` the host nodes that its memory is from.
"""

from dataclasses import dataclass

from lxml import etree

from ghsched_placement import cpulist

#: KiB of the units that libvirt writes; it reads more of them, and always
#: gives back the first.
_KIB = {'KiB': 1, 'MiB': 1024, 'GiB': 1024 ** 2}


@dataclass(frozen=True)
class Cell:
    """A NUMA node of a guest; one without a topology is all in node 0.

    :param memory: KiB.
    :param host_nodes: that its memory may be on; none when nothing says so.
    """

    node: int
    vcpus: frozenset[int]
    memory: int
    host_nodes: tuple[int, ...]

    @property
    def host_node(self) -> int | None:
        """The one that it is on; None when it may be on others."""
        return self.host_nodes[0] if len(self.host_nodes) == 1 else None


def of(domain: etree._Element) -> tuple[Cell, ...]:
    """The nodes of a guest, in their order.

    :param domain: the root of the XML.
    :raises ValueError: when it makes no sense.
    """
    general = _nodes(domain.find('numatune/memory'))
    own = {int(one.get('cellid', '-1')): _nodes(one)
           for one in domain.findall('numatune/memnode')}
    cells = [_cell(number, one, own, general) for number, one
             in enumerate(domain.findall('cpu/numa/cell'))]
    if not cells:
        count = int(domain.findtext('vcpu') or 0)
        cells = [Cell(0, frozenset(range(count)),
                      _memory(domain.find('memory')), general)]
    return tuple(sorted(cells, key=lambda cell: cell.node))


def _cell(number: int, element: etree._Element,
          own: dict[int, tuple[int, ...]],
          general: tuple[int, ...]) -> Cell:
    node = int(element.get('id', number))
    return Cell(node, frozenset(cpulist.parse(element.get('cpus', ''))),
                _kib(element.get('memory', ''), element.get('unit', 'KiB')),
                own.get(node, general))


def _nodes(element: etree._Element | None) -> tuple[int, ...]:
    text = element.get('nodeset') if element is not None else None
    return tuple(sorted(cpulist.parse(text))) if text else ()


def _memory(element: etree._Element | None) -> int:
    if element is None:
        return 0
    return _kib(element.text or '', element.get('unit', 'KiB'))


def _kib(text: str, unit: str) -> int:
    if unit not in _KIB:
        raise ValueError(f'{unit!r} is no unit of memory')
    return int(text) * _KIB[unit]
