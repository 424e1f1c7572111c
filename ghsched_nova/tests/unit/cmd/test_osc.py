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

"""The commands as python-openstackclient calls them."""

import configparser
import io
import itertools
import os
import pathlib
import pkgutil
from unittest import mock

from cliff import lister

from ghsched_nova.features.planner import density_command as density
from ghsched_nova.tests.fixtures import plans
from ghsched_placement.features.blame import blame_report
from ghsched_placement.features.blame import server_blame
from ghsched_placement.features.doctor import leftovers
from ghsched_placement.features.flavor_check import flavor_check as flavor
from ghsched_placement.features.live_change import change_report
from ghsched_placement.features.live_change import move_report
from ghsched_placement.features.live_change import server_change
from ghsched_placement.features.planner import flavor_capacity
from ghsched_placement.features.rebalance import rebalance
from ghsched_placement.features.refusals import refusals
from ghsched_placement.osc import audit
from ghsched_placement.osc import capacity
from ghsched_placement.osc import host_commands
from ghsched_placement.osc import server
from ghsched_placement.tests import base

UUID = plans.UUID

SETUP = pathlib.Path(__file__).parents[4] / 'setup.cfg'


class WidthTest(base.TestCase):
    """A table of any command fits a terminal, whatever is in its cells."""

    TABLES = {
        audit.Audit: audit.COLUMNS,
        capacity.ShowCapacity: capacity.COLUMNS,
        density.PlanDensity: (*density.COLUMNS, density.PREDICTED),
        flavor.CheckFlavor: flavor.COLUMNS,
        flavor_capacity.ListFlavorCapacities: flavor_capacity.COLUMNS,
        host_commands.ListHosts: host_commands.LIST,
        leftovers.ListLeftovers: leftovers.COLUMNS,
        refusals.ListRefusals: refusals.COLUMNS,
        server_blame.BlameServer: blame_report.HEADER,
        server_change.MoveServerNodes: move_report.HEADER,
        server_change.SetServer: change_report.HEADER,
        rebalance.ApplyRebalance: rebalance.RESULT,
        rebalance.PlanRebalance: rebalance.COLUMNS,
        server.ListServers: server.LIST,
        server.ShowServerBandwidth: server.COLUMNS,
    }
    CELLS = ('33', 'compute-017.dc2.example.org', 'node 0: ' * 20, UUID)

    def shown(self, kind, columns, cell, *arguments, terminal=80):
        """The lines of a table, all of whose cells are the same."""
        app = mock.Mock(stdout=io.StringIO())
        command = type('Command', (kind,), {
            '__module__': __name__,
            'take_action': lambda *_: (columns, [(cell,) * len(columns)])})(
                app, None)
        parser = command.get_parser('command')
        for action in parser._actions:      # What is asked is of no interest.
            action.required = False
        with mock.patch('os.get_terminal_size', return_value=(
                os.terminal_size((terminal, 24)))):
            command.run(parser.parse_args(arguments))
        return app.stdout.getvalue().splitlines()

    def parts(self, *args):
        """The lines of each of the tables into which one is split."""
        return [part.splitlines() for part in '\n'.join(
            self.shown(*args)).split('\n\n')]

    def test_these_are_all_tables(self):
        parser = configparser.ConfigParser()
        parser.read(SETUP)
        found = {pkgutil.resolve_name(line.partition('=')[2].strip())
                 for line in parser['entry_points'][
                     'openstack.ghsched.v1'].splitlines() if line}
        self.assertEqual(set(self.TABLES), {
            kind for kind in found if issubclass(kind, lister.Lister)})

    def test_a_table_is_not_wider_than_the_terminal(self):
        for kind, columns in self.TABLES.items():
            for cell, long in itertools.product(
                    self.CELLS, ([], ['--long']) if kind.SHORT else ([],)):
                for lines in self.parts(kind, columns, cell, *long):
                    self.assertLessEqual(len(lines[0]), 80, kind)
                    self.assertEqual({len(lines[0])}, set(map(len, lines)))

    def test_nothing_is_lost(self):
        texts = {''.join(cells).replace(' ', '') for lines in self.parts(
            server.ShowServerBandwidth, server.COLUMNS, UUID) for cells in zip(
                *(line.split('|')[1:-1] for line in lines if line[0] == '|'),
                strict=True)}
        self.assertEqual({name.replace(' ', '') + UUID
                          for name in server.ShowServerBandwidth.SHORT
                          if name in server.COLUMNS}, texts)

    def test_a_width_that_is_asked_for_comes_first(self):
        for arguments, width in ((('--max-width', '70'), 70),
                                 (('--max-width', '200', '--long'), 200)):
            lines = self.shown(server.ShowServerBandwidth, server.COLUMNS,
                               UUID, *arguments)
            self.assertLessEqual(max(map(len, lines)), width)

    def test_where_there_is_room_a_heading_is_one_line(self):
        lines = self.shown(server.ListServers, server.LIST, 'x',
                           terminal=200)
        self.assertEqual(5, len(lines))
