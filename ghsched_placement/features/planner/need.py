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

"""Resources that guests of a flavor need in Placement and Nova (pure)."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cached_property
import re

import os_resource_classes as orc

from ghsched_placement.features.flavor_check import query
from ghsched_placement.features.planner.client import PlannerError
from ghsched_placement.features.planner.flavors import Flavor
from ghsched_placement.fit.capacity import Provider
from ghsched_placement.fit import guest_demand
from ghsched_placement.flavor import auto_nodes
from ghsched_placement.flavor.policy import Accounting
from ghsched_placement.flavor.policy import GuestPolicy
from ghsched_placement.flavor.policy import parse_policy
from ghsched_placement.flavor.policy import PolicyError
from ghsched_placement.flavor.policy import refuse_unfixed_node_count
from ghsched_placement.flavor.policy import Vfs
from ghsched_placement.flavor import topology
from ghsched_placement.providers import names
from ghsched_placement.query import candidates
from ghsched_placement.query import combinations
from ghsched_placement.query import request
from ghsched_placement.query import vfs

#: Resource class by PCI alias.
Aliases = Mapping[str, str]

#: Length of the alias in a request ID; Placement accepts 64 characters.
_LETTERS = 32

#: Trait that Nova requires of device providers.
_OF_NOVA = frozenset({names.OWNER_TRAIT})


@dataclass(frozen=True)
class FlavorNeed:
    """Resources that a guest of a flavor needs from a host.

    :param guest: CPUs and memory of the guest by guest NUMA node.
    :param policy: bandwidth, VFs and other things that the flavor's ghsched
        extra specs request.
    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param aliases: resource class of the VFs by PCI alias.
    :param without: resource classes that Placement queries leave out.
    :param owned: whether nova-scheduler requires the trait OWNER_NOVA, see
        :func:`ghsched_placement.features.flavor_check.query.make_candidates_query`.
    :param is_fallback: whether dedicated CPUs are counted as VCPU, as Nova
        does on hosts that report no PCPU.
    :param larger: needs with more guest NUMA nodes, in ascending order, if the
        scheduler chooses their number.
    """

    flavor: Flavor
    guest: topology.GuestShape
    policy: GuestPolicy
    accounting: Accounting = 'min'
    aliases: Aliases = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    owned: bool = True
    is_fallback: bool = False
    larger: tuple['FlavorNeed', ...] = ()

    @property
    def fallback(self) -> 'FlavorNeed | None':
        """Needs of the flavor on hosts without dedicated CPUs (PCPU).

        Nova asks Placement for VCPU instead of PCPU there. The value is None
        if Nova does not do so for this flavor.
        """
        other = replace(self, is_fallback=True)
        return other if query.make_shared_cpu_flavor(
            self._query_flavor) and not self.is_fallback else None

    def adapt_to_host(self, root: Provider) -> 'FlavorNeed':
        """Return the needs as Nova counts them on a host.

        :param root: the compute node's own provider.
        """
        if orc.PCPU in root.inventories:
            return self
        return self.fallback or self

    @property
    def _query_flavor(self) -> query.FlavorAmounts:
        return query.FlavorAmounts(
            vcpus=self.guest.shared, pcpus=self.guest.pcpus,
            memory_mb=self.flavor.ram, disk_gb=self.flavor.disk,
            swap_mb=self.flavor.swap, extra_specs=self.flavor.extra_specs)

    def make_nova_query(self, locality: str,
                        sizes: vfs.Sizes) -> list[tuple[str, str]]:
        """Return the Placement query that Nova would send for a guest.

        The IDs of the VF requests are not those of Nova, which are random.

        :param locality: how near the VFs must be to the guest's NUMA nodes.
        :param sizes: how the VFs are divided among PFs.
        """
        flavor = self._query_flavor
        if self.is_fallback:
            flavor = query.make_shared_cpu_flavor(flavor) or flavor
        return query.make_candidates_query(
            flavor, self.make_ghsched_query_part(locality, sizes), self.owned)

    def make_planner_query(self, locality: str,
                           sizes: vfs.Sizes) -> list[tuple[str, str]]:
        """Return the Placement query with which the planner places a guest.

        Unlike nova-scheduler's query, this query finds all allocation
        candidates. It leaves out resource classes that the planner does not
        count.

        :param locality: how near the VFs must be to the guest's NUMA nodes.
        :param sizes: how the VFs are divided among PFs.
        """
        return [(name, self._drop_excluded_classes(name, value)) for name,
                value
                in self.make_nova_query(locality, sizes) if name != 'limit']

    def make_ghsched_query_part(
            self, locality: str, sizes: vfs.Sizes) -> request.Request:
        """Return ghsched's part of the Placement query for a guest.

        This part requests the bandwidth and the VFs of the guest. Nova
        requests all other resources.

        :param locality: how near the VFs must be to the guest's NUMA nodes.
        :param sizes: how the VFs are divided among PFs.
        """
        return request.build_request(self.policy, self.accounting,
                                     self.list_vf_requests(sizes), locality)

    def _drop_excluded_classes(self, name: str, value: str) -> str:
        if name != 'resources':
            return value
        return ','.join(part for part in value.split(',')
                        if part.partition(':')[0] not in self.without)

    def yield_vf_request_variants(
            self, find_pfs: Callable[[], Mapping[str, Sequence[vfs.Pf]]],
            report_skipped: Callable[[vfs.Sizes], None] = lambda _sizes: None,
    ) -> Iterator[tuple[str, vfs.Sizes]]:
        """Yield the ways to request a guest's VFs from Placement, best first.

        Each way says how near the VFs must be to the guest's NUMA nodes
        (locality), and how the VFs are divided among PFs (sizes).

        :param find_pfs: function that returns the PFs of each PCI alias.
        :param report_skipped: called for each way that is skipped because
            Placement would take too long.
        """
        if self.policy.vfs:
            return vfs.yield_vf_requests(self.policy, find_pfs, report_skipped)
        return iter([('any', {})])

    def list_vf_requests(self, sizes: vfs.Sizes) -> list[request.PciRequest]:
        return [request.PciRequest(
            guest_node=need.guest_node,
            request_id=self._make_vf_request_id(need),
            resource_class=self.aliases[need.alias],
            required=_OF_NOVA if self.owned else frozenset(),
            sizes=sizes.get((need.guest_node, need.alias), (need.count,)))
            for need in self.policy.vfs]

    def make_ranking_criteria(self,
                              locality: str) -> candidates.NodeRequestGroups:
        """Return the criteria that rank the allocation candidates of a guest.

        They name the request groups that decide the guest's host NUMA nodes.

        :param locality: how near the VFs must be to the guest's NUMA nodes.
        """
        return candidates.NodeRequestGroups(
            suffixes=request.list_node_suffixes(self.policy, self.accounting),
            vfs=[candidates.VfRequest(
                need.guest_node, self._make_vf_request_id(need), need.count)
                for need in self.policy.vfs],
            locality=locality, guest_nodes=len(self.guest.cells),
            device_numa=self.policy.device_numa)

    def _make_vf_request_id(self, need: Vfs) -> str:
        """Return an ID for a VF request, unique within the Placement query."""
        every = list(dict.fromkeys(one.alias for one in self.policy.vfs))
        letters = re.sub('[^A-Za-z0-9]', '_', need.alias)[:_LETTERS]
        return f'vfs{every.index(need.alias)}-{letters}-node{need.guest_node}'

    @property
    def vf_counts(self) -> dict[tuple[int, str], int]:
        """Number of VFs of the guest, by guest NUMA node and resource class.
        """
        found: dict[tuple[int, str], int] = {}
        for need in self.policy.vfs:
            key = need.guest_node, self.aliases[need.alias]
            found[key] = found.get(key, 0) + need.count
        return found

    @cached_property
    def demand(self) -> guest_demand.GuestDemand:
        """Resources and traits that the guest needs from a host."""
        fallback = self.fallback
        return guest_demand.make_guest_demand(
            self.policy, self.guest, self.make_planner_query('any', {}),
            self.aliases, self.accounting,
            fallback.make_planner_query('any', {}) if fallback else None,
            counted=None)

    @property
    def bandwidth(self) -> dict[int, int]:
        """Percent of a host node's bandwidth that each guest node needs."""
        return self.policy.get_bandwidth_by_node(self.accounting)


def build_flavor_need(flavor: Flavor, accounting: Accounting = 'min',
                      aliases: Aliases | None = None,
                      excluded_classes: Sequence[str] = (),
                      needs_owner_trait: bool = True) -> FlavorNeed:
    """Return the resources that a guest of a flavor needs from a host.

    If the scheduler chooses the number of guest NUMA nodes, the needs are for
    the smallest number, and include those for larger ones.

    :param accounting: whether Placement counts the guarantee (``min``) or the
        cap (``max``) of bandwidth.
    :param aliases: resource class of the VFs, by PCI alias.
    :param excluded_classes: resource classes to leave out of Placement
        queries.
    :param needs_owner_trait: whether nova-scheduler requires the trait
        OWNER_NOVA.
    :raises PlannerError: if Nova or ghsched would refuse the flavor, or if the
        resource class of a PCI alias is unknown.
    """
    if auto_nodes.is_node_count_undecided(flavor.extra_specs):
        first, *others = [build_flavor_need(
            replace(flavor, extra_specs=auto_nodes.copy_with_node_count(
                flavor.extra_specs, count)), accounting, aliases,
            excluded_classes, needs_owner_trait)
            for count in auto_nodes.list_node_counts(
                flavor.extra_specs, flavor.vcpus, flavor.ram)]
        return replace(first, larger=tuple(others))
    try:
        guest = topology.split_guest(flavor.vcpus, flavor.ram,
                                     flavor.extra_specs)
        refuse_unfixed_node_count(flavor.extra_specs)
        policy = parse_policy(flavor.extra_specs, len(guest.cells),
                              flavor.vcpus) or GuestPolicy()
        combinations.check_combination_count(policy, accounting)
    except (topology.TopologyError, PolicyError) as error:
        raise PlannerError(f'flavor {flavor.name}: {error}') from None
    _check_aliases(flavor, policy, aliases or {})
    return FlavorNeed(flavor, guest, policy, accounting, dict(aliases or {}),
                      frozenset(excluded_classes), needs_owner_trait)


def _check_aliases(flavor: Flavor, policy: GuestPolicy,
                   aliases: Aliases) -> None:
    """Check that the resource class of each PCI alias of a flavor is known.

    :raises PlannerError: if it is not.
    """
    for need in policy.vfs:
        if need.alias not in aliases:
            raise PlannerError(
                f'flavor {flavor.name}: the resource class of the PCI alias '
                f'{need.alias} is not known')
