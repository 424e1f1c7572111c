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

"""Features that find moves of servers to make room for a flavor."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import TypeAlias

from ghsched_placement.features.rebalance import rebalance_for_flavor
from ghsched_placement.fit import capacity
from ghsched_placement.fit.guest_demand import GuestDemand

#: Function that finds moves which make room for one guest more: the moves in
#: words, and how many guests fit after them. Arguments: what a guest needs
#: with each number of NUMA nodes, and how many fit now.
FindMoves: TypeAlias = Callable[[Sequence[GuestDemand], int],
                                list[tuple[str, int]]]

#: Functions that read the servers of a cloud from a client, for hosts and
#: [ghsched]bandwidth_accounting, and return such a function.
MOVE_FINDERS: tuple[Callable[[Any, Sequence[capacity.HostInventory], Any],
                             FindMoves], ...] = (
    rebalance_for_flavor.make_move_finder,
)
