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
that it has made of values within their bounds.

An annotation consists of ``bool``, ``None``, ``Literal``, ``Annotated[int,
Range(...)]``, ``Annotated[str, Text(...)]``, unions, ``tuple[A, B]``,
``list[A]``, ``Sequence[A]``, ``frozenset[A]``, ``Mapping[A, B]`` and
dataclasses of these. Further callables in an ``Annotated`` check the value,
too; each raises :class:`OutOfBounds`. :func:`pack` makes lists of what the
channel does not carry.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
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
#: Checks a packed value, and returns the value that was packed.
_Reader = Callable[[object, _Budget], Any]


class OutOfBounds(ValueError):  # noqa: N818
    """Raised if an argument of a privileged call is out of its bounds."""


@dataclass(frozen=True)
class Range:
    """Bounds of a number: smallest and largest permitted number."""

    least: int
    most: int

    def __call__(self, value: int) -> None:
        if not self.least <= value <= self.most:
            raise OutOfBounds(f'{value} is not in {self.least} to {self.most}')


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
            raise OutOfBounds(f'{reprlib.repr(value)} does not match '
                              f'{self.pattern} (at most {self.longest} '
                              'characters)')


@dataclass(frozen=True)
class Is:
    """Bounds of a value by a predicate.

    :param predicate: function that returns whether a value is permitted.
    :param kind: name of the permitted values, for errors.
    """

    predicate: Callable[[Any], bool]
    kind: str

    def __call__(self, value: Any) -> None:
        if not self.predicate(value):
            raise OutOfBounds(f'{reprlib.repr(value)} is not {self.kind}')


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
        self.codecs = {}
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
                raise TypeError(f'{self.name}: {parameter} is not positional')
            try:
                self.codecs[name] = Codec(hints[name])
            except (KeyError, TypeError) as error:
                raise TypeError(f'{self.name}: parameter {name} is not '
                                f'bounded: {error}') from error

    def __call__(self, *args: object) -> Any:
        """Call the wrapped function if all arguments are within their bounds.

        The annotations of the function's parameters give the bounds.

        :param args: packed arguments, see :func:`pack`.
        :returns: result of the function.
        :raises OutOfBounds: if an argument is out of its bounds.
        """
        if len(args) != len(self.codecs):
            raise OutOfBounds(
                f'{self.name}: got {len(args)} arguments, expected '
                f'{len(self.codecs)}')
        budget = iter(range(MAX_VALUES))
        values = []
        for (name, codec), value in zip(self.codecs.items(), args,
                                        strict=True):
            try:
                values.append(codec.unpack(value, budget))
            except OutOfBounds as error:
                raise OutOfBounds(f'{self.name}: {name}: {error}') from None
        return self.function(*values)


def pack(value: Any) -> Any:
    """Convert a value to nested lists of texts and numbers.

    A dataclass becomes the list of its fields, a mapping that of its pairs.
    The channel to a privileged helper does not carry other types.
    """
    if dataclasses.is_dataclass(value):
        value = [getattr(value, one.name)
                 for one in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        value = value.items()
    elif isinstance(value, frozenset):
        value = sorted(value)
    elif not isinstance(value, list | tuple):
        return value
    return [pack(one) for one in value]


class Codec:
    """Decoder of packed values of one type, see :func:`pack`.

    :param annotation: type annotation, in which ``Annotated`` gives bounds.
    :param bounded: whether numbers and texts must have bounds. The answers of
        a privileged helper need none.
    :raises TypeError: if the annotation permits unbounded values.
    """

    def __init__(self, annotation: Any, bounded: bool = True) -> None:
        self._read = _make_reader(annotation, bounded)

    def unpack(self, packed: object, budget: _Budget | None = None) -> Any:
        """Convert a packed value back to its type, and check its bounds.

        :param packed: result of :func:`pack`.
        :param budget: counter of the values that may still be checked.
        :raises OutOfBounds: if a value is of a wrong type, or out of its
            bounds.
        """
        return self._read(packed, budget or iter(range(MAX_VALUES)))


def check(value: object) -> None:
    """Refuse an object of a dataclass with a field out of its bounds.

    :raises OutOfBounds: with the reason.
    """
    Codec(type(value)).unpack(pack(value))


def _make_reader(annotation: Any, bounded: bool = True) -> _Reader:
    """Return a function that checks a value by a type annotation with bounds.

    :param annotation: type annotation, in which ``Annotated`` gives bounds.
    :param bounded: whether numbers and texts must have bounds.
    :returns: function that returns the value, or raises :class:`OutOfBounds`.
    :raises TypeError: if the annotation permits unbounded values.
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    make = functools.partial(_make_reader, bounded=bounded)
    if annotation in (bool, None, types.NoneType) or (
            not bounded and annotation in (int, str)):
        return _make_type_reader(annotation or types.NoneType)
    if origin is typing.Literal:
        return _make_choice_reader(args)
    if origin is typing.Annotated:
        return _make_bounded_reader(*args)
    if origin in (typing.Union, types.UnionType):
        return _make_union_reader([make(arg) for arg in args])
    if origin is tuple and Ellipsis not in args:
        return _make_fields_reader(tuple, [make(arg) for arg in args])
    if origin is tuple and not bounded or origin in (list, Sequence,
                                                     frozenset):
        return _make_items_reader(
            tuple if origin is Sequence else origin, make(args[0]))
    if origin is Mapping:
        return _make_items_reader(dict, make(types.GenericAlias(tuple, args)))
    if dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation, include_extras=True)
        make_object: Any = annotation
        return _make_fields_reader(
            lambda values: make_object(*values),
            [make(hints[one.name]) for one in dataclasses.fields(annotation)])
    raise TypeError(f'{annotation} has no bounds')


def _make_bounded_reader(kind: Any,
                         *bounds: Callable[[Any], None]) -> _Reader:
    need = {int: Range, str: Text}.get(kind)
    if need is None:
        inner = _make_reader(kind)
    elif any(isinstance(bound, need) for bound in bounds):
        inner = _make_type_reader(kind)
    else:
        raise TypeError(f'{kind} needs a {need.__name__}')

    def read(value: object, budget: _Budget) -> Any:
        found = inner(value, budget)
        for bound in bounds:
            bound(found)
        return found
    return read


def _make_type_reader(kind: type) -> _Reader:
    def read(value: object, budget: _Budget) -> Any:
        _spend_budget(budget)
        # Not isinstance(): True is an instance of int.
        if type(value) is not kind:
            raise OutOfBounds(f'{reprlib.repr(value)} is not of type '
                              f'{kind.__name__}')
        return value
    return read


def _make_choice_reader(allowed: Sequence[object]) -> _Reader:
    def read(value: object, budget: _Budget) -> Any:
        _spend_budget(budget)
        if not any(type(value) is type(one) and value == one
                   for one in allowed):
            raise OutOfBounds(f'{reprlib.repr(value)} is not one of '
                              f'{", ".join(map(str, allowed))}')
        return value
    return read


def _make_union_reader(readers: Sequence[_Reader]) -> _Reader:
    def read(value: object, budget: _Budget) -> Any:
        errors = []
        for one in readers:
            try:
                return one(value, budget)
            except OutOfBounds as error:
                errors.append(str(error))
        raise OutOfBounds('; '.join(errors))
    return read


def _make_fields_reader(make: Callable[[Iterable[Any]], Any],
                        readers: Sequence[_Reader]) -> _Reader:
    def read(value: object, budget: _Budget) -> Any:
        values = _check_sequence(value, budget)
        if len(values) != len(readers):
            raise OutOfBounds(f'got {len(values)} values, expected '
                              f'{len(readers)}')
        return make([each(one, budget) for one, each
                     in zip(values, readers, strict=True)])
    return read


def _make_items_reader(make: Callable[[Iterable[Any]], Any],
                       item: _Reader) -> _Reader:
    def read(value: object, budget: _Budget) -> Any:
        return make([item(one, budget)
                     for one in _check_sequence(value, budget)])
    return read


def _check_sequence(value: object, budget: _Budget) -> Sequence[object]:
    """Return a value if it is a list or a tuple; refuse any other type.

    An annotation ``list`` permits tuples, too, because msgpack turns lists
    into tuples.

    :param budget: counter of the values that may still be checked.
    :raises OutOfBounds: if the type is wrong, or too many values were checked.
    """
    _spend_budget(budget)
    if not isinstance(value, list | tuple):
        raise OutOfBounds(f'{reprlib.repr(value)} is not of type list')
    return value


def _spend_budget(budget: _Budget) -> None:
    if next(budget, None) is None:
        raise OutOfBounds(f'more than {MAX_VALUES} values')
