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

"""Pressure that guests report of themselves (pure).

A guest with ``ghsched:guest_channel=write`` reports its pressure, and may lie.
The reported values are typed and bounded. They explain why the guest itself is
slow, and give it priority over other guests if a guest must be moved anyway.
They are never evidence against another guest, and make no NUMA node a
bottleneck.
"""

from collections.abc import Mapping
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ghsched_placement.base import wire

#: Key of the record in the diagnostics of a guest.
KEY = 'ghsched_pressure'
#: Name of the file in Nova's state_path with the pressure of all guests.
FILE = 'ghsched-pressure.json'
VERSION = 1
#: Maximum number of guests in the file.
GUESTS_KEPT = 2048
#: Seconds after which the file counts as old: nova-compute writes it with each
#: report.
MAX_AGE_S = 600.0


@dataclass(frozen=True)
class Pressure:
    """Stalls that a guest reports of itself, in percent of the time.

    :param cpu: time in which some of its tasks wait for a vCPU.
    :param memory: time in which some of its tasks wait for memory.
    :param steal: CPU time that the host gave to others.
    """

    cpu: float = 0.0
    memory: float = 0.0
    steal: float = 0.0


@dataclass(frozen=True)
class ReportedPressure:
    """Pressure of a guest with its project and flavor; empty if unknown."""

    pressure: Pressure
    project: str = ''
    flavor: str = ''


#: Pressure that guests of a host have reported, by UUID of the guest.
Pressures = Mapping[str, ReportedPressure]


def parse_pressure(found: object) -> Pressure:
    """Parse the pressure in a record, or in a line that a guest wrote.

    A value that is missing is 0.

    :raises one of wire.MALFORMED: if a value is no percentage.
    """
    values = wire.check_object(found, 16)
    return Pressure(*(float(wire.check_number(values.get(field.name, 0.0),
                                              100))
                      for field in dataclasses.fields(Pressure)))


#: Format of the record in the diagnostics of a guest.
FORMAT = wire.Format(KEY, VERSION, parse_pressure, vars)


def make_pressure_diagnostics(pressure: Pressure) -> dict[str, str]:
    """Return the pressure of a guest as a field of its diagnostics."""
    return FORMAT.make_field(pressure)


def _make_fields(pressures: Pressures) -> dict[str, Any]:
    return {'guests': [
        [uuid, vars(one.pressure), one.project, one.flavor]
        for uuid, one in list(pressures.items())[:GUESTS_KEPT]]}


def _parse_guests(found: Mapping[str, Any]) -> dict[str, ReportedPressure]:
    return {wire.check_text(uuid): ReportedPressure(
        parse_pressure(values), wire.check_text(project),
        wire.check_text(flavor))
        for uuid, values, project, flavor
        in wire.check_list(found['guests'], GUESTS_KEPT)}


#: Pressure of a host's guests, in a file of nova-compute.
FILE_FORMAT: wire.FileFormat[dict[str, ReportedPressure]] = wire.FileFormat(
    FILE, VERSION, _parse_guests, _make_fields, dict)


def read_pressures(path: Path | None, now: float
                   ) -> dict[str, ReportedPressure]:
    """Read the pressure of a host's guests from the file of nova-compute.

    :param path: path of the file; None if there is none.
    :param now: current time in seconds since 1970.
    :returns: empty if the file is missing, malformed or old.
    """
    try:
        is_new = path and now - path.stat().st_mtime <= MAX_AGE_S
    except OSError:
        return {}
    return FILE_FORMAT.read(path) if is_new else {}
