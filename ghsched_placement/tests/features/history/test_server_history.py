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

import types
from unittest import mock

from ghsched_placement.features.history import server_history
from ghsched_placement.features.history import usage_history
from ghsched_placement.features.history.usage_history import UsageKey
from ghsched_placement.osc import base as osc_base
from ghsched_placement.osc import server
from ghsched_placement.tests import base

#: 1 November 2026, 00:00 UTC.
BEGIN = 1793491200


class HistoryTest(base.TestCase):

    def show(self, diagnostics):
        client = mock.Mock()
        client.find_server.return_value = {'id': 'u1', 'name': 'web'}
        client.get_diagnostics.side_effect = {'u1': diagnostics}.__getitem__
        app = types.SimpleNamespace(
            client_manager=types.SimpleNamespace(ghsched=client))
        command = server.ShowServerBandwidth(app, None)
        parser = command.get_parser('show')
        return command.take_action(parser.parse_args(['web', '--history']))

    def test_minutes_of_a_server_are_rows_in_order_of_time(self):
        history = usage_history.add_period_to_history(
            usage_history.History(), usage_history.UsagePeriod(
                BEGIN, BEGIN + 90,
                {UsageKey('u1', 1): 2e9, UsageKey('u1', 0): 1e9,
                 UsageKey('u2', 0): 5e9}, {}, {0: 10e9}))
        self.assertEqual(
            (server_history.COLUMNS,
             [('2026-11-01T00:00Z', 0, 1000.0, 10.0, 60.0),
              ('2026-11-01T00:00Z', 1, 2000.0, None, 60.0),
              ('2026-11-01T00:01Z', 0, 1000.0, 10.0, 30.0),
              ('2026-11-01T00:01Z', 1, 2000.0, None, 30.0)]),
            _plain(self.show(usage_history.make_history_diagnostics(
                history, 'u1'))))

    def test_server_without_a_history_is_refused_with_the_reason(self):
        for diagnostics in ({}, {usage_history.KEY: 'x'}):
            error = self.assertRaises(osc_base.CommandRefused, self.show,
                                      diagnostics)
            self.assertIn('no host reports the bandwidth of web', str(error))


def _plain(found):
    """Return a table with None for each unknown value."""
    names, rows = found
    return names, [tuple(
        one if isinstance(one, int | float | str) else None for one in row)
        for row in rows]
