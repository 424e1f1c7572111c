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


"""Where ``ghsched-top`` and ``ghsched-exporter`` get their figures."""

import argparse
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
from dataclasses import dataclass
from pathlib import Path
import re

from ghsched_nova.interrupts import model as interrupts
from ghsched_nova.monitor import guests
from ghsched_nova.monitor import load_meter
from ghsched_nova.monitor import load_rates
from ghsched_nova.monitor import load_reader
from ghsched_nova.monitor import reader
from ghsched_nova.monitor import view
from ghsched_placement import bottleneck
from ghsched_placement import burst_record
from ghsched_placement import load

#: Seconds over which load is measured at least; several scrapers may come.
LOAD_PERIOD = 1.0

_BANDWIDTH = re.compile(r'([0-9]{1,5}):([1-9][0-9]{0,9})')


@dataclass(frozen=True)
class Source:
    """The figures of this host.

    :param libvirt: None where it is not to be asked.
    :param meter: measures load and waiting; None where nobody does.
    :param proc: where procfs is mounted.
    :param bursts: the file with what nova-compute knows of them.
    """

    reader: reader.Reader
    libvirt: guests.Libvirt | None
    meter: load_meter.LoadMeter | None = None
    proc: Path = Path('/proc')
    bursts: Path | None = None

    def snapshot(self) -> view.Snapshot:
        """Bandwidth since the time before, with the guests of now.

        :raises MonitorUnavailable: when the host reports none.
        """
        usage = self.reader.usage()
        return dataclasses.replace(
            view.snapshot(usage, self.guests()), short={
                node: record.chance for node, record in
                burst_record.of_file(self.bursts).items()
                if record.chance is not None and record.promised})

    def guests(self) -> tuple[view.Guest, ...]:
        return self.libvirt.guests() if self.libvirt else ()

    def load(self, guests: Iterable[view.Guest],
             snapshot: view.Snapshot | None) -> load.Load | None:
        """Load and waiting of NUMA nodes; None until they are known.

        :param snapshot: what resctrl has measured, where it does.
        """
        if self.meter is None:
            return None
        self.meter.measure([
            load_reader.Known(guest.uuid, guest.domain_id, guest.name,
                              guest.cells)
            for guest in guests if guest.domain_id is not None],
            load_rates.bandwidth(snapshot))
        return self.meter.load

    def vfio_interrupts(self) -> Mapping[str, int]:
        """Interrupts of passthrough devices that the host has handled."""
        try:
            text = (self.proc / 'interrupts').read_text(errors='replace')
        except OSError:
            return {}
        return interrupts.counts(text)

    @property
    def problem(self) -> str:
        """Why guests are known by their groups alone; or empty."""
        return self.libvirt.problem if self.libvirt else ''


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--resctrl', type=Path, default=Path('/sys/fs/resctrl'),
        metavar='PATH', help='where resctrl is mounted (%(default)s)')
    parser.add_argument(
        '--sysfs', type=Path, default=Path('/sys'), metavar='PATH',
        help='where sysfs is mounted (%(default)s)')
    parser.add_argument(
        '-c', '--connect', default='qemu:///system', metavar='URI',
        help='of libvirt, which is only read from (%(default)s)')
    parser.add_argument(
        '--no-libvirt', action='store_true',
        help='do not ask libvirt; guests are shown by their groups')
    parser.add_argument(
        '--node-bandwidth', type=node_bandwidth, default={},
        metavar='NODE:MB,...',
        help='what host NUMA nodes can deliver, in MB/s (10^6 bytes per '
             'second); takes precedence over the table of the firmware')
    parser.add_argument(
        '--bursts', type=Path, metavar='FILE',
        help='tell what nova-compute knows of bursts (ghsched:mem_bw_burst), '
             'from ghsched-bursts.json in its state_path')
    parser.add_argument(
        '--cache-occupancy', action='store_true',
        help='tell how much of the L3 caches groups fill, where the kernel '
             'knows; it takes another file of each group and cache to be '
             'read')


def node_bandwidth(text: str) -> dict[int, int]:
    """MB/s by host NUMA node, as in ``[ghsched]node_bandwidth``.

    :raises argparse.ArgumentTypeError: when it is none.
    """
    found = {}
    for item in text.split(','):
        match = _BANDWIDTH.fullmatch(item.strip())
        if match is None:
            raise argparse.ArgumentTypeError(
                f'{item.strip()!r} is not of the form NODE:MB')
        found[int(match[1])] = int(match[2])
    return found


def source(arguments: argparse.Namespace) -> Source:
    """The figures that the options name."""
    return Source(
        reader.Reader(arguments.resctrl, arguments.sysfs,
                      arguments.node_bandwidth,
                      occupancy=arguments.cache_occupancy),
        None if arguments.no_libvirt else guests.Libvirt(arguments.connect),
        load_meter.LoadMeter(
            load_reader.LoadReader(load_reader.Paths(arguments.sysfs)),
            bottleneck.limits({}), period=LOAD_PERIOD),
        bursts=arguments.bursts)
