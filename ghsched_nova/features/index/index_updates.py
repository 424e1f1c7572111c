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

"""Casts to nova-scheduler that change the index of hosts."""

from typing import Any

from nova.scheduler import manager

from ghsched_nova.features.index.indexed import IndexedScheduler


class IndexUpdatingManager(manager.SchedulerManager):
    """Nova's scheduler manager, whose casts update the index of hosts, too."""

    _indexed: IndexedScheduler | None = None

    def update_instance_info(self, context: Any, host_name: str,
                             instance_info: Any) -> None:
        super().update_instance_info(context, host_name, instance_info)
        if self._indexed is not None:
            self._indexed.confirm_started_guests(host_name, instance_info)

    def delete_instance_info(self, context: Any, host_name: str,
                             instance_uuid: str) -> None:
        super().delete_instance_info(context, host_name, instance_uuid)
        if self._indexed is not None:
            self._indexed.drop_removed_guest(host_name, instance_uuid)

    def update_aggregates(self, ctxt: Any, aggregates: Any) -> None:
        super().update_aggregates(ctxt, aggregates)
        if self._indexed is not None:
            self._indexed.drop_cached_refusals()
