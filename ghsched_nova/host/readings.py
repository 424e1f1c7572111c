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

"""Measure which percentage the kernel shows for each one that is written.

Measured once for each mount of resctrl and kept in a file, so that a
nova-compute that starts again writes nothing.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import logging
import os
from pathlib import Path
import threading
import time
from typing import Any

from ghsched_nova.base import record_file
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.resctrl import rounding
from ghsched_placement.base import wire

LOG = logging.getLogger(__name__)

#: Name of the file in Nova's state_path.
FILE = 'ghsched-readings.json'

#: Seconds between a failed measurement and the next attempt.
RETRY_S = 60.0

_BOOT_ID = Path('/proc/sys/kernel/random/boot_id')

#: Function that measures the rounding, given the mount point of resctrl, the
#: names of schemata lines and a resctrl domain.
Measure = Callable[[Path, Sequence[str], int],
                   Mapping[str, rounding.Readings]]

_Known = Mapping[str, rounding.Readings]


def _parse_measurements(found: Mapping[str, Any]) -> tuple[str, _Known]:
    """Return the mount and the measurements of a parsed file.

    :raises ValueError: if a line has no table of rounded percentages: a list
        of 101 items, one for each of 0 to 100 percent, None if the kernel
        refused it.
    """
    lines = {}
    for line, table in wire.check_object(found['lines']).items():
        lines[wire.check_text(line)] = tuple(
            None if shown is None else wire.check_integer(shown, 100)
            for shown in wire.check_list(table))
        if len(lines[line]) != 101:
            raise ValueError(f'{len(table)} percentages for line {line}')
    return wire.check_text(found['mount']), lines


#: Rounding of percentages by schemata line, and the mount of resctrl.
FORMAT: wire.FileFormat[tuple[str, _Known]] = wire.FileFormat(
    FILE, 1, _parse_measurements,
    lambda measured: {'mount': measured[0], 'lines': measured[1]},
    lambda: ('', {}))


class RoundingCache:
    """Cache of how the kernel rounds bandwidth percentages; thread-safe.

    The kernel rounds percentages that are written to schemata lines.

    :param root: mount point of resctrl.
    :param path: file that preserves the cache over restarts; None for no file.
    :param measure: function that measures the rounding; None if nothing may
        be written to resctrl.
    :param saves: whether measurements are saved to the file. If not, the file
        is only read.
    """

    def __init__(self, root: Path, path: Path | None = None,
                 measure: Measure | None = None, saves: bool = True) -> None:
        self._root = root
        self._file = record_file.RecordFile(path, FORMAT) if path else None
        self._measure = measure
        self._saves = saves
        self._lock = threading.Lock()
        self._mount = ''
        self._lines: _Known = {}
        self._retry_at = 0.0
        self._failure = ''

    def get_measured_rounding(self) -> _Known:
        """Return how the kernel rounds percentages, by schemata line.

        The kernel rounds percentages that are written to a schemata line. How
        it rounds was measured. Measurements from before resctrl was last
        mounted are left out.

        :returns: for each measured line, the percentage to which the kernel
            rounds each of 0 to 100.
        """
        with self._lock:
            mount = _identify_mount(self._root)
            if mount != self._mount:
                self._mount, self._retry_at = mount, 0.0
                known, lines = (self._file.read() if self._file and mount
                                else ('', {}))
                self._lines = lines if known == mount else {}
            return self._lines

    def measure_missing_percentages(self,
                                    host: resctrl_host.ResctrlHost) -> bool:
        """Measure how the kernel rounds bandwidth percentages on a host.

        The kernel rounds percentages that are written to a schemata line.
        Lines that are measured already are skipped. A failed measurement is
        logged, and not retried for ``RETRY_S``.

        :returns: whether all lines of the host are measured.
        """
        self.get_measured_rounding()
        with self._lock:
            # Another thread may have measured since this host was read.
            if self._lines.keys() >= set(host.unmeasured):
                return True
            if (self._measure is None or not self._mount
                    or time.monotonic() < self._retry_at):
                return False
            try:
                domain = min(domain for domains
                             in host.domains_by_node.values()
                             for domain in domains)
                found = self._measure(self._root, host.unmeasured, domain)
            except Exception as error:  # whatever privsep raises
                self._record_failure(error)
                return False
            self._lines = {**self._lines, **found}
            self._failure = ''
            self._write_file()
        LOG.info("ghsched: measured the kernel's rounding steps for bandwidth "
                 "percentages in schemata lines %(lines)s; caps and "
                 "guarantees will be exact",
                 {'lines': ', '.join(found)})
        return True

    def _record_failure(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + RETRY_S
        failure = str(error)
        if failure != self._failure:
            self._failure = failure
            LOG.warning(
                "ghsched: cannot measure the kernel's rounding steps for "
                "bandwidth percentages: %(error)s; retrying in %(seconds)d s. "
                "Until then, caps and guarantees may be a few percent too "
                "low",
                {'seconds': RETRY_S, 'error': failure})

    def _write_file(self) -> None:
        if self._file is None or not self._saves:
            return
        try:
            self._file.write((self._mount, self._lines))
        except OSError as error:
            LOG.warning('ghsched: cannot save the rounding steps for '
                        'bandwidth percentages to %(path)s; nova-compute will '
                        'measure them again after a restart: %(error)s',
                        {'path': self._file.path, 'error': error})


def _identify_mount(root: Path) -> str:
    """Return an identifier of the current mount of resctrl.

    Each mount has another identifier. The identifier is empty if resctrl is
    not mounted.
    """
    try:
        found = os.stat(root / 'info')
        return (f'{_BOOT_ID.read_text(encoding="ascii").strip()}/'
                f'{found.st_dev}/{found.st_ino}')
    except OSError:
        return ''
