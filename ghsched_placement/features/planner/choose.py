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

"""Choice of the host and nodes for the next guest of a mix (pure).

The choice is that of GhschedGradientWeigher of nova-scheduler, by the same
functions (:mod:`ghsched_placement.features.packing.gradient`).
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ghsched_placement.features.packing import gradient
from ghsched_placement.features.planner.need import FlavorNeed
from ghsched_placement.features.planner.state import FilledHost
from ghsched_placement.features.planner.state import GuestPlacement
from ghsched_placement.providers import names

#: Free amount of a resource whose inventory is unknown.
_ENOUGH = 10 ** 9


@dataclass(frozen=True)
class ScoredPlacement:
    """Possible placement of one more guest on a host, with its score.

    :param value: score; the highest is best, also among different hosts.
    :param way: host nodes and allocated amounts of the guest.
    :param nodes: host NUMA node of each guest NUMA node.
    """

    value: float
    way: GuestPlacement
    nodes: tuple[int, ...]


#: The best option of a host; None where the guest has no room.
Choose: TypeAlias = Callable[[FilledHost, FlavorNeed,
                              Sequence[GuestPlacement]],
                             ScoredPlacement | None]


def choose_placement(state: FilledHost, need: FlavorNeed,
                     placements: Iterable[GuestPlacement]
                     ) -> tuple[GuestPlacement, tuple[int, ...]] | None:
    """Choose the placement that the scheduler would choose for a guest.

    The placement in which most further guests fit is chosen. Of equally good
    ones, the first one with the VFs nearest to the guest is chosen.

    :param state: free resources of the host.
    :param need: resources that the guest needs.
    :param placements: possible placements, in the scheduler's order.
    :returns: the placement, and the host node of each guest node; None if the
        guest does not fit.
    """
    found = list_best_placements(state, need, placements)
    return found[0] if found else None


def list_best_placements(
        state: FilledHost, need: FlavorNeed,
        placements: Iterable[GuestPlacement]
) -> list[tuple[GuestPlacement, tuple[int, ...]]]:
    """Return the best placements of a guest in the order of the scheduler.

    The best placements leave room for the most further guests, and of these
    have their VFs nearest to the guest. All returned placements are equally
    good.

    :param state: free resources of the host.
    :param need: resources that the guest needs.
    :param placements: possible placements, in the scheduler's order.
    :returns: placements, each with the host node of each guest node; empty if
        the guest does not fit.
    """
    needed = state.find_needed_nodes(need)
    fitting = [(way, nodes) for way in placements if (
        nodes := state.find_host_nodes(need, way)) is not None]
    keys = [(sum(node not in needed for node in nodes) if needed else 0,
             way.far[::-1]) for way, nodes in fitting]
    least = min(keys, default=None)
    return [one for one, key in zip(fitting, keys, strict=True)
            if key == least]


def make_gradient_placement_chooser(
        mix: Mapping[str, int], needs: Mapping[str, FlavorNeed]) -> Choose:
    """Return a function that chooses placements by GhschedGradientWeigher.

    The function returns the placement of a guest on a host that has the
    highest score, or None if the guest does not fit. A placement has a high
    score if guests of the mix can still use the rest of the host.

    :param mix: number of guests of each flavor in the mix, by flavor name.
    :param needs: resources that a guest of each flavor needs, by flavor name.
    """
    total = sum(mix.values())
    shares: dict[gradient.GuestKind, float] = {}
    for name, weight in mix.items():
        kind = make_guest_kind(needs[name])
        shares[kind] = shares.get(kind, 0.0) + weight / total

    def choose(state: FilledHost, need: FlavorNeed,
               ways: Sequence[GuestPlacement]) -> ScoredPlacement | None:
        growth = gradient.FragmentationGrowth(
            make_free_capacity(state), shares)
        kind = make_guest_kind(need)
        options = [
            # Rounded, so that equal ways stay in their order.
            ScoredPlacement(0.0 - round(
                growth.compute_fragmentation_growth(kind, nodes), 9),
                way, nodes)
            for way, nodes in list_best_placements(state, need, ways)]
        return max(options, key=lambda option: option.value, default=None)
    return choose


def make_guest_kind(need: FlavorNeed) -> gradient.GuestKind:
    """Convert the needs of a guest for functions of the gradient weigher.
    """
    devices: dict[int, int] = {}
    for (node, _name), count in need.vf_counts.items():
        devices[node] = devices.get(node, 0) + count
    return gradient.GuestKind(tuple(
        (cell.pinned, cell.shared, cell.memory,
         need.bandwidth.get(number, 0), devices.get(number, 0))
        for number, cell in enumerate(need.guest.needs)),
        need.policy.needs_control_group)


def make_free_capacity(state: FilledHost) -> gradient.FreeCapacity:
    """Convert a host's free resources for functions of the gradient weigher.
    """
    free: dict[int, gradient.Amounts] = {}
    total: dict[int, gradient.Amounts] = {}
    known = {node.number: node for node in state.fit_host.nodes}
    for node in state.list_free_nodes():
        stock, pfs = known[node.number].bandwidth, known[node.number].pfs
        has_cells = bool(state.host.cells)
        free[node.number] = (
            node.pinned.free if has_cells else _ENOUGH,
            node.shared.free if has_cells else _ENOUGH,
            node.memory.free if has_cells else _ENOUGH,
            stock.free if stock else _ENOUGH, sum(node.devices.values()))
        total[node.number] = (
            node.pinned.total if has_cells else 0,
            node.shared.total if has_cells else 0,
            node.memory.total if has_cells else 0,
            stock.capacity if stock else 0,
            sum(pf.stock.capacity for pf in pfs))
    groups = (state.get_free_amount((0, names.RESCTRL_GROUP))
              if names.RESCTRL_GROUP in state.host.root.inventories else None)
    return gradient.FreeCapacity(free, total, groups)
