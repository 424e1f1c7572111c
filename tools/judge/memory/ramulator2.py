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
"""Build the memory simulation with Ramulator2 and configure its memories.

Ramulator2 (github.com/CMU-SAFARI/ramulator2) is used as a library, and not
changed. A source tree that holds libramulator.so is used as it is; another is
copied and built, which needs cmake 3.14, and network access unless its
directory "ext" holds yaml-cpp and fmt. Both need a g++ that compiles C++20.
"""

import importlib
import os
from pathlib import Path
import shutil
import subprocess  # noqa: S404
import sys
from unittest import mock

import toolchain

HERE = Path(__file__).resolve().parent
LIBRARY = 'libramulator.so'

#: Standard, organization and timings of each memory, by the names that
#: Ramulator2 gives them.
PRESETS = {
    'ddr4': ('DDR4', 'DDR4_8Gb_x8', 'DDR4_3200AA'),
    'ddr4-closed': ('DDR4', 'DDR4_8Gb_x8', 'DDR4_3200AA'),
    'ddr5': ('DDR5', 'DDR5_16Gb_x8', 'DDR5_4800C'),
    'ddr4-4ch': ('DDR4', 'DDR4_8Gb_x8', 'DDR4_3200AA'),
}

#: Memories whose rows are closed after an access; the others keep them open.
CLOSED = frozenset({'ddr4-closed'})

#: Ranks of a channel, as in the memories of DRAMsim3.
RANKS = 2

#: Name of the scheduler of ramulator2.cc.
SERVICE_CLASS_SCHEDULER = 'ServiceClass'


def build_library(tree, directory):
    """Build Ramulator2 in a copy of its source tree, and return the copy.

    :param directory: directory that gets the copy.
    :raises ToolchainError: if cmake is missing or too old.
    """
    toolchain.check_cmake()
    copy = directory / 'ramulator2'
    shutil.copytree(tree, copy, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns('.git', 'build'))
    offline = all((copy / 'ext' / name / 'CMakeLists.txt').exists()
                  for name in ('yaml-cpp', 'fmt'))
    subprocess.run(
        ['cmake', '-S', str(copy), '-B', str(copy / 'build'),
         '-DRAMULATOR_PYTHON_BINDINGS=OFF', '-DCMAKE_CXX_COMPILER=g++',
         f'-DFETCHCONTENT_FULLY_DISCONNECTED={"ON" if offline else "OFF"}'],
        check=True, timeout=900)
    subprocess.run(['cmake', '--build', str(copy / 'build'), '--parallel',
                    str(os.cpu_count())], check=True, timeout=3600)
    return copy


def link(tree, directory):
    """Compile the memory simulation, link it with the library of Ramulator2,
    and return the program's path.

    :raises ToolchainError: if g++ is missing or too old, or cmake is and there
        is no library.
    """
    toolchain.check_compiler('c++20')
    tree, directory = (Path(path).resolve() for path in (tree, directory))
    directory.mkdir(parents=True, exist_ok=True)
    if not (tree / LIBRARY).exists():
        tree = build_library(tree, directory)
    program = directory / 'memory'
    subprocess.run(
        ['g++', '-std=c++20', '-O2', f'-I{HERE}', f'-I{tree}/src',
         str(HERE / 'memory.cc'), str(HERE / 'ramulator2.cc'),
         '-o', str(program), str(tree / LIBRARY), f'-Wl,-rpath,{tree}'],
        check=True, timeout=900)
    return program


def get_configuration(tree, memory, channels):
    """Return the configuration of a memory as Ramulator2 computes it.

    The first ready command is served first, as in the example of Ramulator2.
    """
    with mock.patch('sys.path', [str(Path(tree) / 'python'), *sys.path]):
        package = importlib.import_module('ramulator')
    standard, organization, timing = PRESETS[memory]
    dram = getattr(package.dram, standard)(
        org_preset=organization, timing_preset=timing, rank=RANKS)
    controllers = [package.controller.GenericDDR(
        dram=dram, scheduler=package.scheduler.FRFCFS(),
        refresh_manager=package.refresh_manager.AllBank(),
        # With a cap of 1, a row has one access, or two at once.
        row_policy=(package.row_policy.ClosedCAP(cap=1) if memory in CLOSED
                    else package.row_policy.Open()),
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
