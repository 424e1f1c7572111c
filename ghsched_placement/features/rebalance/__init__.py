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

"""Plans of moves of guests away from NUMA nodes that are bottlenecks.

A plug-in of the entry point group ``ghsched.rebalance_policies`` imports these
names from here.
"""

from ghsched_placement.features.rebalance.affinity_policy import Affinity
from ghsched_placement.features.rebalance.move_plan import Cloud
from ghsched_placement.features.rebalance.move_plan import Guest
from ghsched_placement.features.rebalance.move_plan import Move
from ghsched_placement.features.rebalance.move_plan import Moved
from ghsched_placement.features.rebalance.move_plan import Node
from ghsched_placement.features.rebalance.move_plan import Policy
from ghsched_placement.features.rebalance.move_plan import Settings
from ghsched_placement.features.rebalance.move_plan import Spot

__all__ = ('Affinity', 'Cloud', 'Guest', 'Move', 'Moved', 'Node', 'Policy',
           'Settings', 'Spot')
