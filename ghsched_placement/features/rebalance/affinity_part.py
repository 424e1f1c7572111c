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

"""Part of a guest's policy that names the guests it should be near (pure)."""

from dataclasses import dataclass

from ghsched_placement.flavor import keys
from ghsched_placement.flavor.parts import Feature
from ghsched_placement.flavor.parts import FlavorValues
from ghsched_placement.flavor.parts import PolicyPart


@dataclass(frozen=True)
class AffinityPart(PolicyPart):
    """Guests to which a guest should be near.

    :param group: name of the group of guests; empty for none.
    """

    group: str = ''


def parse_affinity_part(flavor: FlavorValues) -> AffinityPart:
    """Parse the group of guests to which a guest should be near."""
    return AffinityPart(str(flavor.values.get(keys.AFFINITY_GROUP.name, '')))


#: Declaration of the feature.
FEATURE = Feature('rebalance', (keys.AFFINITY_GROUP,), AffinityPart,
                  parse_affinity_part)
