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

"""Options that features add to the section ``[ghsched]``, in their order."""

from oslo_config import cfg

from ghsched_nova.features.index import options as index
from ghsched_nova.features.live_change import options as live_change
from ghsched_nova.features.load import options as load
from ghsched_nova.features.packing import options as packing
from ghsched_nova.features.real_time import options as real_time
from ghsched_nova.features.rebalance import options as rebalance

OPTS: tuple[cfg.Opt, ...] = (
    *real_time.OPTS,
    *live_change.OPTS,
    *load.OPTS,
    *packing.OPTS,
    *index.OPTS,
    *rebalance.OPTS,
)
