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

"""Ask the kernel what a schemata line shows of each written percentage.

MPAM drivers convert a percentage to a hardware value and back. The width of
that value is in no file of info/ on openEuler, and the arithmetic differs by
driver and version, so the percentages are written, one after the other, to a
control group without threads, and read again. No other group is touched.
"""

from collections.abc import Sequence
import contextlib
import errno
from pathlib import Path

from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import rounding
from ghsched_nova.resctrl import schemata


def measure_percentages(root: Path, lines: Sequence[str], domain: int,
                        files: fs.Files | None = None,
                        lock_timeout: float = fs.LOCK_TIMEOUT
                        ) -> dict[str, rounding.Readings]:
    """Measure to which percentage the kernel rounds each of 0 to 100.

    The kernel rounds percentages that are written to a schemata line. A
    temporary control group is created for the measurement.

    :param root: mount point of resctrl.
    :param lines: names of the schemata lines.
    :param domain: resctrl domain to write to.
    :returns: the 101 rounded percentages by line.
    :raises GroupError: if resctrl is not mounted or locked, no control group
        is left, or the group cannot be read.
    """
    files = files or fs.Files()
    group = root / naming.PROBE
    with fs.resctrl_lock(files, root, lock_timeout):
        _remove_probe_group(files, group)  # one of a process that was killed
        try:
            files.make_directory(group)
        except OSError as exc:
            status = fs.read_last_status(files, root)
            raise fs.GroupError(
                'no control group is free for the measurement'
                if exc.errno == errno.ENOSPC else 'cannot be made',
                str(group), errno=exc.errno or 0, status=status) from exc
        try:
            return {line: _measure_line(files, group, line, domain)
                    for line in lines}
        finally:
            _remove_probe_group(files, group)


def _measure_line(
    files: fs.Files, group: Path, line: str, domain: int
) -> rounding.Readings:
    fresh = _read_shown_value(files, group, line, domain)
    # The next group that a line of the resource is written to gets the value
    # that was written last here (OLK-5.10). End with that of a new group.
    order = range(101) if fresh else range(100, -1, -1)
    found: dict[int, int | None] = {}
    for percent in order:
        try:
            files.write(group / 'schemata', f'{line}:{domain}={percent}\n')
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise fs.make_group_error(
                    'cannot be measured', group, exc
                ) from exc
            found[percent] = None
            continue
        found[percent] = _read_shown_value(files, group, line, domain)
    return tuple(found[percent] for percent in range(101))


def _read_shown_value(
    files: fs.Files, group: Path, line: str, domain: int
) -> int:
    try:
        rows = schemata.parse_kernel_schemata(files.read(group / 'schemata'))
        return (rows.values(line) or {})[domain]
    except OSError as exc:
        raise fs.make_group_error('cannot be measured', group, exc) from exc
    except (schemata.SchemataError, KeyError) as exc:
        raise fs.GroupError(
            f'shows no {line} of domain {domain}: {exc}', str(group)) from exc


def _remove_probe_group(files: fs.Files, group: Path) -> None:
    # What cannot be removed now is removed before the next measurement.
    with contextlib.suppress(OSError):
        files.remove_directory(group)
