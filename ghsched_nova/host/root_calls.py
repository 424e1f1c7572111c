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

"""Changes of resctrl that the engine has the privileged helper make."""

from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import reconcile as reconciling
from ghsched_nova.resctrl import rounding


def _privileged() -> ModuleType:
    # Imported on first use: oslo.privsep is slow to import.
    from ghsched_nova.resctrl import privileged

    return privileged


def stop_idle_helpers() -> None:
    """Stop each privileged helper that was not called since the last call."""
    from ghsched_nova.base import privsep

    privsep.stop_idle_helpers()


def measure_schemata(root: Path, lines: Sequence[str],
                     domain: int) -> Mapping[str, rounding.Readings]:
    """Measure how the kernel rounds bandwidth percentages; needs root.

    The kernel may enforce another percentage than the one that was written to
    a schemata line.

    :param root: mount point of resctrl.
    :param lines: names of the schemata lines.
    :param domain: resctrl domain to measure in.
    """
    found: Mapping[str, rounding.Readings] = _privileged().measure_percentages(
        root, lines, domain)
    return found


def reconcile(root: Path, run_path: Path,
              wanted: model.Wanted) -> reconciling.Report:
    """Bring the host's resctrl groups to the desired state, as root.

    The privileged helper of nova-compute makes the changes.
    """
    report: reconciling.Report = _privileged().reconcile(
        root, run_path, wanted)
    return report


def remove_own_group(root: Path, uuid: str) -> bool:
    """Remove a guest's own control group as root.

    The group stays if vCPU threads are still in it.

    :returns: False if the group is in use or does not exist.
    """
    return bool(_privileged().remove_own_group(root, uuid))
