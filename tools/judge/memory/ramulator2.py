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
"""Link the memory simulation with Ramulator2 and configure its memories.

Ramulator2 (github.com/CMU-SAFARI/ramulator2) is used as a library: its source
tree holds libramulator.so once it is built as its README says. Only files of
this directory are compiled here.
"""

import importlib
from pathlib import Path
import subprocess  # noqa: S404
import sys
from unittest import mock

HERE = Path(__file__).resolve().parent
LIBRARY = 'libramulator.so'

#: Standard, organization and timings of each memory, by the names that
#: Ramulator2 gives them.
PRESETS = {
    'ddr4': ('DDR4', 'DDR4_8Gb_x8', 'DDR4_3200AA'),
    'ddr5': ('DDR5', 'DDR5_16Gb_x8', 'DDR5_4800C'),
    'ddr4-4ch': ('DDR4', 'DDR4_8Gb_x8', 'DDR4_3200AA'),
}

#: Ranks of a channel, as in the memories of DRAMsim3.
RANKS = 2

#: Name of the scheduler of ramulator2.cc.
SERVICE_CLASS_SCHEDULER = 'ServiceClass'


class NotBuiltError(Exception):
    """A source tree without the library."""


def link(tree, directory):
    """Compile the memory simulation, link it with the library of a source
    tree, and return the program's path.

    :raises NotBuiltError: if the source tree has no library.
    """
    tree, directory = (Path(path).resolve() for path in (tree, directory))
    if not (tree / LIBRARY).exists():
        raise NotBuiltError(f'{tree} has no {LIBRARY}: build Ramulator2 there '
                            'first, as its README says')
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / 'memory'
    subprocess.run(
        ['g++', '-std=c++20', '-O2', f'-I{HERE}', f'-I{tree}/src',
         str(HERE / 'memory.cc'), str(HERE / 'ramulator2.cc'),
         '-o', str(program), str(tree / LIBRARY), f'-Wl,-rpath,{tree}'],
        check=True, timeout=900)
    return program


def get_configuration(tree, memory, channels):
    """Return the configuration of a memory as Ramulator2 computes it.

    Rows stay open, and the first ready command is served first, as in the
    example of Ramulator2.
    """
    with mock.patch('sys.path', [str(Path(tree) / 'python'), *sys.path]):
        package = importlib.import_module('ramulator')
    standard, organization, timing = PRESETS[memory]
    dram = getattr(package.dram, standard)(
        org_preset=organization, timing_preset=timing, rank=RANKS)
    controllers = [package.controller.GenericDDR(
        dram=dram, scheduler=package.scheduler.FRFCFS(),
        refresh_manager=package.refresh_manager.AllBank(),
        row_policy=package.row_policy.Open(),
        addr_mapper=package.addr_mapper.RoBaRaCoCh())
        for _ in range(channels)]
    return {
        'line_cycles': dram.resolve()[1]['nBL'],
        'frontend': package.frontend.External(clock_ratio=1).to_config(),
        'memory_system': package.memory_system.GenericDRAM(
            clock_ratio=1, controllers=controllers,
            channel_mapper=package.channel_mapper.CacheLineInterleave(),
        ).to_config()}


def select_scheduler(configuration, inside):
    """Return a configuration whose controllers order accesses by service
    class if the classes hold inside them.
    """
    if inside:
        for controller in configuration['memory_system']['controllers']:
            controller['scheduler'] = {'impl': SERVICE_CLASS_SCHEDULER}
    return configuration
