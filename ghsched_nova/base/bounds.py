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

"""Types and bounds of the arguments of privileged calls (pure).

The caller of a privileged helper is not root, and the channel between them
carries any type (msgpack). So the annotations of a privileged function are not
hints but its contract. :class:`Checked` compiles them once, refuses a function
with an unbounded number or text, and calls the function only with arguments
within their bounds.

An annotation consists of ``bool``, ``None``, ``Literal``, ``Annotated[int,
Range(...)]``, ``Annotated[str, Text(...)]``, unions, ``tuple[A, B]``,
``Sequence[A]`` and ``dict[A, B]``. Further callables in an ``Annotated`` check
the value, too; each raises :class:`Refused`.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
import functools
import inspect
import re
import reprlib
import types
import typing
from typing import Any

#: Maximum number of values in the arguments of one call. The largest call
#: describes all guests of a host, about 100 values each.
MAX_VALUES = 1_000_000

#: Values that a check may still visit; exhausted at MAX_VALUES.
_Budget = Iterator[int]
_Check = Callable[[object, _Budget], None]


class Refused(ValueError):  # noqa: N818
    """An argument of a privileged call is out of its bounds."""


@dataclass(frozen=True)
class Range:
    """Smallest and largest permitted number."""

    least: int
    most: int

    def __call__(self, value: int) -> None:
        if not self.least <= value <= self.most:
            raise Refused(f'{value} is not in {self.least} to {self.most}')


@dataclass(frozen=True)
class Text:
    """Bounds of a text: a regular expression and a maximum length.

    :param pattern: regular expression that the whole text must match.
    :param longest: maximum number of characters.
    """

    pattern: str
    longest: int = 255

    def __call__(self, value: str) -> None:
        if len(value) > self.longest or not re.fullmatch(
                self.pattern, value, re.ASCII | re.DOTALL):
            raise Refused(f'{reprlib.repr(value)} does not match '
                          f'{self.pattern} (at most {self.longest} '
                          'characters)')


class Checked:
    """Wrapper that calls a function only if all arguments are within bounds.

    :param function: function whose parameters are positional and have
        annotations with bounds.
    :raises TypeError: if a parameter has no bounds.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function, self.name = function, function.__qualname__
        hints = typing.get_type_hints(function, include_extras=True)
        self.checks = {}
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
                raise TypeError(f'{self.name}: {parameter} is not positional')
            try:
                self.checks[name] = _make_annotation_check(hints[name])
            except (KeyError, TypeError) as error:
                raise TypeError(f'{self.name}: parameter {name} is not '
                                f'bounded: {error}') from error

    def __call__(self, *args: object) -> Any:
        """Call the wrapped function if all arguments are within their bounds.

        The annotations of the function's parameters give the bounds.

        :returns: result of the function.
        :raises Refused: if an argument is out of its bounds.
        """
        if len(args) != len(self.checks):
            raise Refused(f'{self.name}: got {len(args)} arguments, expected '
                          f'{len(self.checks)}')
        budget = iter(range(MAX_VALUES))
        for (name, check), value in zip(self.checks.items(), args,
                                        strict=True):
            try:
                check(value, budget)
            except Refused as error:
                raise Refused(f'{self.name}: {name}: {error}') from None
        return self.function(*args)


def _make_annotation_check(annotation: Any) -> _Check:
    """Return a function that checks a value by a type annotation with bounds.

    :param annotation: type annotation, in which ``Annotated`` gives bounds.
    :returns: function that raises :class:`Refused` for a wrong value.
    :raises TypeError: if the annotation permits unbounded values.
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (bool, None, types.NoneType):
        return _make_type_check(types.NoneType if annotation is
                                None else annotation)
    if origin is typing.Literal:
        return _make_choice_check(args)
    if origin is typing.Annotated:
        return _make_bounded_check(*args)
    if origin in (typing.Union, types.UnionType):
        return _make_union_check([_make_annotation_check(arg) for arg in args])
    if origin is tuple and Ellipsis not in args:
        return _make_tuple_check([_make_annotation_check(arg) for arg in args])
    if origin in (list, Sequence):
        return _make_sequence_check(_make_annotation_check(args[0]))
    if origin is dict:
        return _make_mapping_check(*map(_make_annotation_check, args))
    raise TypeError(f'{annotation} has no bounds')


def _make_bounded_check(kind: Any, *bounds: Callable[[Any], None]) -> _Check:
    need = {int: Range, str: Text}.get(kind)
    if need is None:
        inner = _make_annotation_check(kind)
    elif any(isinstance(bound, need) for bound in bounds):
        inner = _make_type_check(kind)
    else:
        raise TypeError(f'{kind} needs a {need.__name__}')

    def check(value: object, budget: _Budget) -> None:
        inner(value, budget)
        for bound in bounds:
            bound(value)
    return check


def _make_type_check(kind: type) -> _Check:
    def check(value: object, budget: _Budget) -> None:
        _spend_budget(budget)
        # Not isinstance(): True is an instance of int.
        if type(value) is not kind:
            raise Refused(f'{reprlib.repr(value)} is not of type '
                          f'{kind.__name__}')
    return check


def _make_choice_check(allowed: Sequence[object]) -> _Check:
    def check(value: object, budget: _Budget) -> None:
        _spend_budget(budget)
        if not any(type(value) is type(one) and value == one
                   for one in allowed):
            raise Refused(f'{reprlib.repr(value)} is not one of '
                          f'{", ".join(map(str, allowed))}')
    return check


def _make_union_check(checks: Sequence[_Check]) -> _Check:
    def check(value: object, budget: _Budget) -> None:
        errors = []
        for one in checks:
            try:
                return one(value, budget)
            except Refused as error:
                errors.append(str(error))
        raise Refused('; '.join(errors))
    return check


def _make_tuple_check(checks: Sequence[_Check]) -> _Check:
    def check(value: object, budget: _Budget) -> None:
        values = _check_sequence(value, budget)
        if len(values) != len(checks):
            raise Refused(f'got {len(values)} values, expected '
                          f'{len(checks)}')
        for one, each in zip(values, checks, strict=True):
            each(one, budget)
    return check


def _make_sequence_check(item: _Check) -> _Check:
    def check(value: object, budget: _Budget) -> None:
        for one in _check_sequence(value, budget):
            item(one, budget)
    return check


def _make_mapping_check(key: _Check, value_check: _Check) -> _Check:
    def check(value: object, budget: _Budget) -> None:
        _spend_budget(budget)
        if type(value) is not dict:
            raise Refused(f'{reprlib.repr(value)} is not of type dict')
        for name, one in value.items():
            key(name, budget)
            value_check(one, budget)
    return check


def _check_sequence(value: object, budget: _Budget) -> Sequence[object]:
    """Return a value if it is a list or a tuple; refuse any other type.

    An annotation ``list`` permits tuples, too, because msgpack turns lists
    into tuples.

    :param budget: counter of the values that may still be checked.
    :raises Refused: if the type is wrong, or too many values were checked.
    """
    _spend_budget(budget)
    if not isinstance(value, list | tuple):
        raise Refused(f'{reprlib.repr(value)} is not of type list')
    return value


def _spend_budget(budget: _Budget) -> None:
    if next(budget, None) is None:
        raise Refused(f'more than {MAX_VALUES} values')
