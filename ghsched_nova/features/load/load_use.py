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


"""Load and pressure of the host's NUMA nodes in the compute node's stats."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oslo_log import log as logging

from ghsched_nova.features.load import load_meter
from ghsched_nova.features.load import load_rates
from ghsched_nova.features.load import load_reader
from ghsched_nova.host import compute_hooks
from ghsched_nova.host import desired
from ghsched_nova.monitor import view
from ghsched_placement.features.load import bottleneck
from ghsched_placement.features.load import load
from ghsched_placement.features.load.load import HostLoad
from ghsched_placement.features.load import report_delta

LOG = logging.getLogger(__name__)

#: Sends a notification of a change, with its payload.
Notify = Callable[[bottleneck.BottleneckChange, dict[str, Any]], None]


class LoadReporter(compute_hooks.ComputeHooks):
    """Reporter of the load of the host's NUMA nodes.

    The load is measured between two periodic reports of resources to Nova.

    :param section: the ``[ghsched]`` section of the configuration.
    :param notify: function that is called for each NUMA node that becomes a
        bottleneck or is no longer one.
    """

    def __init__(self, section: Any, notify: Notify) -> None:
        self._section = section
        self._notify = notify
        self._meter: load_meter.LoadMeter | None = None
        self._reported: HostLoad | None = None

    def observe(self, snapshot: compute_hooks.HostSnapshot
                ) -> HostLoad | None:
        """Measure the load of the host's NUMA nodes, and return it.

        The result is None if nothing was measured.
        """
        self._measure_load(snapshot.running, snapshot.bandwidth)
        if self.load is not None:
            self._reported = report_delta.choose_load_report(
                self._reported, self.load, self._section.load_max_age)
        return self.load

    @property
    def load(self) -> HostLoad | None:
        """Last measured load of the host's NUMA nodes.

        The value is None if nothing was measured.
        """
        return self._meter.load if self._meter is not None else None

    def make_stats(self) -> Mapping[str, str]:
        """Return the load of NUMA nodes for the compute node's stats.

        While the loads change little, the last reported record is returned
        again. The stats are then the same as before, and nova-compute need not
        save them to the database. If the load cannot be measured, the last
        reported record is returned as well, if there is one.
        """
        return {} if self._reported is None else load.make_load_stats(
            self._reported)

    def make_diagnostics(self, guest: Any,
                         found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the load of the host's NUMA nodes and of a guest."""
        measured = self.load
        return {} if measured is None else load.make_guest_load_diagnostics(
            measured, guest.uuid)

    def _measure_load(self, running: Iterable[desired.Running],
                      snapshot: view.Snapshot | None) -> None:
        if self._meter is None:
            self._meter = make_load_meter(
                self._section, self._section.load_period,
                self._section.load_smoothing)
        changes = self._meter.measure_host_load(
            list(list_measurable_guests(running)),
            load_rates.extract_known_bandwidth(snapshot))
        for change in changes:
            values = {'node': change.node, 'resource': change.resource,
                      'value': change.value}
            if change.begins:
                LOG.info('ghsched: host NUMA node %(node)s has become a '
                         'bottleneck: %(resource)s %(value).2f has reached '
                         '[ghsched]bottleneck_thresholds', values)
            else:
                LOG.info('ghsched: host NUMA node %(node)s is no bottleneck '
                         'any more: %(resource)s %(value).2f is well below '
                         '[ghsched]bottleneck_thresholds', values)
            self._notify(change, values)


def make_compute_hooks(services: compute_hooks.ComputeServices
                       ) -> LoadReporter:
    """Return nova-compute's reporter of load, with its notifications."""
    def notify(change: bottleneck.BottleneckChange,
               payload: dict[str, Any]) -> None:
        services.notify('ghsched.numa_node.bottleneck.'
                        + ('start' if change.begins else 'end'),
                        {'host': services.host_name, **payload})

    return LoadReporter(services.section, notify)


def make_load_meter(section: Any, period: float = 0.0,
                    smoothing: float = 0.0) -> load_meter.LoadMeter:
    """Return a meter of the load of this host."""
    return load_meter.LoadMeter(
        load_reader.LoadReader(load_reader.Paths(
            sysfs=Path(section.sysfs_path),
            run=Path(section.libvirt_run_path))),
        bottleneck.make_bottleneck_limits(section.bottleneck_thresholds),
        period, smoothing)


def list_measurable_guests(running: Iterable[desired.Running]
                           ) -> Iterator[load_reader.RunningGuest]:
    """Yield the running guests whose domain XML can be parsed.

    The load of a guest is measured by the NUMA nodes in its XML.
    """
    for one in running:
        if one.domain.id < 0 or not one.xml:
            continue
        try:
            yield load_reader.RunningGuest(one.domain.uuid, one.domain.id,
                                           one.domain.name, one.cells)
        except ValueError as error:
            LOG.debug('ghsched: cannot read the NUMA nodes of guest %(name)s '
                      'from its XML; not measuring the load of this guest: '
                      '%(error)s',
                      {'name': one.domain.name, 'error': error})
