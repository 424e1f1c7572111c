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

"""Limits of a project on what only the scheduler adds to a request."""

import fixtures
from nova.limit import local as local_limit
from nova.tests import fixtures as nova_fixtures

from ghsched_nova.tests.functional import nova_base
from ghsched_nova.tests.functional import test_lifecycle
from ghsched_nova.tests.functional import test_vfs

NOVAS = {
    local_limit.SERVER_METADATA_ITEMS: 128,
    local_limit.INJECTED_FILES: 5,
    local_limit.INJECTED_FILES_CONTENT: 10240,
    local_limit.INJECTED_FILES_PATH: 255,
    local_limit.KEY_PAIRS: 100,
    local_limit.SERVER_GROUPS: 10,
    local_limit.SERVER_GROUP_MEMBERS: 10,
    'servers': 100,
    'class:VCPU': 100,
    'class:PCPU': 100,
    'class:MEMORY_MB': 100000,
    'class:DISK_GB': 1000,
}


class UnifiedLimitsTest(test_vfs.VfsTestCase):

    def setUp(self):
        super().setUp()
        self.flags(driver='nova.quota.UnifiedLimitsDriver', group='quota')
        self.limits = self.useFixture(nova_fixtures.UnifiedLimitsFixture())
        self.limit()
        self.start((0, 4), (1, 4), nodes=2, sockets=1)

    def limit(self, **classes):
        """Register limits; of other classes a project may have any number."""
        self.limits.registered_limits_list.clear()
        for name, most in (*NOVAS.items(), *(
                (f'class:{name}', most) for name, most in classes.items())):
            self.limits.create_registered_limit(resource_name=name,
                                                default_limit=most)

    def assert_over(self, name, function, *args):
        error = self.assertRaises(nova_base.ApiException, function, *args)
        self.assertEqual(403, error.response.status_code)
        self.assertIn(f'class:{name}', error.response.text)

    def test_a_limit_on_each_binds_a_boot_and_a_resize(self):
        self.limit(CUSTOM_MEM_BW_PCT=60, CUSTOM_RESCTRL_GROUP=2)
        flavor = self.flavor(nodes=2, mem_bw_min=20, mem_bw_min__1=10)
        server = self.boot(flavor)
        self.assert_over('CUSTOM_MEM_BW_PCT', self.boot,
                         self.flavor(mem_bw_min=31))
        self.boot(self.flavor(mem_bw_max=50))
        self.assert_over('CUSTOM_RESCTRL_GROUP', self.boot,
                         self.flavor(mem_bw_max=50))
        self.limit(CUSTOM_MEM_BW_PCT=60, **{test_vfs.VF_CLASS: 3})
        self.assert_over('CUSTOM_MEM_BW_PCT', self._resize_server, server,
                         self.flavor(mem_bw_min=31))
        vfs = self.flavor(vfs='nic:2', vfs_locality='node')
        self.assert_over(test_vfs.VF_CLASS, self._resize_server, server,
                         self.flavor(nodes=2, vfs='nic:4'))
        self.boot(vfs)
        self.assert_over(test_vfs.VF_CLASS, self.boot, vfs)
        self.flags(allow_resize_to_same_host=True)
        with fixtures.MockPatch(test_lifecycle.MOVE_DISK, return_value='{}'):
            self._resize_server(server, self.flavor(mem_bw_min=30))
        self.assertEqual([30], list(self.bandwidth(server['id']).values()))
