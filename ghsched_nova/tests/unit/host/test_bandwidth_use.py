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


"""What nova-compute reports of the use of bandwidth."""

import types

import fixtures
from nova.compute import monitors

from ghsched_nova.host import bandwidth_use
from ghsched_nova.monitor import stats
from ghsched_nova.tests.fixtures import options
from ghsched_nova.tests.fixtures import trees
from ghsched_placement.tests import base


class BandwidthUseTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(level=10))

    def use(self, dialect, **told):
        self.host = trees.Host(dialect)
        self.addCleanup(self.host.remove)
        section = options.Section(
            resctrl_path=str(self.host.root),
            sysfs_path=str(self.host.top / 'sysfs'), node_bandwidth=told)
        return bandwidth_use.BandwidthUse(section)

    def test_is_beside_what_nova_reports(self):
        use = self.use('openeuler66', **{'0': 1000})
        found = use.add_to_stats({'vcpus': 4, 'stats': {'uptime': '1 day'}})
        self.assertEqual((4, '1 day', {'uptime', stats.KEY}), (
            found['vcpus'], found['stats']['uptime'], set(found['stats'])))
        self.assertIn('"0": [0, 1000000000]', found['stats'][stats.KEY])

    def test_counters_report_from_the_second_time_on(self):
        use = self.use('intel')
        self.assertEqual({}, use.add_to_stats({})['stats'])
        self.assertIn(stats.KEY, use.add_to_stats({})['stats'])

    def test_host_without_a_monitor(self):
        resources = {'stats': {'uptime': 'x'}}
        self.assertEqual({'stats': {'uptime': 'x'}},
                         self.use('mpam71').add_to_stats(resources))
        self.assertNotIn('cannot measure', self.log.output)

    def test_an_error_keeps_no_host_from_reporting(self):
        use = self.use('intel', x=1)
        self.assertEqual({'vcpus': 4}, use.add_to_stats({'vcpus': 4}))
        self.assertIn('cannot measure memory bandwidth use', self.log.output)


class NovasMonitorsTest(base.TestCase):
    """Why numa.membw.* of Nova are not filled; see monitoring.rst."""

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
