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

AFFINITY_GROUP = keys.Key(
    name='affinity_group', title='Affinity group',
    kind='name', per_node=False,
    default_text='none; guests that talk to each other are still found by '
                 'what is measured',
    summary='Name of a group of guests of one project that should be on the '
            'same host NUMA node.',
    details='A wish, for the rebalancing of guests that run: it is followed '
            'as long as the node has room and is no bottleneck, and never '
            'against what Placement has allocated. Groups of different '
            'projects with the same name are different groups. 1 to 63 '
            'letters, digits, dots, hyphens and underscores.')


@dataclass(frozen=True)
class AffinityPart(PolicyPart):
    """Guests to which a guest should be near.

    :param group: name of the group of guests; empty for none.
    """

    group: str = ''


def parse_affinity_part(flavor: FlavorValues) -> AffinityPart:
    """Parse the group of guests to which a guest should be near."""
    return AffinityPart(str(flavor.values.get(AFFINITY_GROUP.name, '')))


#: Declaration of the feature.
FEATURE = Feature('rebalance', (AFFINITY_GROUP,), AffinityPart,
                  parse_affinity_part)
