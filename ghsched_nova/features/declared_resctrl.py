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

"""The features that extend the plan of changes of resctrl, in order (pure).

The privileged helper of nova-compute loads them, so they are pure and small.
"""

from collections.abc import Callable
from typing import TypeAlias

from ghsched_nova.features.l3_ways import cache_plan
from ghsched_nova.resctrl import model

#: Function that adds the changes of a feature to a plan; it gets the actual
#: and the desired state.
PlanExtension: TypeAlias = Callable[[model.Plan, model.Actual, model.Wanted],
                                    model.Plan]

PLAN_EXTENSIONS: tuple[PlanExtension, ...] = (cache_plan.add_mask_writes,)
