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

from concurrent import futures
from unittest import mock

from nova.virt.libvirt import host

from ghsched_nova.nova_fixes import libvirtd_restart_deadlock
from ghsched_placement.tests import base


class LibvirtGoneTest(base.TestCase):
    """libvirtd is restarted, and its client notices when it asks for it."""

    def setUp(self):
        super().setUp()
        self.host = host.Host('qemu:///system')
        libvirtd_restart_deadlock.make_connection_lock_reentrant(self.host)
        self.before, self.after = mock.Mock(), mock.Mock()
        self.host._wrapped_conn = self.before

    def test_who_asks_is_called_back(self):
        def test(conn):
            # As Host._connection_closed of Nova 33 and later does it.
            with self.host._wrapped_conn_lock:
                self.host._wrapped_conn = None
            return False
        with mock.patch.object(
                self.host, '_test_connection', test), mock.patch.object(
                    self.host, '_get_new_connection',
                    return_value=self.after):
            asking = futures.ThreadPoolExecutor().submit(
                self.host._get_connection)
            self.assertIs(self.after, asking.result(timeout=base.GIVE_UP_S))
