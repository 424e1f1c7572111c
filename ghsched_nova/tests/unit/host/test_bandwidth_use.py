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


"""Report of nova-compute on the use of bandwidth."""

import types

import fixtures
from nova.compute import monitors

from ghsched_nova.host import bandwidth_use
from ghsched_nova.tests.fixtures import options
from ghsched_nova.tests.fixtures import trees
from ghsched_placement.tests import base


class BandwidthUseTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(level=10))

    def use(self, dialect, **bandwidth):
        self.host = trees.Host(dialect)
        self.addCleanup(self.host.remove)
        section = options.Section(
            resctrl_path=str(self.host.root),
            sysfs_path=str(self.host.top / 'sysfs'), node_bandwidth=bandwidth)
        return bandwidth_use.BandwidthMeter(section)

    def test_rates_are_measured_at_once(self):
        measured = self.use('openeuler66', **{'0': 1000}).measure_bandwidth()
        self.assertEqual(
            [(0, 0.0, 10 ** 9)],
            [(*node.nodes, node.used.rate, node.capacity)
             for node in measured.nodes if 0 in node.nodes])

    def test_counters_are_measured_from_the_second_time_on(self):
        use = self.use('intel')
        self.assertEqual({None}, {
            node.used.rate for node in use.measure_bandwidth().nodes})
        self.assertNotIn(None, {
            node.used.rate for node in use.measure_bandwidth().nodes})

    def test_host_without_a_monitor_measures_nothing(self):
        self.assertIsNone(self.use('mpam71').measure_bandwidth())
        self.assertNotIn('cannot measure', self.log.output)

    def test_error_is_logged_and_measures_nothing(self):
        self.assertIsNone(self.use('intel', x=1).measure_bandwidth())
        self.assertIn('cannot measure memory bandwidth on this host',
                      self.log.output)


class NovasMonitorsTest(base.TestCase):
    """Reason why Nova's numa.membw.* are not filled; see monitoring.rst."""

    def test_no_other_namespace_and_no_other_package(self):
        self.assertEqual(['nova.compute.monitors.cpu'],
                         monitors.MonitorHandler.NAMESPACES)
        handler = monitors.MonitorHandler.__new__(monitors.MonitorHandler)
        handler.type_monitor_loaded = dict.fromkeys(handler.NAMESPACES, False)
        for target in ('ghsched_nova.virt.membw:Monitor',
                       'nova.compute.monitors.numa.membw:Monitor'):
            self.assertRaises(
                KeyError, handler.check_enabled_monitor,
                types.SimpleNamespace(name='membw',
                                      entry_point_target=target))
