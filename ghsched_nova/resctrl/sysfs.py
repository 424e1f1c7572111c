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

"""NUMA nodes, caches and memory of a host, from sysfs.

A file that cannot be read, or makes no sense, tells nothing; what follows
from that is for the caller to say.
"""

from collections.abc import Iterator
from pathlib import Path
import re

from ghsched_placement.base import cpulist

_NUMBER = re.compile(r'[0-9]{1,18}')
_NODE = re.compile(r'node([0-9]{1,5})')
_CPU = re.compile(r'cpu([0-9]{1,5})')
_MEMORY = re.compile(r'^Node +[0-9]+ +(\S+):\s*([0-9]{1,15}) kB$',
                     re.MULTILINE)
#: First and last address of a window of a PCI device, and its flags.
_RESOURCE = re.compile(r'0x[0-9a-f]{16} 0x[0-9a-f]{16} 0x[0-9a-f]{16}')
#: Number of windows of a PCI device (base address registers).
_BARS = 6
#: Flag of include/linux/ioport.h.
_IORESOURCE_MEM_64 = 0x100000

#: Bytes per second of the unit of read_bandwidth (MiB/s).
_BANDWIDTH_UNIT = 2 ** 20


def get_node_path(sysfs: Path, node: int) -> Path:
    """Return the sysfs directory of a host NUMA node."""
    return sysfs / 'devices' / 'system' / 'node' / f'node{node}'


def iterate_numa_nodes(sysfs: Path) -> Iterator[tuple[int, Path]]:
    """Yield the number and sysfs directory of each host NUMA node."""
    for path in list_directory(sysfs / 'devices' / 'system' / 'node'):
        match = _NODE.fullmatch(path.name)
        if match:
            yield int(match[1]), path


def read_node_cpus(node: Path) -> frozenset[int]:
    """Return the CPUs of a host NUMA node.

    :param node: sysfs directory of the node.
    """
    return _read_cpu_list(node / 'cpulist')


def read_nodes_with_memory(sysfs: Path) -> frozenset[int] | None:
    """Return the host NUMA nodes that have memory.

    :returns: None if the kernel does not say.
    """
    return cpulist.read_cpu_list(
        sysfs / 'devices' / 'system' / 'node' / 'has_memory') or None


def is_arm(sysfs: Path) -> bool:
    """Whether the processors of a host are 64-bit Arm processors.

    Only their kernel has the identification registers
    (arch/arm64/kernel/cpuinfo.c).
    """
    return any(
        (path / 'regs' / 'identification' / 'midr_el1').exists()
        for path in list_directory(sysfs / 'devices' / 'system' / 'cpu')
        if _CPU.fullmatch(path.name))


def parse_node_memory(text: str) -> dict[str, int]:
    """Return the KiB of memory of a host NUMA node, by kind of memory.

    :param text: content of the node's ``meminfo`` file in sysfs.
    :returns: KiB by name in the file, such as ``MemTotal`` and ``MemFree``.
    """
    return {name: int(amount) for name, amount in _MEMORY.findall(text)}


def read_rated_bandwidth(node: Path) -> int:
    """Return a NUMA node's memory bandwidth in bytes per second.

    The value is from the firmware's HMAT (see
    Documentation/admin-guide/mm/numaperf.rst). The value for the nearest CPUs
    is preferred.

    :param node: sysfs directory of the node.
    :returns: 0 if the firmware has no value.
    """
    return _read_hmat_value(node, 'read_bandwidth') * _BANDWIDTH_UNIT


def read_rated_latency(node: Path) -> int:
    """Return a NUMA node's memory read latency in nanoseconds.

    The value is from the firmware's HMAT.

    :param node: sysfs directory of the node.
    :returns: 0 if the firmware has no value.
    """
    return _read_hmat_value(node, 'read_latency')


def _read_hmat_value(node: Path, name: str) -> int:
    """Return a value for the nearest CPUs that have one; 0 if none has."""
    for access in ('access1', 'access0'):
        found = (read_text(node / access / 'initiators' / name)
                 or '').strip()
        if _NUMBER.fullmatch(found) and int(found):
            return int(found)
    return 0


def read_distances(sysfs: Path) -> dict[int, dict[int, int]]:
    """Return the distances (ACPI SLIT) between the host NUMA nodes.

    Nodes without a valid distance to each node are left out.
    """
    found = {}
    paths = sorted(iterate_numa_nodes(sysfs))
    for node, path in paths:
        words = (read_text(path / 'distance') or '').split()
        if len(words) == len(paths) and all(map(_NUMBER.fullmatch, words)):
            found[node] = dict(zip((number for number, _path in paths),
                                   map(int, words), strict=True))
    return found


def read_device_node(sysfs: Path, address: str) -> int | None:
    """Return the host NUMA node of a PCI device.

    :param address: PCI address of the device.
    :returns: None if the node is unknown.
    """
    text = (read_text(sysfs / 'bus' / 'pci' / 'devices' / address
                      / 'numa_node') or '').strip()
    return int(text) if _NUMBER.fullmatch(text) else None


def read_device_windows(sysfs: Path, address: str) -> int:
    """Return the bytes of all 64-bit memory windows of a PCI device.

    :param address: PCI address of the device.
    :returns: 0 if they cannot be read.
    """
    text = read_text(sysfs / 'bus' / 'pci' / 'devices' / address
                     / 'resource') or ''
    found = 0
    for line in text.splitlines()[:_BARS]:
        if _RESOURCE.fullmatch(line):
            first, last, flags = (int(word, 16) for word in line.split())
            if flags & _IORESOURCE_MEM_64:
                found += max(0, last - first + 1)
    return found


def iterate_l3_caches(
    sysfs: Path, cpus: frozenset[int]
) -> Iterator[tuple[int | None, frozenset[int]]]:
    """Yield id and CPUs of each L3 cache that some CPUs use.

    An unknown id is None. The CPUs of a cache that cannot be read are empty.
    """
    rest = set(cpus)
    while rest:
        cpu = min(rest)
        cache = (sysfs / 'devices' / 'system' / 'cpu' / f'cpu{cpu}' / 'cache'
                 / 'index3')
        number = (read_text(cache / 'id') or '').strip()
        shared = _read_cpu_list(cache / 'shared_cpu_list')
        yield int(number) if _NUMBER.fullmatch(number) else None, shared
        rest -= shared | {cpu}


def _read_cpu_list(path: Path) -> frozenset[int]:
    return cpulist.read_cpu_list(path) or frozenset()


def list_directory(path: Path) -> list[Path]:
    """Return the sorted paths in a directory.

    The result is empty if the directory cannot be read.
    """
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def read_text(path: Path) -> str | None:
    """Return the content of a file as text.

    Returns None if the file cannot be read.
    """
    try:
        return path.read_text(encoding='utf-8', errors='replace')
    except OSError:
        return None
