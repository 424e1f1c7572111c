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


"""Notifications of servers' bandwidth for metering and rating services."""

from ghsched_nova.host import compute_hooks
from ghsched_placement.features.metering import metering


class BandwidthNotifier(compute_hooks.ComputeHooks):
    """Sender of notifications with the bandwidth that servers have used."""

    def __init__(self, services: compute_hooks.ComputeServices) -> None:
        self._services = services

    def observe(self, snapshot: compute_hooks.HostSnapshot) -> None:
        """Notify about the bandwidth of servers since the previous snapshot.
        """
        seconds, periods = snapshot.results.get('service_level', (0.0, {}))
        if periods:
            self._services.notify(
                metering.EVENT, metering.make_bandwidth_notification(
                    self._services.host_name, seconds, periods))
