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

"""Calls that a scrape makes of the functions of the design guide."""

from ghsched_nova.features.exporter import metrics
from ghsched_nova.features.top import guest_reader
from ghsched_nova.features.top import top_source
from ghsched_nova.tests.fixtures import pylibvirt
from ghsched_nova.tests.fixtures import trees
from ghsched_nova.tests.fixtures import walk
from ghsched_placement.tests import base


class ScrapeWalkTest(base.TestCase):

    def test_one_scrape_goes_by_each_function_as_often_as_is_said(self):
        host = trees.Host('openeuler66', '0=0-3')
        self.addCleanup(host.remove)
        host.run(1.0)
        module = pylibvirt.Module(pylibvirt.Domain(7, pylibvirt.ELEMENT))
        collector = metrics.HostCollector(top_source.HostReader(
            host.reader, guest_reader.LibvirtReader('test:///', module)))
        calls = self.useFixture(walk.Walk()).calls
        self.assertTrue(list(collector.collect()))
        self.assertEqual(*walk.select_room('.monitor.', calls))
