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

"""Sub-commands and host parts that features add to ``ghsched-host``."""

from collections.abc import Callable
from typing import Any

from ghsched_nova.features.blame import blame
from ghsched_nova.features.doctor import retire
from ghsched_nova.features.interrupts import interrupt_changes
from ghsched_nova.features.planner import describe
from ghsched_nova.features.real_time import thread_changes
from ghsched_nova.host import compute_hooks

#: Functions that add a sub-command to the subparsers of ``ghsched-host``.
COMMANDS: tuple[Callable[[Any], None], ...] = (
    blame.add_blame_command,
    describe.add_describe_command,
    retire.add_retire_command,
)

#: Parts of a host that are compared after the control groups, in this order.
PARTS: tuple[compute_hooks.HostPart, ...] = (
    thread_changes.PART,
    interrupt_changes.PART,
)
