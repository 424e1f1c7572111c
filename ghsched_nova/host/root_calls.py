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

from pathlib import Path
from types import ModuleType
from typing import Any

from ghsched_nova.resctrl import model


def _load_privileged() -> ModuleType:
    # Imported on first use: oslo.privsep is slow to import.
    from ghsched_nova.resctrl import privileged

    return privileged


def reconcile_groups(root: Path, run_path: Path, wanted: model.Wanted) -> Any:
    """Bring the host's resctrl groups to the desired state, as root."""
    return _load_privileged().reconcile_groups(root, run_path, wanted)


def remove_own_group(root: Path, uuid: str) -> bool:
    """Remove a guest's own control group as root; return whether it was."""
    return bool(_load_privileged().remove_own_group(root, uuid))
