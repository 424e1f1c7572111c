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

"""Declarations of what ghsched uses of Nova, and replacement of functions.

A seam is a name of Nova that is no documented extension point. It is declared
where it is used, by :func:`make_seam_decorator`. :func:`replace_function` is
the only function that puts one of ours in place of one of Nova's.
"""

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import threading
from typing import Any
from typing import NamedTuple
from typing import TypeVar

API = 'nova-api'
SCHEDULER = 'nova-scheduler'
COMPUTE = 'nova-compute'
PROCESSES = (API, SCHEDULER, COMPUTE)

# Parts of ghsched in nova-api and nova-scheduler. Each can be off while the
# others work. A seam of no part is needed by all that ghsched does in the
# service.
FLAVOR_CHECK = 'the check of whole flavors'
LIMITS = 'the unified limits of resources of ghsched'
ACTIONS = 'the server action and the list of refusals'
VFS = 'the PCI requests for VFs'
INDEX = 'the index of hosts'

#: Packages whose modules declare seams, and further modules that do so.
_PACKAGES = ('ghsched_nova.nova_seams', 'ghsched_nova.nova_fixes')
_MODULES = tuple(f'ghsched_nova.{name}' for name in (
    'api.limits', 'scheduler.claims', 'scheduler.host_view',
    'virt.driver', 'virt.manager', 'virt.providers'))
#: Package of the features. A feature's module nova_seams declares seams.
_FEATURES = 'ghsched_nova.features'

_Used = TypeVar('_Used', bound=Callable[..., Any])


class IncompatibleNova(Exception):
    """Raised if functions of the installed Nova differ from the expected ones.
    """


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


#: Kinds of uses: a function that is replaced, or a list or table that is
#: extended, and a private name.
USES = ('replaced', 'overridden', 'called')


class Use(NamedTuple):
    """Use of a name of Nova that a reader of Nova does not expect.

    :param kind: one of USES.
    :param processes: services in which ghsched uses the name so.
    :param reason: reason why no public name of Nova does instead.
    """

    kind: str
    processes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Seam:
    """Function or attribute of Nova that ghsched relies on.

    A Nova has the seam if it has the function with these parameters. Version
    numbers are not compared: between two releases they say nothing about the
    functions of Nova.

    :param name: dotted name in Nova.
    :param parameters: names of the parameters of a function; None for an
        attribute or a constant.
    :param optional: parameters that not each supported Nova has. ghsched
        passes them on to Nova and does not use them.
    :param otherwise: dotted name of the seam that is used in a Nova without
        this one.
    :param may_be_missing: whether ghsched also works with a Nova without it.
    :param processes: services in which ghsched uses it.
    :param users: modules of ghsched that use it.
    :param parts: services with the parts of ghsched that use it there.
    :param uses: uses of a name that is replaced or private.
    """

    name: str
    parameters: tuple[str, ...] | None = None
    optional: frozenset[str] = frozenset()
    otherwise: str = ''
    may_be_missing: bool = False
    processes: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    parts: frozenset[tuple[str, str]] = frozenset()
    uses: frozenset[Use] = frozenset()

    def accepts(self, found: tuple[str, ...]) -> bool:
        """Return whether a function of Nova has the parameters declared here.

        :param found: names of the parameters; empty for an attribute.
        """
        if self.parameters is None:
            return True
        return found == tuple(one for one in self.parameters
                              if one in found or one not in self.optional)


#: Seams by dotted name, as declared by the modules that are loaded so far.
SEAMS: dict[str, Seam] = {}

#: Functions of ghsched that replace a function of Nova in this process, by
#: dotted name of Nova's function.
REPLACED: dict[str, tuple[str, ...]] = {}

#: Lock that is held while a function of Nova is replaced.
_replacing = threading.RLock()


def make_seam_decorator(
        *processes: str, part: str = '',
) -> Callable[..., Callable[[_Used], _Used]]:
    """Return a decorator for functions that rely on a function of Nova.

    Such a function of Nova is called a seam. The decorator declares its name
    and parameters. All seams are compared with the installed Nova when a
    service starts.

    :param processes: services of Nova in which ghsched uses the functions.
    :param part: part of ghsched that is switched off if a seam does not match;
        empty if all of ghsched is switched off in these services.
    :returns: takes the name and the parameters, further fields of Seam, and
        the reason of a use by its kind, such as ``replaced='...'``.
    """
    def seam(name: str, parameters: Sequence[str] | None = None,
             **more: Any) -> Callable[[_Used], _Used]:
        uses = frozenset(Use(kind, processes, more.pop(kind))
                         for kind in USES if kind in more)

        def declared(user: _Used) -> _Used:
            _add_seam(Seam(
                name, None if parameters is None else tuple(parameters),
                processes=frozenset(processes),
                users=frozenset((user.__module__, )),
                parts=frozenset((process, part) for process in processes),
                uses=uses, **more))
            return user
        return declared
    return seam


def _add_seam(seam: Seam) -> None:
    """Add a Nova function to the table of functions that ghsched relies on.

    Several modules may declare the same function.

    :raises ValueError: if two declarations of a function differ.
    """
    known = SEAMS.get(seam.name, seam)
    if seam != replace(known, processes=seam.processes, users=seam.users,
                       parts=seam.parts, uses=seam.uses):
        raise ValueError(f'{seam.name} is declared twice: {known} and {seam}')
    SEAMS[seam.name] = replace(
        seam, processes=known.processes | seam.processes,
        users=known.users | seam.users, parts=known.parts | seam.parts,
        uses=known.uses | seam.uses)


def load_all_seams() -> None:
    """Import all modules that declare which Nova functions ghsched uses.

    Afterwards the table of these functions is complete.
    """
    for package in _PACKAGES:
        path = importlib.import_module(package).__path__
        for module in pkgutil.iter_modules(path):
            importlib.import_module(f'{package}.{module.name}')
    for name in (*_MODULES, *_list_feature_modules()):
        importlib.import_module(name)


def _list_feature_modules() -> list[str]:
    """Return the modules in which features declare what they use of Nova."""
    path = importlib.import_module(_FEATURES).__path__
    return [name for feature in pkgutil.iter_modules(path) if feature.ispkg
            and importlib.util.find_spec(
                name := f'{_FEATURES}.{feature.name}.nova_seams')]


def find_mismatch(
        name: str,
        get_parameters: Callable[[str], tuple[str, ...] | None],
) -> Mismatch | None:
    """Return how a function of Nova differs from what ghsched expects.

    :param name: dotted name of the function.
    :param get_parameters: function that returns the parameters of a function
        of Nova; None if Nova does not have the function.
    :returns: None if Nova has the function, or works without it.
    """
    seam, found = SEAMS[name], get_parameters(name)
    if found is None:
        is_needed = not seam.may_be_missing and not (
            seam.otherwise and get_parameters(seam.otherwise) is not None)
    else:
        is_needed = not seam.accepts(found)
    return (Mismatch(name, seam.parameters or (), found) if is_needed
            else None)


def find_owner(name: str) -> tuple[Any, str]:
    """Return the Nova module or class that defines a dotted name.

    :returns: the module or class, and the last part of the name.
    :raises AttributeError: if Nova has no such module or class.
    """
    *path, attribute = name.split('.')
    for length in range(len(path), 0, -1):
        try:
            owner: Any = importlib.import_module('.'.join(path[:length]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, path[length:], owner), attribute
    raise AttributeError(f'no module of {name}')


def replace_function(name: str,
                     function: Callable[..., Any],
                     only_of: Any = None) -> None:
    """Replace a Nova function by a function of ghsched.

    If the same function is already in place, nothing changes. If another
    function of ghsched is in place, the new function is wrapped around it.

    :param name: dotted name of Nova's function, which must be declared by a
        seam decorator.
    :param function: takes Nova's function, and then the arguments of that
        function.
    :param only_of: object of which the method is replaced; None to replace it
        for all objects of the class.
    :raises IncompatibleNova: if Nova has no such function.
    """
    with _replacing:
        try:
            owner, attribute = find_owner(SEAMS[name].name)
            if only_of is not None:
                owner = only_of
            original = getattr(owner, attribute)
        except AttributeError as error:
            raise IncompatibleNova(f'Nova has no {name}: {error}') from error
        if _record_replacement(name, function, original):
            _set_wrapper(owner, attribute, function, original)


def _set_wrapper(owner: Any, attribute: str, function: Callable[..., Any],
                 original: Any) -> None:

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)
    setattr(wrapper, _OURS, getattr(original, _OURS, ()) + (
        _get_qualified_name(function),))
    # What getattr() gives of a class is bound, or needs no instance.
    static = inspect.isclass(owner) and isinstance(
        inspect.getattr_static(owner, attribute), (classmethod, staticmethod))
    setattr(owner, attribute, staticmethod(wrapper) if static else wrapper)


#: Attribute of a wrapper with the names of ghsched's functions around Nova's.
_OURS = '_ghsched_wrapped'


def _record_replacement(name: str, function: Callable[..., Any],
                        original: Any) -> bool:
    """Record that ghsched replaces a Nova function.

    :param name: dotted name of the function.
    :param function: the replacement.
    :param original: Nova's function.
    :returns: False if this replacement is already in place.
    """
    if _get_qualified_name(function) in getattr(original, _OURS, ()):
        return False
    record_addition(name, function)
    return True


def record_addition(name: str, added: Any) -> None:
    """Record that ghsched added an object to one of Nova's lists or tables.

    :param name: dotted name of the list or table.
    """
    with _replacing:
        REPLACED[name] = tuple(dict.fromkeys(
            (*REPLACED.get(name, ()), _get_qualified_name(added))))


def _get_qualified_name(function: Any) -> str:
    named = getattr(function, 'func', function)     # of a partial
    return (f'{getattr(named, "__module__", "")}.'
            f'{getattr(named, "__qualname__", named)}')
