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

"""Resource of exclusive L3 cache ways, for the feature list (pure)."""

from collections.abc import Mapping

from ghsched_placement.flavor.bandwidth import Accounting
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.parts import Amounts
from ghsched_placement.flavor.parts import Feature
from ghsched_placement.flavor.parts import Resource
from ghsched_placement.providers.host_description import HostDescription
from ghsched_placement.providers import names


def _get_demand(amounts: Amounts, _accounting: Accounting
                ) -> Mapping[int, int]:
    return {number: node.l3_ways for number, node in enumerate(amounts.nodes)}


def _get_offer(host: HostDescription, node: int) -> tuple[int, int]:
    return host.l3_ways.get(node, 0), host.l3_ways_least


#: Declaration of the feature.
FEATURE = Feature(
    'l3_ways', node_keys=(keys.L3_WAYS,),
    capabilities={'L3_WAYS': keys.L3_WAYS}, resources=(Resource(
        names.L3_WAYS, 'ways of an L3', 'ways of its L3', 'ways of the L3',
        keys.L3_WAYS, 'L3 Ways', '', 'l3_ways', _get_demand, _get_offer,
        capability='L3_WAYS'),))
