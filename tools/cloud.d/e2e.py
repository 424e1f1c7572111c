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


"""End-to-end checks on the all-in-one cloud; called by tools/e2e.sh."""

import sys

from aio.lab import Lab
from aio.settings import read
from e2e_busy import Busy
from e2e_failures import Failures
from e2e_groups import Groups
from e2e_intel import Intel
from e2e_limits import Limits
from e2e_placing import Placing
from e2e_policy import Policy
from e2e_room import main
from e2e_scheduling import Scheduling

ROOMS = (Placing, Limits, Policy, Scheduling, Failures, Groups, Busy,
         Intel)

if __name__ == '__main__':
    sys.exit(main(ROOMS, Lab(read(), 'e2e'), sys.argv[1:]))
