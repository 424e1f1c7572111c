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


"""Percentages that MPAM drivers show of what is written, as recorded tables.

``conversions.json`` has a row for each driver and each width of its control.
Tests hold each value to a recording of that driver's own functions, but for
``linux-unrounded``: Linux' driver where fs/resctrl does not round up to
``bandwidth_gran`` first, as resctrl_arch_preconvert_bw() of the series of July
2026 leaves it. The host engine does not use these tables: it asks the kernel
(:mod:`ghsched_nova.resctrl.measure`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
import functools
import json
from pathlib import Path

_FILE = Path(__file__).with_name('conversions.json')


@dataclass(frozen=True)
class Table:
    """Percentages that a driver shows for a control of one width.

    :param min_bandwidth: text of info/MB/min_bandwidth.
    :param bandwidth_gran: text of info/MB/bandwidth_gran.
    :param shown: percentage that is shown, by the one that was written from 0
        to 100; -1 where the write is refused.
    """

    min_bandwidth: int
    bandwidth_gran: int
    shown: tuple[int, ...]


@functools.cache
def tables() -> Mapping[tuple[str, int], Table]:
    """Return all tables by driver and width of the control in bits."""
    recorded = json.loads(_FILE.read_text(encoding='utf-8'))
    return {(driver, int(bits)): Table(
        table['min_bandwidth'], table['bandwidth_gran'],
        tuple(table['shown']))
        for driver, widths in recorded.items()
        for bits, table in widths.items()}


def table(driver: str, bits: int) -> Table:
    """Return the table of a driver with a control of a number of bits."""
    return tables()[driver, bits]
