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


from ghsched_nova.features.load import load_metrics
from ghsched_nova.monitor import view
from ghsched_nova.tests.fixtures import dashboards
from ghsched_placement.features.load.load import GuestNodeLoad
from ghsched_placement.features.load.load import HostLoad
from ghsched_placement.features.load.load import HostNodeLoad
from ghsched_placement.tests import base

RECORD = HostLoad(1.0, 60.0, (
    HostNodeLoad(0, cpu_load=0.95, cpu_wait=0.5, io_wait=2.0,
                 bottlenecks=('cpu_load', 'cpu_wait')),
    HostNodeLoad(1, cpu_load=0.0, bottlenecks=())), (
    GuestNodeLoad('a', 0, 0, 2, 1024, cpu_load=1.0, cpu_wait=0.5),))


class MetricsTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.found = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in load_metrics.make_load_metrics(
                RECORD, [view.MonitoredGuest('g', 'a', 1)])
            for sample in family.samples}

    def test_load_and_waiting_are_by_node_and_resource(self):
        self.assertEqual(0.5, self.found[
            'ghsched_node_wait', ('node', '0'), ('resource', 'cpu')])
        self.assertEqual(0.0, self.found[
            'ghsched_node_load', ('node', '1'), ('resource', 'cpu')])

    def test_unknown_values_have_no_sample(self):
        self.assertNotIn(('ghsched_node_wait', ('node', '1'),
                          ('resource', 'cpu')), self.found)

    def test_a_bottleneck_is_1_and_what_is_known_to_be_none_0(self):
        self.assertEqual([1.0, 0.0, 0.0], [
            self.found['ghsched_node_bottleneck', ('figure', figure),
                       ('node', node)]
            for figure, node in (('cpu_load', '0'), ('io_wait', '0'),
                                 ('cpu_load', '1'))])

    def test_guests_have_their_names(self):
        self.assertEqual(1.0, self.found[
            'ghsched_guest_cpu_load_ratio', ('guest_name', 'g'),
            ('guest_node', '0'), ('guest_uuid', 'a'), ('node', '0')])

    def test_dashboard_asks_for_metrics_that_exist(self):
        asked = dashboards.read_metrics(self, 'ghsched-numa.json')
        self.assertLessEqual(
            asked,
            {
                family.name
                for family in load_metrics.make_load_metrics(RECORD, [])})

    def test_there_is_nothing_before_the_first_measurement(self):
        self.assertEqual([], list(load_metrics.make_load_metrics(None, [])))
