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

"""List of the features that read extra specs, in the order of resources.

``tools/delete_features.py --in-place NAME`` deletes a feature: its folders,
its entries in the lists of features, and its tests. The core keeps the names
that others rely on: the keys in flavor.keys, which are refused from then on,
the fields of NodePolicy for keys of guest NUMA nodes, its resource classes and
traits (providers.names), and its options of ``[ghsched]`` (ghsched_nova.conf).
"""

from ghsched_placement.features.bursts import declaration as bursts
from ghsched_placement.features.cpu_cache import cache_part
from ghsched_placement.features.guest_channel import channel_part
from ghsched_placement.features.guest_topology import topology_part
from ghsched_placement.features.l3_ways import declaration as l3_ways
from ghsched_placement.features.pv_hints import hints_part
from ghsched_placement.features.real_time import scheduling
from ghsched_placement.features.rebalance import affinity_part
from ghsched_placement.flavor.parts import Feature

FEATURES: tuple[Feature, ...] = (
    bursts.FEATURE, l3_ways.FEATURE, scheduling.FEATURE, affinity_part.FEATURE,
    topology_part.FEATURE, channel_part.FEATURE, hints_part.FEATURE,
    cache_part.FEATURE)
