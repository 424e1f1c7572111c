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


"""Time the rendering of the NUMA nodes of 40 VFs into a guest's XML.

The guest is the reference one: 160 vCPUs, two NUMA nodes, 40 VFs. What is
timed is the rendering of its finished XML, and for comparison Nova's own
``LibvirtConfigGuest.to_xml()`` of the same guest, in the same run and in
turn, so that a change of the machine's speed meets both.

usage::

    python tools/bench/render_bench.py [--count N]
"""

import bench_path  # noqa: F401

import argparse
from collections.abc import Callable

import ratios

from ghsched_nova.guest import device_numa
from ghsched_nova.tests.functional import nova_guest

WARM_UP = 20
SHAPE = nova_guest.Shape(
    cells=2, vcpus=160, memory_mib=240 * 1024, vfs=40, ports=16,
    virt_type='kvm')
NOVA = "Nova's to_xml()"


def tasks() -> dict[str, Callable[[], str]]:
    """Return the timed functions, by name."""
    guest = nova_guest.config(SHAPE)
    xml = guest.to_xml()
    nodes: dict[str, int | None] = {
        address: place * SHAPE.cells // SHAPE.vfs
        for place, address in enumerate(SHAPE.vf_addresses())}
    return {
        NOVA: guest.to_xml,
        'render_expander_buses()':
            lambda: device_numa.render_expander_buses(xml, nodes),
        'render_expander_buses(), 2 spare ports a node':
            lambda: device_numa.render_expander_buses(xml, nodes, 2),
        'render_numa_element()':
            lambda: device_numa.render_numa_element(xml, nodes),
    }


def measure(count: int) -> dict[str, list[float]]:
    """Seconds of each run after the warm-up, by name."""
    todo = tasks()
    found: dict[str, list[float]] = {name: [] for name in todo}
    for _ in range(WARM_UP + count):
        for name, task in todo.items():
            found[name].append(ratios.measure_seconds(task))
    return {name: times[WARM_UP:] for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--count', type=int, default=300,
                        help='runs that count (300)')
    count = parser.parse_args().count
    times = measure(count)
    print(f'guest: {SHAPE.vcpus} vCPUs, {SHAPE.cells} NUMA nodes, '
          f'{SHAPE.vfs} VFs, {len(tasks()[NOVA]().encode())} bytes of XML')
    ratios.print_conditions(count, WARM_UP)
    for name, values in times.items():
        ratios.print_row(name, values, times[NOVA])


if __name__ == '__main__':
    main()
