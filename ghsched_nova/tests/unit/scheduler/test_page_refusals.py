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

"""Refusals of guests that request huge pages which no host NUMA node has."""

import fixtures
from nova import objects

from ghsched_nova.scheduler import filters
from ghsched_nova.tests.fixtures import states
from ghsched_nova.tests.unit.scheduler import test_forged_reports as reports
from ghsched_placement.tests import base

SMALL, HUGE, GIGANTIC = 4, 2048, 1048576
#: MiB free on both NUMA nodes, by page size in KiB.
FREE = {SMALL: 1024, HUGE: 128, GIGANTIC: 0}


class PageRefusalTest(base.TestCase):

    def setUp(self):
        super().setUp()
        states.stop_clock(self)
        self.log = self.useFixture(fixtures.FakeLogger())

    def refuse(self, page_size, memory, cpus=2):
        host = reports.make_host('good')
        for cell in host.numa_topology.cells:
            cell.mempages = [objects.NUMAPagesTopology(
                size_kb=size, total=free * 1024 // size, used=0, reserved=0)
                for size, free in FREE.items()]
        request = reports.make_request({'ghsched:mem_bw_min': '30'})
        for cell in request.numa_topology.cells:
            cell.pagesize, cell.memory = page_size, memory
            cell.pcpuset = set(range(cpus))
        self.assertEqual([], list(
            filters.GhschedNUMATopologyFilter().filter_all([host], request)))
        return self.log.output

    def test_report_that_cannot_be_counted_costs_its_own_host_only(self):
        self.patch(filters.host_nodes, 'find_page_shortage',
                   lambda _state, _topology: 1 / 0)
        self.assertIn('refused on 1 host', self.refuse(HUGE, 256))

    def test_missing_pages_are_named_with_their_size_and_free_memory(self):
        text = self.refuse(HUGE, 256)
        self.assertIn('no NUMA node has 128 pages of 2 MB free '
                      '(hw:mem_page_size)', text)
        self.assertIn('64 of 64 free on NUMA node 0, '
                      '64 of 64 free on NUMA node 1', text)

    def test_pages_of_which_the_host_has_none_are_named(self):
        self.assertIn('no NUMA node has 1 pages of 1 GB free',
                      self.refuse(GIGANTIC, 1024))

    def test_pages_that_do_not_divide_the_memory_are_not_named(self):
        text = self.refuse(HUGE, 127)
        self.assertIn('refused on 1 host', text)
        self.assertNotIn('pages', text)

    def test_large_pages_of_any_size_are_named(self):
        self.assertIn('no NUMA node has 256 MB of memory in huge pages free',
                      self.refuse(-2, 256))

    def test_free_pages_are_not_named_where_something_else_is_missing(self):
        text = self.refuse(HUGE, 128, cpus=64)
        self.assertIn('refused on 1 host', text)
        self.assertNotIn('pages', text)
