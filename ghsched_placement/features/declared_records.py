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


"""Records of features in the diagnostics of a guest."""

from ghsched_placement.base import wire
from ghsched_placement.features.history import usage_history
from ghsched_placement.features.load import load
from ghsched_placement.features.load import pressure
from ghsched_placement.features.rebalance import traffic

#: Format of each record, under a key of its own.
RECORDS: tuple[wire.RecordFormat, ...] = (
    load.FORMAT, usage_history.FORMAT, traffic.FORMAT, pressure.FORMAT)
