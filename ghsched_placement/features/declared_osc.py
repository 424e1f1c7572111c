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

"""Options and columns that features add to the commands of the core."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from ghsched_placement.features.history import server_history
from ghsched_placement.features.load import host_load
from ghsched_placement.osc import base

#: Columns of ``host show``: name, and function that makes the cell of the
#: fields that a host reports of itself.
HOST_COLUMNS: tuple[
    tuple[str, Callable[[Mapping[str, Any]], Any]], ...] = (
    ('load', host_load.make_load_cell),
)

#: Tables of ``server bandwidth show``, each with its option.
SERVER_TABLES: tuple[base.ServerTable, ...] = (
    server_history.TABLE,
)
