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

"""Arguments and reports that features add to ghsched's part of nova-api."""

from collections.abc import Callable
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from ghsched_nova.features.blame import blame_action
from ghsched_nova.features.live_change import server_set
from ghsched_nova.features.refusals import refusals
from ghsched_placement.features.blame import blame_report
from ghsched_placement.features.live_change import move_report

#: Function that runs the server action ``ghsched``. It gets the context of
#: the request, the UUID of the server and the argument of the action, checks
#: the policy rules, and returns the body of the response.
ServerAction: TypeAlias = Callable[[Any, str, Mapping[str, Any]],
                                   dict[str, Any]]

#: Functions that run the server action, by a key of its argument. The first
#: key that the argument has counts.
SERVER_ACTIONS: Mapping[str, ServerAction] = MappingProxyType({
    blame_report.KEY: blame_action.report_slowing_guests,
    move_report.KEY: server_set.change_server,
    server_set.KEY: server_set.change_server})

#: Functions that answer ``GET /ghsched/NAME``, by NAME. They get the context
#: of the request and check the policy rules.
REPORTS: Mapping[str, Callable[[Any], dict[str, Any]]] = MappingProxyType(
    {'refusals': refusals.list_refusals})
