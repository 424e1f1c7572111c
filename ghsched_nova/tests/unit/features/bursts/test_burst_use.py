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

"""Bursts, from the counters of an emulated machine to what is offered."""

from pathlib import Path
import shutil
import tempfile

import fixtures
from oslo_config import cfg

from ghsched_nova import conf
from ghsched_nova.features.bursts import burst_use
from ghsched_nova.monitor import rates
from ghsched_nova.tests.fixtures import observing
from ghsched_placement.audit import diagnostics
from ghsched_placement.features.bursts import burst
from ghsched_placement.features.bursts import burst_record
from ghsched_placement.providers import tree
from ghsched_placement.tests import base

OK = rates.RateState.OK
CAPACITY = observing.CAPACITY

guest = observing.burst_guest
snapshot = observing.burst_snapshot


class PeriodsTest(base.TestCase):
    config = tree.Config(reserved_bandwidth={0: 20}, bursts={0: 40})

    def test_a_guarantee_is_used_before_the_burst(self):
        found = burst_use.map_burst_use_by_node(
            snapshot(guest(50), guest(250, project='a')), self.config)
        self.assertEqual([burst.GuestBurst(20, 0.0),
                          burst.GuestBurst(20, 15.0, 'a')],
                         found[0].shares)

    def test_unmeasured_load_is_not_idle(self):
        for one in (snapshot(guest(50), guest(None)),
                    snapshot(guest(50), capacity=None)):
            self.assertIsNone(
                burst_use.map_burst_use_by_node(one, self.config)[0].shares)

    def test_guarantees_beyond_what_is_left_next_to_the_pool_are_in_it(self):
        for guaranteed, pool in ((40, 40), (60, 20), (90, 0)):
            found = burst_use.map_burst_use_by_node(
                snapshot(guaranteed=guaranteed), self.config)
            self.assertEqual(pool, found[0].pool)

    def test_nodes_without_a_pool_or_measured_together_are_left_out(self):
        for nodes in ((1,), (0, 1)):
            self.assertEqual({}, burst_use.map_burst_use_by_node(
                snapshot(nodes=nodes), self.config))

    def test_full_without_what_is_kept_for_the_host(self):
        for used, full in ((750, False), (770, True)):
            self.assertIs(full, burst_use.map_burst_use_by_node(
                snapshot(used=used), self.config)[0].full)


class BurstUseTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, top)
        self.path = top / burst_record.FORMAT.name
        config = cfg.ConfigOpts()
        conf.register_opts(config)
        config([])
        config.set_override('bandwidth_bursts', {'0': 40}, 'ghsched')
        config.set_override('burst_window', 2, 'ghsched')
        self.section = config.ghsched

    def use(self):
        return burst_use.BurstRecorder(self.section, self.path)

    def day(self, use, hours=3):
        reports = observing.Reports(use)
        for hour in range(hours):
            reports.report(hour * 3600.0, snapshot(guest(0, project='a'),
                                                   guest(0, project='b')))

    def test_measurements_outlive_nova_compute(self):
        use = self.use()
        self.day(use)
        self.assertEqual({0: 60}, use.reported_burst_percent)
        self.assertEqual(use.records, self.use().records)

    def test_diagnostics_show_the_bursts_of_each_node_with_a_pool(self):
        use = self.use()
        self.day(use)
        report = diagnostics.make_guest_diagnostics(diagnostics.GuestReport(
            host=(diagnostics.HostNodeReport(0, 5, CAPACITY),
                  diagnostics.HostNodeReport(1))))
        shown = diagnostics.parse_guest_diagnostics(
            report | use.make_diagnostics(None, report))
        self.assertEqual(
            [(0, 5, 60, 40, 2), (1, None, None, None, None)],
            [(node.host_node, node.used, node.bursts_offered,
              node.bursts_promised, node.bursts_periods)
             for node in shown.host])
        self.assertEqual({}, use.make_diagnostics(None, {}))

    def test_nothing_is_kept_where_no_bursts_are(self):
        use = self.use()
        observing.Reports(use).report(0)
        self.assertEqual({}, use.reported_burst_percent)
        self.assertFalse(self.path.exists())

    def test_a_file_that_cannot_be_written_is_reported(self):
        use = burst_use.BurstRecorder(self.section, self.path / 'x' / 'y')
        self.day(use)
        self.assertIn('cannot run hook observe', self.log.output)
        self.assertEqual({0: 60}, use.reported_burst_percent)

    def test_a_file_without_sense_is_as_none(self):
        for text in (b'{', b'\xff'):
            self.path.write_bytes(text)
            self.assertEqual({}, self.use().reported_burst_percent)
