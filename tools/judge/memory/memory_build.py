#!/usr/bin/env python3
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
"""Build the memory simulation from a source tree of DRAMsim3.

usage: memory_build.py TREE DIRECTORY

TREE is a checkout of github.com/umd-memsys/DRAMsim3 and is only read.
DIRECTORY gets the program, ``memory``, and the configurations. DRAMsim3 is
compiled as it is, except for three calls that order its queues by service
class (:data:`INSERTIONS`). Needs a g++ that compiles C++17.
"""

import concurrent.futures
from pathlib import Path
import shutil
import subprocess  # noqa: S404
import sys

import toolchain

HERE = Path(__file__).resolve().parent

SOURCES = ('bankstate', 'channel_state', 'command_queue', 'common',
           'configuration', 'controller', 'dram_system', 'hmc', 'refresh',
           'simple_stats', 'timing', 'memory_system')

_INCLUDE = '#include "classes.h"'

_URGENT = '''
    Command urgent;
    auto ready = [&](size_t number, const Command& waiting, Command& found) {
        if (is_in_ref_ && ref_q_indices_.count(int(number))) return false;
        auto& queue = queues_[number];
        found = channel_state_.GetReadyCommand(waiting, clk_);
        return found.IsValid() &&
               !(found.IsWrite() &&
                 HasRWDependency(queue.begin() + (&waiting - queue.data()),
                                 queue));
    };
    if (judge::urgent(queues_, size_t(queue_idx_ + 1), ready, urgent)) {
        if (urgent.IsReadWrite()) EraseRWCommand(urgent);
        return urgent;
    }'''

#: By source file: text that occurs in exactly one line, and what is put
#: after that line.
INSERTIONS = {
    'controller': (
        ('#include "controller.h"', _INCLUDE),
        ('write_buffer_ : read_queue_;',
         '    judge::order(queue, [](const auto& one) { return one.addr; });'),
    ),
    'command_queue': (
        ('#include "command_queue.h"', _INCLUDE),
        ('::GetCommandToIssue() {', _URGENT),
        (' queue.push_back(cmd);',
         '        judge::order(queue, [](const auto& one) {\n'
         '            return one.hex_addr;\n'
         '        });'),
    ),
}


class BuildError(Exception):
    """A source tree that the insertions do not fit."""


def insert(text, anchor, addition):
    """Return the text with an addition after the line that has the anchor.

    :raises BuildError: unless exactly one line has the anchor.
    """
    lines = text.splitlines()
    found = [number for number, line in enumerate(lines) if anchor in line]
    if len(found) != 1:
        raise BuildError(f'{anchor!r} is in {len(found)} lines, not in one')
    lines.insert(found[0] + 1, addition)
    return '\n'.join(lines) + '\n'


def prepare(tree, directory):
    """Copy the sources into a directory, with the insertions."""
    for name in ('src', 'ext', 'configs'):
        shutil.copytree(tree / name, directory / name, dirs_exist_ok=True)
    for name, additions in INSERTIONS.items():
        path = directory / 'src' / f'{name}.cc'
        text = path.read_text()
        for anchor, addition in additions:
            text = insert(text, anchor, addition)
        path.write_text(text)


def compile_program(directory, jobs):
    """Compile and link the program, and return its path."""
    flags = ['g++', '-std=c++17', '-O2', '-DFMT_HEADER_ONLY=1', f'-I{HERE}',
             f'-I{directory}/src', f'-I{directory}/ext/headers',
             f'-I{directory}/ext/fmt/include']
    sources = [directory / 'src' / f'{name}.cc' for name in SOURCES]
    sources += [HERE / 'memory.cc', HERE / 'dramsim3.cc']
    objects = [str(directory / f'{source.stem}.o') for source in sources]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(
            lambda pair: subprocess.run(
                [*flags, '-c', str(pair[0]), '-o', pair[1]], check=True,
                timeout=900),
            zip(sources, objects, strict=True)))
    program = directory / 'memory'
    subprocess.run(['g++', '-o', str(program), *objects], check=True,
                   timeout=300)
    return program


def build(tree, directory, jobs=1):
    """Build the simulation in a directory and return the program's path.

    :raises ToolchainError: if g++ is missing or too old.
    """
    toolchain.check_compiler('c++17')
    directory = Path(directory).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    prepare(Path(tree), directory)
    return compile_program(directory, jobs)


if __name__ == '__main__':
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        print(build(*sys.argv[1:]))
    except toolchain.ToolchainError as error:
        sys.exit(f'memory_build.py: {error}')
