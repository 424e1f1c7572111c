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

"""nova-scheduler's manager that chooses numbers of guest NUMA nodes."""

from typing import Any

from ghsched_nova.features.numa_auto import numa_choice
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import filters
from ghsched_nova.scheduler import manager
from ghsched_nova.scheduler.select_call import SelectCall


class NumaChoosingManager(manager.CoreSchedulerManager):
    """Scheduler manager that chooses the number of guest NUMA nodes."""

    def _schedule_request(self, call: SelectCall) -> Any:
        """Select hosts with the first number of guest NUMA nodes that fits."""
        schedule = super()._schedule_request
        if call.spec is None:
            return schedule(call)
        return numa_choice.schedule_with_fitting_numa_count(
            call.context, call.spec, lambda tried, has_other: schedule(
                call.with_spec(tried, has_other)))

    def _choose_forced_candidates(self, hosts: list[Any],
                                  spec: shared.RequestSpec) -> list[Any]:
        """Return forced hosts with a candidate for the chosen number of nodes.
        """
        if numa_choice.has_chosen_numa_count(spec):
            return list(filters.GhschedNUMATopologyFilter().filter_all(
                hosts, spec))
        return super()._choose_forced_candidates(hosts, spec)
