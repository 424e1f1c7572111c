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

"""Values of the keys of ghsched, parsed one by one (pure)."""

import re

from ghsched_placement.base import cpulist
from ghsched_placement.base.errors import PolicyError
from ghsched_placement.flavor import keys
from ghsched_placement.flavor import vcpu_classes

PREFIX = keys.NAMESPACE + ':'
_INT = re.compile(r'[+-]?[0-9]+')
_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9_.-]{0,62}')
_DEVICES = re.compile(r'\s*([^\s:,](?:[^:,]*[^\s:,])?)\s*:'
                      r'\s*([1-9][0-9]{0,3})\s*')

#: Digits of the largest number that any key can have.
_MOST_DIGITS = 9

NEEDS_TOPOLOGY = (f'needs a guest NUMA topology; set {keys.NUMA_NODES} or '
                  f'{keys.NUMA.extra_spec} in the flavor')

#: Value of a key of kind ``devices``: pairs of PCI alias and number, in order.
Devices = tuple[tuple[str, int], ...]

Value = int | bool | str | Devices | vcpu_classes.NamedVcpus


def parse_extra_spec_value(extra_spec: str, key: keys.Key, text: str) -> Value:
    """Parse and validate the value of a ghsched extra spec.

    :param extra_spec: full name of the extra spec, for the error.
    :param key: definition of the extra spec, with its type and range.
    :param text: the value as text.
    :raises PolicyError: for a value that the extra spec cannot have.
    """
    text = str(text).strip()
    if key.kind == 'bool':
        # Slow to import; a command that only looks needs it seldom.
        from oslo_utils import strutils

        try:
            return bool(strutils.bool_from_string(text, strict=True))
        except ValueError:
            raise PolicyError(
                extra_spec, f'{text!r} is neither true nor false') from None
    if key.kind == 'enum':
        if text not in key.choices:
            raise PolicyError(
                extra_spec,
                f'{text!r} is not one of {", ".join(key.choices)}')
        return text
    if key.kind == 'name':
        return _parse_name(extra_spec, text)
    if key.kind == 'devices':
        return _parse_devices(extra_spec, text)
    if key.kind == 'vcpus':
        parse_vcpu_mask(extra_spec, text)
        return text
    if key.kind == 'classes':
        return vcpu_classes.parse_vcpu_classes(text)
    return _parse_number(extra_spec, key, text)


def parse_vcpu_mask(extra_spec: str, mask: str,
                    count: int = 0) -> frozenset[int]:
    """Parse a mask such as ``2-3`` or ``^0-1`` into a set of vCPU numbers.

    ``^`` selects all vCPUs except the listed ones.

    :param extra_spec: full name of the extra spec, for the error.
    :param count: number of vCPUs of the guest, needed for masks with ``^``.
    :raises PolicyError: for a malformed mask.
    """
    rules = [rule.strip() for rule in mask.split(',')]
    if all(rule.startswith('^') for rule in rules):
        rules.insert(0, f'0-{max(count, 1) - 1}')
    try:
        if not all(rules):
            raise cpulist.CpuListError(f'{mask!r} has an empty part')
        return cpulist.parse_cpu_list(','.join(rules))
    except cpulist.CpuListError as error:
        raise PolicyError(extra_spec, str(error)) from None


def _parse_name(extra_spec: str, text: str) -> str:
    if not _NAME.fullmatch(text):
        raise PolicyError(
            extra_spec, f'{text!r} is not a name of 1 to 63 letters, digits, '
                        'dots, hyphens and underscores that begins with a '
                        'letter or a digit')
    return text


def _parse_number(extra_spec: str, key: keys.Key, text: str) -> int:
    if not _INT.fullmatch(text):
        raise PolicyError(extra_spec, f'{text!r} is not a whole number')
    is_negative = text[0] == '-'
    digits = text.lstrip('+-').lstrip('0') or '0'
    if len(digits) > _MOST_DIGITS:
        limit = (f'less than {key.minimum or 0}' if is_negative else
                 f'greater than {key.maximum or 10 ** _MOST_DIGITS - 1}')
        raise PolicyError(
            extra_spec, f'the number of {len(digits)} digits is {limit}')
    number = -int(digits) if is_negative else int(digits)
    if key.minimum is not None and number < key.minimum:
        raise PolicyError(extra_spec, f'{number} is less than {key.minimum}')
    if key.maximum is not None and number > key.maximum:
        raise PolicyError(extra_spec,
                          f'{number} is greater than {key.maximum}')
    return number


def _parse_devices(extra_spec: str, text: str) -> Devices:
    found: list[tuple[str, int]] = []
    for part in text.split(','):
        match = _DEVICES.fullmatch(part)
        if match is None:
            raise PolicyError(
                extra_spec, f'{part.strip()!r} is not ALIAS:COUNT with a '
                            'count from 1 to 9999')
        if match[1] in (alias for alias, _count in found):
            raise PolicyError(extra_spec,
                              f'the alias {match[1]!r} is given twice')
        found.append((match[1], int(match[2])))
    return tuple(found)
