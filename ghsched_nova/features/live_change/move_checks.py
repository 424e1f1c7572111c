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

"""Checks whether a running domain can move to other NUMA nodes of its host.

Checks what only the host knows: the running domain, and free memory.
"""

from collections.abc import Iterator
from pathlib import Path

from lxml import etree

from ghsched_nova.features.live_change import move_messages
from ghsched_nova.features.live_change import move_xml
from ghsched_nova.features.live_change import numa_maps
from ghsched_nova.features.live_change import page_move
from ghsched_nova.guest import document
from ghsched_nova.resctrl import sysfs as sysfs_files
from ghsched_placement.base import cpulist
from ghsched_placement.base import decimals
from ghsched_placement.fit.cells import GuestCell

#: Memory of a host NUMA node that a guest can get, in its meminfo.
_FREE = ('MemFree', 'Inactive(file)')

#: Elements of a domain that pin its memory, so that no page can be moved.
_PINNED = {
    'devices/hostdev': 'a passthrough device',
    "devices/interface[@type='hostdev']": 'a passthrough port',
    "devices/interface[@type='vdpa']": 'a vDPA port',
    'launchSecurity': 'encrypted memory'}


def list_node_move_refusals(xml: str, request: move_messages.MoveRequest,
                            guest_memory: page_move.MemoryMover,
                            sysfs: Path = Path('/sys')) -> list[str]:
    """Return the reasons why a domain cannot move to other NUMA nodes.

    The list is empty if the domain can move.

    :param xml: live XML of the domain.
    :param request: the requested move between NUMA nodes of the host.
    :param guest_memory: mover of guests' memory. It is asked whether memory
        can be moved, and which nodes the guest's memory is allowed on.
    :param sysfs: mount point of the host's sysfs.
    """
    root = document.parse_element(xml)
    name = root.findtext('name') or ''
    return [
        *_get_pinned_memory(root), *_find_policy_errors(xml, request),
        *_check_bound_memory(name, request, guest_memory),
        *_find_record_differences(
            root, request, guest_memory.read_allowed_nodes(name)),
        *_find_memory_shortages(request, sysfs),
    ]


def _check_bound_memory(name: str, request: move_messages.MoveRequest,
                        guest_memory: page_move.MemoryMover) -> Iterator[str]:
    refusal = guest_memory.explain_unmovable_memory(name)
    if refusal:
        yield refusal
    try:
        numa_maps.plan_cpuset_mems(
            dict(request.move.nodes_moved.values()),
            [cell.host_node for cell in request.move.before])
    except numa_maps.MemoryMoveError as error:
        yield str(error)


def _find_policy_errors(xml: str,
                        request: move_messages.MoveRequest) -> Iterator[str]:
    try:
        move_xml.make_policy_after_move(xml, request.move)
    except ValueError as error:
        yield str(error)


def _get_pinned_memory(root: etree._Element) -> Iterator[str]:
    found = [what for path, what in _PINNED.items()
             if root.find(path) is not None]
    if found:
        yield (f'its memory is pinned: it has {" and ".join(found)}; no page '
               'of it can be moved while it runs')


def _find_record_differences(root: etree._Element,
                             request: move_messages.MoveRequest,
                             allowed: frozenset[int] | None) -> Iterator[str]:
    """Yield the differences of a domain's CPUs and memory from Nova's record.

    A domain that differs from the record cannot be moved to other NUMA nodes.

    :param allowed: host NUMA nodes that the domain's memory may be on; None if
        unknown. They are read from the process, because after a move the live
        XML still names the nodes that the domain was started on.
    """
    wanted = move_xml.map_vcpu_cpus(request.move.before, request.shared_cpus)
    pins = {int(pin.get('vcpu', '-1')): frozenset(cpulist.parse_cpu_list(
        pin.get('cpuset', ''))) for pin in root.findall('cputune/vcpupin')}
    # Shared vCPUs may be bound to some of the CPUs (ghsched:cpu_cache).
    wrong = sorted(vcpu for vcpu, cpus in wanted.items()
                   if not pins.get(vcpu) or not pins[vcpu] <= cpus)
    if wrong:
        yield ('the CPUs of its vCPUs '
               f'{cpulist.render_cpu_list(wrong)} are not those that Nova has '
               'on record')
    if allowed is not None:
        recorded = {cell.host_node for cell in request.move.before}
        if allowed != recorded:
            yield ('its memory may be on the host NUMA nodes '
                   f'{cpulist.render_cpu_list(sorted(allowed))}, Nova has '
                   f'{cpulist.render_cpu_list(sorted(recorded))} on record')
        return
    for number, cell in enumerate(request.move.before):
        nodeset = [node.get('nodeset', '') for node in root.findall(
            f"numatune/memnode[@cellid='{number}']")]
        if nodeset != [str(cell.host_node)]:
            yield (f'the memory of its NUMA node {number} is bound to the '
                   f'host NUMA nodes {", ".join(nodeset) or "-"}, Nova has '
                   f'{cell.host_node} on record')


def _find_memory_shortages(request: move_messages.MoveRequest,
                           sysfs: Path) -> Iterator[str]:
    """Yield a text for each target NUMA node with too little free memory."""
    for number in request.move.nodes_moved:
        cell = request.move.after[number]
        free = _read_free_memory(
            cell, sysfs_files.get_node_path(sysfs, cell.host_node)
        )
        if free is not None and free < cell.memory:
            pages = (f' in free pages of {cell.page_size} KiB'
                     if cell.page_size else '')
            yield (f'host NUMA node {cell.host_node} has {free} MiB{pages}, '
                   f'{cell.memory} MiB are to be moved there')


def _read_free_memory(cell: GuestCell, node: Path) -> int | None:
    """Read the free memory that a host node has for a guest NUMA node.

    Only pages of the guest node's page size count.

    :param node: directory of the host NUMA node in sysfs.
    :returns: free memory in MiB; None if it is unknown.
    """
    pages = node / 'hugepages' / f'hugepages-{cell.page_size}kB'
    try:
        if cell.page_size and pages.exists():
            free = decimals.parse_decimal(
                (pages / 'free_hugepages').read_text())
            return None if free is None else free * cell.page_size // 1024
        memory = sysfs_files.parse_node_memory(
            (node / 'meminfo').read_text())
    except (OSError, ValueError):
        return None
    found = [memory[name] for name in _FREE if name in memory]
    return sum(found) // 1024 if found else None
