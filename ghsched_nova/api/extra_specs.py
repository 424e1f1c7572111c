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


"""Validators of ghsched's extra specs for nova-api.

nova-api loads this module through the entry point group
``nova.api.extra_spec_validators`` and checks flavor extra specs with it from
API microversion 2.86 on. An unknown key of our namespace is refused with the
nearest one named.

The validators change nothing in Nova. Rules between keys (a guest NUMA
topology, min <= max) and keys that are nearly ours are checked when the flavor
is stored, at any microversion, by :func:`check_flavor`, which
:mod:`ghsched_nova.api.nova_changes` switches on.
"""

from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nova.api.validation.extra_specs import base
from nova import exception
from oslo_log import log as logging

from ghsched_nova.nova_seams import parts
from ghsched_nova.nova_seams import registry
from ghsched_placement.flavor import key_names
from ghsched_placement.flavor import keys
from ghsched_placement.flavor import policy
from ghsched_placement.query import combinations

LOG = logging.getLogger(__name__)

#: Guest NUMA node numbers, written as the parser takes them.
_NODE = {'name': 'node', 'pattern': '(0|[1-9][0-9]{0,3})'}

#: Names of vCPU classes, written as the parser takes them.
_CLASS = {'name': 'vcpu_class', 'pattern': '[a-z][a-z0-9_]{0,15}'}

_FAILED = 'Validation failed; '


@dataclass
class Validator(base.ExtraSpecValidator):
    """Validator of an extra spec that is as strict as the scheduler's parser.

    Nova's validator would accept a value such as ``1_0`` or ``60.5``, and
    nova-scheduler would then refuse each server of the flavor.
    """

    def validate(self, name: str, value: Any) -> None:
        if reason := parts.find_refusal(registry.API, (name,)):
            raise exception.ValidationError(f'{_FAILED}{reason}')
        try:
            policy.check_extra_spec(name, value)
        except policy.PolicyError as error:
            raise _make_error(error) from None
        try:
            super().validate(name, value)
        except exception.ValidationError as error:
            # Nova names the value alone.
            reason = error.format_message().removeprefix(_FAILED)
            raise exception.ValidationError(
                f'{_FAILED}{name}: {reason}') from None


def _make_error(error: policy.PolicyError) -> exception.ValidationError:
    return exception.ValidationError(f'{_FAILED}{error}')


def check_flavor(extra_specs: Mapping[str, str], changed: Collection[str],
                 vcpus: int, memory_mb: int) -> None:
    """Refuse a flavor whose ghsched extra specs contradict each other.

    A flavor is refused, too, if Placement would search for minutes because it
    has many guest NUMA nodes and VFs.

    :param changed: names of the new or changed extra specs.
    :raises nova.exception.ValidationError: names the extra spec and a remedy.
    """
    try:
        found = policy.check_flavor(extra_specs, changed, vcpus)
        if found is not None:
            # With bandwidth_accounting=max there can only be more: the
            # scheduler knows the option.
            combinations.check_flavor_combinations(extra_specs, found, vcpus,
                                                   memory_mb)
            for part in found.parts:
                for text in part.find_flavor_warnings(extra_specs):
                    LOG.warning('ghsched: accepting a flavor with %s', text)
    except policy.PolicyError as error:
        raise _make_error(error) from None


def register() -> list[base.ExtraSpecValidator]:
    """Return the validators of ghsched's extra specs for nova-api."""
    validators = []
    for key in key_names.KEYS:
        validators.append(_make_validator(key, key.extra_spec, []))
        if key.per_node:
            validators.append(_make_validator(
                key, f'{key.extra_spec}.{{node}}', [_NODE]))
        if key.per_class:
            validators.append(_make_validator(
                key, f'{key.extra_spec}.{{vcpu_class}}', [_CLASS]))
    # Nova takes the first that matches, and refuses the rest without a hint.
    validators.append(Validator(
        name=f'{keys.NAMESPACE}:{{unknown}}', description='No such key.',
        value={'type': str},
        parameters=[{'name': 'unknown', 'pattern': '.*'}]))
    return validators


def _make_validator(key: keys.Key, name: str,
                    parameters: list[dict[str, str]]) -> Validator:
    description = key.summary
    if parameters == [_NODE]:
        description = f'For the guest NUMA node ``node``: {key.summary}'
    elif parameters:
        description = f'For the vCPU class ``vcpu_class``: {key.summary}'
    return Validator(
        name=name, description=f'{description} Default: {key.default_text}.',
        value=_describe_value(key), parameters=parameters)


def _describe_value(key: keys.Key) -> dict[str, Any]:
    if key.kind == 'bool':
        return {'type': bool}
    if key.kind in ('devices', 'name', 'vcpus', 'classes'):
        return {'type': str}
    if key.kind == 'enum':
        return {'type': str, 'enum': list(key.choices)}
    ends = {'min': key.minimum, 'max': key.maximum}
    return {'type': int, **{name: limit for name, limit in ends.items()
                            if limit is not None}}
