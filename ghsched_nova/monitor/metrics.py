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


"""What ``ghsched-exporter`` tells Prometheus.

Counters stay counters: Prometheus makes rates of them with its own clock, and
sees when one begins again. openEuler's rates are gauges. A figure that is not
a number has no sample, for 0 would be wrong, and is counted by its state.

A sum over ``kind="control"`` is all that a node is used: the figure of a
control group has in it those of its monitoring groups. A sum over a guest's
samples is the guest's: its monitoring groups inside its own control groups
are left out. What a shared group holds has a sample for each of its guests.
"""

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import time

from prometheus_client import core
from prometheus_client import registry

from ghsched_nova.monitor import load_metrics
from ghsched_nova.monitor import rates
from ghsched_nova.monitor import reader
from ghsched_nova.monitor import shared_work
from ghsched_nova.monitor import top_source
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view
from ghsched_nova.resctrl import naming
from ghsched_placement import cpulist

#: Seconds in which a host is read; Prometheus waits for 10 by default.
TIMEOUT = 9.0

_GUEST = ('guest_uuid', 'guest_name')
_FIGURE = ('group', 'kind', 'domain', 'node', *_GUEST)
_HELD = ('group', 'node', *_GUEST)
_ASKED = ('node', *_GUEST)


@dataclass(frozen=True)
class Described:
    """What is the same of a metric in every scrape.

    :param name: without the ``_total`` that a counter gets when it is sent.
    :param text: Prometheus shows it.
    :param details: of the manual alone.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ()
    counter: bool = False
    details: str = ''

    @property
    def sent(self) -> str:
        """The name that Prometheus gets."""
        return self.name + '_total' if self.counter else self.name


#: All metrics, as the manual shows them.
METRICS = (
    Described(
        'ghsched_memory_bytes',
        'Bytes that a group has moved from and to memory.', _FIGURE, True,
        '``group="/"`` is the default group.'),
    Described(
        'ghsched_memory_bytes_per_second',
        'Memory bandwidth of a group at this moment.', _FIGURE,
        details='In place of ``ghsched_memory_bytes_total``, where the '
                'kernel reports a rate.'),
    Described(
        'ghsched_cache_occupancy_bytes',
        'Bytes of an L3 cache that a group fills.', _FIGURE,
        details='With ``--cache-occupancy``, where the kernel tells it. The '
                'domain is the number of the cache.'),
    Described(
        'ghsched_asked_min_percent',
        'Guaranteed share of a node\'s bandwidth, as asked for.', _ASKED),
    Described(
        'ghsched_asked_max_percent',
        'Cap as a share of a node\'s bandwidth, as asked for.', _ASKED),
    Described(
        'ghsched_effective_min_percent',
        'Guaranteed share of a node\'s bandwidth. In force, as the group '
        'has it.', _HELD, details='A group that guests share has a sample '
        'for each of them, or one without a name where none is known. The '
        'same holds for the other two.'),
    Described(
        'ghsched_effective_max_percent',
        'Cap as a share of a node\'s bandwidth. In force, as the group has '
        'it.', _HELD),
    Described(
        'ghsched_effective_max_bytes_per_second',
        'Cap as a bandwidth. In force, as the group has it.', _HELD),
    Described(
        'ghsched_guest_not_protected',
        'Whether a guest with a bandwidth policy has no control group.',
        _GUEST, details='Alert on it: see :ref:`not-protected`.'),
    Described(
        'ghsched_repairs',
        'Steps with which nova-compute has made the kernel hold a policy '
        'again, by kind.', ('kind',), True,
        'With ``--repairs``. The kinds are those of ``ghsched-host plan``; '
        'what is done when a guest starts does not count.'),
    Described(
        'ghsched_guest_vfio_interrupts',
        'Interrupts of a passthrough device of a guest that the host has '
        'handled.', ('device', *_GUEST), True,
        'Flat while they reach the guest without the hypervisor '
        '(``ghsched:irq_bypass``), however many the guest counts.'),
    Described(
        'ghsched_node_capacity_bytes_per_second',
        'Theoretical memory bandwidth of a host NUMA node.', ('node',),
        details='Where it is known.'),
    Described(
        'ghsched_unread_figures',
        'Figures of bandwidth without a number now, by state.', ('state',),
        details='They have no sample.'),
    Described(
        'ghsched_resctrl_up', 'Whether the host reports memory bandwidth.'),
    Described('ghsched_libvirt_up', 'Whether libvirt answered.'),
    Described(
        'ghsched_scrape_errors',
        'Scrapes at which something could not be read.', ('what',), True),
    Described(
        'ghsched_scrape_duration_seconds',
        'Time that it took to read the host.'),
    Described(
        'ghsched_host_info', 'Kind of resctrl, and how it reports bandwidth.',
        ('dialect', 'unit'), details='Always 1.'),
)
_BY_NAME = {metric.name: metric for metric in METRICS}

#: The states that a figure can have when it is read.
_NO_NUMBER = tuple(state for state in rates.State
                   if state not in (rates.State.OK, rates.State.FIRST))

Owned = list[tuple[view.Group, view.Guest | None]]


class Collector(registry.Collector):
    """Reads the host at each scrape, once for all that come meanwhile.

    :param source: of the figures.
    """

    def __init__(self, source: top_source.Source) -> None:
        self._source = source
        self._errors = {'resctrl': 0, 'libvirt': 0}
        # Scrapes come in threads of their own.
        self._collected = shared_work.SharedWork(self._collect, TIMEOUT)

    def describe(self) -> list[core.Metric]:
        """Nothing: registering must not read the host."""
        return []

    def collect(self) -> list[core.Metric]:
        """Return all metrics; without those that cannot be read.

        :raises NoAnswer: when the host is not read in time.
        """
        return self._collected.result()

    def _collect(self) -> list[core.Metric]:
        begin = time.monotonic()
        found = list(self._host_metrics())
        return [
            *found,
            _single('ghsched_scrape_duration_seconds',
                    time.monotonic() - begin),
            family('ghsched_scrape_errors', [
                ((what,), count) for what, count in self._errors.items()])]

    def _host_metrics(self) -> Iterator[core.Metric]:
        problem, found, usage = False, None, None
        try:
            usage = self._source.reader.usage()
            found = self._source.reader.last
        except topology.MonitorUnavailable:
            self._errors['resctrl'] += 1
        guests = self._source.guests()
        if self._source.problem:
            problem = True
            self._errors['libvirt'] += 1
        yield _single('ghsched_resctrl_up', found is not None)
        if self._source.libvirt is not None:
            yield _single('ghsched_libvirt_up', not problem)
        yield _vfio(self._source.vfio_interrupts(), guests)
        if found is not None:
            yield from _all(found, guests)
        yield from load_metrics.of(self._source.load(
            guests, view.snapshot(usage, guests) if usage else None), guests)


def _all(found: reader.Round,
         guests: Sequence[view.Guest]) -> Iterator[core.Metric]:
    find = view.owners(guests)
    owned = [(group, find.of(group) if group.name else None)
             for group in found.groups]
    yield family('ghsched_host_info', [
        ((found.host.title, found.host.monitor.unit), 1)])
    yield family('ghsched_node_capacity_bytes_per_second', [
        ((str(node),), rate)
        for node, rate in sorted(found.host.capacity.items())])
    yield from _figures(found, _measured(owned))
    yield _occupancy(found, _measured(owned))
    sharers = _sharers(owned, guests)
    yield from _held(found.host, owned, sharers)
    yield from _asked(guests)
    yield from _not_protected(owned, sharers, guests)


def _measured(owned: Owned) -> Owned:
    """Without the monitoring groups inside a group of the same guest."""
    of = {group.name: guest for group, guest in owned if group.control}
    return [(group, guest) for group, guest in owned
            if group.control or guest is None
            or of.get(group.parent) != guest]


def _figures(found: reader.Round, owned: Owned) -> Iterator[core.Metric]:
    unread = collections.Counter[rates.State]()
    samples = []
    scale = rates.MB if found.host.monitor.unit == 'rate_mb' else 1
    for group, guest in owned:
        kind = 'control' if group.control else 'monitor'
        for place in found.places:
            reading = found.readings[group.name, group.number, place.domain]
            if reading.state is rates.State.OK:
                samples.append((
                    (group.name or '/', kind, place.domain,
                     cpulist.render(place.nodes), *_labels(guest)),
                    reading.value * scale))
            else:
                unread[reading.state] += 1
    if found.host.monitor.unit == 'rate_mb':
        yield family('ghsched_memory_bytes_per_second', samples)
    else:
        yield family('ghsched_memory_bytes', samples)
    yield family('ghsched_unread_figures', [
        ((state.word,), unread[state]) for state in _NO_NUMBER])


def _occupancy(found: reader.Round, owned: Owned) -> core.Metric:
    guests = {(group.name, group.number): (group, guest)
              for group, guest in owned}
    samples = []
    for (name, number, cache), reading in found.occupancy.items():
        if reading.state is rates.State.OK and (name, number) in guests:
            group, guest = guests[name, number]
            samples.append((
                (name or '/', 'control' if group.control else 'monitor',
                 cache.domain, cpulist.render(cache.nodes),
                 *_labels(guest)), reading.value))
    return family('ghsched_cache_occupancy_bytes', samples)


def _sharers(owned: Owned, guests: Iterable[view.Guest]
             ) -> dict[str, list[view.Guest]]:
    """Guests by the control group that they have together."""
    groups: dict[view.Guest, list[view.Group]] = {
        guest: [] for guest in guests}
    for group, guest in owned:
        if guest is not None:
            groups.setdefault(guest, []).append(group)
    there = {group.name for group, _guest in owned if group.control}
    found: dict[str, list[view.Guest]] = {}
    for guest, own_groups in groups.items():
        for name in view.shared_groups(guest, own_groups):
            if name in there:
                found.setdefault(name, []).append(guest)
                break
    return found


def _held(host: topology.Host, owned: Owned,
          sharers: Mapping[str, Sequence[view.Guest | None]]
          ) -> Iterator[core.Metric]:
    """What the control groups of guests hold, whether shared or not.

    :param sharers: guests by the control group that they have together; one
        of which nobody is known has a sample of no guest.
    """
    rows = []
    for group, guest in owned:
        ours = guest is not None or naming.is_shared(group.name)
        if not ours or group.lines is None:
            continue
        for one in sharers.get(group.name, [guest]):
            nodes = one.host_nodes if one else ()
            for node in sorted(host.control):
                held = view.effective(host, group.lines, node, nodes)
                if held is not None:
                    rows.append(((group.name, str(node), *_labels(one)),
                                 held))
    for name, values in (
            ('min_percent', [held.minimum for _labels_, held in rows]),
            ('max_percent', [held.maximum for _labels_, held in rows]),
            ('max_bytes_per_second', [held.rate for _labels_, held in rows])):
        yield family(f'ghsched_effective_{name}', [
            (labels, value) for (labels, _held_), value
            in zip(rows, values, strict=True) if value is not None])


def _asked(guests: Iterable[view.Guest]) -> Iterator[core.Metric]:
    """What flavors ask for."""
    rows = [((str(node), *_labels(guest)), asked)
            for guest in guests if guest.policy is not None
            for node, asked in zip(guest.policy.host_nodes,
                                   guest.policy.policy.nodes, strict=False)]
    yield family('ghsched_asked_min_percent', [
        (labels, asked.minimum) for labels, asked in rows])
    yield family('ghsched_asked_max_percent', [
        (labels, asked.maximum) for labels, asked in rows])


def _not_protected(owned: Owned, sharers: Mapping[str, Sequence[view.Guest]],
                   guests: Iterable[view.Guest]) -> Iterator[core.Metric]:
    """Guests whose policy needs a control group, and who have none."""
    inside = {guest for group, guest in owned if group.control}
    inside |= {guest for together in sharers.values() for guest in together}
    yield family('ghsched_guest_not_protected', [
        (_labels(guest), guest not in inside) for guest in guests
        if guest.policy is not None and guest.policy.policy.controlled])


def _vfio(handled: Mapping[str, int],
          guests: Iterable[view.Guest]) -> core.Metric:
    return family('ghsched_guest_vfio_interrupts', [
        ((device, *_labels(guest)), handled[device])
        for guest in guests for device in guest.devices
        if device in handled])


def _labels(guest: view.Guest | None) -> tuple[str, str]:
    return (guest.uuid, guest.name) if guest else ('', '')


def _single(name: str, value: float) -> core.Metric:
    return family(name, [((), value)])


def family(name: str, samples: Iterable[tuple[Sequence[str], float]]
           ) -> core.Metric:
    """A metric of :data:`METRICS` with its samples of this scrape."""
    described = _BY_NAME[name]
    kind = (core.CounterMetricFamily if described.counter
            else core.GaugeMetricFamily)
    found: core.CounterMetricFamily | core.GaugeMetricFamily = kind(
        name, described.text, labels=described.labels)
    merged = {tuple(map(_text, values)): number for values, number in samples}
    for values, number in merged.items():
        found.add_metric(values, number)
    return found


def _text(label: str) -> str:
    """A label that can be sent, whatever the name of a directory has in it.
    """
    return label.encode(errors='backslashreplace').decode()
