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


"""Changes of resctrl that nova-compute makes as root, through privsep.

What crosses to the daemon and back is made of lists, texts and numbers alone
(:func:`bounds.pack`); :class:`fs.GroupError` is made again on this side from
its arguments.

Whoever is root already (``ghsched`` on a host, the tests) calls
:mod:`ghsched_nova.resctrl.reconcile` itself.
"""

from collections.abc import Sequence
import functools
from pathlib import Path
from typing import Annotated
from typing import Any

from oslo_config import cfg

from ghsched_nova.base import bounds
from ghsched_nova.base import kernel_files
from ghsched_nova.base import privsep
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import measure as measuring
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_nova.resctrl import reconcile as reconciling
from ghsched_nova.resctrl import rounding
from ghsched_nova.resctrl import schemata


def _check_root(root: str) -> None:
    """Refuse a resctrl mount point other than the configured one.

    The privileged helper checks its arguments, as it runs as root.

    :raises GroupError: with the reason.
    """
    _check_path('resctrl_path', root)
    found = kernel_files.get_file_system_type(root)
    if found not in cfg.CONF.ghsched.resctrl_magic:
        raise fs.GroupError(
            f'is not on a resctrl file system (type {found:#x}); is resctrl '
            'still mounted?', root)


def _check_path(option: str, requested: str) -> None:
    """Refuse a path other than the configured one.

    :raises GroupError: with the reason.
    """
    configured = cfg.CONF.ghsched[option]
    # The caller has made paths of its options, without a slash at the end.
    if requested != str(Path(configured)):
        raise fs.GroupError(
            f'[ghsched]{option} is {configured} in the configuration of the '
            'privileged helper; does it read the same files as nova-compute?',
            requested)


_PATH = bounds.Text(r'/[^\x00]*', 4095)
_Root = Annotated[str, _PATH, _check_root]
_RunPath = Annotated[str, _PATH, functools.partial(
    _check_path, 'libvirt_run_path')]
_REPORT = bounds.Codec(reconciling.ReconcileReport, bounded=False)


def remove_own_group(root: Path, uuid: str) -> bool:
    """Remove a guest's own control group with root's privileges.

    The group stays if vCPU threads are still in it.

    :returns: False if the group is in use or does not exist.
    :raises fs.GroupError: if the kernel or the helper fails.
    :raises ValueError: for a malformed UUID.
    """
    try:
        return _remove_own(str(root), uuid)
    except privsep.HelperTimeout as error:
        raise fs.GroupError(str(error)) from None


def reconcile_groups(root: Path, run_path: Path,
                     wanted: model.Wanted) -> reconciling.ReconcileReport:
    """Bring the host's resctrl groups to the desired state, as root.

    :param run_path: directory with libvirt's PID files.
    :raises fs.GroupError: if resctrl is not mounted or locked, or the helper
        does not answer.
    :raises ValueError: if the desired state is malformed.
    """
    try:
        packed = _reconcile(str(root), str(run_path), bounds.pack(wanted))
    except privsep.HelperTimeout as error:
        raise fs.GroupError(f'{error}; retrying in the next periodic '
                            'task') from None
    report: reconciling.ReconcileReport = _REPORT.unpack(packed)
    return report


@privsep.entrypoint(privsep.context, timeout=300.0)
def _reconcile(root: _Root, run_path: _RunPath, wanted: model.Wanted) -> Any:
    return bounds.pack(reconciling.reconcile_groups(
        reconciling.HostPaths(Path(root), Path(run_path)), wanted))


def measure_percentages(root: Path, lines: Sequence[str],
                        domain: int) -> dict[str, rounding.Readings]:
    """Measure how the kernel rounds bandwidth percentages, as root.

    The kernel rounds percentages that are written to a schemata line.

    :param root: mount point of resctrl.
    :param lines: names of the schemata lines.
    :param domain: resctrl domain to write to.
    :raises fs.GroupError: if resctrl cannot be used.
    :raises ValueError: for a malformed line or domain.
    """
    return {line: tuple(shown) for line, shown
            in _measure(str(root), list(lines), domain)}


@privsep.entrypoint(privsep.context, timeout=60.0)
def _measure(root: _Root, lines: Sequence[schemata.LineName],
             domain: schemata.Number) -> Any:
    return bounds.pack(measuring.measure_percentages(Path(root), lines,
                                                     domain))


@privsep.entrypoint(privsep.context, timeout=60.0)
def _remove_own(root: _Root, uuid: naming.Uuid) -> bool:
    return fs.remove_group(Path(root), uuid)
