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

"""``ghsched-host retire``: what keeps a host from being retired."""

import contextlib
import io
import types
from unittest import mock

from ghsched_nova.cmd import configured
from ghsched_nova.cmd import host
from ghsched_nova.features.doctor import retire
from ghsched_nova.tests.fixtures import malformed_guests
from ghsched_placement.tests import base


class RetireTest(base.TestCase):

    def setUp(self):
        super().setUp()
        self.options = types.SimpleNamespace(compute_driver=None, ghsched=1)
        shared = 'ghsched_nova.nova_seams.shared'
        self.read = self.enterContext(
            mock.patch.object(retire.set_command, 'read_nova_service_conf'))
        self.enterContext(mock.patch(f'{shared}.config',
                                     return_value=self.options))
        self.enterContext(mock.patch(f'{shared}.get_placement_client',
                                     return_value='client'))

    def test_a_host_that_would_report_it_all_again_is_left_alone(self):
        self.options.compute_driver = 'ghsched.GhschedLibvirtDriver'
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            self.assertEqual(2, host.main(['retire', '--config-file', 'own']))
        self.assertIn('is still set in own; stop nova-compute',
                      err.getvalue())

    def test_host_without_compute_driver_is_accepted(self):
        self.assertEqual(
            ('client', 1),
            retire.load_retire_configuration(['own'], dry_run=False),
        )

    def test_files_of_nova_compute_are_read_by_default(self):
        files = ['/etc/nova/nova.conf', '/etc/nova/ghsched-compute.conf']
        with mock.patch.object(configured, 'list_nova_conf_files',
                               return_value=files):
            retire.load_retire_configuration(None, dry_run=False)
        self.assertEqual(files, self.read.call_args.args[1])

    def test_guest_with_malformed_xml_is_named_like_the_other(self):
        for bad in range(len(malformed_guests.BAD)):
            self.assertEqual(2, len(list(retire._describe_guests_with_policy(
                malformed_guests.list_guests(bad)))))
