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

"""A server that is deleted while its resize waits for a confirmation.

nova-compute ends after it has destroyed the domain, and before the record of
the server is gone.
"""


import fixtures
from nova import context as nova_context
from nova import objects

from ghsched_nova.tests.functional import openstack_base
from ghsched_nova.tests.functional import test_lifecycle

#: What nova-compute does between the domain and the record.
NEXT_STEP = 'nova.compute.manager.ComputeManager._cleanup_volumes'


class Killed(BaseException):
    """Ends nova-compute as a signal does: nothing of Nova's handles it."""


class DeletedWhileResizedTest(openstack_base.CommandTestCase):

    CAST_AS_CALL = False

    def setUp(self):
        super().setUp()
        for name in ('host_a', 'host_b'):
            self.start_host(name)

    def delete_and_kill(self, old, new):
        """Delete a resized server, end nova-compute, and start it again."""
        server = self.boot(old, host='host_a')
        with fixtures.MockPatch(test_lifecycle.MOVE_DISK, return_value='{}'):
            self._resize_server(server, new)
        died = []

        def die(*_args, **_kwargs):
            died.append(1)
            raise Killed

        with fixtures.MockPatch(NEXT_STEP, side_effect=die):
            self.api.delete_server(server['id'])
            self.wait_until(lambda: died)
        self.restart_compute_service('host_b')
        return server

    def exists(self, server):
        return bool(objects.InstanceList.get_by_filters(
            nova_context.get_admin_context(),
            {'uuid': server['id'], 'deleted': False}))

    def test_server_with_our_keys_is_gone_when_its_host_is_back(self):
        server = self.delete_and_kill(self.flavor(mem_bw_min=30),
                                      self.flavor(mem_bw_min=60))
        self.wait_until(lambda: not self.exists(server))
        self.assertEqual({}, self.resources(server['id']))

    def test_plain_server_is_left_as_nova_leaves_it(self):
        server = self.delete_and_kill(self.flavor(), self.flavor(ram=1024))
        found = self.api.get_server(server['id'])
        self.assertEqual(('ACTIVE', None), (
            found['status'], found['OS-EXT-STS:task_state']))
