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


"""NUMA cells of a guest, from its domain XML (pure).

libvirt, "Domain XML format": ``<cpu><numa><cell>`` has the vCPUs and the
memory of a cell, ``<numatune>`` the host nodes that provide its memory.
"""

from dataclasses import dataclass

from lxml import etree

from ghsched_placement.base import cpulist

#: KiB per unit of memory. libvirt reads more units, and always writes KiB.
_KIB = {'KiB': 1, 'MiB': 1024, 'GiB': 1024 ** 2}


@dataclass(frozen=True)
class Cell:
    """NUMA cell of a guest; a guest without NUMA topology is one cell 0.

    :param memory: KiB.
    :param host_nodes: host NUMA nodes that may provide its memory; empty if
        the XML does not restrict them.
    """

    node: int
    vcpus: frozenset[int]
    memory: int
    host_nodes: tuple[int, ...]

    @property
    def host_node(self) -> int | None:
        """Host NUMA node that provides the memory of this guest NUMA node.

        The value is None if the XML allows several host nodes, or does not
        restrict them.
        """
        return self.host_nodes[0] if len(self.host_nodes) == 1 else None


def is_device_cell(cell: etree._Element) -> bool:
    """Whether a guest NUMA node has devices only, and no memory.

    Nova makes no such nodes.

    :param cell: ``<cell>`` of a domain.
    """
    return bool(cell.get('memory') == '0')


def parse_cells(domain: etree._Element) -> tuple[Cell, ...]:
    """Parse the guest NUMA nodes of a domain, in ascending order.

    A guest without NUMA nodes has one node 0. Nodes that have devices only
    are left out.

    :param domain: root element of the XML.
    :raises ValueError: if a number or a unit is malformed.
    """
    general = _parse_nodes(domain.find('numatune/memory'))
    own = {int(one.get('cellid', '-1')): _parse_nodes(one)
           for one in domain.findall('numatune/memnode')}
    cells = [_parse_cell(number, one, own, general) for number, one
             in enumerate(domain.findall('cpu/numa/cell'))
             if not is_device_cell(one)]
    if not cells:
        count = int(domain.findtext('vcpu') or 0)
        cells = [Cell(0, frozenset(range(count)),
                      _parse_memory(domain.find('memory')), general)]
    return tuple(sorted(cells, key=lambda cell: cell.node))


def _parse_cell(number: int, element: etree._Element,
                own: dict[int, tuple[int, ...]],
                general: tuple[int, ...]) -> Cell:
    node = int(element.get('id', number))
    return Cell(node,
                frozenset(cpulist.parse_cpu_list(element.get('cpus', ''))),
                _to_kib(element.get('memory', ''), element.get('unit', 'KiB')),
                own.get(node, general))


def _parse_nodes(element: etree._Element | None) -> tuple[int, ...]:
    text = element.get('nodeset') if element is not None else None
    return tuple(sorted(cpulist.parse_cpu_list(text))) if text else ()


def _parse_memory(element: etree._Element | None) -> int:
    if element is None:
        return 0
    return _to_kib(element.text or '', element.get('unit', 'KiB'))


def _to_kib(text: str, unit: str) -> int:
    if unit not in _KIB:
        raise ValueError(f'unknown unit of memory {unit!r}')
    return int(text) * _KIB[unit]
