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

"""A policy of rebalancing, as an example for the manual."""

from collections.abc import Iterable

from ghsched_placement.features import rebalance


class OneByOne(rebalance.Affinity):
    """No second move until the first one has been measured."""

    def plan(self, cloud: rebalance.Cloud, settings: rebalance.Settings,
             history: Iterable[rebalance.Moved] = (), now: float = 0.0
             ) -> tuple[rebalance.Move, ...]:
        return super().plan(cloud, settings, history, now)[:1]
