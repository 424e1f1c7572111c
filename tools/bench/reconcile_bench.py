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


"""Measure the CPU time of the reconciliation of a host, and count its writes.

Nothing may be written twice. Guests, control groups and processes are
directories and files: what is timed is our own work and the file system's, not
a kernel's. The guests come as the XML that libvirt would give. Three states
are measured: groups that are all missing, groups that are all right, and one
value changed in each tenth group; beside them merely reading the same files
(open, read and close each, and nothing else), in the same run and in turn.

usage::

    python tools/bench/reconcile_bench.py [--guests N]
"""

import bench_path  # noqa: F401

import argparse
import gc
import os
from pathlib import Path
import resource
import tempfile
from types import MappingProxyType
import uuid

import ratios

_AT_START = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

from ghsched_nova.guest import metadata  # noqa: E402
from ghsched_nova.host import desired  # noqa: E402
from ghsched_nova.resctrl import dialects  # noqa: E402
from ghsched_nova.resctrl import fs  # noqa: E402
from ghsched_nova.resctrl import host as resctrl_host  # noqa: E402
from ghsched_nova.resctrl import model  # noqa: E402
from ghsched_nova.resctrl import reconcile  # noqa: E402
from ghsched_placement.flavor.policy import GuestPolicy  # noqa: E402
from ghsched_placement.flavor.policy import NodePolicy  # noqa: E402

WARM_UP = 2
READ = 'merely reading the files'
VCPUS = 4
#: Lines of a fresh group of the dialect that is played (openEuler 6.6).
FRESH = MappingProxyType({'MB': 100, 'MBMIN': 0, 'MBHDL': 1, 'MBPRI': 3})
#: The kernel pads its values so (``MB:0=0000100``).
_WIDTH = 7


class Files(fs.Files):
    """A directory tree that takes writes as resctrl does.

    It knows what its files hold, as a kernel does, so that little of the
    time is its own.

    :param domains: how many the lines of a group have.
    """

    def __init__(self, domains: int) -> None:
        self.domains = domains
        self.writes = 0
        self._held: dict[str, dict[str, dict[str, str]]] = {}

    def write(self, path: Path, text: str) -> None:
        self.writes += 1
        if path.name == 'tasks':
            _put(path, text, os.O_APPEND)
            return
        name, _colon, values = text.rstrip('\n').partition(':')
        held = self._held[path.parent.name]
        for value in values.split(';'):
            domain, _equals, number = value.partition('=')
            held[name][domain] = number.zfill(_WIDTH)
        self._show(path, held)

    def make_directory(self, path: Path) -> None:
        path.mkdir()
        held = {name: dict.fromkeys(map(str, range(self.domains)),
                                    str(value).zfill(_WIDTH))
                for name, value in FRESH.items()}
        self._held[path.name] = held
        _put(path / 'tasks', '')
        self._show(path / 'schemata', held)

    @staticmethod
    def _show(path: Path, held: dict[str, dict[str, str]]) -> None:
        _put(path, ''.join(
            f'{name}:' + ';'.join(f'{domain}={value}' for domain, value
                                  in values.items()) + '\n'
            for name, values in held.items()))


def _put(path: Path, text: str, how: int = 0) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


class Host:
    """A made-up host with its guests.

    :param top: an empty directory.
    """

    def __init__(self, top: Path, guests: int, domains: int) -> None:
        self.place = reconcile.HostPaths(top / 'resctrl', top / 'run',
                                         top / 'proc')
        self.files = Files(domains)
        (top / 'resctrl' / 'info').mkdir(parents=True)
        (top / 'run').mkdir()
        self.resctrl = resctrl_host.ResctrlHost(
            dialect=dialects.OPENEULER_66, num_closids=guests + 1,
            num_rmids=guests, min_bandwidth=1, granularity=1,
            domains_by_node={node: (node,) for node in range(domains)},
            monitored=True, priority_default=3)
        policy = metadata.DomainPolicy(
            GuestPolicy(nodes=(NodePolicy(minimum=10, maximum=60,
                                          hardlimit=False,
                                          priority=5),) * domains),
            tuple(range(domains)))
        self.running = [self._start(number, policy)
                        for number in range(guests)]

    def _start(self, number: int,
               policy: metadata.DomainPolicy) -> desired.Running:
        domain = model.Domain(str(uuid.uuid5(uuid.NAMESPACE_DNS,
                                             str(number))),
                              number + 1, f'instance-{number:08x}')
        process = 100000 + 100 * number
        proc = self.place.proc
        for place in range(2 * VCPUS):
            name = f'CPU {place}/KVM' if place < VCPUS else 'worker'
            tid = process + place
            (proc / str(process) / 'task' / str(tid)).mkdir(parents=True)
            (proc / str(tid)).mkdir(exist_ok=True)
            (proc / str(tid) / 'comm').write_text(name + '\n')
        (self.place.run_path / f'{domain.name}.pid').write_text(f'{process}')
        xml = metadata.write_policy(
            f'<domain><name>{domain.name}</name><uuid>{domain.uuid}</uuid>'
            f'<vcpu>{VCPUS}</vcpu></domain>', policy)
        return desired.Running(domain, xml)

    def wanted(self) -> model.Wanted:
        """Return the desired state, from the XML of all guests."""
        guests = tuple(
            guest for one in self.running if one.needs_control_group
            for guest in desired.make_desired_groups(self.resctrl, one))
        return model.Wanted(
            guests, tuple(one.domain for one in self.running),
            frozenset(self.files.directories(self.place.root)),
            self.resctrl.unused_domain_values)

    def reconcile(self) -> None:
        report = reconcile.reconcile(self.place, self.wanted(), self.files)
        if report.problems:
            raise SystemExit(str(report.problems[0]))

    def disturb(self) -> None:
        """Somebody changes a value in each tenth group."""
        groups = self.files.directories(self.place.root)
        for name in [name for name in groups if name != 'info'][::10]:
            self.files.write(self.place.root / name / 'schemata',
                             'MBPRI:0=7\n')

    def list_files(self) -> list[str]:
        """Return the paths of the files that reconcile reads."""
        return [str(path) for top, pattern in (
            (self.place.root, '*/schemata'), (self.place.root, '*/tasks'),
            (self.place.proc, '*/comm'), (self.place.run_path, '*'))
            for path in top.glob(pattern)]


def measure(host: Host, count: int) -> dict[str, list[tuple[float, int]]]:
    """Processor seconds and writes of each run after the warm-up, by name."""
    def reconcile_once() -> tuple[float, int]:
        before = host.files.writes
        seconds = ratios.measure_seconds(host.reconcile)
        return seconds, host.files.writes - before

    found: dict[str, list[tuple[float, int]]] = {
        'all groups missing': [reconcile_once()],
        READ: [], 'nothing changed': [], 'a tenth changed': []}
    paths = host.list_files()
    for _ in range(WARM_UP + count):
        gc.collect()
        found[READ].append(
            (ratios.measure_seconds(ratios.read_files, paths), 0))
        found['nothing changed'].append(reconcile_once())
        host.disturb()
        found['a tenth changed'].append(reconcile_once())
    return {name: values[WARM_UP:] or values
            for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--guests', type=int, default=512)
    parser.add_argument('--domains', type=int, default=8)
    parser.add_argument('--count', type=int, default=10,
                        help='runs that count (10)')
    options = parser.parse_args()
    # Like resctrl and procfs, without a disk.
    memory = '/dev/shm'  # noqa: S108
    with tempfile.TemporaryDirectory(
            dir=memory if os.path.isdir(memory) else None) as top:
        host = Host(Path(top), options.guests, options.domains)
        times = measure(host, options.count)
    print(f'simulated host: {options.guests} guests of {VCPUS} vCPUs, '
          f'{options.domains} domains; a plain directory tree')
    ratios.print_conditions(options.count, WARM_UP)
    for name, values in times.items():
        seconds, writes = zip(*values, strict=True)
        ratios.print_row(name, seconds, [one for one, _writes in times[READ]],
                         f'  writes {max(writes)}')
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f'memory: {(peak - _AT_START) / 1024:.1f} MiB above the '
          f'interpreter, which has {_AT_START / 1024:.1f}')


if __name__ == '__main__':
    main()
