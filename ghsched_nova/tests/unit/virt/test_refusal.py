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

from nova import exception

from ghsched_nova.guest import pci_topology
from ghsched_nova.host import allocation_check
from ghsched_nova.resctrl import fs
from ghsched_nova.virt import refusal
from ghsched_placement.flavor import policy
from ghsched_placement.tests import base


class RefusalTest(base.TestCase):

    HOST = '/sys/fs/resctrl/qemu-1 of host NUMA node 3, 0000:81:00.1'

    def test_no_error_of_ours_shows_a_tenant_the_host(self):
        for kind in (*refusal.CANNOT_ENFORCE, allocation_check.ClaimMismatch):
            if kind is policy.PolicyError:
                continue
            text = refusal.describe_error_for_tenant(kind(self.HOST))
            self.assertNotIn(self.HOST, text)
            self.assertIn('the flavor' if 'flavor' in text else 'ghsched:',
                          text)

    def test_the_reason_of_a_flavor_is_its_own(self):
        self.assertEqual(
            'ghsched: ghsched:mem_bw_min: 60 is more than 50',
            refusal.describe_error_for_tenant(policy.PolicyError(
                'ghsched:mem_bw_min', '60 is more than 50')))

    def test_each_kind_names_its_keys(self):
        for error, key in ((fs.GroupError(''), 'mem_bw_*'),
                           (pci_topology.DeviceNumaError(''), 'device_numa'),
                           (allocation_check.ClaimMismatch(''),
                            'ghsched:vfs')):
            self.assertIn(key, refusal.describe_error_for_tenant(error))

    def test_the_log_has_what_the_tenant_has_not(self):
        error = refusal.log_refusal(fs.GroupError(self.HOST), None)
        self.assertIs(exception.ComputeResourcesUnavailable, type(error))
        self.assertNotIn(self.HOST, str(error))

    def test_memory_that_cannot_be_locked_is_reported_with_its_key(self):
        for text in (
                'internal error: Process exited prior to exec: libvirt: error '
                ': cannot limit locked memory of process 18840 to 9007199254',
                'internal error: QEMU unexpectedly closed the monitor (vm='
                "'instance-18840'): mlockall: Operation not permitted\n"
                'qemu-system-x86_64: locking memory failed'):
            self.check_text(text)

    def check_text(self, text):
        for specs, raised in (({'ghsched:lock_memory': 'true'},
                               exception.ComputeResourcesUnavailable),
                              ({'hw:locked_memory': 'true'}, OSError)):
            instance = types.SimpleNamespace(
                flavor=types.SimpleNamespace(extra_specs=specs))
            with (self.assertRaises(raised) as caught,
                  refusal.naming_lock_memory(instance, OSError)):
                raise OSError(text)
            if raised is not OSError:
                self.assertIn('(ghsched:lock_memory)', str(caught.exception))
                self.assertNotIn('18840', str(caught.exception))
        with (self.assertRaisesRegex(OSError, 'no such file'),
              refusal.naming_lock_memory(instance, OSError)):
            raise OSError('no such file')
