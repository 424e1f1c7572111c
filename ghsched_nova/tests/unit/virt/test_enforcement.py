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

from ghsched_nova.guest import metadata
from ghsched_nova.guest import pci_topology
from ghsched_nova.host import desired
from ghsched_nova.nova_seams import shared
from ghsched_nova.resctrl import fs
from ghsched_nova.resctrl import resctrl_host
from ghsched_nova.virt import enforcement
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base

OF_BANDWIDTH = (resctrl_host.ResctrlUnavailable('gone'),
                fs.GroupError('refused'), desired.DomainError('a device'))
OTHERS = (metadata.MetadataError('unreadable'),
          pci_topology.DeviceNumaError('no port'),
          policy.PolicyError('ghsched:vcpu_scheduler', 'refused'),
          RuntimeError('boom'))


class MayStartTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.section = types.SimpleNamespace(unprotected_guests='start')
        self.enterContext(mock.patch.object(
            shared, 'config', return_value=types.SimpleNamespace(
                ghsched=self.section)))

    def starts(self, errors):
        return {
            enforcement.may_start_unprotected(error, None)
            for error in errors
        }

    def test_bandwidth_errors_of_a_guest_of_the_host_are_allowed(self):
        self.assertEqual({True}, self.starts(OF_BANDWIDTH))

    def test_other_errors_are_not_allowed(self):
        self.assertEqual({False}, self.starts(OTHERS))

    def test_no_error_is_allowed_under_the_default_rule(self):
        self.section.unprotected_guests = 'refuse'
        self.assertEqual({False}, self.starts((*OF_BANDWIDTH, *OTHERS)))

    def test_no_error_is_allowed_for_a_guest_that_arrives(self):
        @enforcement.refusing_unprotected_guests()
        def spawn():
            with enforcement.refusing_unprotected_guests():
                inner = self.starts(OF_BANDWIDTH)
            return inner | self.starts(OF_BANDWIDTH)

        self.assertEqual({False}, spawn())
        self.assertEqual({True}, self.starts(OF_BANDWIDTH))

    def test_guest_that_arrives_and_fails_leaves_no_mark(self):
        with self.assertRaisesRegex(
                ValueError, 'x'), enforcement.refusing_unprotected_guests():
            raise ValueError('x')
        self.assertEqual({True}, self.starts(OF_BANDWIDTH))
