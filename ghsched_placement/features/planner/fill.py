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

"""Filling hosts with guests, as nova-scheduler would.

The candidates are those that Placement would return. A placed guest can only
rule out candidates of the next guest. Therefore the scheduler would choose the
first candidate that still fits, and the candidates are listed again only when
none fits any more. A host is full if no candidate of the new list fits either.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from ghsched_placement.features.planner import choose
from ghsched_placement.features.planner.cloud import Progress
from ghsched_placement.features.planner.need import FlavorNeed
from ghsched_placement.features.planner.offer import Offers
from ghsched_placement.features.planner.state import FilledHost
from ghsched_placement.features.planner.state import GuestPlacement


def fill_each_host_with_flavor(
        offers: Offers, need: FlavorNeed,
        states: Sequence[FilledHost]) -> None:
    """Place guests of a flavor on each host until no more fit.

    If the scheduler chooses the number of guest NUMA nodes, guests with the
    smallest number are placed first, and then guests with larger ones.

    :param offers: ways to place a guest on the hosts.
    :param need: resources that each guest needs.
    :param states: used and free resources of each host; updated in place.
    """
    for variant in (need, *need.larger):
        _fill_hosts(offers, variant, states)


def _fill_hosts(offers: Offers, need: FlavorNeed, states: Sequence[FilledHost]
                ) -> None:
    offers.set_hosts(states)
    while states:
        filled: dict[int, FilledHost] = {}
        for locality, sizes in need.yield_vf_request_variants(
                lambda: offers.list_pfs_for_flavor(need)):
            found = offers.list_placements(need, locality, sizes)
            for number, ways in enumerate(found):
                if number not in filled and _fill_host(
                        states[number], need, ways):
                    filled[number] = states[number]
            if len(filled) == len(states):
                break
        # Where nothing was placed, Placement would say the same again.
        states = list(filled.values())
        offers.set_hosts(states)


def _fill_host(state: FilledHost, need: FlavorNeed,
               ways: Sequence[GuestPlacement]) -> int:
    before = state.guests
    while (found := choose.choose_placement(
            state, need, ways)) is not None:
        state.place_guest(need, *found)
    return state.guests - before


# -- several flavors ----------------------------------------------------------


@dataclass(frozen=True)
class MixResult:
    """Number of guests of each flavor that a plan for a mix has placed.

    :param guests: number of guests by flavor name.
    :param stopped_by: name of the flavor whose next guest fits on no host.
    """

    guests: Mapping[str, int]
    stopped_by: str


@dataclass
class _Flavor:
    """Flavor of a mix, and where its next guest can be placed.

    :ivar need: resources that a guest needs. If the scheduler chooses the
        number of guest NUMA nodes, this is the smallest number that fits.
    :ivar larger: needs with larger numbers, in ascending order.
    :ivar weight: number of guests of the flavor in the mix.
    :ivar choose_placement: function that chooses and scores the placement of a
        guest on a host.
    :ivar placed: number of guests placed so far.
    :ivar ways: possible placements by index of the host, as last listed.
    :ivar options: best placement by index of the host; None if no guest fits.
        A host is missing after a guest was placed on it.
    """

    need: FlavorNeed
    larger: Sequence[FlavorNeed]
    weight: int
    choose_placement: choose.Choose
    placed: int = 0
    ways: dict[int, Sequence[GuestPlacement]] = field(default_factory=dict)
    options: dict[int,
                  choose.ScoredPlacement | None] = field(default_factory=dict)

    @property
    def guests_per_share(self) -> float:
        """Number of guests placed so far, divided by the flavor's share.

        The share is the number of guests of the flavor in the mix. The flavor
        with the lowest value gets the next guest. Half a guest is added to
        the placed ones, so that flavors with a large share come first.
        """
        return (self.placed + 0.5) / self.weight


def fill_hosts_with_flavor_mix(
        offers: Offers, mix: Mapping[str, int],
        needs: Mapping[str, FlavorNeed], states: Sequence[FilledHost],
        progress: Progress, choose_placement: choose.Choose) -> MixResult:
    """Place guests of a flavor mix on hosts until the next one does not fit.

    :param offers: ways to place a guest on the hosts.
    :param mix: number of guests of each flavor in the mix, by flavor name.
    :param needs: resources that a guest of each flavor needs, by flavor name.
    :param states: used and free resources of each host; updated in place.
    :param progress: called with the progress, 0 to 1, and a description.
    :param choose_placement: function that chooses and scores a placement.
    :returns: number of guests placed, by flavor, and the flavor whose next
        guest fits on no host.
    """
    flavors = [_Flavor(needs[name], needs[name].larger, weight,
                       choose_placement) for name, weight in mix.items()]
    while True:
        flavor = min(flavors, key=lambda one: one.guests_per_share)
        best = _find_best_host(flavor, states)
        while best is None:
            if _refresh_flavor_placements(offers, flavor, states):
                progress(_get_mean_used_fraction(states),
                         'filling with the mix')
                best = _find_best_host(flavor, states)
            elif flavor.larger:
                # Less is free from guest to guest: a number that has fitted
                # on no host fits on none again.
                flavor.need, *flavor.larger = flavor.larger
            else:
                break
        if best is None:
            return MixResult({one.need.flavor.name: one.placed
                              for one in flavors}, flavor.need.flavor.name)
        option = flavor.options[best]
        assert option is not None  # noqa: S101
        states[best].place_guest(flavor.need, option.way, option.nodes)
        flavor.placed += 1
        for other in flavors:
            other.options.pop(best, None)


def _find_best_host(flavor: _Flavor, states: Sequence[FilledHost]
                    ) -> int | None:
    """Return the index of the best host for one more guest of a flavor.

    The best host is the one with the highest score of a placement.

    :param states: used and free resources of each host.
    :returns: None if the guest fits on no host.
    """
    found: tuple[float, int] | None = None
    for number, ways in flavor.ways.items():
        if number not in flavor.options:
            flavor.options[number] = flavor.choose_placement(
                states[number], flavor.need, ways)
        option = flavor.options[number]
        if option is not None and (found is None or option.value > found[0]):
            found = option.value, number
    return found and found[1]


def _refresh_flavor_placements(offers: Offers, flavor: _Flavor,
                               states: Sequence[FilledHost]) -> bool:
    """List again the possible placements of a guest of a flavor on hosts.

    The placements are stored in the flavor. They are computed only once for
    hosts with equal inventories and usages.

    :param states: used and free resources of each host.
    :returns: whether the guest fits on any host.
    """
    kinds: dict[object, list[int]] = {}
    for number, state in enumerate(states):
        kinds.setdefault(
            (id(state.host), state.make_comparison_key()), []).append(number)
    members = list(kinds.values())
    offers.set_hosts([states[numbers[0]] for numbers in members])
    for locality, sizes in flavor.need.yield_vf_request_variants(
            lambda: offers.list_pfs_for_flavor(flavor.need)):
        found = offers.list_placements(flavor.need, locality, sizes)
        flavor.ways = {number: ways for numbers, ways
                       in zip(members, found, strict=True) if ways
                       for number in numbers}
        flavor.options = {}
        if _find_best_host(flavor, states) is not None:
            return True
    return False


def _get_mean_used_fraction(states: Sequence[FilledHost]) -> float:
    """Return the mean used fraction of hosts, 0 to 1, to display progress.

    The used fraction of a host is that of its scarcest resource.
    """
    shares = []
    for state in states:
        taken = [amount / (amount + state.get_free_amount(slot))
                 for slot, amount in state.taken.items() if amount]
        shares.append(max(taken, default=0.0))
    return sum(shares) / len(shares) if shares else 1.0
