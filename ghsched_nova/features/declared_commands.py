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

"""Sub-commands of ``ghsched`` that features add, in the order of its help."""

from collections.abc import Callable
from typing import Any

from ghsched_nova.features.explain import explain
from ghsched_nova.features.live_change import set_command
from ghsched_nova.features.planner import plan

#: Functions that add a sub-command to the subparsers of ``ghsched``.
COMMANDS: tuple[Callable[[Any], None], ...] = (
    explain.add_explain_command,
    plan.add_plan_command,
    set_command.add_server_set_command,
)
