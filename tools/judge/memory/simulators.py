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
"""Memory simulators that the memory simulation can be linked with."""

from collections.abc import Mapping
import json
from pathlib import Path
import typing

import memory_build
import ramulator2

RECORDINGS = (Path(__file__).resolve().parents[3] / 'ghsched_placement'
              / 'contention')
DDR4 = 'DDR4_8Gb_x8_3200.ini'

#: Settings of DRAMsim3 that differ from DDR4, by memory.
_DDR5 = {
    'bankgroups': 8, 'BL': 16, 'bus_width': 32, 'channels': 2,
    'address_mapping': 'rorababgcoch', 'tCK': 0.416, 'CL': 40, 'CWL': 38,
    'tRCD': 39, 'tRP': 39, 'tRAS': 77, 'tRFC': 710, 'tREFI': 9375,
    'tRRD_S': 8, 'tRRD_L': 12, 'tWTR_S': 6, 'tWTR_L': 24, 'tFAW': 32,
    'tWR': 72, 'tRTP': 18, 'tCCD_S': 8, 'tCCD_L': 12,
}
MEMORIES: Mapping[str, Mapping[str, object]] = {
    'ddr4': {},
    'ddr4-closed': {'row_buf_policy': 'CLOSE_PAGE'},
    'ddr4-4ch': {'channels': 4, 'address_mapping': 'rorababgcoch'},
    'ddr5': _DDR5,
}


class Simulator(typing.Protocol):
    """Memory simulator: memories that it has, and the recording of its runs.
    """

    title: str
    memories: tuple[str, ...]
    recording: Path

    def build(self, tree, directory):
        """Build the memory simulation in a directory from a source tree."""

    def write_configuration(self, cell, directory, work):
        """Write the configuration of a cell's memory and return its path.

        :param directory: of :meth:`build`.
        :param work: directory that gets the file.
        """


class Dramsim3:
    """DRAMsim3, with the settings of :data:`MEMORIES`."""

    title = 'DRAMsim3'
    memories = tuple(MEMORIES)
    recording = RECORDINGS / 'simulated_memory.json'

    def build(self, tree, directory):
        """Build the memory simulation in a directory from a source tree."""
        memory_build.build(tree, directory)

    def write_configuration(self, cell, directory, work):
        """Write the configuration of a cell's memory and return its path."""
        path = Path(work, 'memory.ini')
        path.write_text(configuration(
            (directory / 'configs' / DDR4).read_text(),
            MEMORIES[cell.memory]))
        return path


class Ramulator2:
    """Ramulator2, with its own timings."""

    title = 'Ramulator2'
    memories = tuple(ramulator2.PRESETS)
    recording = RECORDINGS / 'simulated_memory_ramulator2.json'

    def build(self, tree, directory):
        """Build the memory simulation in a directory from a source tree."""
        ramulator2.link(tree, directory)
        for memory in self.memories:
            (directory / f'{memory}.json').write_text(json.dumps(
                ramulator2.get_configuration(
                    tree, memory, MEMORIES[memory].get('channels', 1))))

    def write_configuration(self, cell, directory, work):
        """Write the configuration of a cell's memory and return its path."""
        path = Path(work, 'memory.json')
        path.write_text(json.dumps(ramulator2.select_scheduler(
            json.loads((directory / f'{cell.memory}.json').read_text()),
            bool(cell.option('inside')))))
        return path


SIMULATORS: Mapping[str, Simulator] = {
    'dramsim3': Dramsim3(), 'ramulator2': Ramulator2()}


def configuration(base, settings):
    """Return a configuration of DRAMsim3 with other settings."""
    lines = []
    for line in base.splitlines():
        name = line.partition('=')[0].strip()
        lines.append(f'{name} = {settings[name]}' if name in settings
                     else line)
    return '\n'.join(lines) + '\n'
