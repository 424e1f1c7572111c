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


"""Text and JSON output of ``ghsched-top`` (pure).

The keys of the JSON are stable: none is renamed or removed. A bandwidth is an
object with ``bytes_per_second`` (null if unknown) and ``state``. The state is
``ok`` if the bandwidth is complete. Otherwise it is ``first`` (a counter needs
two readings), ``unassigned``, ``unavailable``, ``missing`` or ``error``, and
the number is the sum of the known parts.

time
    Seconds since 1970.
dialect, unit
    Kind of resctrl; ``counter_bytes`` or ``rate_mb`` as the kernel reports.
problem
    Why guests are known only by their groups; null if libvirt answered.
used
    Bandwidth of the whole host.
nodes
    ``nodes`` (numbers of host NUMA nodes; several if the kernel reports one
    figure for them), ``used``, and its parts ``default`` (group), ``guests``
    and ``others``; ``capacity`` in bytes per second, null if unknown;
    ``guaranteed``, percent of the node promised to guests; ``short_chance``,
    with ``--bursts``, probability that bursts do not get their bandwidth, 0 to
    1 (null if unknown).
guests
    ``name`` (libvirt's), ``server`` (Nova's, null if unknown), ``uuid`` and
    ``domain_id`` (null if unknown), ``groups``, ``problem``, ``used``;
    ``exits_per_second`` of its vCPUs to the hypervisor, and the percentages of
    the time of its vCPUs in which the host polled for an idle one
    (``halt_poll_percent``) and in which one waited for a CPU of the host
    (``steal_percent``), each null if the host does not count it; and
    ``nodes`` with ``nodes``, ``asked`` and ``effective`` (null without a
    policy; both with ``min``, ``max``, ``hardlimit`` and ``priority``, the
    second also with ``bytes_per_second``, the cap), ``used``,
    ``cached_bytes``, bytes of the guest in the L3 caches (null if unknown),
    and with ``--service-levels`` ``short_seconds`` of this month in which the
    guest got less than its guarantee, of ``measured_seconds`` (both null if
    unknown).
others
    Groups that belong to no guest: ``group``, ``control``, and ``nodes`` with
    ``nodes``, ``used`` and ``cached_bytes``.
load
    With ``--load``, load and wait time of NUMA nodes and guests as
    nova-compute reports them; null without the option and before the second
    measurement. Unknown figures are left out.
"""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
import itertools
import json
from typing import Any
from typing import NamedTuple

import wcwidth

from ghsched_nova.features.load import top_load
from ghsched_nova.features.top import top_source
from ghsched_nova.features.top import vcpu_rates
from ghsched_nova.monitor import effective_limits
from ghsched_nova.monitor import rates
from ghsched_nova.monitor import topology
from ghsched_nova.monitor import view
from ghsched_placement.base import cpulist
from ghsched_placement.features.load import load
from ghsched_placement.features.service_level import service_level
from ghsched_placement.flavor.bandwidth import Bandwidth
from ghsched_placement.flavor.policy import NodePolicy

_MB = 10 ** 6
_UNITS = {'counter_bytes': 'counters of bytes', 'rate_mb': 'rates'}

Row = list[str]


# -- JSON ---------------------------------------------------------------------


def make_host_document(
        snapshot: top_source.TopSnapshot, measured_at: float,
        problem: str = '',
        measured: load.HostLoad | None = None) -> dict[str, Any]:
    """Return the bandwidth and load of a host as JSON data.

    Numbers are not rounded.

    :param measured_at: seconds since 1970.
    :param problem: reason why libvirt did not answer.
    :param measured: the load; None if unknown.
    """
    return {
        'time': measured_at, 'dialect': snapshot.title, 'unit': snapshot.unit,
        'problem': problem or None, 'used': _json_figure(snapshot.used),
        'nodes': [{
            'nodes': list(node.nodes),
            'used': _json_figure(node.used),
            'default': _json_figure(node.default),
            'guests': _json_figure(node.guests),
            'others': _json_figure(node.others),
            'capacity': node.capacity, 'guaranteed': node.guaranteed,
            'short_chance': snapshot.get_burst_shortage_probability(
                node.nodes),
        } for node in snapshot.nodes],
        'guests': [_json_guest(guest, snapshot) for guest in snapshot.guests],
        'others': [{
            'group': one.group.path, 'control': one.group.is_control,
            'nodes': [{'nodes': list(nodes), 'used': _json_figure(figure),
                       'cached_bytes': one.cached.get(nodes)}
                      for nodes, figure in sorted(one.used.items())],
        } for one in snapshot.others],
        'load': top_load.make_load_document(measured),
    }


def format_host_as_json(
        snapshot: top_source.TopSnapshot, measured_at: float,
        problem: str = '',
        measured: load.HostLoad | None = None) -> str:
    """Return the bandwidth and load of a host as one line of JSON.

    :param measured_at: seconds since 1970.
    :param problem: reason why libvirt did not answer.
    :param measured: the load; None if unknown.
    """
    return json.dumps(
        make_host_document(snapshot, measured_at, problem, measured))


def _json_figure(figure: rates.Figure) -> dict[str, Any]:
    return {'bytes_per_second': figure.rate, 'state': figure.state.label}


def _json_guest(usage: view.GuestUsage,
                snapshot: top_source.TopSnapshot) -> dict[str, Any]:
    guest = usage.guest
    return {
        'name': guest.name, 'server': guest.server or None,
        'uuid': guest.uuid or None,
        'domain_id': guest.domain_id, 'groups': list(usage.groups),
        'problem': guest.problem or None, 'used': _json_figure(usage.used),
        **vars(snapshot.guest_rates.get(guest.uuid, _NO_RATES)),
        'nodes': [{
            **_json_row(row),
            **_json_short_time(snapshot.get_time_below_guarantee(
                guest.uuid, row.nodes))} for row in usage.nodes],
        **({'classes': [{
            'name': one.vcpu_class.name,
            'vcpus': cpulist.render_cpu_list(one.vcpu_class.vcpus or ()),
            'nodes': list(map(_json_row, one.nodes))}
            for one in usage.classes]} if usage.classes else {})}


def _json_row(row: view.GuestNodeBandwidth) -> dict[str, Any]:
    return {
        'nodes': list(row.nodes),
        'asked': row.asked and row.asked.as_dict(),
        'effective': row.effective and {
            **row.effective.as_dict(),
            'bytes_per_second': row.effective.rate},
        'used': _json_figure(row.used),
        'cached_bytes': row.cached}


def _json_short_time(found: service_level.ShortTime | None
                     ) -> dict[str, float | None]:
    return {'short_seconds': found and found.short,
            'measured_seconds': found and found.measured}


# -- sorting ------------------------------------------------------------------


def _used(usage: view.GuestUsage) -> float:
    return -1.0 if usage.used.rate is None else usage.used.rate


def _asked_share(usage: view.GuestUsage) -> float:
    return sum(row.asked.minimum for row in usage.nodes if row.asked)


def _asked_cap(usage: view.GuestUsage) -> float:
    return sum(row.asked.maximum for row in usage.nodes if row.asked)


def _held_cap(usage: view.GuestUsage) -> float:
    return sum(row.effective.maximum or 0 for row in usage.nodes
               if row.effective)


#: Sort key and whether the order is descending, by name of the order.
ORDERS: dict[str, tuple[Callable[[view.GuestUsage], Any], bool]] = {
    'used': (_used, True),
    'name': (lambda usage: usage.guest.title, False),
    'node': (lambda usage: [row.nodes for row in usage.nodes], False),
    'min': (_asked_share, True),
    'max': (_asked_cap, True),
    'effective': (_held_cap, True),
}


def sort_guests(guests: Sequence[view.GuestUsage], order: str = 'used',
                reverse: bool = False) -> list[view.GuestUsage]:
    """Return guests sorted by a column of ghsched-top.

    Names and NUMA nodes are sorted in ascending order, and bandwidths in
    descending order. Guests with equal values are sorted by name.

    :param order: name of the column.
    :param reverse: whether to reverse the order of the column.
    """
    key, most_first = ORDERS[order]
    by_name = sorted(guests, key=lambda usage: (usage.guest.title,
                                                usage.guest.uuid))
    return sorted(by_name, key=key, reverse=most_first != reverse)


# -- table --------------------------------------------------------------------

_NODE_TITLES = ('NODE', 'USED MB/s', '%', 'DEFAULT', 'GUESTS', 'OTHERS',
                'PROMISED %')
#: Title of the column that is shown if nova-compute has measured bursts.
_SHORT_TITLE = 'SHORT %'
#: Used bandwidth comes first, because a narrow terminal cuts off the end.
_GUEST_TITLES = ('GUEST', 'NODE', 'USED MB/s', '%', 'MIN', 'EMIN', 'MAX',
                 'EMAX', 'CAP MB/s', 'HARD', 'EHARD', 'PRIO', 'EPRIO')
#: Position and title of the column of L3 cache bytes.
_CACHED = 4
_CACHED_TITLE = 'L3 MB'
#: Title of the column with the time in which guests got less than their
#: guarantees.
_SHORT_TIME_TITLE = 'SHORT %'
_NO_RATES = vcpu_rates.VcpuRates()
#: Minimum widths of the first columns, which keep them in place while rows are
#: scrolled.
_LEAST = (18, 4, 9, 5)


class TableLine(NamedTuple):
    """Line of the table of ghsched-top.

    :param alarm: whether a guest is limited to less than its policy promises.
    """

    text: str
    alarm: bool = False


class _Entry(NamedTuple):
    """Table row of ghsched-top: a guest, or a group that belongs to no guest.

    :param name: displayed name.
    :param figure: bandwidth used on the nodes.
    :param row: limits and usage of a guest; None for a group.
    :param word: text shown in place of the bandwidth; empty for none.
    :param cached: bytes in the L3 caches; None if unknown.
    :param load: table cells with CPU load and wait time.
    :param short: time of this month in which the guest got less than its
        guarantee; None if unknown.
    :param guest_rates: rates of the vCPUs of a guest, in its first row.
    """

    name: str
    nodes: topology.Nodes
    figure: rates.Figure
    row: view.GuestNodeBandwidth | None = None
    word: str = ''
    cached: int | None = None
    load: Sequence[str] = ('-', '-')
    short: service_level.ShortTime | None = None
    guest_rates: vcpu_rates.VcpuRates = _NO_RATES


@dataclass(frozen=True)
class Page:
    """Page of ghsched-top, of which only the lines on the screen are rendered.

    :param head: lines above the rows of guests.
    :param cached: whether the table has a column for the L3 caches.
    :param with_load: whether the table has columns for CPU load and wait time.
    :param shorted: whether the table has a column for the time in which
        guests got less than their guarantees.
    :param vcpu_columns: fields of rates of vCPUs that have a column.
    """

    head: tuple[str, ...]
    entries: tuple[_Entry, ...]
    capacity: dict[topology.Nodes, int | None]
    cached: bool = False
    with_load: bool = False
    shorted: bool = False
    vcpu_columns: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.head) + 1 + len(self.entries)

    def render_page_lines(
        self, first: int = 0, count: int | None = None
    ) -> list[TableLine]:
        """Return a range of the lines of a ghsched-top page.

        :param first: index of the first line.
        :param count: number of lines; None for all.
        """
        above = len(self.head) + 1
        end = len(self) if count is None else first + count
        shown = self.entries[max(0, first - above):max(0, end - above)]
        columns = list(_GUEST_TITLES)
        cells = [_row(entry, self.capacity) for entry in shown]
        if self.cached:
            columns.insert(_CACHED, _CACHED_TITLE)
            for row, entry in zip(cells, shown, strict=True):
                row.insert(_CACHED, _megabytes(entry.cached))
        if self.with_load:
            columns[_CACHED:_CACHED] = top_load.GUEST_TITLES
            for row, entry in zip(cells, shown, strict=True):
                row[_CACHED:_CACHED] = entry.load
        if self.shorted:
            columns.insert(_CACHED, _SHORT_TIME_TITLE)
            for row, entry in zip(cells, shown, strict=True):
                row.insert(_CACHED, _format_time_below_guarantee(entry.short))
        columns += [vcpu_rates.TITLES[name] for name in self.vcpu_columns]
        for row, entry in zip(cells, shown, strict=True):
            row += entry.guest_rates.format_cells(self.vcpu_columns)
        titles, *rows = align_table_columns(columns, cells, 2, _LEAST)
        lines = [*map(TableLine, (*self.head, titles))][first:end]
        return lines + [
            TableLine(text, _is_limited_below_policy(entry.row))
            for text, entry in zip(rows, shown, strict=True)]


def make_top_page(
        snapshot: top_source.TopSnapshot, when: str, problem: str = '',
        order: str = 'used', reverse: bool = False, name_filter: str = '',
        with_load: bool = False,
        measured: load.HostLoad | None = None) -> Page:
    """Return a ghsched-top page of host NUMA nodes, guests and groups.

    :param when: time of the snapshot, as it is shown.
    :param problem: reason why libvirt did not answer.
    :param order: column by which guests are sorted.
    :param name_filter: text that must be in the name of a guest or group.
    :param measured: load and wait time; None if unknown.
    """
    lines = [f'ghsched-top {when}  {snapshot.title}, '
             f'{_UNITS[snapshot.unit]}; {len(snapshot.guests)} guests, '
             f'{len(snapshot.others)} other groups']
    if name_filter:
        lines.append(replace_unprintable(f'only names with: {name_filter}'))
    if problem:
        lines.append(replace_unprintable(f'without libvirt: {problem}'))
    lines += [
        replace_unprintable(f'{usage.guest.title}: {usage.guest.problem}')
        for usage in snapshot.guests if usage.guest.problem]
    lines += ['', *_format_node_lines(snapshot), '']
    if with_load and measured:
        rows = top_load.format_node_load_rows(measured)
        lines += [*align_table_columns(top_load.NODE_TITLES, rows, 1), '']
    guests = [one for one in snapshot.guests if _matches(one, name_filter)]
    entries = [entry for usage in sort_guests(guests, order, reverse)
               for entry in _make_guest_entries(snapshot, usage, measured)]
    entries += _make_group_rows(snapshot, name_filter)
    return Page(tuple(lines), tuple(entries),
                {node.nodes: node.capacity for node in snapshot.nodes},
                snapshot.cached, with_load, snapshot.short_times is not None,
                vcpu_rates.list_known_fields(snapshot.guest_rates.values()))


def _make_guest_entries(
        snapshot: top_source.TopSnapshot, usage: view.GuestUsage,
        measured: load.HostLoad | None) -> list[_Entry]:
    """Return a guest's table rows with bandwidth, load and shortage."""
    uuid = usage.guest.uuid
    first, *others = [
        entry._replace(
            load=top_load.format_guest_load_cells(measured, uuid, entry.nodes),
            short=snapshot.get_time_below_guarantee(uuid, entry.nodes))
        for entry in _make_guest_rows(usage)]
    return [first._replace(guest_rates=snapshot.guest_rates.get(
        uuid, _NO_RATES)), *others]


def _matches(usage: view.GuestUsage, match: str) -> bool:
    guest = usage.guest
    return any(match in name
               for name in (guest.server, guest.name, guest.uuid))


def _is_limited_below_policy(row: view.GuestNodeBandwidth | None) -> bool:
    """Whether a guest's enforced bandwidth limit is lower than its policy's.

    A difference of up to two percent is ignored: openEuler's 6.6 kernel may
    show a limit that is so much lower than the written one.

    :param row: limits of the guest on a NUMA node. If a limit is unknown, the
        result is False.
    """
    if row is None or row.asked is None or row.effective is None:
        return False
    held, asked = row.effective, row.asked
    return (held.minimum is not None and held.minimum < asked.minimum - 2
            or held.maximum is not None and held.maximum < asked.maximum - 2)


def _format_node_lines(snapshot: top_source.TopSnapshot) -> list[str]:
    """Return the lines of ghsched-top with the bandwidth of each NUMA node.

    If there are several nodes, the last line has the sum.
    """
    titles = list(_NODE_TITLES)
    rows = [_node_row(node) for node in snapshot.nodes]
    if len(rows) > 1:
        rows.append(_total_row(snapshot))
    if snapshot.burst_shortage:
        titles.append(_SHORT_TITLE)
        chances = [snapshot.get_burst_shortage_probability(node.nodes)
                   for node in snapshot.nodes]
        for row, chance in itertools.zip_longest(rows, chances):
            row.append('-' if chance is None else f'{100 * chance:.2g}')
    return align_table_columns(titles, rows, 1)


def _total_row(snapshot: top_source.TopSnapshot) -> Row:
    nodes = snapshot.nodes
    capacities = [node.capacity for node in nodes if node.capacity]
    return ['all', _format_bandwidth(snapshot.used),
            _percent(snapshot.used, sum(capacities)
                     if len(capacities) == len(nodes) else None),
            *(_format_bandwidth(rates.sum_bandwidths(parts)) for parts in (
                [node.default for node in nodes],
                [node.guests for node in nodes],
                [node.others for node in nodes])), '-']


def _node_row(node: view.NodeUsage) -> Row:
    return [
        _nodes(node.nodes), _format_bandwidth(node.used),
        _percent(node.used, node.capacity), _format_bandwidth(node.default),
        _format_bandwidth(node.guests), _format_bandwidth(node.others),
        str(node.guaranteed)]


def _make_guest_rows(usage: view.GuestUsage) -> list[_Entry]:
    """Return table rows of a guest's bandwidth, one per host NUMA node.

    If the guest has no policy, nodes without traffic and limits are left out.
    Rows of its vCPU classes follow.
    """
    if not usage.nodes:
        return [_Entry(usage.guest.title, (), rates.NOTHING,
                       word='no group')]
    rows = usage.nodes
    if usage.guest.policy is None:
        rows = tuple(filter(_is_of_interest, rows)) or rows[:1]
    title = usage.guest.title
    named = [(title, row) for row in rows] + [
        (f'{title}.{one.vcpu_class.name}', row) for one in usage.classes
        for row in one.nodes]
    return [_Entry(name, row.nodes, row.used, row, cached=row.cached)
            for name, row in named]


def _make_group_rows(snapshot: top_source.TopSnapshot,
                     name_filter: str) -> list[_Entry]:
    """Return table rows of the resctrl groups that belong to no guest.

    :param name_filter: text; groups are left out if their name does not
        contain it.
    """
    return [_Entry(f'({one.group.path})', nodes, figure,
                   cached=one.cached.get(nodes))
            for one in snapshot.others if name_filter in one.group.path
            for nodes, figure in sorted(one.used.items())]


def _is_of_interest(row: view.GuestNodeBandwidth) -> bool:
    held = row.effective
    return bool(
        row.used.rate or row.used.state not in (
            rates.RateState.OK, rates.RateState.MISSING)
        or held and (held.minimum or held.rate is not None
                     or held.maximum not in (None, 100)))


def _row(entry: _Entry, capacity: dict[topology.Nodes, int | None]) -> Row:
    asked = _format_policy(entry.row.asked if entry.row else None)
    held = _format_limits(entry.row.effective if entry.row else None)
    minimum, maximum, hard, priority = asked
    held_minimum, held_maximum, cap, held_hard, held_priority = held
    return [
        replace_unprintable(entry.name),
        _nodes(entry.nodes) if entry.nodes or not entry.word else '-',
        entry.word or _format_bandwidth(entry.figure),
        _percent(entry.figure, capacity.get(entry.nodes)), minimum,
        held_minimum, maximum, held_maximum, cap, hard, held_hard, priority,
        held_priority]


def _format_policy(policy: NodePolicy | None) -> Row:
    """Return the table cells of the policy of a guest NUMA node."""
    return [*map(_word, (policy or Bandwidth()).as_dict().values())]


def _format_limits(limits: effective_limits.EffectiveLimits | None) -> Row:
    """Return the table cells of the limits that resctrl enforces."""
    if limits is None:
        return ['-'] * 5
    cap = None if limits.rate is None else f'{limits.rate / _MB:.0f}'
    return [_word(limits.minimum), _word(limits.maximum), _word(cap),
            _word(limits.hardlimit), _word(limits.priority)]


def _word(value: Any) -> str:
    if value is None:
        return '-'
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    return str(value)


def _nodes(nodes: topology.Nodes) -> str:
    return cpulist.render_cpu_list(nodes) or '?'


def _format_bandwidth(figure: rates.Figure) -> str:
    """Return a bandwidth as text in MB/s.

    A ``+`` marks a sum of which some parts are unknown.
    """
    if figure.rate is None:
        return ('-' if figure.state is rates.RateState.MISSING
                else figure.state.label)
    more = '' if figure.state is rates.RateState.OK else '+'
    return f'{figure.rate / _MB:.1f}{more}'


def _format_time_below_guarantee(
    time_below: service_level.ShortTime | None,
) -> str:
    """Return the percent of time in which a guest got less than its guarantee.

    The guarantee is the bandwidth that the guest's flavor promises. The result
    is ``-`` if the percent is unknown.

    :param time_below: measured time of this month, and its part below the
        guarantee.
    """
    percent = None if time_below is None else time_below.short_percent
    return '-' if percent is None else f'{percent:.2f}'


def _megabytes(size: int | None) -> str:
    return '-' if size is None else f'{size / _MB:.1f}'


def _percent(figure: rates.Figure, capacity: int | None) -> str:
    if figure.rate is None or not capacity:
        return '-'
    return f'{100 * figure.rate / capacity:.1f}'


def replace_unprintable(text: str) -> str:
    """Replace unprintable characters by ``?``, for a terminal."""
    return ''.join(letter if letter.isprintable() else '?'
                   for letter in text)


def measure_text_width(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    return len(text) if text.isascii() else max(0, wcwidth.wcswidth(text))


def clip_text_to_columns(text: str, first: int, columns: int) -> str:
    """Return the part of a text that is in a range of terminal columns.

    Wide characters that are only partly in the range are left out.

    :param first: first column.
    :param columns: number of columns.
    """
    if text.isascii():
        return text[first:first + columns]
    found, place = [], 0
    for letter in text:
        wide = max(0, wcwidth.wcwidth(letter))
        if place >= first and place + wide <= first + columns:
            found.append(letter)
        place += wide
    return ''.join(found)


def align_table_columns(
        titles: Sequence[str], rows: Sequence[Row], left_aligned: int,
        min_widths: Sequence[int] = ()) -> list[str]:
    """Return the lines of a text table with aligned columns.

    The first line has the titles.

    :param left_aligned: number of columns that are aligned to the left. The
        columns after these are aligned to the right.
    :param min_widths: minimum widths of the first columns.
    """
    widths = [max(map(measure_text_width, column)) for column
              in zip(titles, *rows, strict=True)]
    widths[:len(min_widths)] = map(max, widths, min_widths)
    return ['  '.join(
        word + ' ' * (wide - measure_text_width(word)) if place < left_aligned
        else ' ' * (wide - measure_text_width(word)) + word
        for place, (word, wide) in enumerate(zip(row, widths, strict=True))
    ).rstrip() for row in (titles, *rows)]
