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
"""Record what Linux' own MPAM driver writes into registers.

``record.py PROGRAM [OUT]`` runs PROGRAM, which build.sh beside this file
builds, above bandwidth controls of several widths, with and without narrowed
PARTIDs, and writes each percentage and drawn policies. OUT, a file of the
tests by default, has what ``schemata`` shows and what the registers hold.
"""

import gzip
import json
from pathlib import Path
import random
import subprocess  # noqa: S404
import sys

OUT = (Path(__file__).resolve().parents[3]
       / 'ghsched_nova/tests/lab/emulator/vectors/mpam_driver.json.gz')
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
PARTIDS, INTERNAL, PORTIONS = 32, 12, 16
#: Drawn writes to each machine.
WRITES = 400


def commands(draw, closids):
    """Return writes: each percentage, a reset, then drawn ones."""
    yield from (('MB', 1, str(percent)) for percent in range(102))
    yield 'reset', 1, 'x'
    for _ in range(WRITES):
        partid = draw.randrange(closids)
        if draw.random() < .6:
            yield 'MB', partid, str(draw.randrange(1, 101))
        else:
            yield 'L3', partid, f'{draw.randrange(1, 1 << PORTIONS):x}'


def record(program, bits, narrowed):
    """Return what one machine answers, as a mapping."""
    asked = list(commands(random.Random(bits),  # noqa: S311
                          INTERNAL if narrowed else PARTIDS))
    text = ''.join(f'{what} {partid} {value}\n'
                   for what, partid, value in asked)
    first, *rows = subprocess.run(
        [program, str(bits), str(PARTIDS), str(INTERNAL if narrowed else 0),
         str(PORTIONS)], input=text, check=True, capture_output=True,
        text=True, timeout=600).stdout.splitlines()
    closids, lowest, step, shared = first.split()
    found = {'num_closids': int(closids), 'min_bandwidth': int(lowest),
             'bandwidth_gran': int(step), 'shareable_bits': shared,
             'steps': []}
    for command, row in zip(asked, rows, strict=True):
        words = row.split()
        refused = words[0] == 'refused'
        _partid, shown, *hexadecimal, errors = words[refused:]
        found['steps'].append([*command, not refused, int(shown), *(
            int(word, 16) for word in hexadecimal), int(errors)])
    return found


def main(argv):
    program = str(Path(argv[0]).resolve())
    machines = ',\n'.join(
        json.dumps(f'{bits}{" narrowed" if narrowed else ""}') + ': '
        + json.dumps(record(program, bits, narrowed), separators=(',', ':'))
        for bits in WIDTHS for narrowed in (False, True))
    with gzip.GzipFile(argv[1] if argv[1:] else OUT, 'wb', mtime=0) as stream:
        stream.write(f'{{\n{machines}\n}}\n'.encode())


if __name__ == '__main__':
    main(sys.argv[1:])
