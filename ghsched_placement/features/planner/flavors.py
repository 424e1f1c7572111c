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

"""Flavors to plan with (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
import re
from typing import Any

from ghsched_placement.features.planner.client import PlannerError

_SIZES = ('vcpus', 'ram', 'disk', 'swap')
_NUMBER = re.compile('[0-9]{1,9}')


@dataclass(frozen=True)
class Flavor:
    """Flavor as in Nova: name, size and extra specs.

    :param ram: memory in MiB.
    :param disk: root and ephemeral disks together, in GiB.
    :param swap: swap disk in MiB.
    """

    name: str
    vcpus: int
    ram: int
    disk: int = 0
    swap: int = 0
    extra_specs: Mapping[str, str] = field(default_factory=dict)


def parse_flavor_argument(text: str) -> Flavor:
    """Parse a flavor that is described in a command-line argument.

    The form is ``NAME:vcpus=N,ram=MB[,EXTRA:SPEC=VALUE]...``. Values may
    contain commas: text after a comma that has no equals sign belongs to the
    preceding value.

    :raises PlannerError: if the text does not have this form.
    """
    name, colon, rest = text.partition(':')
    if not colon or not name.strip() or '=' in name:
        raise PlannerError(f'flavor {text!r}: is not NAME:KEY=VALUE,...')
    pairs: list[tuple[str, str]] = []
    for part in rest.split(','):
        key, equals, value = part.partition('=')
        if equals:
            pairs.append((key.strip(), value))
        elif pairs:
            pairs[-1] = pairs[-1][0], f'{pairs[-1][1]},{part}'
        else:
            raise PlannerError(f'flavor {name}: {part!r} is not KEY=VALUE')
    twice = {key for key, _ in pairs if [k for k, _ in pairs].count(key) > 1}
    if twice:
        raise PlannerError(f'flavor {name}: {min(twice)} is given twice')
    return build_flavor(name.strip(), dict(pairs))


def build_flavor(name: str, mapping: Mapping[str, Any]) -> Flavor:
    """Build a flavor from a mapping, such as parsed YAML or JSON.

    Extra specs may also be in a mapping of their own, ``extra_specs``.

    :raises PlannerError: if a field is missing, unknown or not a number.
    """
    left = dict(mapping)
    sizes = {key: _parse_size(name, key, left.pop(key)) for key in _SIZES
             if key in left}
    specs = left.pop('extra_specs', {})
    if not isinstance(specs, Mapping):
        raise PlannerError(f'flavor {name}: extra_specs: must be a mapping')
    for key in left:
        if ':' not in str(key) and key != 'group_policy':
            raise PlannerError(
                f'flavor {name}: {key}: unknown; it is not one of '
                f'{", ".join(_SIZES)} and no extra spec')
    for key in ('vcpus', 'ram'):
        if not sizes.get(key):
            raise PlannerError(f'flavor {name}: {key}: is missing or 0')
    return Flavor(
        name=name, **sizes, extra_specs={
            str(key): _format_extra_spec_value(value)
            for key, value in {**specs, **left}.items()})


def parse_flavor_mix(text: str, flavors: Mapping[str,
                                                 Flavor]) -> dict[str, int]:
    """Parse the command-line argument ``NAME=N,NAME=N`` that describes a mix.

    N is the number of guests of the flavor NAME in the mix.

    :param flavors: known flavors, by name.
    :raises PlannerError: if a flavor is unknown or a number is invalid.
    """
    mix: dict[str, int] = {}
    for part in text.split(','):
        name, equals, number = part.strip().partition('=')
        if not equals or not _NUMBER.fullmatch(number) or not int(number):
            raise PlannerError(f'mix: {part!r} is not NAME=N with N from 1')
        if name not in flavors:
            raise PlannerError(f'mix: {name!r} is not one of the flavors '
                               + ', '.join(flavors))
        if name in mix:
            raise PlannerError(f'mix: {name} is given twice')
        mix[name] = int(number)
    return mix


def _parse_size(name: str, key: str, value: Any) -> int:
    if isinstance(value, bool) or not _NUMBER.fullmatch(str(value).strip()):
        raise PlannerError(f'flavor {name}: {key}: {value!r} is not a whole '
                           'number')
    return int(value)


def _format_extra_spec_value(value: Any) -> str:
    """Convert a value from a YAML file to the text of an extra spec."""
    return str(value).lower() if isinstance(value, bool) else str(value)
