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


"""Measure the CPU time of a refresh of ghsched-top, and of a scrape.

The host is simulated: a directory tree with 512 guests, each in a control
group of its own with 8 domains of a counter. What is timed in turn is a
refresh (reading all groups, making rates of them, a screen of 120 x 50 and
one write of it) and merely reading the same files in the same way; then a
scrape of ghsched-exporter, and merely reading what an exporter reads that
shows each file of a monitor (goresctrl's). Between two rounds each counter is
rewritten; that does not count.

usage::

    python tools/bench/top_bench.py [--count N] [--guests N]
"""

import bench_path  # noqa: F401

import argparse
import os
from pathlib import Path
import shutil

import prometheus_client
import ratios

from ghsched_nova.features.exporter import metrics
from ghsched_nova.features.top import top
from ghsched_nova.features.top import top_screen
from ghsched_nova.features.top import top_source
from ghsched_nova.tests.fixtures import trees

WARM_UP = 3
READ, REFRESH = 'reading the files', 'refresh'
MONITORS, SCRAPE = 'reading monitors', 'scrape'


def build(guests: int, domains: int) -> trees.Host:
    """The files of a host."""
    host = trees.Host('intel', ';'.join(
        f'{node}={node}' for node in range(domains)))
    host.model.mkdir('/first')
    host.sync()
    for number in range(guests):
        shutil.copytree(
            host.root / 'first',
            host.root / f'qemu-{number}-instance-{number:08x}-vcpus_0-3')
    shutil.rmtree(host.root / 'first')
    return host


def grow(root: Path, bytes_so_far: int) -> list[str]:
    """Increase all counters; return the files that a refresh reads."""
    counters = sorted(root.glob('**/mbm_total_bytes'))
    for place, path in enumerate(counters):
        path.write_text(f'{bytes_so_far + place * 64}\n')
    return [str(path) for path in (*counters, *root.glob('**/schemata'))]


def refresh(shown: top_screen.Top, output: int) -> None:
    shown.update_measurements()
    os.write(output, shown.render_terminal_output(120, 50).encode())


def scrape(registry: prometheus_client.CollectorRegistry, output: int
           ) -> None:
    os.write(output, prometheus_client.generate_latest(registry))


def measure(host: trees.Host, count: int) -> dict[str, list[float]]:
    """Processor time of each round, by what."""
    arguments = top.make_parser().parse_args([
        '--resctrl', str(host.root), '--sysfs', str(host.top / 'sysfs'),
        '--no-libvirt'])
    source = top_source.make_measurement_source(arguments)
    shown = top_screen.Top(source)
    registry = prometheus_client.CollectorRegistry()
    registry.register(
        metrics.Collector(top_source.make_measurement_source(arguments)))
    monitors = [str(path) for path in host.root.glob('**/mon_data/*/*')]
    output = os.open(os.devnull, os.O_WRONLY)
    found: dict[str, list[float]] = {
        READ: [], REFRESH: [], MONITORS: [], SCRAPE: []}
    for turn in range(WARM_UP + count):
        paths = grow(host.root, turn * 10 ** 6)
        for what, task, *given in (
                (READ, ratios.read_files, paths),
                (REFRESH, refresh, shown, output),
                (MONITORS, ratios.read_files, monitors),
                (SCRAPE, scrape, registry, output)):
            found[what].append(ratios.measure_seconds(task, *given))
    os.close(output)
    grow(host.root, 2 * turn * 10 ** 6)
    if not source.measure_bandwidth().used.rate:
        raise RuntimeError('the counters grew and nothing is shown')
    return {what: times[WARM_UP:] for what, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--count', type=int, default=30,
                        help='rounds that count (30)')
    parser.add_argument('--guests', type=int, default=512, help='(512)')
    parser.add_argument('--domains', type=int, default=8, help='(8)')
    arguments = parser.parse_args()
    host = build(arguments.guests, arguments.domains)
    try:
        times = measure(host, arguments.count)
    finally:
        host.remove()
    print(f'simulated host: {arguments.guests} guests x {arguments.domains} '
          'domains, files in a directory')
    ratios.print_conditions(arguments.count, WARM_UP)
    for what, values in times.items():
        ratios.print_row(what, values, times[
            READ if what in (READ, REFRESH) else MONITORS])


if __name__ == '__main__':
    main()
