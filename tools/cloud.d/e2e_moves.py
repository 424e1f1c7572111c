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


"""End-to-end checks of moves between two hosts; "tools/e2e.sh --moves"."""

import sys

from aio.lab import Lab
from aio.settings import read
from e2e_move_cold import ColdMoves
from e2e_move_evacuation import Evacuation
from e2e_move_live import LiveMigration
from e2e_move_none import InPlace
from e2e_room import main

ROOMS = (LiveMigration, ColdMoves, Evacuation, InPlace)

if __name__ == '__main__':
    sys.exit(main(ROOMS, Lab(read(), 'e2e-moves'), sys.argv[1:]))
