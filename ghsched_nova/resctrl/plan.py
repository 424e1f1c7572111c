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


"""Plan of all changes that make resctrl enforce guests' policies (pure).

:func:`make_plan` compares the actual and the desired state of
:mod:`ghsched_nova.resctrl.model`. If they are equal, the plan is empty.
"""

from ghsched_nova.features import declared_resctrl
from ghsched_nova.resctrl import bounded
from ghsched_nova.resctrl import counters
from ghsched_nova.resctrl import devices
from ghsched_nova.resctrl import group_plan
from ghsched_nova.resctrl import leaked_groups
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import monitoring_plan
from ghsched_nova.resctrl import staged


def make_plan(actual: model.Actual, wanted: model.Wanted) -> model.Plan:
    """Return the changes that bring a host's resctrl to the desired state."""
    plan = group_plan.plan_groups(
        actual, wanted, leaked_groups.find_leaked_groups(actual, wanted))
    plan = monitoring_plan.add_monitoring(plan, actual, wanted)
    for extend in declared_resctrl.PLAN_EXTENSIONS:
        plan = extend(plan, actual, wanted)
    plan = staged.add_writes_of_unchanged_lines(plan, actual, wanted)
    plan = bounded.order_guarantee_writes(plan, actual, wanted)
    plan = counters.add_counter_assignments(plan, actual)
    return devices.add_device_moves(plan, actual, wanted)
