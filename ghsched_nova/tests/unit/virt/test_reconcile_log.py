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

"""Level of the log lines about guests whose policy cannot be enforced."""

import contextlib
import logging
from unittest import mock

import ddt
import fixtures

from ghsched_nova.resctrl import group_plan
from ghsched_nova.resctrl import model
from ghsched_nova.virt import enforcement
from ghsched_nova.virt import libvirt_reader
from ghsched_placement.tests import base


@ddt.ddt
class ReconcileLogTest(base.TestCase):

    @ddt.data((group_plan.NO_VCPU_THREADS, 'WARNING'),
              ('the control group is not there, and '
               + group_plan.NO_VCPU_THREADS, 'WARNING'),
              ('the guest has threads of 1 vCPUs, 2 are expected', 'ERROR'))
    @ddt.unpack
    def test_guest_that_ends_is_a_warning_and_others_an_error(
            self, reason, level):
        log = self.useFixture(fixtures.FakeLogger(
            format='%(levelname)s %(message)s', level=logging.INFO))
        guest = mock.Mock(uuid='u')
        engine, guests = mock.Mock(), mock.Mock()
        engine.reconcile_groups.return_value = [
            model.PolicyProblem('u', 'group', reason)]
        guests.host.list_guests.return_value = [guest]
        self.enterContext(mock.patch.object(libvirt_reader, 'is_running',
                                            return_value=True))
        enforcement.PolicyEnforcer(
            engine, mock.Mock(), guests,
            contextlib.nullcontext()).reconcile_all_guests()
        self.assertIn(f'{level} ghsched: cannot enforce', log.output)
