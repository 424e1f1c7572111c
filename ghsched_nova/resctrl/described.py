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


"""Controls as ``info/*/resource_schemata`` describes them (pure).

The directory may also be named ``resource_schema`` (answers of June 2026).
Each directory there is a line of schemata, with a file for each property. A
control that changes when another one is written is in the directory of that
one. The files, their words and the arithmetic are those of the linux-kernel
list: "fs/resctrl: Generic schema description" (Dave Martin, 24 October 2025)
and its proof of concept (Reinette Chatre, 29 May 2026, with the answers of
June 2026). No kernel up to Linux 7.3 has them.

:func:`add_described_knobs` turns descriptions into the knobs of a
:class:`ghsched_nova.resctrl.dialects.Dialect`, which is what the engine works
with, whether a table or the kernel has described them.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from fractions import Fraction
import re
from typing import Literal

from ghsched_nova.resctrl import knobs
from ghsched_nova.resctrl import schemata

#: Directories with descriptions, in the directory of a resource.
DIRECTORIES = ('resource_schemata', 'resource_schema')
_PATH = re.compile(f'([^/]+)/(?:{"|".join(DIRECTORIES)})/(.+)/type')
_NUMBER = re.compile(r'-?(0x[0-9a-fA-F]{1,16}|[0-9]{1,18})')
_NAME = re.compile(r'[A-Z][A-Z0-9_]{0,31}')
#: Names of a file with the value of a new group. The list has asked for one
#: (``membw.reset_val``) and not named it.
_RESET_FILES = ('reset', 'reset_val', 'default')

#: Bytes per second of the units of absolute controls.
_BYTES_PER_S = {'Bps': 1, 'KBps': 10 ** 3, 'MBps': 10 ** 6, 'GBps': 10 ** 9,
                'MiBps': 2 ** 20, 'GiBps': 2 ** 30}

#: Parts of a policy by the last word of a control's name.
_ROLES: Mapping[str, knobs.Role] = {
    'MIN': 'minimum', 'MAX': 'maximum', 'NODE': 'maximum', 'GMB': 'maximum',
    'HLIM': 'hardlimit', 'HARDLIM': 'hardlimit', 'HARDLIMIT': 'hardlimit',
    'PRI': 'priority', 'PRIO': 'priority', 'PRIORITY': 'priority'}
#: Last words of caps, and then of guarantees, in the order of their use.
_ORDER = ('MAX', 'NODE', 'GMB', 'MIN')
#: Controls of a part of the memory (Intel, region-aware RDT).
_REGION = re.compile(r'.*_REGION[0-9]+(_.*)?')
_DOMAIN_KINDS: Mapping[str, knobs.DomainKind] = {'L3': 'l3', 'NODE': 'numa'}


@dataclass(frozen=True)
class Control:
    """Schemata line as the kernel describes it below info/.

    :param resource: resctrl resource of the line, a directory in info/, e.g.
        ``MB``.
    :param name: name of the line, and of the directory with its description.
    :param kind: whether a value is a number or a bit mask.
    :param flags: properties of the values: ``linear``, ``sparse``.
    :param minimum: lowest value that can be written.
    :param maximum: highest value that can be written.
    :param unit: unit such as ``MBps``; ``all`` if a value is a share of the
        resource.
    :param scale: factor from values to units; a value stands for value *
        ``scale`` / ``resolution`` units.
    :param resolution: divisor from values to units, see ``scale``.
    :param tolerance: maximum difference between the written value and the one
        in effect; None if the kernel does not describe it.
    :param scope: kind of the resctrl domains: ``L3`` or ``NODE``; empty if the
        kernel does not describe it.
    :param reset: value of a new control group; None if the kernel does not
        describe it.
    :param parent: name of the line that changes this one when it is written;
        empty for none.
    """

    resource: str
    name: str
    kind: Literal['scalar', 'bitmap']
    minimum: int
    maximum: int
    flags: frozenset[str] = frozenset()
    unit: str = 'all'
    scale: int = 1
    resolution: int = 1
    tolerance: int | None = None
    scope: str = ''
    reset: int | None = None
    parent: str = ''

    @property
    def is_linear(self) -> bool:
        """Whether the allowed bandwidth is proportional to the schemata value.
        """
        return self.kind == 'scalar' and 'linear' in self.flags

    @property
    def full_value(self) -> Fraction | None:
        """Schemata value that does not limit the bandwidth.

        The value is None if the schemata line has absolute units.
        """
        if self.unit != 'all':
            return None
        return Fraction(self.resolution, self.scale)

    @property
    def unit_bytes_per_s(self) -> Fraction | None:
        """Bytes per second that a schemata value of 1 means.

        The value is None if the schemata line has relative units.
        """
        size = _BYTES_PER_S.get(self.unit)
        return Fraction(size * self.scale, self.resolution) if size else None

    @property
    def role(self) -> knobs.Role | None:
        """Purpose of this schemata line in a bandwidth policy.

        The value is ``maximum`` for a cap, ``minimum`` for a guarantee,
        ``hardlimit`` for a switch that makes caps hard, and ``priority`` for a
        priority. The value is None if ghsched cannot use the line.
        """
        if not self.is_linear or _REGION.fullmatch(self.name):
            return None
        word = self.name.rpartition('_')[2]
        role = 'maximum' if self.name == self.resource else _ROLES.get(word)
        if not self.full_value and (role == 'minimum' or (
                role == 'maximum' and not self.unit_bytes_per_s)):
            return None
        if role == 'hardlimit' and (self.minimum, self.maximum) != (0, 1):
            return None
        return role


def parse_controls(info: Mapping[str, str]) -> tuple[Control, ...]:
    """Return the bandwidth controls that the kernel describes below info/.

    New kernels describe each schemata line in files. Incomplete or
    contradictory descriptions are left out.

    :param info: text of the files below info/, by path.
    """
    controls = (_parse_control(found, info) for found in map(
        _PATH.fullmatch, sorted(info)) if found)
    return tuple(control for control in controls if control)


def _parse_control(path: re.Match[str], info: Mapping[str, str]
                   ) -> Control | None:
    resource, below = path.groups()
    top = path[0].removesuffix('/type')
    *parents, name = below.split('/')
    kind, *flags = info[path[0]].split() or ['']
    if kind not in ('scalar', 'bitmap') or not _NAME.fullmatch(name):
        return None

    def read_number(file: str) -> int | None:
        text = info.get(f'{top}/{file}', '').strip()
        return int(text, 0 if 'x' in text else 10) if (
            _NUMBER.fullmatch(text)) else None

    minimum, maximum = read_number('min'), read_number('max')
    scale, resolution = read_number('scale'), read_number('resolution')
    tolerance = read_number('tolerance')
    if (minimum is None or maximum is None or not scale or not resolution
            or not 0 <= minimum <= maximum < 2 ** 32
            or min(scale, resolution) < 0):
        return None
    resets = (read_number(file) for file in _RESET_FILES)
    return Control(
        resource, name, 'scalar' if kind == 'scalar' else 'bitmap',
        minimum, maximum, frozenset(flags),
        info.get(f'{top}/unit', '').strip(), scale, resolution,
        None if tolerance is None or tolerance < 0 else tolerance,
        info.get(f'{top}/scope', '').strip(),
        next((reset for reset in resets if reset is not None
              and minimum <= reset <= maximum), None),
        parents[-1] if parents else '')


# -- descriptions -> knobs ----------------------------------------------------


def add_described_knobs(known: Sequence[knobs.Knob],
                        controls: Sequence[Control], root: schemata.Schemata
                        ) -> tuple[knobs.Knob, ...]:
    """Return the known bandwidth controls and those described by the kernel.

    New kernels describe each schemata line in files below info/. Described
    lines that ghsched cannot use are left out.

    :param known: controls that ghsched knows without a description; they take
        precedence.
    :param controls: descriptions of the resource MB.
    :param root: schemata of the root group.
    :returns: the known controls first.
    """
    found = list(known)
    for control in sorted(controls, key=make_control_preference_key):
        if (control.parent or root.line(control.name) is None
                or any(knob.line == control.name for knob in found)):
            continue
        knob = _convert_control(control, found, controls, root)
        if knob is not None:
            found.append(knob)
    return tuple(found)


def make_control_preference_key(control: Control) -> tuple[bool, int, str]:
    """Return a sort key of a schemata line that puts preferred lines first.

    If the kernel describes several lines for one purpose, ghsched uses the
    first. The line that is named like its resource, e.g. MB, comes first. The
    other lines follow in the order of the last words of their names.
    """
    word = control.name.rpartition('_')[2]
    order = _ORDER.index(word) if word in _ORDER else len(_ORDER)
    return control.name != control.resource, order, control.name


def _convert_control(
    control: Control,
    used: Sequence[knobs.Knob],
    controls: Sequence[Control],
    root: schemata.Schemata,
) -> knobs.Knob | None:
    """Return the bandwidth control for a schemata line's description.

    :param control: the kernel's description of the line.
    :param used: controls that are in use already.
    :param controls: all descriptions of the resource.
    :param root: schemata of the root group.
    :returns: None if ghsched cannot use the described control.
    """
    role, reset = control.role, _find_default_value(control, root)
    if role == 'minimum' and (reset is None or reset == control.maximum):
        role = None     # a floor that all groups have in full is no guarantee
    if role is None:
        role = 'kept' if control.reset is not None else None
    elif any(knob.role == role for knob in used):
        # A second cap may be another view of the first, unless it is of
        # other domains (AMD's GMB beside MB).
        holder = next(knob for knob in used if knob.role == role)
        scopes = [one.scope for one in controls
                  if one.name in (holder.line, control.name)]
        role = ('kept' if role == 'maximum' and len(set(scopes)) == 2
                and all(scopes) else None)
    elif not _has_same_domains(control, used, root):
        role = None
    if role is None or (role == 'kept' and reset is None):
        return None
    knob = knobs.Knob(
        role, control.name, control.minimum, control.maximum, reset,
        whole=control.full_value or Fraction(100),
        tolerance=1 if control.tolerance is None else control.tolerance)
    return knob if role != 'minimum' or knob.list_percentages() else None


def _has_same_domains(control: Control, used: Sequence[knobs.Knob],
                      root: schemata.Schemata) -> bool:
    """Whether a schemata line has the same resctrl domains as lines in use.

    :param control: the kernel's description of the line.
    :param used: controls in use. Their lines have the same domains, so only
        the first is compared.
    :param root: schemata of the root group.
    """
    lines = [root.line(name) for name in
             (control.name, *(knob.line for knob in used[:1]))]
    return len({frozenset(dict(line.values)) for line in lines
                if line is not None}) == 1


def _find_default_value(
    control: Control, root: schemata.Schemata
) -> int | None:
    """Return the value that a schemata line has in a new control group.

    A cap starts at its highest value. A guarantee starts at its lowest value,
    or at its highest if the root group has the highest value on all domains.

    :param control: the kernel's description of the line.
    :param root: schemata of the root group.
    :returns: None if the value is unknown.
    """
    if control.reset is not None or not control.is_linear:
        return control.reset
    if control.role == 'maximum':
        return control.maximum
    if control.role != 'minimum':
        return None
    line = root.line(control.name)
    full = line is not None and all(
        text == str(control.maximum) for _domain, text in line.values)
    return control.maximum if full else control.minimum


def filter_controls_by_resource(
    controls: Sequence[Control], resource: str
) -> Iterator[Control]:
    """Yield the kernel-described schemata lines of one resctrl resource.

    New kernels describe each schemata line in files below info/.

    :param resource: name of the resource, e.g. ``MB`` for memory bandwidth.
    """
    return (one for one in controls if one.resource == resource)


def get_domain_kind(controls: Sequence[Control], line: str
                    ) -> knobs.DomainKind | None:
    """Return of which kind the domains of a schemata line are.

    :param controls: the kernel's descriptions of schemata lines.
    :param line: name of the line.
    :returns: ``l3`` for L3 caches, ``numa`` for NUMA nodes; None if the kernel
        does not describe the line.
    """
    return next((_DOMAIN_KINDS.get(one.scope) for one in controls
                 if one.name == line), None)


def apply_described_maximum(knob: knobs.Knob, controls: Sequence[Control]
                            ) -> knobs.Knob:
    """Set the maximum of a bandwidth control to the one below info/.

    :param knob: the control. It is returned unchanged if its maximum is the
        same on all machines, or if the kernel does not describe its line.
    :param controls: the kernel's descriptions of schemata lines.
    :returns: the control with the maximum that the kernel describes.
    """
    control = next((one for one in controls if one.name == knob.line), None)
    if control is None or not knob.power:
        return knob
    return replace(knob, maximum=control.maximum, default=control.maximum,
                   power=False)
