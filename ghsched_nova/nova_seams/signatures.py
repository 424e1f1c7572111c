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

"""Compare functions of Nova with those that ghsched was written for.

Each process compares the seams that it uses
(:data:`ghsched_nova.nova_seams.registry.SEAMS`) when it starts. A process that
a feature cannot work in does not start; a repair that does not match is left
out (:mod:`ghsched_nova.nova_fixes.table`).
"""

import ast
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
import functools
import inspect
import textwrap
from typing import Any

from nova import version

from ghsched_nova.nova_seams import registry

#: Parameters that a function seems to have if a decorator hides its own.
_HIDDEN = ('args', 'kwargs')


@dataclass(frozen=True)
class Mismatch:
    """Function of Nova whose parameters differ from the expected ones.

    :param name: dotted name of the function.
    :param expected: names of the expected parameters; empty for an attribute
        or a constant.
    :param found: names of the parameters in the installed Nova; None if Nova
        has no such function.
    """

    name: str
    expected: tuple[str, ...]
    found: tuple[str, ...] | None

    def __str__(self) -> str:
        found = ('it is missing' if self.found is None else
                 f'found ({", ".join(self.found)})')
        return f'{self.name}: expected ({", ".join(self.expected)}), {found}'


def get_nova_release() -> int:
    """Return the major version number of the installed Nova."""
    return int(version.version_string().partition('.')[0])


def iterate_seam_names(process: str) -> Iterator[str]:
    """Iterate over the Nova functions that ghsched uses in a service."""
    return (name
            for name in registry.get_expected_parameters(get_nova_release())
            if process in registry.SEAMS[name].processes)


def list_mismatches(names: Iterable[str]) -> tuple[Mismatch, ...]:
    """Return which Nova functions are missing or have other parameters.

    The installed Nova is compared with what ghsched expects.

    :param names: dotted names of the functions.
    """
    found = ((name, expected or (), get_installed_parameters(name))
             for name, expected in registry.get_expected_parameters(
                 get_nova_release(), names).items())
    return tuple(Mismatch(*one) for one in found
                 if one[2] not in (one[1], _HIDDEN))


def require_seams(process: str, ignored: Iterable[str] = ()) -> None:
    """Refuse to start a service if Nova's functions are not as expected.

    :param process: name of the service.
    :param ignored: functions that are not checked, because only fixes of Nova
        bugs rely on them.
    :raises ghsched_nova.nova_seams.registry.IncompatibleNova: naming each
        function, its expected and its actual parameters.
    """
    differ = list_mismatches(
        sorted(set(iterate_seam_names(process)) - set(ignored)))
    if differ:
        raise registry.IncompatibleNova(
            f'ghsched is not compatible with Nova {version.version_string()}, '
            f'{process} does not start: {"; ".join(map(str, differ))}. '
            'Install a release of ghsched that supports this Nova, or remove '
            f'ghsched from the configuration of {process}')


@functools.cache
def get_installed_parameters(name: str) -> tuple[str, ...] | None:
    """Return the parameters of a function of the installed Nova.

    An attribute or a constant has no parameters. The result is cached before
    ghsched replaces the function.

    :returns: names of the parameters; None if Nova has no such function.
    """
    try:
        owner, attribute = registry.find_owner(name)
    except AttributeError:
        return None
    is_attribute = registry.SEAMS[name].parameters is None
    function = getattr(owner, attribute, None)
    if is_attribute or not callable(function):
        return () if is_attribute and _has_attribute(owner,
                                                     attribute) else None
    found = tuple(inspect.signature(function).parameters)
    return found[1:] if found[:1] == ('cls',) else found


def _has_attribute(owner: Any, attribute: str) -> bool:
    """Return whether a module or class has an attribute.

    The result is also True if a class sets the attribute only on its
    instances.
    """
    return hasattr(owner, attribute) or any(
        assigns_attribute(inspect.getsource(cls), attribute)
        for cls in getattr(owner, '__mro__', ()) if cls is not object)


def assigns_attribute(source: str, attribute: str) -> bool:
    """Return whether the source code of a class assigns an attribute of self.
    """
    return any(isinstance(node, ast.Attribute) and node.attr == attribute
               and isinstance(node.ctx, ast.Store)
               and isinstance(node.value, ast.Name) and node.value.id == 'self'
               for node in ast.walk(ast.parse(textwrap.dedent(source))))
