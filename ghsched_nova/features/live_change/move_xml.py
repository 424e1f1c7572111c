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


"""XML of a guest that moves to other NUMA nodes of its host (pure).

In the domain XML after the move only values of existing elements change: what
Nova did not pin stays unpinned. Device NUMA nodes need no change, because a
guest with passthrough devices cannot be moved.

A record of the move is in the domain's metadata while the guest is moved. The
element is independent of nova-compute, so that a restarted nova-compute finds
a move that was in progress.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import json
from typing import Any

from lxml import etree

from ghsched_nova.guest import document
from ghsched_nova.guest import metadata
from ghsched_placement.base import cpulist
from ghsched_placement.features.live_change.node_move import NodeMove
from ghsched_placement.fit.cells import GuestCell

NAMESPACE = 'https://opendev.org/x/ghsched/move/1.0'
PREFIX = 'ghsched_move'
_MOVE = f'{{{NAMESPACE}}}move'


def map_vcpu_cpus(cells: Iterable[GuestCell],
                  shared: Mapping[int, frozenset[int]]
                  ) -> dict[int, frozenset[int]]:
    """Return the host CPUs on which each vCPU of a guest may run.

    :param cells: NUMA nodes of the guest.
    :param shared: host CPUs for vCPUs without a dedicated CPU, by host NUMA
        node.
    """
    found: dict[int, frozenset[int]] = {}
    for cell in cells:
        found |= {vcpu: frozenset((cpu,)) for vcpu, cpu in cell.pins.items()}
        found |= dict.fromkeys(cell.vcpus,
                               shared.get(cell.host_node, frozenset()))
    return found


def get_helper_cpus(cells: Iterable[GuestCell],
                    shared: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """Return the host CPUs for a guest's emulator and I/O threads.

    As in Nova, these are the CPUs reserved for such threads. If none are
    reserved, these are the CPUs of all vCPUs.

    :param cells: NUMA nodes of the guest.
    :param shared: host CPUs for vCPUs without a dedicated CPU, by host NUMA
        node.
    """
    cells = tuple(cells)
    reserved = frozenset().union(*(cell.reserved for cell in cells))
    return reserved or frozenset().union(
        *map_vcpu_cpus(cells, shared).values())


def make_policy_after_move(xml: str,
                           move: NodeMove) -> metadata.DomainPolicy | None:
    """Return a domain's bandwidth policy after a move to other NUMA nodes.

    Only the host NUMA nodes of the policy change.

    :returns: None if the domain has no policy.
    :raises ValueError: if the policy cannot be read, or has another number of
        NUMA nodes than the move.
    """
    policy = metadata.read_policy(xml)
    return policy and policy.replace_host_nodes(tuple(cell.host_node
                                                      for cell in move.after))


def apply_move_to_xml(xml: str, move: NodeMove,
                      shared: Mapping[int, frozenset[int]]) -> str:
    """Return a domain's XML with the CPUs and NUMA nodes after a move.

    The text is unchanged if no guest NUMA node moves.

    :param shared: host CPUs for vCPUs without a dedicated CPU, by host NUMA
        node.
    """
    if not move.is_needed:
        return xml
    policy = make_policy_after_move(xml, move)
    root = document.parse_element(
        metadata.write_policy(xml, policy) if policy else xml)
    cpus = map_vcpu_cpus(move.after, shared)
    for pin in root.findall('cputune/vcpupin'):
        vcpu = int(pin.get('vcpu', '-1'))
        if cpus.get(vcpu):
            pin.set('cpuset', cpulist.render_cpu_list(sorted(cpus[vcpu])))
    _pin_helper_threads(root, move, shared)
    _move_memory(root, move)
    return etree.tostring(root, encoding='unicode')


def _pin_helper_threads(root: etree._Element, move: NodeMove,
                        shared: Mapping[int, frozenset[int]]) -> None:
    """Pin emulator and I/O threads to CPUs of a guest's new NUMA nodes.

    Threads pinned to CPUs of their own (``hw:emulator_threads_policy=share``)
    stay where they are.
    """
    before = get_helper_cpus(move.before, shared)
    after = get_helper_cpus(move.after, shared)
    for name in ('emulatorpin', 'iothreadpin') if after else ():
        for pin in root.findall(f'cputune/{name}'):
            if cpulist.parse_cpu_list(pin.get('cpuset', '')) == before:
                pin.set('cpuset', cpulist.render_cpu_list(sorted(after)))


def _move_memory(root: etree._Element, move: NodeMove) -> None:
    for memory in root.findall('numatune/memory'):
        if memory.get('nodeset') is not None:
            memory.set('nodeset', cpulist.render_cpu_list(sorted(
                cell.host_node for cell in move.after)))
    for node in root.findall('numatune/memnode'):
        number = int(node.get('cellid', '-1'))
        if 0 <= number < len(move.after):
            node.set('nodeset', str(move.after[number].host_node))


def render_move_record(packed: Any) -> str:
    """Render a guest's move between host NUMA nodes as an XML element.

    The element is stored in the metadata of the domain (virDomainSetMetadata)
    while the guest is moved. An interrupted move can thus be detected.

    :param packed: the move in the wire format of RPC calls.
    """
    element = etree.Element('move')
    element.text = json.dumps(packed)
    return etree.tostring(element, encoding='unicode')


def read_move_record(xml: str) -> Any:
    """Return the move between NUMA nodes that a domain's metadata contains.

    :returns: the move in the wire format of RPC calls; None if no move is in
        progress; an empty list if the element is malformed.
    """
    if NAMESPACE not in xml:
        return None
    element = document.parse_element(xml).find(f'metadata/{_MOVE}')
    if element is None:
        return None
    try:
        return json.loads(element.text or '')
    except (ValueError, RecursionError):
        return []
