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


"""Metrics of ``ghsched-exporter`` for Prometheus.

Counters of the kernel are exported as counters: Prometheus computes the rates
and detects resets. openEuler's rates are gauges. A figure without a number has
no sample, since 0 would be wrong, and is counted by its state.

The sum over ``kind="control"`` is the total use of a node, since a control
group includes its monitoring groups. The sum over the samples of a guest is
the use of the guest: monitoring groups inside its own control groups are left
out. Limits of a shared group have a sample for each guest of the group.
"""

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import time

from prometheus_client import core
from prometheus_client import registry

from ghsched_nova.features.load import load_metrics
from ghsched_nova.features.top import shared_work
from ghsched_nova.features.top import top_source
from ghsched_nova.monitor import effective_limits
from ghsched_nova.monitor import prometheus
from ghsched_nova.monitor import rates
from ghsched_nova.monitor import reader
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view
from ghsched_placement.base import cpulist

#: Seconds within which the host has to be read; the default scrape_timeout of
#: Prometheus is 10.
TIMEOUT = 9.0

_GUEST = ('guest_uuid', 'guest_name')
_FIGURE = ('group', 'kind', 'domain', 'node', *_GUEST)
_HELD = ('group', 'node', *_GUEST)
_ASKED = ('node', *_GUEST)


#: All metrics, in the order of the manual.
METRICS = (
    prometheus.MetricDescription(
        'ghsched_memory_bytes',
        'Bytes that a resctrl group has transferred from and to memory.',
        _FIGURE, True,
        '``group="/"`` is the default group.'),
    prometheus.MetricDescription(
        'ghsched_memory_bytes_per_second',
        'Memory bandwidth that a resctrl group uses now.', _FIGURE,
        details='Replaces ``ghsched_memory_bytes_total`` if the kernel '
                'reports a rate.'),
    prometheus.MetricDescription(
        'ghsched_cache_occupancy_bytes',
        'Bytes of an L3 cache that a resctrl group occupies.', _FIGURE,
        details='With ``--cache-occupancy``, if the kernel reports it. The '
                'domain is the number of the cache.'),
    prometheus.MetricDescription(
        'ghsched_core_energy_joules',
        'Energy that the processor cores have used for a resctrl group.',
        ('group', 'kind', 'package', *_GUEST), True,
        'If the kernel reports it (``core_energy`` of Intel, since Linux '
        '7.0), by processor package. L3 caches, memory and devices are not '
        'included. Take differences (``increase()``): a new group need not '
        'begin with 0.'),
    prometheus.MetricDescription(
        'ghsched_asked_min_percent',
        'Guaranteed percent of a node\'s bandwidth, as the flavor requests '
        'it.', _ASKED),
    prometheus.MetricDescription(
        'ghsched_asked_max_percent',
        'Cap in percent of a node\'s bandwidth, as the flavor requests it.',
        _ASKED),
    prometheus.MetricDescription(
        'ghsched_effective_min_percent',
        'Guaranteed percent of a node\'s bandwidth that is in force for a '
        'resctrl group.', _HELD, details='A group that guests share has a '
        'sample for each of them, or one without a name if no guest is '
        'known. The same holds for the next two metrics.'),
    prometheus.MetricDescription(
        'ghsched_effective_max_percent',
        'Cap in percent of a node\'s bandwidth that is in force for a '
        'resctrl group.', _HELD),
    prometheus.MetricDescription(
        'ghsched_effective_max_bytes_per_second',
        'Cap as a bandwidth that is in force for a resctrl group.', _HELD),
    prometheus.MetricDescription(
        'ghsched_guest_not_protected',
        'Whether a guest with a bandwidth policy has no control group.',
        _GUEST, details='Alert on it: see :ref:`not-protected`.'),
    prometheus.MetricDescription(
        'ghsched_repairs',
        'Repairs of resctrl groups and their limits by nova-compute, by '
        'kind.', ('kind',), True,
        'With ``--repairs``. The kinds are those of ``ghsched-host plan``. '
        'Changes at the start of a guest are not counted.'),
    prometheus.MetricDescription(
        'ghsched_guest_vfio_interrupts',
        'Interrupts of a passthrough device of a guest that the host has '
        'handled.', ('device', *_GUEST), True,
        'Flat while they reach the guest without the hypervisor '
        '(``ghsched:irq_bypass``), however many the guest counts.'),
    prometheus.MetricDescription(
        'ghsched_guest_irq_bypass_required',
        'Whether the flavor of a guest requires that interrupts of its '
        'devices reach it without the hypervisor.', _GUEST,
        details='A sample of guests with ``ghsched:irq_bypass=required``, '
                'where Nova writes the extra specs into the domain.'),
    prometheus.MetricDescription(
        'ghsched_guest_exits',
        'Exits of the vCPUs of a guest to the hypervisor.', _GUEST, True,
        'With KVM, where libvirt reports it; 9.0 with QEMU 7.2 does. The same '
        'holds for the next metric.'),
    prometheus.MetricDescription(
        'ghsched_guest_halt_poll_seconds',
        'CPU time that the host has spent in polling for idle vCPUs of a '
        'guest, by outcome.', ('outcome', *_GUEST), True,
        'Flat if the guest polls itself (``ghsched:pv_hints``).'),
    prometheus.MetricDescription(
        'ghsched_guest_steal_seconds',
        'Time in which vCPUs of a guest waited for a CPU of the host.',
        _GUEST, True),
    prometheus.MetricDescription(
        'ghsched_node_capacity_bytes_per_second',
        'Theoretical memory bandwidth of a host NUMA node.', ('node',),
        details='If it is known.'),
    prometheus.MetricDescription(
        'ghsched_unread_figures',
        'Measured bandwidths whose value is unknown now, by state.',
        ('state',), details='They have no sample in the other metrics.'),
    prometheus.MetricDescription(
        'ghsched_resctrl_up', 'Whether the host reports memory bandwidth.'),
    prometheus.MetricDescription(
        'ghsched_libvirt_up', 'Whether libvirt answered.'),
    prometheus.MetricDescription(
        'ghsched_scrape_errors',
        'Scrapes at which something could not be read.', ('what',), True),
    prometheus.MetricDescription(
        'ghsched_scrape_duration_seconds',
        'Time that it took to read the host.'),
    prometheus.MetricDescription(
        'ghsched_host_info', 'Kind of resctrl, and how it reports bandwidth.',
        ('dialect', 'unit'), details='Always 1.'),
)
_BY_NAME = {metric.name: metric for metric in METRICS}

#: States of a measurement in which the bandwidth is unknown.
_NO_NUMBER = tuple(state for state in rates.RateState
                   if state not in (rates.RateState.OK, rates.RateState.IDLE,
                                    rates.RateState.FIRST))

Owned = list[tuple[view.MonitoredGroup, view.MonitoredGuest | None]]


class HostCollector(registry.Collector):
    """Prometheus collector that reads the host once for concurrent scrapes.

    :param source: source of the figures.
    """

    def __init__(self, source: top_source.HostReader) -> None:
        self._source = source
        self._errors = {'resctrl': 0, 'libvirt': 0}
        # Each scrape runs in a thread of its own.
        self._collected = shared_work.SharedWork(self._collect, TIMEOUT)

    def collect(self) -> list[core.Metric]:
        """Return all Prometheus metrics of the host's memory bandwidth.

        Prometheus' client calls this method at each scrape. Metrics that
        cannot be read are left out.

        :raises NoAnswer: if the host is not read in time.
        """
        return self._collected.get_result()

    def _collect(self) -> list[core.Metric]:
        begin = time.monotonic()
        found = list(self._host_metrics())
        return [
            *found,
            _single('ghsched_scrape_duration_seconds',
                    time.monotonic() - begin),
            make_metric('ghsched_scrape_errors', [
                ((what,), count) for what, count in self._errors.items()])]

    def _host_metrics(self) -> Iterator[core.Metric]:
        problem, found, usage = False, None, None
        try:
            usage = self._source.reader.measure_group_bandwidth()
            found = self._source.reader.last_readings
        except topology.MonitorUnavailable:
            self._errors['resctrl'] += 1
        guests = self._source.read_guests()
        if self._source.libvirt_error:
            problem = True
            self._errors['libvirt'] += 1
        yield _single('ghsched_resctrl_up', found is not None)
        if self._source.libvirt is not None:
            yield _single('ghsched_libvirt_up', not problem)
        yield _vfio(self._source.count_vfio_interrupts(), guests)
        yield make_metric('ghsched_guest_irq_bypass_required', [
            (_labels(guest), 1) for guest in guests
            if guest.requires_irq_bypass])
        yield from _vcpu_metrics(self._source.read_vcpu_counters(), guests)
        if found is not None:
            yield from _resctrl_metrics(found, guests)
        else:
            yield from _make_unprotected_metric([], {}, guests)
        yield from load_metrics.make_load_metrics(
            self._source.measure_load(
                guests,
                view.make_bandwidth_snapshot(usage, guests) if usage else None,
            ), guests)


def _resctrl_metrics(found: reader.MonitorReadings,
                     guests: Sequence[view.MonitoredGuest]
                     ) -> Iterator[core.Metric]:
    find = view.index_guests_by_group(guests)
    owned = [(group, find.find_guest_of_group(group) if group.path else None)
             for group in found.groups]
    yield make_metric('ghsched_host_info', [
        ((found.host.title, found.host.monitor.unit), 1)])
    yield make_metric('ghsched_node_capacity_bytes_per_second', [
        ((str(node),), rate)
        for node, rate in sorted(found.host.capacity.items())])
    yield from _figures(found, _drop_nested_monitoring_groups(owned))
    yield _occupancy(found, _drop_nested_monitoring_groups(owned))
    yield _energy(found, _drop_nested_monitoring_groups(owned))
    sharers = _map_shared_group_guests(owned, guests)
    yield from _make_effective_limit_metrics(found.host, owned, sharers)
    yield from _make_requested_limit_metrics(guests)
    yield from _make_unprotected_metric(owned, sharers, guests)


def _drop_nested_monitoring_groups(owned_groups: Owned) -> Owned:
    """Drop monitoring groups whose parent is a control group of the guest.

    The bandwidth of the parent includes that of these groups.

    :param owned_groups: resctrl groups, each with its guest.
    """
    of = {group.path: guest for group, guest in owned_groups
          if group.is_control}
    return [(group, guest) for group, guest in owned_groups
            if group.is_control or guest is None
            or of.get(group.name.control) != guest]


def _figures(found: reader.MonitorReadings,
             owned: Owned) -> Iterator[core.Metric]:
    unread = collections.Counter[rates.RateState]()
    samples = []
    scale = rates.MB if found.host.monitor.unit == 'rate_mb' else 1
    for group, guest in owned:
        kind = 'control' if group.is_control else 'monitor'
        for place in found.files:
            reading = found.readings[group.path, group.number, place.domain]
            if reading.state is rates.RateState.OK:
                samples.append((
                    (group.path or '/', kind, place.domain,
                     cpulist.render_cpu_list(place.nodes), *_labels(guest)),
                    reading.value * scale))
            elif reading.state is not rates.RateState.IDLE:
                unread[reading.state] += 1
    if found.host.monitor.unit == 'rate_mb':
        yield make_metric('ghsched_memory_bytes_per_second', samples)
    else:
        yield make_metric('ghsched_memory_bytes', samples)
    yield make_metric('ghsched_unread_figures', [
        ((state.label,), unread[state]) for state in _NO_NUMBER])


def _occupancy(found: reader.MonitorReadings, owned: Owned) -> core.Metric:
    guests = {(group.path, group.number): (group, guest)
              for group, guest in owned}
    samples = []
    for (name, number, cache), reading in found.occupancy.items():
        if reading.state is rates.RateState.OK and (name, number) in guests:
            group, guest = guests[name, number]
            samples.append((
                (name or '/', 'control' if group.is_control else 'monitor',
                 cache.domain, cpulist.render_cpu_list(cache.nodes),
                 *_labels(guest)), reading.value))
    return make_metric('ghsched_cache_occupancy_bytes', samples)


def _energy(found: reader.MonitorReadings, owned: Owned) -> core.Metric:
    guests = {(group.path, group.number): (group, guest)
              for group, guest in owned}
    samples = []
    for (name, number, package), joules in found.energy.items():
        group, guest = guests.get((name, number), (None, None))
        if group is not None:
            samples.append((
                (name or '/', 'control' if group.is_control else 'monitor',
                 package, *_labels(guest)), joules))
    return make_metric('ghsched_core_energy_joules', samples)


def _map_shared_group_guests(
    owned_groups: Owned, guests: Iterable[view.MonitoredGuest]
) -> dict[str, list[view.MonitoredGuest]]:
    """Return the guests that share each control group, by group name.

    :param owned_groups: resctrl groups, each with its guest.
    :param guests: running guests.
    """
    groups: dict[view.MonitoredGuest, list[view.MonitoredGroup]] = {
        guest: [] for guest in guests}
    for group, guest in owned_groups:
        if guest is not None:
            groups.setdefault(guest, []).append(group)
    there = {group.path for group, _guest in owned_groups if group.is_control}
    found: dict[str, list[view.MonitoredGuest]] = {}
    for guest, own_groups in groups.items():
        for name in view.list_shared_groups(guest, own_groups):
            if name in there:
                found.setdefault(name, []).append(guest)
                break
    return found


def _make_effective_limit_metrics(
    host: topology.MonitoredHost, owned_groups: Owned,
    sharers: Mapping[str, Sequence[view.MonitoredGuest | None]]
) -> Iterator[core.Metric]:
    """Yield metrics of the bandwidth limits that the kernel enforces now.

    There is a sample for each control group and host NUMA node.

    :param owned_groups: resctrl groups, each with its guest.
    :param sharers: guests by name of the control group that they share.
    """
    rows = []
    for group, guest in owned_groups:
        ours = guest is not None or group.name.is_shared
        if not ours or group.lines is None:
            continue
        for one in sharers.get(group.path, [guest]):
            nodes = one.host_nodes if one else ()
            for node in sorted(host.control):
                held = effective_limits.compute_effective_limits(
                    host, group.lines, node, nodes
                )
                if held is not None:
                    rows.append(((group.path, str(node), *_labels(one)),
                                 held))
    for name, values in (
            ('min_percent', [held.minimum for _labels_, held in rows]),
            ('max_percent', [held.maximum for _labels_, held in rows]),
            ('max_bytes_per_second', [held.rate for _labels_, held in rows])):
        yield make_metric(f'ghsched_effective_{name}', [
            (labels, value) for (labels, _held_), value
            in zip(rows, values, strict=True) if value is not None])


def _make_requested_limit_metrics(
    guests: Iterable[view.MonitoredGuest],
) -> Iterator[core.Metric]:
    """Yield metrics of the bandwidth limits that flavors request.

    There is a sample for each guest and host NUMA node.
    """
    rows = [((str(node), *_labels(guest)), asked)
            for guest in guests if guest.policy is not None
            for node, asked in zip(guest.policy.host_nodes,
                                   guest.policy.policy.nodes, strict=False)]
    yield make_metric('ghsched_asked_min_percent', [
        (labels, asked.minimum) for labels, asked in rows])
    yield make_metric('ghsched_asked_max_percent', [
        (labels, asked.maximum) for labels, asked in rows])


def _make_unprotected_metric(
    owned_groups: Owned, sharers: Mapping[str, Sequence[view.MonitoredGuest]],
    guests: Iterable[view.MonitoredGuest]
) -> Iterator[core.Metric]:
    """Yield the metric of guests whose bandwidth policy is not enforced.

    The policy of these guests needs a control group, but the guests are in no
    control group.

    :param owned_groups: resctrl groups, each with its guest.
    :param sharers: guests by name of the control group that they share.
    """
    inside = {guest for group, guest in owned_groups if group.is_control}
    inside |= {guest for together in sharers.values() for guest in together}
    yield make_metric('ghsched_guest_not_protected', [
        (_labels(guest), guest not in inside) for guest in guests
        if guest.policy is not None
        and guest.policy.policy.needs_control_group])


def _vfio(handled: Mapping[str, int],
          guests: Iterable[view.MonitoredGuest]) -> core.Metric:
    return make_metric('ghsched_guest_vfio_interrupts', [
        ((device, *_labels(guest)), handled[device])
        for guest in guests for device in guest.devices
        if device in handled])


def _vcpu_metrics(counters: Mapping[str, Mapping[str, int]],
                  guests: Iterable[view.MonitoredGuest]
                  ) -> Iterator[core.Metric]:
    """Yield the metrics of guests' vCPU exits, halt polling and steal time.

    :param counters: sums over the vCPUs by UUID of the guest and name.
    """
    rows = [(guest, counters[guest.uuid]) for guest in guests
            if guest.uuid in counters]
    for name, unit, labels_of in (
            ('exits', 1.0, {'exits': ()}),
            ('halt_poll_seconds', 1e-9, {
                'halt_poll_success_ns': ('success',),
                'halt_poll_fail_ns': ('fail',)}),
            ('steal_seconds', 1e-9, {'delay': ()})):
        yield make_metric(f'ghsched_guest_{name}', [
            ((*labels, *_labels(guest)), found[counter] * unit)
            for guest, found in rows for counter, labels in labels_of.items()
            if counter in found])


def _labels(guest: view.MonitoredGuest | None) -> tuple[str, str]:
    return (guest.uuid, guest.name) if guest else ('', '')


def _single(name: str, value: float) -> core.Metric:
    return make_metric(name, [((), value)])


def make_metric(name: str, samples: Iterable[tuple[Sequence[str], float]]
                ) -> core.Metric:
    """Return one of ghsched's predefined Prometheus metrics, with samples.

    :param name: name of the metric, which has predefined help and labels.
    :param samples: label values and value of each sample.
    """
    return prometheus.make_described_metric(_BY_NAME[name], samples)
