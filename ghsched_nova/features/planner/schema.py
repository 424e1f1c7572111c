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

"""Checks of a document by a JSON schema, with short reasons."""

from collections.abc import Iterable
import math
from typing import Any

import jsonschema

_KINDS = {type(None): 'empty', list: 'a list', dict: 'a mapping',
          str: 'text', bool: 'true or false'}

_TYPES = {'object': 'a mapping', 'array': 'a list with something in it',
          'string': 'text', 'integer': 'a whole number', 'number': 'a number'}

#: Type checker for values of YAML. JSON Schema would accept 2.0 as an integer,
#: and YAML has infinite numbers.
_CHECKER = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine_many({
    'integer': lambda _checker, value: (
        isinstance(value, int) and not isinstance(value, bool)),
    'number': lambda _checker, value: (
        isinstance(value, int | float) and not isinstance(value, bool)
        and math.isfinite(value))})

_Validator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator, type_checker=_CHECKER)


class Invalid(ValueError):
    """Place and reason of a document's violation of its schema."""


def validate_document(document: Any, schema: Any, name: str = '') -> Any:
    """Validate a document against a JSON schema.

    :param name: name of the document, if it is a part of another.
    :returns: the document, with all keys converted to text.
    :raises Invalid: if the document is invalid; names the place and the
        reason.
    """
    found = _convert_keys_to_text(document)
    error = jsonschema.exceptions.best_match(
        _Validator(schema).iter_errors(found))
    if error is None:
        return found
    place = [name] if name else []
    raise Invalid(_describe_schema_violation(
        [*place, *error.absolute_path], error))


def _convert_keys_to_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _convert_keys_to_text(one)
                for key, one in value.items()}
    if isinstance(value, list):
        return [*map(_convert_keys_to_text, value)]
    return value


def _format_path(path: Iterable[str | int]) -> str:
    """Format the path of a value in a document, such as ``nodes[0].cpus``."""
    return ''.join(f'[{step}]' if isinstance(step, int) else f'.{step}'
                   for step in path).removeprefix('.') or 'the file'


def _describe_schema_violation(path: list[str | int], error: Any) -> str:
    """Return a text that says where and why a document violates its schema."""
    value, rule = error.instance, error.validator_value
    match error.validator:
        case 'required':
            missing = next(key for key in rule if key not in value)
            return f'{_format_path([*path, missing])}: is missing'
        case 'additionalProperties':
            unknown = min(value.keys() - error.schema['properties'].keys())
            return f'{_format_path([*path, unknown])}: unknown key'
        case 'const':
            return f'{_format_path(path)}: {error.schema["description"]}'
        case 'not':
            return f'{_format_path([*path, value])}: unknown key'
        case 'type' | 'minItems':
            return (f'{_format_path(path)}: '
                    f'{_describe_wrong_type(value, error.schema)}')
        case 'minimum' | 'maximum':
            return (f'{_format_path(path)}: {value} is not between '
                    f'{error.schema["minimum"]} and {error.schema["maximum"]}')
        case 'enum':
            return (
                f'{_format_path(path)}: {_shorten_repr(value)} is not one of '
                + ', '.join(map(str, rule))
            )
    return (f'{_format_path(path)}: {_shorten_repr(value)} '
            f'is not of the form {rule}')


def _describe_wrong_type(value: Any, schema: Any) -> str:
    """Return a text that names the type of a value and the required type."""
    kind = schema['type'] if isinstance(schema['type'], str) else 'string'
    shown = (_shorten_repr(value) if kind in ('integer', 'number') else
             'empty' if value == [] else _KINDS.get(type(value), 'a number'))
    return f'must be {_TYPES[kind]}, is {shown}'


def _shorten_repr(value: Any) -> str:
    """Return the first 100 characters of a value's repr()."""
    return repr(value)[:100]
