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

"""What a feature declares: its keys, its part of a guest's policy (pure).

The features are listed in :mod:`ghsched_placement.features.declared`.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass

from ghsched_placement.flavor.key_values import Value
from ghsched_placement.flavor import keys


class PolicyPart:
    """What the extra specs of one feature request for a guest.

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
        """Return what the guest can read of this part, as JSON values."""
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


@dataclass(frozen=True)
class Feature:
    """Declaration of a feature that reads extra specs of flavors.

    :param name: name of the feature's folder.
    :param keys: keys for the whole guest, which no other feature reads.
    :param part: class of the feature's part of a guest's policy.
    :param parse: function that makes the part.
    :param are_keys_checked_together: whether one of the keys can be invalid
        without the others.
    """

    name: str
    keys: tuple[keys.Key, ...]
    part: type[PolicyPart]
    parse: Callable[[FlavorValues], PolicyPart]
    are_keys_checked_together: bool = False
