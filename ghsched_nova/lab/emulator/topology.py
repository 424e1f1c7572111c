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


"""A faked NUMA topology of this machine, as a tree of sysfs files.

The machine's real CPUs are split over the nodes of a
:class:`~ghsched_nova.lab.emulator.machines.Machine`. :func:`write_nodes` makes
what is mounted over ``/sys/devices/system/node``; :func:`write_cpu` what is
mounted over ``/sys/devices/system/cpu/cpuN``. Every CPU is its own core,
every node its own socket, with the L3 caches of the machine. Memory is the
machine's, in equal parts, as it was when the tree was written.
"""

from collections.abc import Mapping
import os
import re
import shutil

from ghsched_nova.lab.emulator import cpusets
from ghsched_nova.lab.emulator import machines

NODE_DIR = '/sys/devices/system/node'
CPU_DIR = '/sys/devices/system/cpu'
#: Distance of a node to itself and to any other (ACPI SLIT values).
LOCAL, REMOTE = 10, 21
#: The cache of a machine that does not describe its own.
_L3 = {
    'coherency_line_size': '64', 'level': '3', 'number_of_sets': '32768',
    'size': '32768K', 'type': 'Unified', 'ways_of_associativity': '16',
}
#: Below a CPU, not copied: counters and switches that make no topology.
_SKIPPED = ('cpuidle', 'power', 'microcode', 'thermal_throttle')


def split_memory(meminfos: list[str], count: int, node: int) -> str:
    """Return a node's ``meminfo`` with a ``count``-th of each of the machine's
    figures.

    :param meminfos: the real nodes' files.
    """
    totals: dict[str, int] = {}
    units: dict[str, str] = {}
    for text in meminfos:
        for name, figure, unit in re.findall(
            r'^Node \d+ (\S+):\s+(\d+)( kB)?$', text, re.MULTILINE
        ):
            totals[name] = totals.get(name, 0) + int(figure)
            units[name] = unit
    return ''.join(
        f'Node {node} {name + ":":<15} {_part(total, count, unit):>8}{unit}\n'
        for name, total in totals.items() for unit in [units[name]]
    )


def _part(total: int, count: int, unit: str) -> int:
    part = total // count
    return part - part % 4 if unit else part  # whole pages


#: Directory of pages of 1 GB.
_GIGANTIC = 'hugepages-1048576kB'


def node_files(
    machine: machines.Machine, meminfos: list[str], pages: Mapping[str, int]
) -> dict[str, str]:
    """Return files below ``/sys/devices/system/node`` -> text.

    :param pages: directory of a huge page size -> pages of the machine.
    """
    ids = [node.id for node in machine.nodes]
    width = max(machine.cpus) + 1
    files = {
        name: cpusets.format_list(ids) + '\n' for name in (
            'has_memory', 'has_normal_memory', 'online', 'possible',
        )
    }
    files['has_cpu'] = cpusets.format_list(
        node.id for node in machine.nodes if node.cpus
    ) + '\n'
    for position, node in enumerate(machine.nodes):
        base = f'node{node.id}'
        files |= {
            f'{base}/cpulist': cpusets.format_list(node.cpus) + '\n',
            f'{base}/cpumap': cpusets.format_mask(node.cpus, width) + '\n',
            f'{base}/distance': ' '.join(
                str(LOCAL if other == node.id else REMOTE) for other in ids
            ) + '\n',
            f'{base}/meminfo': split_memory(meminfos, len(ids), node.id),
        }
        for size, total in pages.items():
            files |= _huge_pages(
                f'{base}/hugepages/{size}', total, len(ids), position
            )
    return files


def _huge_pages(
    base: str, total: int, count: int, position: int
) -> dict[str, str]:
    mine = total // count + (1 if position < total % count else 0)
    return {
        f'{base}/nr_hugepages': f'{mine}\n',
        f'{base}/free_hugepages': f'{mine}\n',
        f'{base}/surplus_hugepages': '0\n',
    }


def cpu_files(machine: machines.Machine, cpu: int) -> dict[str, str]:
    """Return files below ``cpuN/`` that say where a CPU is -> text."""
    node = machine.node_of(cpu)
    cache = machine.cache_of(cpu)
    width = max(machine.cpus) + 1
    core = sorted(node.cpus).index(cpu)
    files = {
        'topology/physical_package_id': f'{node.id}\n',
        'topology/core_id': f'{core}\n',
        'topology/die_id': '0\n',
        'topology/cluster_id': f'{core}\n',
        'cache/index3/id': f'{cache.id}\n',
    }
    if machine.is_arm:
        files['regs/identification/midr_el1'] = '0x00000000480fd010\n'
    alone = ('core_cpus', 'thread_siblings', 'cluster_cpus')
    together = ('core_siblings', 'die_cpus', 'package_cpus')
    for names, cpus in ((alone, {cpu}), (together, set(node.cpus))):
        for name in names:
            files |= _both_forms(f'topology/{name}', cpus, width, '_list')
    return files | _both_forms(
        'cache/index3/shared_cpu', set(cache.cpus), width, '_list', '_map'
    )


def _both_forms(
    base: str, cpus: set[int], width: int, list_end: str, mask_end: str = ''
) -> dict[str, str]:
    return {
        base + list_end: cpusets.format_list(cpus) + '\n',
        base + mask_end: cpusets.format_mask(cpus, width) + '\n',
    }


def write_nodes(machine: machines.Machine, target: str,
                gigantic_pages: int | None = None) -> None:
    """Write the tree of the nodes.

    :param gigantic_pages: pages of 1 GB that the machine shows; None for its
        own.
    :raises OSError: no NUMA node in this machine's sysfs, or no room.
    """
    real = sorted(
        name for name in os.listdir(NODE_DIR) if re.fullmatch(r'node\d+', name)
    )
    meminfos = [_text(f'{NODE_DIR}/{name}/meminfo') for name in real]
    pages = _machine_pages(real)
    if gigantic_pages is not None:
        pages[_GIGANTIC] = gigantic_pages
    _write(target, node_files(machine, meminfos, pages))
    for node in machine.nodes:
        for cpu in node.cpus:
            os.symlink(
                f'../../cpu/cpu{cpu}', f'{target}/node{node.id}/cpu{cpu}'
            )


def write_sysfs(machine: machines.Machine, sysfs: str | os.PathLike[str],
                speed: int = 0) -> None:
    """Write the files that make a directory look like a machine's sysfs.

    :param speed: what the firmware says that each node can deliver, in
        MiB/s; 0 says nothing.
    """
    files = {f'node/{name}': text
             for name, text in node_files(machine, [], {}).items()}
    for cpu in machine.cpus:
        files |= {f'cpu/cpu{cpu}/{name}': text
                  for name, text in cpu_files(machine, cpu).items()}
    for node in machine.nodes if speed else ():
        files[f'node/node{node.id}/access1/initiators/read_bandwidth'] = (
            f'{speed}\n')
    _write(os.path.join(sysfs, 'devices', 'system'), files)


def _machine_pages(nodes: list[str]) -> dict[str, int]:
    pages: dict[str, int] = {}
    for node in nodes:
        base = f'{NODE_DIR}/{node}/hugepages'
        for size in os.listdir(base) if os.path.isdir(base) else []:
            count = int(_text(f'{base}/{size}/nr_hugepages'))
            pages[size] = pages.get(size, 0) + count
    return pages


def write_cpu(machine: machines.Machine, cpu: int, target: str) -> None:
    """Write the tree of one CPU: the real one, with other places.

    :raises OSError: no such CPU, or no room.
    """
    _copy(f'{CPU_DIR}/cpu{cpu}', target)
    _write(target, _missing_l3(target))
    _write(target, cpu_files(machine, cpu))
    for name in os.listdir(target):
        if re.fullmatch(r'node\d+', name):
            os.unlink(f'{target}/{name}')
    node = machine.node_of(cpu)
    os.symlink(f'../../node/node{node.id}', f'{target}/node{node.id}')


def _missing_l3(target: str) -> dict[str, str]:
    """Return an L3 for a machine that does not show one, as many VMs."""
    base = f'{target}/cache/index3'
    return {
        f'cache/index3/{name}': f'{text}\n' for name, text in _L3.items()
        if not os.path.exists(f'{base}/{name}')
    }


def _copy(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    for entry in os.scandir(source):
        where = f'{target}/{entry.name}'
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), where)
        elif entry.is_dir():
            if entry.name not in _SKIPPED:
                _copy(entry.path, where)
        else:
            try:
                _put(where, _text(entry.path))
            except OSError:
                continue  # a file that only takes writes


def _write(target: str, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        _put(f'{target}/{path}', text)


def _put(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w') as stream:
        stream.write(text)


def _text(path: str) -> str:
    with open(path, errors='surrogateescape') as stream:
        return stream.read()


def clear(target: str) -> None:
    """Remove a tree that was written before."""
    shutil.rmtree(target, ignore_errors=True)
