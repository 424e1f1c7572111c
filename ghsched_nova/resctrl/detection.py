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

"""Detection of a host's dialect (variant of resctrl).

The dialect is detected from the files of resctrl. Boot parameters and mount
options are not used, because the kernel may have ignored them.
"""

from collections.abc import Iterator
from collections.abc import Sequence
from collections.abc import Set
from dataclasses import replace

from ghsched_nova.resctrl import described
from ghsched_nova.resctrl import dialects
from ghsched_nova.resctrl.dialects import Dialect
from ghsched_nova.resctrl.dialects import DialectEvidence
from ghsched_nova.resctrl.dialects import Info
from ghsched_nova.resctrl.knobs import Knob
from ghsched_nova.resctrl.knobs import PERCENT_WHOLE
from ghsched_nova.resctrl.knobs import Unit
from ghsched_nova.resctrl import rounding
from ghsched_nova.resctrl import schemata
from ghsched_placement.base import decimals


def detect_dialect(info: Info, root: schemata.Schemata,
                   group_files: Set[str] = frozenset()) -> Dialect | None:
    """Return which dialect (known variant of resctrl) this host has.

    The result contains only the bandwidth controls that the host has.

    :param info: text of the files below resctrl's info/, by path.
    :param root: schemata of the root group.
    :param group_files: names of the files in the root group.
    :returns: None if no dialect, or more than one, matches the host.
    """
    fitting = list_fitting_dialects(info, root, group_files)
    controls = tuple(
        described.filter_controls_by_resource(
            described.parse_controls(info), 'MB'
        )
    )
    if len(fitting) == 1 and _matches_described_cap(fitting[0], controls):
        lines = frozenset(line.name for line in root.lines)
        found = _apply_kernel_maximums(
            fitting[0].restrict_to_lines(lines), info
        )
    else:
        found = _make_described_dialect(controls, root)
    knobs = described.add_described_knobs(
        [
            described.apply_described_maximum(knob, controls)
            for knob in found.knobs
        ],
        controls,
        root,
    )
    if not any(knob.role in ('maximum', 'minimum') for knob in knobs):
        return None
    found = replace(found, knobs=knobs)
    return replace(found, domain_kind=described.get_domain_kind(
        controls, found.cap_or_guarantee_knob.line) or found.domain_kind)


def _matches_described_cap(
    dialect: Dialect, controls: Sequence[described.Control]
) -> bool:
    """Whether the kernel describes the cap in the unit that a dialect expects.

    A dialect is a known variant of resctrl.
    """
    lines = {knob.line for knob in dialect.knobs if knob.role == 'maximum'}
    return all(
        control.unit_bytes_per_s == dialect.unit.size
        if dialect.has_absolute_caps else control.full_value == PERCENT_WHOLE
        for control in controls if control.name in lines)


def _make_described_dialect(controls: Sequence[described.Control],
                            root: schemata.Schemata) -> Dialect:
    """Return a dialect for a host whose kernel describes its schemata lines.

    A dialect is a variant of resctrl. It gets the unit in which the kernel
    describes the bandwidth cap. The caller adds the bandwidth controls.

    :param controls: the kernel's descriptions of schemata lines.
    :param root: schemata of the root group.
    """
    cap = next(
        (
            control
            for control in sorted(
                controls, key=described.make_control_preference_key
            )
            if control.role == 'maximum'
            and not control.parent
            and root.line(control.name)
        ),
        None,
    )
    size = cap.unit_bytes_per_s if cap else None
    return dialects.SELF_DESCRIBED if cap is None or size is None else replace(
        dialects.SELF_DESCRIBED, unit=Unit(f'{float(size):g} bytes/s', size))


def list_fitting_dialects(
    info: Info, root: schemata.Schemata, group_files: Set[str] = frozenset()
) -> list[Dialect]:
    """Return the dialects (variants of resctrl) that fit a host best.

    These are the matching dialects that lack the fewest of the host's
    bandwidth lines. A new kernel may have lines that no dialect has, so a
    missing line does not exclude a dialect.

    :param info: text of the files below resctrl's info/, by path.
    :param root: schemata of the root group.
    :param group_files: names of the files in the root group.
    """
    unknown = {dialect.name: len(list_unknown_lines(dialect, root))
               for dialect in dialects.ALL
               if not explain_mismatch(dialect, info, root, group_files)}
    return [dialect for dialect in dialects.ALL
            if unknown.get(dialect.name) == min(unknown.values(), default=0)]


def list_unknown_lines(dialect: Dialect, root: schemata.Schemata
                       ) -> tuple[schemata.Line, ...]:
    """Return a host's bandwidth lines that a resctrl dialect does not know.

    A dialect is a known variant of resctrl.

    :param root: schemata of the root group.
    """
    return tuple(line for line in root.lines if line.name.startswith('MB')
                 and line.name not in dialect.line_names)


def describe_unused_controls(
    dialect: Dialect, root: schemata.Schemata
) -> tuple[str, ...]:
    """Describe bandwidth lines of a host that ghsched does not use.

    These are lines that ghsched does not know, and lines that weaken caps. The
    text is for administrators.

    :param root: schemata of the root group.
    """
    unknown = tuple(
        f'the line {line.name} is not known to ghsched and never written; '
        'the root group holds '
        + (line.body or schemata.render_values(line.values) or 'nothing')
        for line in list_unknown_lines(dialect, root))
    return unknown + tuple(describe_reduced_caps(root))


#: Note about hosts whose caps also slow the threads beside a capped thread.
THREAD_NOTE = ('a cap slows all threads of a core, also the sibling thread of '
               'another guest (info/MB/thread_throttle_mode is max)')


def describe_thread_throttling(info: Info) -> Iterator[str]:
    """Describe whether a bandwidth cap slows the sibling threads of a core.

    Documentation/filesystems/resctrl.rst: in the mode ``max`` the lowest cap
    of the threads of a core applies to all of them.

    :param info: text of the files below resctrl's info/, by path.
    """
    if info.get('MB/thread_throttle_mode', '').strip() == 'max':
        yield THREAD_NOTE


def describe_reduced_caps(group: schemata.Schemata) -> Iterator[str]:
    """Describe schemata lines that limit a group to less than its cap.

    A line such as GMB limits the bandwidth of a group in addition to the cap
    in the line MB.

    :param group: schemata of the control group.
    :returns: one text per line that is below its highest value.
    """
    for name in dialects.LIMITING:
        values = _get_values(group, name)
        if not values:
            continue
        # The highest value is the end of a field, a power of two.
        highest = 1 << (max(*values.values(), 1) - 1).bit_length()
        lowered = {domain: str(value) for domain, value in values.items()
                   if value < highest}
        if lowered:
            yield (f'the line {name} holds '
                   f'{schemata.render_values(tuple(lowered.items()))}, below '
                   f'its highest value {highest}: caps give less than MB '
                   'says')


def explain_unknown_dialect(info: Info, root: schemata.Schemata,
                            group_files: Set[str] = frozenset()) -> str:
    """Return why no dialect (known variant of resctrl) matches this host.

    :returns: one sentence.
    """
    reasons = [
        f'not {dialect.title}, because '
        + (
            explain_mismatch(dialect, info, root, group_files)
            or 'others fit as well'
        )
        for dialect in dialects.ALL
    ]
    return '; '.join(reasons)


def explain_mismatch(dialect: Dialect, info: Info, root: schemata.Schemata,
                     group_files: Set[str] = frozenset()) -> str | None:
    """Return why a dialect (known variant of resctrl) does not match a host.

    :returns: None if the dialect matches.
    """
    return next(_find_mismatches(dialect, info, root, group_files), None)


def _find_mismatches(
        dialect: Dialect, info: Info, root: schemata.Schemata,
        group_files: Set[str]) -> Iterator[str]:
    evidence = dialect.evidence
    yield from _find_wrong_info_files(evidence, info)
    if evidence.throttled and 'MB/thread_throttle_mode' not in info and (
            not _has_steps_of_intel(info)):
        yield ('there is no info/MB/thread_throttle_mode, and '
               'info/MB/bandwidth_gran and min_bandwidth are not those of '
               'Intel alone')
    yield from _find_missing_evidence(evidence, info, root)
    if evidence.no_group_file and evidence.no_group_file in group_files:
        yield f'the root group has a file {evidence.no_group_file}'
    line = root.line('MB')
    if evidence.group_file and evidence.group_file not in group_files and (
            max(_get_values(root, 'MB').values(), default=0) <= 100):
        yield (f'the root group has no file {evidence.group_file}, and no MB '
               'above 100')
    if evidence.unpadded and line is not None and any(
            len(value) > 1 and value.startswith('0')
            for _domain, value in line.values):
        yield 'the values of the MB line are padded with zeros'
    yield from _find_wrong_values(dialect, info, root)


def _apply_kernel_maximums(dialect: Dialect, info: Info) -> Dialect:
    """Return a dialect with the highest values that the kernel accepts.

    A dialect is a known variant of resctrl. The file info/MB/features gives
    the highest value of each setting of memory bandwidth, as ``name@value``.
    """
    maximums = dict(word.split('@', 1) for word in
                    info.get('MB/features', '').split() if '@' in word)

    def measured(knob: Knob) -> Knob:
        highest = decimals.parse_decimal(maximums.get(knob.feature, ''))
        if highest is None:
            return knob
        return replace(knob, maximum=min(knob.maximum, highest))

    return replace(dialect, knobs=tuple(map(measured, dialect.knobs)))


def _find_wrong_info_files(evidence: DialectEvidence,
                           info: Info) -> Iterator[str]:
    for file in evidence.files:
        if file not in info:
            yield f'there is no info/{file}'
    for file in evidence.no_files:
        if file in info:
            yield f'there is an info/{file}'
    for file, text in evidence.content:
        if info.get(file, text).strip() != text:
            yield f'info/{file} is not {text}'


def _has_steps_of_intel(info: Info) -> bool:
    """Whether the steps of caps are those that only Intel's processors have.

    In __get_mem_config_intel() both are 100 less the highest delay. The files
    of sparse masks came with Linux 6.7.
    """
    step = _read_granularity(info)
    return (step is not None and step[0] == step[1]
            and step not in rounding.FRACTIONS
            and {'L3/sparse_masks', 'L2/sparse_masks'}.isdisjoint(info))


def _find_missing_evidence(
        evidence: DialectEvidence, info: Info,
        root: schemata.Schemata) -> Iterator[str]:
    lines, files = evidence.any_line, evidence.any_file
    names = frozenset(line.name for line in root.lines)
    if (lines or files) and names.isdisjoint(lines) and (
            info.keys().isdisjoint(files)):
        yield ('the root group has none of the lines ' + ', '.join(lines)
               + ''.join(f', and there is no info/{file}' for file in files))


def _get_values(root: schemata.Schemata, line: str) -> dict[int, int]:
    try:
        return root.values(line) or {}
    except schemata.SchemataError:
        return {}


def _find_wrong_values(dialect: Dialect, info: Info,
                       root: schemata.Schemata) -> Iterator[str]:
    caps = []
    for knob in dialect.knobs:
        try:
            values = root.values(knob.line)
        except schemata.SchemataError as exc:
            yield str(exc)
            continue
        if knob.role == 'maximum':
            caps.append(values is not None)
        for domain, value in (values or {}).items():
            if not knob.can_show(value):
                lowest = knob.minimum if knob.lowest is None else knob.lowest
                yield (f'{knob.line} of domain {domain} is {value}, outside '
                       f'{lowest}..{knob.maximum}')
        if knob.fraction and _read_granularity(info) not in rounding.FRACTIONS:
            yield ('info/MB/bandwidth_gran and min_bandwidth are those of no '
                   'MPAM control')
    lines = [knob.line for knob in dialect.knobs if knob.role == 'maximum']
    if not any(caps):
        yield 'the root group has no line ' + ' or '.join(lines)
    if caps.count(True) > 1:
        yield 'the root group has the lines ' + ' and '.join(lines)


def _read_granularity(info: Info) -> tuple[int, int] | None:
    """Return the granularity and the minimum of caps, from info/MB.

    Returns None if one of the two is missing or malformed.
    """
    step, least = (decimals.parse_decimal(info.get(f'MB/{name}', ''))
                   for name in ('bandwidth_gran', 'min_bandwidth'))
    return None if step is None or least is None else (step, least)
