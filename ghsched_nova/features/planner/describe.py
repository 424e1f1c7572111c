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

"""``ghsched-host describe``: NUMA nodes of this host, as in a host file."""

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
import json
from pathlib import Path
import re
from typing import Any

from ghsched_nova.cmd import configured
from ghsched_nova.cmd import console
from ghsched_nova.resctrl import sysfs as sysfs_files
from ghsched_placement.base import cpulist
from ghsched_placement.base import exits

_COUNT = re.compile(r'([0-9]{1,12})\s*')
_PAGES = re.compile(r'hugepages-([1-9][0-9]{0,9})kB')


def add_describe_command(subparsers: Any) -> None:
    """Add the sub-command ``describe`` to the parser of ``ghsched-host``."""
    console.add_host_command(
        subparsers, 'describe', run_describe_command,
        'print the NUMA nodes of this host, with their L3 caches, as section '
        '"nodes" of a host file for "ghsched explain" and "ghsched plan"; '
        'exit status 0: printed, 2: wrong usage or an error',
        formats=('yaml',))


def run_describe_command(arguments: argparse.Namespace) -> int:
    """Run ``ghsched-host describe``: print the NUMA nodes of this host.

    :returns: exit status.
    """
    section = configured.read_ghsched_options(arguments.config_file)
    print('nodes:')
    for node in read_node_descriptions(Path(section.sysfs_path)):
        # Each line is JSON, which is YAML as well.
        print(f'  - {json.dumps(node)}')
    return exits.DONE


def read_node_descriptions(sysfs: Path) -> Iterator[Mapping[str, object]]:
    """Yield the properties of each host NUMA node, as in a host file.

    Properties that the kernel does not report are left out.
    """
    distances = sysfs_files.read_distances(sysfs)
    for node, path in sysfs_files.iterate_numa_nodes(sysfs):
        cpus = sysfs_files.read_node_cpus(path)
        caches = [*sysfs_files.iterate_l3_caches(sysfs, cpus)]
        memory = sysfs_files.parse_node_memory(
            sysfs_files.read_text(path / 'meminfo') or '')
        found = {
            'id': node, 'cpus': cpulist.render_cpu_list(cpus),
            'memory_mb': memory.get('MemTotal', 0) // 1024,
            'distances': [*distances.get(node, {}).values()],
            'latency_ns': sysfs_files.read_rated_latency(path),
            'bandwidth_mb': sysfs_files.read_rated_bandwidth(path) // 10 ** 6,
            'domains': [number for number, _cpus in caches
                        if number is not None],
            'caches': [cpulist.render_cpu_list(shared & cpus)
                       for _number, shared in caches]
            if len(caches) > 1 and all(shared for _number, shared in caches)
            else [],
            'pages': dict(_read_huge_pages(path))}
        yield {name: value for name, value in found.items()
               if value or name in ('id', 'cpus', 'memory_mb')}


def _read_huge_pages(node: Path) -> Iterator[tuple[str, int]]:
    """Yield size in KiB and number of the huge pages of a NUMA node."""
    for path in sysfs_files.list_directory(node / 'hugepages'):
        size = _PAGES.fullmatch(path.name)
        count = _COUNT.fullmatch(
            sysfs_files.read_text(path / 'nr_hugepages') or '')
        if size and count:
            yield size[1], int(count[1])
