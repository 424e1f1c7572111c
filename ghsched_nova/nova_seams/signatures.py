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
(:data:`ghsched_nova.nova_seams.registry.SEAMS`) when it starts. nova-compute,
whose driver could not keep what it promises, does not start if one differs;
in nova-api and nova-scheduler what needs it is off
(:mod:`ghsched_nova.nova_seams.parts`). A repair that does not match is left
out (:mod:`ghsched_nova.nova_fixes.table`).
"""

from collections.abc import Iterable
from collections.abc import Iterator
import dis
import functools
import inspect
import types
from typing import Any

from nova import version

from ghsched_nova.nova_seams import registry

#: Parameters of a function that a decorator hides.
_HIDDEN = ('args', 'kwargs')


def iterate_seam_names(process: str) -> Iterator[str]:
    """Iterate over the Nova functions that ghsched uses in a service."""
    return (name for name, seam in registry.SEAMS.items()
            if process in seam.processes)


def list_mismatches(names: Iterable[str]) -> tuple[registry.Mismatch, ...]:
    """Return the Nova functions that are missing or have other parameters.

    The parameters of the installed Nova are compared with those that ghsched
    expects.

    :param names: dotted names of the functions.
    """
    found = (registry.find_mismatch(name, get_installed_parameters)
             for name in names)
    return tuple(one for one in found
                 if one is not None and one.found != _HIDDEN)


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
        assigns_attribute(function, attribute)
        for cls in getattr(owner, '__mro__', ()) if cls is not object
        for function in vars(cls).values())


def assigns_attribute(function: Any, attribute: str) -> bool:
    """Return whether a function or property assigns an attribute of self."""
    function = getattr(function, 'fget', function)
    function = inspect.unwrap(getattr(function, '__func__', function))
    code = getattr(function, '__code__', None)
    return isinstance(code, types.CodeType) and _code_assigns(code, attribute)


def _code_assigns(code: types.CodeType, attribute: str) -> bool:
    if attribute in code.co_names:      # reading the instructions is slow
        value: Any = None
        for instruction in dis.get_instructions(code):
            if (instruction.opname == 'STORE_ATTR'
                    and instruction.argval == attribute and value == 'self'):
                return True
            # An instruction that loads two variables has both.
            value = instruction.argval
            value = value[-1] if isinstance(value, tuple) and value else value
    return any(isinstance(one, types.CodeType)
               and _code_assigns(one, attribute) for one in code.co_consts)
