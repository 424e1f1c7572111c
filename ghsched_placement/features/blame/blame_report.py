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

"""Report on what slows a server down, as JSON and text (pure).

``openstack ghsched server blame``, nova-api and ``ghsched-host blame`` return
it.

The keys of the JSON are stable: none is renamed or removed. Unknown values are
null.

server
    ``uuid``, ``name`` and ``host``.
verdict
    ``kind``: ``guest``, ``host`` (traffic that belongs to no measured guest),
    ``not memory``, ``nobody`` or ``unknown``; ``suspect`` and ``name`` of the
    guest; ``cause``, if other guests' memory traffic is not the cause: ``own
    cap``, ``CPUs``, ``memory reclaim``, ``I/O``, ``own memory`` or ``idle``;
    ``value``, the measured value of the cause, the effect of capping the
    guest, or the load; ``proven``, whether trials have proven the verdict.
prove
    Whether suspects were capped.
nodes
    Host NUMA nodes of the server.
load
    Used fraction of the memory bandwidth of the busiest of these nodes.
figure
    Measure of the server's speed: ``bandwidth`` or ``instructions``, per
    second of CPU time.
uncounted
    Reason why instructions and cache misses are not among the evidence: ``no
    counters``, ``refused`` (by the kernel) or ``failed``.
own
    ``busy``, ``cpu_wait``, ``stalled`` and ``io_wait`` of the server, as
    fractions of the time, ``used`` and ``cap`` in bytes per second, and, if
    the host counts instructions, instructions per cycle (``per_cycle``), cache
    misses per 1000 instructions (``misses``), and the fraction of the cycles
    in which CPUs waited for data (``stalled_cycles``). ``reported_cpu``,
    ``reported_memory`` and ``reported_steal`` are fractions of the time in
    which the server waits, as it reports them through its guest channel.
suspects
    The most suspicious first: ``uuid`` (null for the host), ``name``,
    ``project``, ``share`` of the bandwidth of all others, ``node_share`` of
    the bandwidth that the nodes can deliver, ``miss_share`` of the cache
    misses of other guests, ``correlation``, its ``points`` and ``strength``,
    ``effect`` of a cap with ``low`` and ``high`` of its 99 percent interval,
    ``trials``, ``by_cache``, and ``untried``, the reason why the guest was not
    capped.
trials
    In order of time: ``suspect`` and the server's speed ``before``, ``during``
    and ``after`` the cap.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
import math
import statistics
from typing import Any

from ghsched_placement.features.blame import blame
from ghsched_placement.flavor import policy as policies

#: Name of the action in nova-api.
KEY = 'blame'

HEADER = ('Guest', 'Share %', 'Node %', 'Corr.', 'Strength',
          'Effect %', 'Interval', 'Trials', 'Not Tried')

#: Text in place of a guest of another project.
_OTHER_GUEST = 'other guest'
#: Text in place of the reason why a guest was not capped.
_UNTRIED = 'it could not be capped'
#: Figures of the server and of a suspect, in the order of the report.
_OWN_FIGURES = ('busy', 'cpu_wait', 'stalled', 'io_wait', 'cap', 'per_cycle',
                'misses', 'stalled_cycles', 'reported_cpu', 'reported_memory',
                'reported_steal', 'used')
_FIGURES = ('share', 'node_share', 'miss_share', 'correlation', 'points',
            'strength', 'effect', 'low', 'high', 'trials')

#: Maximum number of suspects in a report.
SUSPECTS_SHOWN = 10


@dataclass(frozen=True)
class GuestName:
    """Name and project of a guest; empty if unknown.

    :param project: UUID of the project.
    """

    name: str
    project: str = ''


_NOBODY = GuestName('')


def make_report(server: str, host: str, nodes: Sequence[int],
                found: blame.BlameEvidence, names: Mapping[str, GuestName],
                prove: bool) -> dict[str, Any]:
    """Return a report on which guests slow a server down, as a dict.

    :param server: UUID of the server.
    :param nodes: host NUMA nodes of the server.
    :param found: evidence about the server, with the verdict.
    :param names: names and projects of guests, by UUID.
    :param prove: whether the user asked for trials, which cap suspected guests
        for a short time.
    """
    verdict = found.verdict
    return {
        'server': {'uuid': server, 'host': host,
                   'name': names.get(server, _NOBODY).name or None},
        'verdict': {
            'kind': str(verdict.kind), 'suspect': verdict.suspect or None,
            'name': names.get(verdict.suspect, _NOBODY).name or None,
            'cause': str(verdict.cause) if verdict.cause else None,
            'value': _round_digits(verdict.value), 'proven': verdict.proven},
        'prove': prove, 'nodes': sorted(nodes),
        'load': _round_digits(found.load),
        'figure': 'instructions' if any(
            one.work is not None for one in found.samples) else 'bandwidth',
        'uncounted': str(found.uncounted) if found.uncounted else None,
        'own': _report_server_medians(server, found.samples),
        'suspects': [_report_suspect(one, names)
                     for one in found.suspects[:SUSPECTS_SHOWN]],
        'trials': [{'suspect': uuid, 'before': round(trial.before),
                    'during': round(trial.during),
                    'after': round(trial.after)}
                   for uuid, done in found.tried.items() for trial in done]}


def _report_server_medians(server: str, samples: Sequence[blame.BlameSample]
                           ) -> dict[str, float | None]:
    """Return the medians of a server's own measurements, by name.

    The measurements are busy and waiting times of vCPUs, the bandwidth cap and
    the used bandwidth. A median is None if nothing was measured.
    """
    values: dict[str, list[float | None]] = {
        name: [getattr(one, name) for one in samples]
        for name in _OWN_FIGURES[:-1]}
    values['used'] = [one.rates.get(server) for one in samples]
    known = {name: [one for one in found if one is not None]
             for name, found in values.items()}
    return {name: _round_digits(statistics.median(found)) if found else None
            for name, found in known.items()}


def _report_suspect(suspect: blame.Suspect,
                    names: Mapping[str, GuestName]) -> dict[str, Any]:
    """Return the evidence against a suspected guest, for the report.

    The suspect can also be the host itself, for traffic of no known guest.

    :param names: names and projects of guests, by UUID.
    """
    named, effect = names.get(suspect.uuid, _NOBODY), suspect.effect
    return {
        'uuid': suspect.uuid or None,
        'name': named.name or suspect.uuid or None,
        'project': named.project or None,
        'share': _round_digits(suspect.share),
        'node_share': _round_digits(suspect.node_share),
        'miss_share': _round_digits(suspect.miss_share),
        'correlation': _round_digits(suspect.correlation),
        'points': suspect.points,
        'strength': _round_digits(suspect.strength),
        'effect': _round_digits(effect.mean) if effect else None,
        'low': _round_digits(effect.low) if effect else None,
        'high': _round_digits(effect.high) if effect else None,
        'trials': effect.trials if effect else 0,
        'by_cache': bool(effect and effect.by_cache),
        'untried': suspect.untried or None}


def _round_digits(value: float | None) -> float | None:
    """Round a value to four significant digits; None for None, inf and NaN."""
    if value is None or not math.isfinite(value):
        return None
    return float(f'{value:.4g}')


def parse_prove_flag(parameters: Mapping[str, Any]) -> bool:
    """Parse the flag "prove" of a request to find who slows a server down.

    The flag asks to prove the result by trials, which cap the bandwidth of
    suspected guests for a short time.

    :param parameters: parameters of the request, by name.
    :returns: whether trials are allowed; False if the flag is missing.
    :raises PolicyError: when the request is malformed.
    """
    for name in (KEY, 'prove'):
        if not isinstance(parameters.get(name, False), bool):
            raise policies.PolicyError(name, 'must be true or false')
    if not parameters[KEY] or set(parameters) - {KEY, 'prove'}:
        raise policies.PolicyError(KEY, 'must be true; the only other '
                                        'parameter may be "prove"')
    return parameters.get('prove', False)


def hide_other_guests(report: Mapping[str, Any],
                      project: str) -> dict[str, Any]:
    """Return a copy of a report without data of other projects' guests.

    Guests of other projects are numbered instead of named. Everything else is
    a number, a known word, or the name of a guest of the user. The reason why
    a guest was not capped is left out, because it can name files and guests.

    :param report: report on which guests slow a server down.
    :param project: UUID of the user's project.
    """
    own = {one['uuid']: one['name'] for one in report['suspects']
           if one['uuid'] and one['project'] == project}
    places = {one['uuid']: f'other guest {number}' for number, one
              in enumerate(report['suspects'], 1)} | {
                  uuid: uuid for uuid in own}

    def hide(uuid: str | None) -> str | None:
        return places.get(uuid, _OTHER_GUEST) if uuid else None

    def hide_suspect(one: Mapping[str, Any]) -> dict[str, Any]:
        return {'uuid': hide(one['uuid']), 'project': None,
                'name': own.get(one['uuid'], hide(one['uuid'])),
                **_select_numbers(one, _FIGURES),
                'by_cache': one['by_cache'] is True,
                'untried': _UNTRIED if one['untried'] else None}

    verdict = report['verdict']
    return _select_own_figures(report) | {
        'verdict': {
            'kind': _as_word(verdict['kind'], _SENTENCES) or 'unknown',
            'suspect': hide(verdict['suspect']),
            'name': own.get(verdict['suspect'], hide(verdict['suspect'])),
            'cause': _as_word(verdict['cause'], tuple(blame.NonMemoryCause)),
            'value': _as_number(verdict['value']),
            'proven': verdict['proven'] is True},
        'suspects': list(map(hide_suspect, report['suspects'])),
        'trials': [{'suspect': hide(one['suspect']),
                    **_select_numbers(one, ('before', 'during', 'after'))}
                   for one in report['trials']]}


def _select_own_figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a report that concern only the server itself.

    The name of the host is left out.
    """
    server = report['server']
    return {
        'server': {'uuid': server['uuid'], 'name': server['name'],
                   'host': None},
        'prove': report['prove'] is True,
        'nodes': [node for node in report['nodes'] if type(node) is int],
        'load': _as_number(report['load']),
        'figure': _as_word(report.get('figure'),
                           ('bandwidth', 'instructions')),
        'uncounted': _as_word(report.get('uncounted'), _UNCOUNTED),
        'own': _select_numbers(report['own'], _OWN_FIGURES)}


def _select_numbers(values: Mapping[str, Any],
                    names: Iterable[str]) -> dict[str, float | None]:
    return {name: _as_number(values.get(name)) for name in names}


def _as_number(value: Any) -> float | None:
    return value if type(value) in (int, float) else None


def _as_word(value: Any, known: Collection[str]) -> str | None:
    return value if isinstance(value, str) and value in known else None


# -- text ---------------------------------------------------------------------


def list_suspect_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each suspected guest in a report.

    The columns are those of ``HEADER``.

    :param report: report on which guests slow a server down.
    """
    for one in report['suspects']:
        tried = one['effect'] is not None and one['trials'] > 1
        yield (
            one['name'] or '(the host)', _percent(one['share']),
            _percent(one['node_share']), _number(one['correlation']),
            _number(one['strength']),
            _percent(one['effect']),
            f"{_percent(one['low'])} to {_percent(one['high'])}"
            if tried else '-', str(one['trials']), one['untried'] or '-')


def _percent(value: float | None) -> str:
    return '-' if value is None else f'{100 * value:.0f}'


def _number(value: float | None) -> str:
    return '-' if value is None else f'{value:.2f}'


def summarize_verdict(report: Mapping[str, Any]) -> str:
    """Return sentences on which guest slows a server down, if any.

    If the host could not count instructions and cache misses as evidence, the
    last sentence says why.

    :param report: report on which guests slow a server down.
    """
    verdict, own = report['verdict'], report['own']
    name = report['server']['name'] or report['server']['uuid']
    text = _SENTENCES[verdict['kind']](name, verdict, own, report)
    if own.get('reported_cpu') is not None:
        text += (f' {name} itself reports that its tasks wait for a vCPU '
                 f'{_percent(own["reported_cpu"])} % and for memory '
                 f'{_percent(own["reported_memory"])} % of the time, and that '
                 f'{_percent(own["reported_steal"])} % of its CPU time went '
                 'to others.')
    # nova-compute of an older release does not report it.
    reason = report.get('uncounted')
    if not reason or verdict['kind'] in _WITHOUT_COUNTERS:
        return text
    return (f'{text} Instructions and cache misses are not among the '
            f'evidence: {_UNCOUNTED.get(reason, reason)}.')


def _describe_guest(name: str, verdict: Mapping[str, Any], _own: Any,
                    report: Mapping[str, Any]) -> str:
    guest = verdict['name'] or verdict['suspect']
    one: Mapping[str, Any] = next(
        (one for one in report['suspects']
         if one['uuid'] == verdict['suspect']), {})
    # nova-compute of an older release does not report it.
    missed = one.get('miss_share')
    if not verdict['proven']:
        return (f'{guest} probably disturbs {name} most, by its share of the '
                'bandwidth' + (
                    '' if missed is None else
                    f' ({_percent(missed)} % of the cache misses of other '
                    'guests are its)')
                + ('; no trial has shown it.' if report['prove']
                   else '; --prove shows whether it does.'))
    return (f'{guest} disturbs {name}: while it was capped, {name} '
            + ('fetched from memory' if one['by_cache'] else 'did')
            + f' {_percent(one["effect"])} % '
            + ('less' if one['by_cache'] else 'more')
            + f' ({_percent(one["low"])} to {_percent(one["high"])} %, '
            f'{one["trials"]} trials).')


def _describe_host(name: str, *_rest: Any) -> str:
    return (f'No measured guest disturbs {name} most. Most memory traffic on '
            'its host NUMA nodes comes from processes and devices of the '
            'host, or from guests without ghsched:monitor.')


def _describe_other(name: str, verdict: Mapping[str, Any],
                    own: Mapping[str, Any], _report: Any) -> str:
    figure = f'{_percent(verdict["value"])} %'
    text = {
        blame.NonMemoryCause.OWN_CAP:
            f'it uses {figure} of the bandwidth that its own cap allows',
        blame.NonMemoryCause.CPU_WAIT:
            f'its vCPUs wait for host CPUs {figure} of the time',
        blame.NonMemoryCause.RECLAIM:
            f'it waits for memory to be reclaimed {figure} of the time',
        blame.NonMemoryCause.IO: f'it waits for I/O {figure} of the time',
        blame.NonMemoryCause.OWN_MEMORY:
            f'it reports that its tasks wait for its own memory {figure} of '
            'the time, so it has too little',
        blame.NonMemoryCause.IDLE:
            f'its vCPUs are idle (busy {figure} of the time)',
    }[blame.NonMemoryCause(verdict['cause'])]
    return (f'The memory traffic of other guests is not what limits {name}: '
            f'{text}. No guest was capped.')


def _describe_no_suspect(name: str, verdict: Mapping[str, Any], _own: Any,
                         report: Mapping[str, Any]) -> str:
    load = report['load']
    text = f'No guest disturbs {name} by its memory traffic'
    if verdict['proven']:
        text += f': {name} was as fast while other guests were capped'
    elif report['trials']:
        text += ', as far as the trials show: none has a clear effect'
    if load is not None:
        text += (f'. The host NUMA nodes of {name} deliver {_percent(load)} % '
                 'of the bandwidth that they can')
    return text + '.'


def _describe_unknown_cause(name: str, *_rest: Any) -> str:
    return (f'Cannot tell whether a guest disturbs {name}: its memory '
            'bandwidth is not measured. Its flavor needs ghsched:monitor or a '
            'bandwidth policy.')


#: Verdicts that counters do not change.
_WITHOUT_COUNTERS = (blame.VerdictKind.NOT_MEMORY, blame.VerdictKind.UNKNOWN)

_UNCOUNTED = {
    blame.UncountedReason.NO_COUNTERS:
        'the host has no performance counters',
    blame.UncountedReason.REFUSED:
        'the kernel of the host refuses to count them, which needs '
        'CAP_PERFMON and Linux 5.13',
    blame.UncountedReason.FAILED:
        'they could not be counted, see the log of the host'}

_SENTENCES = {
    blame.VerdictKind.GUEST: _describe_guest,
    blame.VerdictKind.HOST: _describe_host,
    blame.VerdictKind.NOT_MEMORY: _describe_other,
    blame.VerdictKind.NOBODY: _describe_no_suspect,
    blame.VerdictKind.UNKNOWN: _describe_unknown_cause}
