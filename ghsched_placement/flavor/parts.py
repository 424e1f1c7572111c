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

"""Declaration of a feature: its keys, and its part of a policy (pure).

The features are listed in :mod:`ghsched_placement.features.declared`.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Protocol

from ghsched_placement.flavor.bandwidth import Accounting
from ghsched_placement.flavor.bandwidth import NodePolicy
from ghsched_placement.flavor.key_values import Value
from ghsched_placement.flavor.keys import Key
from ghsched_placement.providers.host_description import HostDescription


class PolicyPart:
    """Part of a guest's policy that one feature parses from extra specs.

    A part without arguments is that of a flavor without these extra specs.
    """

    def get_needed_capabilities(self) -> frozenset[str]:
        """Return the capabilities that a host needs to enforce this part.

        Each capability has a trait in Placement.
        """
        return frozenset()

    def get_cpu_permille_by_node(self) -> tuple[int, ...]:
        """Return the CPU time that the guest reserves on each guest NUMA node.

        The time is in thousandths of a shared CPU.

        :returns: empty if the guest reserves none.
        """
        return ()

    def describe_for_guest(self) -> dict[str, object]:
        """Return the values of this part that the guest can read, for JSON."""
        return {}

    def find_flavor_warnings(self, _extra_specs: Mapping[str, str]
                             ) -> Iterator[str]:
        """Yield a warning for each doubtful combination of extra specs.

        :param _extra_specs: all extra specs of the flavor.
        """
        yield from ()


@dataclass(frozen=True)
class FlavorValues:
    """Extra specs of a flavor, from which a feature parses its part.

    :param values: parsed values of the feature's own keys, by key name.
    :param extra_specs: all extra specs of the flavor.
    :param guest_nodes: number of guest NUMA nodes; 0 without NUMA topology.
    :param vcpus: number of vCPUs; 0 if unknown.
    """

    values: Mapping[str, Value]
    extra_specs: Mapping[str, str]
    guest_nodes: int = 0
    vcpus: int = 0


class Amounts(Protocol):
    """Amounts that a guest's policy requests, by guest NUMA node.

    It is implemented by :class:`ghsched_placement.flavor.policy.GuestPolicy`.
    """

    @property
    def nodes(self) -> tuple[NodePolicy, ...]:
        """Bandwidth and L3 ways of each guest NUMA node."""

    @property
    def rt_permille(self) -> tuple[int, ...]:
        """Thousandths of a shared CPU on each guest NUMA node."""


@dataclass(frozen=True)
class Resource:
    """Resource class of Placement that host NUMA nodes offer to guests.

    :param name: name of the resource class.
    :param word: resource in messages, after an amount.
    :param on_node: resource in messages about one host NUMA node.
    :param allocated: resource in messages about an allocation.
    :param key: key that requests the resource.
    :param title: title in table columns.
    :param unit: unit in table columns, preceded by a blank; empty for none.
    :param field: name in JSON output.
    :param demand: function that returns the amount by guest NUMA node.
    :param offer: function that returns the amount that a host NUMA node has,
        and the smallest amount of one guest. None if the tree of providers
        computes the inventory from options of the host.
    :param cure: remedy if no host NUMA node has any; empty if there is none.
    :param capability: capability that a host needs to offer the resource;
        empty for none.
    """

    name: str
    word: str
    on_node: str
    allocated: str
    key: Key
    title: str
    unit: str
    field: str
    demand: Callable[[Amounts, Accounting], Mapping[int, int]]
    offer: Callable[[HostDescription, int], tuple[int, int]] | None = None
    cure: str = ''
    capability: str = ''

    def make_column_heading(self, figure: str = '') -> str:
        """Return the heading of a table column for this resource class.

        :param figure: amount of the class that the column shows, such as
            ``Free``.
        """
        return ' '.join(filter(None, (self.title, figure))) + self.unit


@dataclass(frozen=True)
class Feature:
    """Declaration of a feature that reads extra specs of flavors.

    :param name: name of the feature's folder.
    :param keys: keys for the whole guest, which no other feature reads.
    :param part: class of the feature's part of a guest's policy.
    :param parse: function that makes the part; None if the policy of each
        guest NUMA node has all that the feature needs.
    :param are_keys_checked_together: whether one of the keys can be invalid
        without the others.
    :param capabilities: key that requests a capability of hosts, by name of
        the capability.
    :param are_on_any_host: whether every host has the capabilities, whatever
        its hardware.
    :param resources: resource classes that only this feature requests.
    :param node_keys: keys by guest NUMA node that only this feature enforces.
    """

    name: str
    keys: tuple[Key, ...] = ()
    part: type[PolicyPart] = PolicyPart
    parse: Callable[[FlavorValues], PolicyPart] | None = None
    are_keys_checked_together: bool = False
    capabilities: Mapping[str, Key] = field(default_factory=dict)
    are_on_any_host: bool = False
    resources: tuple[Resource, ...] = ()
    node_keys: tuple[Key, ...] = ()
