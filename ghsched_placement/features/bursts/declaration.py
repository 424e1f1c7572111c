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

"""Resource of bursts of memory bandwidth, for the feature list (pure)."""

from collections.abc import Mapping

from ghsched_placement.flavor.bandwidth import Accounting
from ghsched_placement.flavor import keys
from ghsched_placement.flavor.parts import Amounts
from ghsched_placement.flavor.parts import Feature
from ghsched_placement.flavor.parts import Resource
from ghsched_placement.providers import names


def _get_demand(amounts: Amounts, accounting: Accounting) -> Mapping[int, int]:
    # A cap includes the burst.
    return {number: node.burst for number, node in enumerate(amounts.nodes)
            if accounting == 'min'}


#: Declaration of the feature.
FEATURE = Feature('bursts', resources=(Resource(
    names.MEM_BW_BURST_PCT, '% of memory bandwidth as bursts',
    '% of its memory bandwidth for bursts', '% memory bandwidth as a burst',
    keys.MEM_BW_BURST, 'Burst', ' (%)', 'burst_percent', _get_demand,
    cure='hosts keep some with [ghsched]bandwidth_bursts'),),
    node_keys=(keys.MEM_BW_BURST,))
