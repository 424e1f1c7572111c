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

"""The walk of one key, as the contributor guide has it, with a whole Nova."""

from ghsched_nova.tests.fixtures import walk
from ghsched_nova.tests.functional import nova_base

#: What nova-compute calls as root, in place of which the kernel's files of
#: these tests stand; see unit/test_design.py.
PRIVILEGED = ('ghsched_nova.resctrl.reconcile.reconcile_groups',
              'ghsched_nova.resctrl.plan.make_plan')
#: What a scrape of the exporter calls.
SCRAPE = ('ghsched_nova.monitor.', 'ghsched_nova.features.exporter.')


class WalkTest(nova_base.GhschedTestCase):

    def setUp(self):
        self.walk = self.useFixture(walk.Walk())
        super().setUp()

    def test_each_function_is_called_as_often_as_is_said(self):
        self.start_host()
        self.walk.calls.clear()
        self.boot(self.flavor(mem_bw_min=30))
        self.assertEqual(1, self.kernel.reconciled)
        self.assertEqual(
            {name: times for name, times in walk.steps().items()
             if not name.startswith(SCRAPE) and name not in PRIVILEGED},
            dict(self.walk.calls))
