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


"""Faults that the resctrl emulator injects, as data.

A fault file is one JSON object. A key is an operation, and may be followed
by a colon and a shell pattern; a value is what happens::

    {"mkdir": "ENOSPC",
     "schemata:MBMIN": {"error": "EINVAL", "times": 1},
     "tasks": {"error": "ESRCH", "match": "qemu-*", "status": "No task 5"},
     "schemata:MBPRI": "ignore",
     "mon": "Unavailable"}

Operations and what the pattern is held against:

========== ==============================================================
mkdir      name of the new group
rmdir      name of the group
schemata   name of each line in the write
tasks      name of the group
cpus       name of the group
mode       name of the group
read       path of the file, without leading slash
mon        path of the monitor file, without leading slash
========== ==============================================================

A value is an errno name; ``ignore`` (of ``schemata``: the write succeeds and
changes nothing in that line); or, for ``mon``, the text that the file shows.
An object spells it out: ``error``, ``ignore`` or ``text``, and optionally
``match`` (a second pattern, for the group's name or path), ``times`` (how
often the fault strikes before it is gone), ``delay`` (seconds that the
operation takes) and ``status`` (for ``last_cmd_status``).
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
import errno
import fnmatch
from typing import Any

from ghsched_nova.lab.emulator import control_file
from ghsched_nova.lab.emulator import staging

OPERATIONS = (
    'mkdir', 'rmdir', 'schemata', 'tasks', 'cpus', 'mode', 'read', 'mon',
)
_FIELDS = {
    'error', 'ignore', 'text', 'match', 'times', 'delay', 'status',
}


class BadFault(ValueError):
    """Malformed description of a fault."""


@dataclass
class Fault:
    """A fault of a file operation; ``times``, if set, counts its uses down."""

    operation: str
    subject: str = '*'
    error: int = 0
    ignore: bool = False
    text: str = ''
    match: str = '*'
    times: int | None = None
    delay: float = 0.0
    status: str = 'Injected fault\n'

    def strikes(
        self, operation: str, subjects: Iterable[str], path: str
    ) -> bool:
        return (
            self.operation == operation
            and self.times != 0
            and any(fnmatch.fnmatchcase(x, self.subject) for x in subjects)
            and fnmatch.fnmatchcase(path, self.match)
        )


@dataclass
class Faults:
    """The faults in force; an empty one injects nothing."""

    active: list[Fault] = field(default_factory=list)

    def take(
        self, operation: str, subjects: Iterable[str], path: str = ''
    ) -> list[Fault]:
        """Return the faults of this operation, and decrease their counts."""
        names = list(subjects)
        struck = [x for x in self.active if x.strikes(operation, names, path)]
        for fault in struck:
            if fault.times is not None:
                fault.times -= 1
        return struck


class Injector:
    """Makes operations suffer the faults that are in force.

    :param faults: those of now.
    :param sleep: waits for so many seconds.
    """

    def __init__(
        self, faults: Callable[[], Faults], sleep: Callable[[float], None]
    ):
        self._faults = faults
        self._sleep = sleep

    def strike(self, operation: str, subject: str) -> list[Fault]:
        """Apply the delays and errors of the faults of this operation.

        :raises ResctrlError: the injected error.
        """
        subject = subject.lstrip('/')
        struck = self._faults().take(operation, [subject], subject)
        self._suffer(struck)
        return struck

    def strike_lines(self, names: Iterable[str], group: str) -> set[str]:
        """Return the schemata lines of a write that the kernel is to ignore.

        :param names: of the lines that it carries.
        :raises ResctrlError: the injected error.
        """
        struck = [
            (name, fault) for name in dict.fromkeys(names)
            for fault in self._faults().take('schemata', [name], group)
        ]
        self._suffer([fault for _, fault in struck])
        return {name for name, fault in struck if fault.ignore}

    def _suffer(self, struck: Iterable[Fault]) -> None:
        for fault in struck:
            if fault.delay:
                self._sleep(fault.delay)
            if fault.error:
                raise staging.ResctrlError(fault.error, fault.status)


def parse(spec: Mapping[str, Any]) -> Faults:
    """Return the faults of a fault file's object.

    :raises BadFault: unknown operation, field or errno.
    """
    faults = []
    for key, value in spec.items():
        operation, _, subject = key.partition(':')
        if operation not in OPERATIONS:
            raise BadFault(
                f"'{key}': no operation '{operation}'; there are "
                + ', '.join(OPERATIONS)
            )
        for one in value if isinstance(value, list) else [value]:
            faults.append(_fault(operation, subject or '*', one))
    return Faults(faults)


def parse_text(text: str) -> Faults:
    """Parse faults from the JSON text of a fault file; an empty text has none.
    """
    spec = control_file.read_object(text, BadFault)
    return Faults() if spec is None else parse(spec)


def _fault(operation: str, subject: str, value: Any) -> Fault:
    spec = _spelled_out(operation, value)
    unknown = set(spec) - _FIELDS
    if unknown:
        raise BadFault(f"'{operation}': unknown {', '.join(sorted(unknown))}")
    fault = Fault(operation, subject, error=_number(spec.get('error')))
    try:
        fault.ignore = bool(spec.get('ignore', False))
        fault.text = str(spec.get('text', ''))
        fault.match = str(spec.get('match', '*'))
        fault.delay = float(spec.get('delay', 0))
        if spec.get('times') is not None:
            fault.times = int(spec['times'])
    except (TypeError, ValueError) as exc:
        raise BadFault(f"'{operation}': {exc}") from exc
    if 'status' in spec:
        fault.status = str(spec['status']).rstrip('\n') + '\n'
    return fault


def _spelled_out(operation: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise BadFault(f"'{operation}': want a text or an object")
    if value == 'ignore':
        return {'ignore': True}
    if operation == 'mon' and not hasattr(errno, value):
        return {'text': value}
    return {'error': value}


def _number(name: Any) -> int:
    if name is None:
        return 0
    number = getattr(errno, str(name), None)
    if not isinstance(number, int):
        raise BadFault(f"no errno '{name}'")
    return number
