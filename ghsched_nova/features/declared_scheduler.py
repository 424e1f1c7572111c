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

"""nova-scheduler's manager, composed of the core and of features."""

from ghsched_nova.features.index.indexed_manager import IndexedManager
from ghsched_nova.features.numa_auto.numa_choosing_manager import (
    NumaChoosingManager)
from ghsched_nova.features.refusals.counting_manager import (
    RefusalCountingManager)


class GhschedSchedulerManager(RefusalCountingManager, NumaChoosingManager,
                              IndexedManager):
    """Manager of ``ghsched-nova-scheduler``.

    Each base adds one feature, and the methods of the first are called first:
    refusals are counted of a request as a whole, which is tried with several
    numbers of guest NUMA nodes, each by the index of hosts and then by the
    core's search of all hosts.
    """
