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

from aio import cli
from aio.lab import Lab
from aio.settings import read
from e2e_move_cold import ColdMoves
from e2e_move_evacuation import Evacuation
from e2e_move_live import LiveMigration
from e2e_move_races import Races
from e2e_move_slow import SlowMigration
from e2e_room import main

ROOMS = (LiveMigration, SlowMigration, ColdMoves, Evacuation, Races)

_SHARING = ('ghsched', 'group_sharing')


def run(arguments: list[str]) -> int:
    """All tests or some, with ``--sharing`` on hosts that share groups."""
    lab = Lab(read(), 'e2e-moves')
    if arguments[:1] != ['--sharing']:
        return main(ROOMS, lab, arguments)
    computes = [f'nova-compute{host.suffix}' for host in lab.settings.hosts]
    cli.set_option(lab.settings, *_SHARING, 'on')
    try:
        cli.restart(lab.settings, computes)
        return main(ROOMS, lab, arguments[1:])
    finally:
        cli.set_option(lab.settings, *_SHARING, None)
        cli.restart(lab.settings, computes)


if __name__ == '__main__':
    sys.exit(run(sys.argv[1:]))
