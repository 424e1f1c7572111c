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


from ghsched_nova.lab.emulator import namespace
from ghsched_placement.tests import base


class MigrationConfTest(base.TestCase):
    def test_guests_are_received_at_an_address_and_ports(self):
        self.assertEqual([
            'migration_address = "127.0.1.2"',
            'migration_host = "127.0.1.2"',
            'migration_port_min = 18060',
            'migration_port_max = 18079',
        ], namespace.migration_conf('127.0.1.2:18060-18079').splitlines())

    def test_anything_but_ports_is_refused(self):
        self.assertRaises(ValueError, namespace.migration_conf,
                          '127.0.1.2:some-more')
