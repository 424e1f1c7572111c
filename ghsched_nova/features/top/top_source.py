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


"""Source of the measurements of ``ghsched-top`` and ``ghsched-exporter``."""

import argparse
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
import re

from ghsched_nova.features import declared_top
from ghsched_nova.features.interrupts import model as interrupts
from ghsched_nova.features.load import load_meter
from ghsched_nova.features.load import load_rates
from ghsched_nova.features.load import load_reader
from ghsched_nova.features.top import guest_reader
from ghsched_nova.features.top import vcpu_rates
from ghsched_nova.monitor import reader
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view
from ghsched_placement.features.load import bottleneck
from ghsched_placement.features.load import load
from ghsched_placement.features.service_level import service_level

#: Minimum seconds of a load measurement, since several scrapers may poll.
LOAD_PERIOD = 1.0

#: Time in which servers got less than their guarantees.
ShortTimes = Mapping[service_level.LevelKey, service_level.ShortTime]

_BANDWIDTH = re.compile(r'([0-9]{1,5}):([1-9][0-9]{0,9})')


@dataclass(frozen=True)
class TopSnapshot(view.Snapshot):
    """Bandwidth of a host with the bursts and service levels of its guests.

    :param burst_shortage: probability from 0 to 1 that guests do not get
        their bursts, by host NUMA node.
    :param short_times: time of this month in which servers got less than
        their guarantees; None if it was not read.
    :param guest_rates: rates of the vCPUs of guests by UUID.
    """

    burst_shortage: Mapping[int, float] = field(default_factory=dict)
    short_times: ShortTimes | None = None
    guest_rates: Mapping[str, vcpu_rates.VcpuRates] = field(
        default_factory=dict)

    def get_time_below_guarantee(
            self, uuid: str, nodes: topology.Nodes,
    ) -> service_level.ShortTime | None:
        """Return how long a guest got less than its guarantee this month.

        The guarantee is the bandwidth that the guest's flavor promises. If
        there are several host NUMA nodes, the longest time is returned.

        :returns: seconds below the guarantee, and seconds in which bandwidth
            was measured; None if unknown.
        """
        found = [self.short_times[key] for key in (
            service_level.LevelKey(uuid, node) for node in nodes)
            if key in self.short_times] if self.short_times else ()
        return max(found, default=None)

    def get_burst_shortage_probability(
            self, nodes: topology.Nodes) -> float | None:
        """Return the probability that guests do not get their bursts.

        A burst is bandwidth above a guest's guarantee. If there are several
        host NUMA nodes, the highest probability is returned.

        :returns: probability from 0 to 1; None if unknown.
        """
        return max((self.burst_shortage[node] for node in nodes
                    if node in self.burst_shortage), default=None)


@dataclass(frozen=True)
class HostReader:
    """Reads bandwidth, guests and load of this host.

    :param reader: reader of the bandwidth of resctrl groups.
    :param libvirt: reader of guests; None with ``--no-libvirt``.
    :param meter: meter of load and wait time; None if not measured.
    :param proc: mount point of procfs.
    :param bursts: file in which nova-compute records burst statistics.
    :param service_levels: file in which nova-compute records how long each
        server got less than its guarantee.
    """

    reader: reader.Reader
    libvirt: guest_reader.LibvirtReader | None
    meter: load_meter.LoadMeter | None = None
    proc: Path = Path('/proc')
    bursts: Path | None = None
    service_levels: Path | None = None

    def measure_bandwidth(self) -> TopSnapshot:
        """Measure memory bandwidth of host NUMA nodes and running guests.

        The bandwidth is the mean since the previous call.

        :raises MonitorUnavailable: if the host reports no bandwidth.
        """
        usage = self.reader.measure_group_bandwidth()
        found = view.make_bandwidth_snapshot(usage, self.read_guests())
        return TopSnapshot(
            **vars(found),
            burst_shortage={
                node: chance for read in declared_top.BURST_SHORTAGES
                for node, chance in read(self.bursts).items()},
            short_times=self._read_times_below_guarantee())

    def _read_times_below_guarantee(self) -> ShortTimes | None:
        """Read how long each server got less than its guarantee.

        :returns: times in the month of the last measurement, by server and
            host NUMA node; None if the file :attr:`service_levels` is not
            configured.
        """
        if self.service_levels is None:
            return None
        return service_level.map_shortage_times(
            service_level.FORMAT.read(self.service_levels))

    def read_guests(self) -> tuple[view.MonitoredGuest, ...]:
        return self.libvirt.read_guests() if self.libvirt else ()

    def measure_load(self, guests: Iterable[view.MonitoredGuest],
                     snapshot: view.Snapshot | None) -> load.HostLoad | None:
        """Measure CPU load and wait time of host NUMA nodes and guests.

        Returns None in the first call, because load is computed from two
        samples.

        :param snapshot: bandwidth measured with resctrl; None if resctrl is
            not available.
        """
        if self.meter is None:
            return None
        self.meter.measure_host_load([
            load_reader.RunningGuest(guest.uuid, guest.domain_id, guest.name,
                                     guest.cells)
            for guest in guests if guest.domain_id is not None],
            load_rates.extract_known_bandwidth(snapshot))
        return self.meter.load

    def count_vfio_interrupts(self) -> Mapping[str, int]:
        """Return interrupt counts of passthrough devices, by PCI address.

        The counts begin when the host boots. The result is empty if they
        cannot be read.
        """
        try:
            text = (self.proc / 'interrupts').read_text(errors='replace')
        except OSError:
            return {}
        return interrupts.count_interrupts_by_device(text)

    def read_vcpu_counters(self) -> Mapping[str, Mapping[str, int]]:
        """Return counters of the vCPUs of guests, see :mod:`.guest_reader`."""
        return self.libvirt.read_vcpu_counters() if self.libvirt else {}

    @property
    def libvirt_error(self) -> str:
        """Reason why libvirt could not list the guests.

        The text is empty if libvirt listed the guests.
        """
        return self.libvirt.problem if self.libvirt else ''


def add_source_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--resctrl', type=Path, default=Path('/sys/fs/resctrl'),
        metavar='PATH', help='mount point of resctrl (default: %(default)s)')
    parser.add_argument(
        '--sysfs', type=Path, default=Path('/sys'), metavar='PATH',
        help='mount point of sysfs (default: %(default)s)')
    parser.add_argument(
        '-c', '--connect', default='qemu:///system', metavar='URI',
        help='URI of libvirt, for a read-only connection '
             '(default: %(default)s)')
    parser.add_argument(
        '--no-libvirt', action='store_true',
        help='do not ask libvirt; show guests by the names of their groups')
    parser.add_argument(
        '--node-bandwidth', type=parse_node_bandwidth, default={},
        metavar='NODE:MB,...',
        help='maximum bandwidth of host NUMA nodes in MB/s (10^6 bytes per '
             'second); takes precedence over the table of the firmware')
    if declared_top.BURST_SHORTAGES:
        parser.add_argument(
            '--bursts', type=Path, metavar='FILE',
            help='show what nova-compute has measured of bursts '
                 '(ghsched:mem_bw_burst), from ghsched-bursts.json in its '
                 'state_path')
    parser.add_argument(
        '--cache-occupancy', action='store_true',
        help='show how much of the L3 caches groups fill, if the kernel '
             'measures it; reads one more file per group and cache')


def parse_node_bandwidth(text: str) -> dict[int, int]:
    """Parse bandwidth in MB/s by host NUMA node, e.g. ``0:90000,1:90000``.

    The form is that of the option ``[ghsched]node_bandwidth``.

    :raises argparse.ArgumentTypeError: if the text is malformed.
    """
    found = {}
    for item in text.split(','):
        match = _BANDWIDTH.fullmatch(item.strip())
        if match is None:
            raise argparse.ArgumentTypeError(
                f'{item.strip()!r} is not of the form NODE:MB')
        found[int(match[1])] = int(match[2])
    return found


def make_measurement_source(
        arguments: argparse.Namespace, *, energy: bool = False) -> HostReader:
    """Return an object that measures bandwidth and load of this host.

    :param arguments: command-line options, which select what is measured.
    :param energy: whether to measure the energy of processor cores, too.
    """
    return HostReader(
        reader.Reader(arguments.resctrl, arguments.sysfs,
                      arguments.node_bandwidth,
                      occupancy=arguments.cache_occupancy, energy=energy),
        (None if arguments.no_libvirt
         else guest_reader.LibvirtReader(arguments.connect)),
        load_meter.LoadMeter(
            load_reader.LoadReader(load_reader.Paths(arguments.sysfs)),
            bottleneck.make_bottleneck_limits({}), period=LOAD_PERIOD),
        bursts=getattr(arguments, 'bursts', None))
