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

"""The passwords of the demo's cloud."""

import stat
from unittest import mock

from ghsched_nova.tests.fixtures import cloud_tools


class PasswordsTest(cloud_tools.CloudToolsTestCase):

    def test_passwords_of_users_differ_and_stay(self):
        users = ('admin', 'tenant', 'nova', 'neutron', 'placement')
        found = [self.settings.password_of(user) for user in users]
        found.append(self.settings.broker_password)
        self.assertEqual(len(found), len(set(found)))
        self.assertGreater(min(map(len, found)), 30)
        self.assertEqual(found[0], self.settings.password_of('admin'))
        for path in self.home.rglob('*'):
            mode = stat.S_IMODE(path.stat().st_mode)
            self.assertEqual(0o700 if path.is_dir() else 0o600, mode)

    def test_credentials_of_the_tenant_have_a_password_of_its_own(self):
        from aio import tenant
        self.assertNotIn(
            tenant.credentials(self.settings)['OS_PASSWORD'],
            self.settings.admin.values())

    def test_bootstrap_has_no_password_on_its_command_line(self):
        from aio import catalog
        with (mock.patch.object(catalog.database, 'run') as run,
              mock.patch.object(catalog, 'is_done', return_value=False),
              mock.patch.object(catalog, 'done')):
            catalog.bootstrap(self.settings)
        command, environment = run.call_args.args
        password = self.settings.password_of('admin')
        self.assertFalse([word for word in command if password in word])
        self.assertEqual({'OS_BOOTSTRAP_PASSWORD': password}, environment)
