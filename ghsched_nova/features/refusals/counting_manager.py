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

"""nova-scheduler's manager that counts refused requests."""

from pathlib import Path
from typing import Any

from ghsched_nova.features.refusals import refusal_log
from ghsched_nova.nova_seams import scheduler
from ghsched_nova.nova_seams import shared
from ghsched_nova.scheduler import manager
from ghsched_nova.scheduler.select_call import SelectCall


class RefusalCountingManager(manager.CoreSchedulerManager):
    """Scheduler manager that counts refused requests by flavor for nova-api.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refusal_log = refusal_log.RefusalLog(
            Path(shared.config().state_path))
        scheduler.add_rpc_endpoint(self, refusal_log.RefusalEndpoint(
            self._refusal_log))

    def _record_refusal(self, call: SelectCall, reason: str) -> None:
        super()._record_refusal(call, reason)
        if call.spec is not None and not scheduler.is_rebuild(call.spec):
            self._refusal_log.count_refusal(call.spec)
