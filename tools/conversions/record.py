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
"""Record what each MPAM driver shows for each written percentage.

``record.py [OUT]`` compiles conversions.c beside this file with ``cc`` and
writes the tables to OUT, by default to the file that the emulator reads
(ghsched_nova/lab/emulator/conversions.json). The sources of the arithmetic
are named in conversions.c.
"""

import json
from pathlib import Path
import subprocess  # noqa: S404
import sys
import tempfile

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / 'ghsched_nova/lab/emulator/conversions.json'


def record():
    """Return the text of the tables, by driver and width of the control."""
    with tempfile.TemporaryDirectory() as top:
        program = Path(top) / 'conversions'
        subprocess.run(['cc', '-Wall', '-Wextra', '-Werror', '-o', program,
                        HERE / 'conversions.c'], check=True)
        rows = subprocess.run([program], check=True, capture_output=True,
                              text=True).stdout.splitlines()
    tables = {}
    for name, bits, least, step, *shown in map(str.split, rows):
        tables.setdefault(name, {})[bits] = {
            'min_bandwidth': int(least), 'bandwidth_gran': int(step),
            'shown': [int(value) for value in shown]}
    drivers = ',\n'.join(
        f'  {json.dumps(name)}: {{\n' + ',\n'.join(
            f'    {json.dumps(bits)}: {json.dumps(table)}'
            for bits, table in widths.items()) + '\n  }'
        for name, widths in tables.items())
    return f'{{\n{drivers}\n}}\n'


if __name__ == '__main__':
    Path(sys.argv[1] if len(sys.argv) > 1 else OUT).write_text(
        record(), encoding='utf-8')
